//! Keeps the last changes of standings in LEDGER's order: enough to answer what changed a moment ago, not a
//! history. The log has a fixed size; a request for more than it holds learns that it is incomplete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_contract::notify::{StandingChange, Stood, Subscription};
use muster_contract::view::AsOf;
use muster_contract::{ComponentName, DeploymentId, DeviceKey, Generation, SiteId};

use super::app_spec::AppSpec;
use super::axes::is_among;
use super::standing::{CountClass, DeviceContext, Row};
use super::totals::Totals;

/// Changes that are kept: about what a busy fleet does within the shortest window of a notice.
pub(super) const CHANGE_LOG_MAX: usize = 8192;

/// The log, complete after a position.
#[derive(Debug)]
pub(super) struct ChangeLog {
    ring: VecDeque<ChangeEntry>,
    /// Changes that are kept, at most.
    max: usize,
    /// Every change after this position is in the ring.
    complete_after: u64,
    /// The position of the last change of a row that is not shown: a component may be known by its report
    /// alone.
    unseen_at: u64,
    /// The position of the last change of a partition's hearing: it affects every device there.
    hearing_changed_at: u64,
}

/// A change of a standing or of its details, or the first appearance of a device.
#[derive(Debug)]
struct ChangeEntry {
    at: AsOf,
    site: u32,
    device: u32,
    /// None for a device that appeared.
    deployment: Option<DeploymentId>,
    from: Option<Side>,
    to: Option<Side>,
}

/// How a row stood, and for which target.
pub(super) type StoodFor = (Stood, Option<Generation>);

/// One side of a change: the row's standing, and the values that filters read. The spec is released with the
/// row, so a removed row could not be filtered later.
#[derive(Debug, Clone)]
pub(super) struct Side {
    stood: Stood,
    /// The generation at which its target last changed; none if the device is no target.
    target: Option<Generation>,
    /// None where no spec was assigned.
    spec: Option<Arc<AppSpec>>,
    /// Components known by the report alone: hardly ever any, unless the row is leaving.
    also: Box<[ComponentName]>,
}

/// The objects that may have changed since a position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedSince {
    /// The log is incomplete, or the hub's hearing changed: anything may have changed.
    pub all: bool,
    /// Devices with a changed standing.
    pub devices: BTreeSet<DeviceKey>,
    /// Deployments with a changed standing.
    pub deployments: BTreeSet<DeploymentId>,
    /// Sites at which a standing changed.
    pub sites: BTreeSet<SiteId>,
    /// Devices that were never heard of before.
    pub appeared: BTreeSet<DeviceKey>,
    /// Sites at which a device appeared; one that was not there before may be one of them.
    pub appeared_at: BTreeSet<SiteId>,
    /// Applications that came to a row or went from it: whether they run anywhere may have changed.
    pub apps: BTreeSet<Arc<str>>,
    /// Components that came to a row or went from it.
    pub components: BTreeSet<ComponentName>,
    /// A row began or ended to leave, or a row that is not shown changed: its components are known by its
    /// report alone.
    pub left: bool,
}

impl Default for ChangeLog {
    fn default() -> Self {
        Self::of_size(CHANGE_LOG_MAX)
    }
}

impl ChangeLog {
    /// A log of at most `max` changes. One of none is incomplete after each change.
    pub(super) const fn of_size(max: usize) -> Self {
        Self { ring: VecDeque::new(), max, complete_after: 0, unseen_at: 0, hearing_changed_at: 0 }
    }

    /// Empties the log, which is then complete after this position.
    pub(super) fn reset(&mut self, ledger_seq: u64) {
        self.ring.clear();
        self.complete_after = ledger_seq;
    }

    /// Logs a change of a row. A row that was and is not shown is not logged.
    pub(super) fn push(
        &mut self,
        at: AsOf,
        place: (u32, u32),
        deployment: &DeploymentId,
        from: Option<Side>,
        to: Option<Side>,
    ) {
        if from.is_none() && to.is_none() {
            self.unseen_at = at.ledger_seq;
            return;
        }
        let (site, device) = place;
        self.append(ChangeEntry { at, site, device, deployment: Some(deployment.clone()), from, to });
    }

    /// Notes that the hub stopped or resumed hearing a partition.
    pub(super) const fn mark_hearing_changed(&mut self, ledger_seq: u64) {
        self.hearing_changed_at = ledger_seq;
    }

    /// Logs a new device: its site may be new as well.
    pub(super) fn push_device(&mut self, at: AsOf, place: (u32, u32)) {
        let (site, device) = place;
        self.append(ChangeEntry { at, site, device, deployment: None, from: None, to: None });
    }

    fn append(&mut self, shift: ChangeEntry) {
        if self.ring.len() >= self.max {
            // Before the append, so that a full ring does not grow. A log of no size loses the change itself.
            let lost = self.ring.pop_front().map_or(shift.at.ledger_seq, |lost| lost.at.ledger_seq);
            self.complete_after = self.complete_after.max(lost);
        }
        if self.max > 0 {
            self.ring.push_back(shift);
        }
    }

    fn after(&self, ledger_seq: u64) -> impl Iterator<Item = &ChangeEntry> {
        let first = self.ring.partition_point(|shift| shift.at.ledger_seq <= ledger_seq);
        self.ring.range(first..)
    }

    /// Each change of a row after a position, with both sides.
    pub(super) fn changed_after(
        &self,
        ledger_seq: u64,
    ) -> impl Iterator<Item = (u32, &DeploymentId, Option<&Side>, Option<&Side>)> {
        self.after(ledger_seq).filter_map(move |entry| {
            let deployment = entry.deployment.as_ref()?;
            Some((entry.device, deployment, entry.from.as_ref(), entry.to.as_ref()))
        })
    }

    pub(super) const fn is_complete_after(&self, ledger_seq: u64) -> bool {
        self.complete_after <= ledger_seq
    }

    /// The objects that may have changed since a position. `key` names a device by its number.
    pub(super) fn changed(
        &self,
        ledger_seq: u64,
        totals: &Totals,
        key: impl Fn(u32) -> DeviceKey,
    ) -> ChangedSince {
        let all = !self.is_complete_after(ledger_seq) || self.hearing_changed_at > ledger_seq;
        let mut changed = ChangedSince { all, ..ChangedSince::default() };
        if changed.all {
            return changed;
        }
        changed.left = self.unseen_at > ledger_seq;
        for shift in self.after(ledger_seq) {
            changed.devices.insert(key(shift.device));
            changed.sites.insert(totals.site(shift.site).id.clone());
            if shift.deployment.is_none() {
                changed.appeared.insert(key(shift.device));
                changed.appeared_at.insert(totals.site(shift.site).id.clone());
            }
            changed.deployments.extend(shift.deployment.clone());
        }
        changed.insert_names(self.after(ledger_seq));
        changed
    }

    /// The change of each `wanted` standing since a position, as far as it passed the filters by application
    /// and component: from its side then to its side now. Unchanged standings are left out.
    pub(super) fn changes(
        &self,
        ledger_seq: u64,
        key: impl Fn(u32) -> DeviceKey,
        wanted: impl Fn(&DeviceKey, &DeploymentId) -> bool,
        filters: &Subscription,
    ) -> Vec<StandingChange> {
        let passing =
            |side: &Option<Side>| side.as_ref().filter(|side| side.passes(filters)).map(|side| side.stood);
        let mut found: BTreeMap<(DeviceKey, &DeploymentId), StandingChange> = BTreeMap::new();
        for ChangeEntry { at, device, deployment, from, to, .. } in self.after(ledger_seq) {
            let (device, Some(deployment)) = (key(*device), deployment) else { continue };
            if !wanted(&device, deployment) {
                continue;
            }
            let (from, to) = (passing(from), passing(to));
            let change = found.entry((device.clone(), deployment)).or_insert_with(|| StandingChange {
                key: device,
                deployment: deployment.clone(),
                from,
                to,
                ledger_seq: at.ledger_seq,
                at: at.at,
            });
            if change.to != to {
                (change.to, change.ledger_seq, change.at) = (to, at.ledger_seq, at.at);
            }
        }
        found.into_values().filter(|change| change.from != change.to).collect()
    }
}

impl ChangedSince {
    /// Collects the names by which a subscription may refer to the changes. Many changes share few specs, so
    /// each spec is visited once.
    fn insert_names<'a>(&mut self, change_log: impl Iterator<Item = &'a ChangeEntry>) {
        let mut turned: BTreeMap<*const AppSpec, &AppSpec> = BTreeMap::new();
        for ChangeEntry { from, to, .. } in change_log {
            let leaving = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.stood.leaving);
            self.left |= leaving(from) != leaving(to);
            let [was, is] = [from, to].map(|side| side.as_ref().and_then(|side| side.spec.as_ref()));
            let is_same = match (was, is) {
                (Some(was), Some(is)) => Arc::ptr_eq(was, is) || was == is,
                (was, is) => was.is_none() && is.is_none(),
            };
            if !is_same {
                turned.extend(was.into_iter().chain(is).map(|spec| (Arc::as_ptr(spec), &**spec)));
            }
            let [was, is] = [from, to].map(|side| side.as_ref().map_or(&[][..], |side| &*side.also));
            if was != is {
                let [was, is] = [was, is].map(|names| names.iter().collect::<BTreeSet<_>>());
                self.components.extend(was.symmetric_difference(&is).copied().cloned());
            }
        }
        for spec in turned.into_values() {
            self.components.extend(spec.components.iter().cloned());
            self.apps.insert(spec.application.clone());
        }
    }
}

impl Side {
    /// The visible side of a row; none where the row is not shown.
    pub(super) fn of(row: &Row, class: CountClass, context: &DeviceContext, totals: &Totals) -> Option<Self> {
        let stood = stood(row, class, context)?;
        let spec = totals.specs.shared(row.spec);
        // A leaving row still belongs to its application, and to the components that it reports.
        let asked =
            spec.as_ref().filter(|_| !stood.leaving).map(|spec| &*spec.components).unwrap_or_default();
        let reported = row.report.as_ref().map_or(&[][..], |report| &**report.components);
        let also = reported.iter().enumerate().filter(|(at, (name, _))| !is_among(asked, *at, name));
        let also = also.map(|(_, (name, _))| name.clone()).collect();
        Some(Self { stood, target: row.target, spec, also })
    }

    /// The standing, and for which target.
    pub(super) const fn stood_for(&self) -> StoodFor {
        (self.stood, self.target)
    }

    /// Whether every filter treats both sides alike, and the standing is the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.stood_for() == other.stood_for() && self.spec == other.spec && self.also == other.also
    }

    /// Whether it passes the filters by application and by component, as it would in a question about status.
    pub(super) fn passes(&self, Subscription { app, component, .. }: &Subscription) -> bool {
        let of_app = |spec: &Arc<AppSpec>| app.iter().any(|app| **app == *spec.application);
        let asked = self.spec.iter().filter(|_| !self.stood.leaving).flat_map(|spec| &spec.components);
        (app.is_empty() || self.spec.as_ref().is_some_and(of_app))
            && (component.is_empty() || asked.chain(&self.also).any(|name| component.contains(name)))
    }
}

/// The visible standing of a row; none where the row is not shown.
fn stood(row: &Row, class: CountClass, context: &DeviceContext) -> Option<Stood> {
    let (standing, known, leaving, overdue) = match class {
        CountClass::Nothing => return None,
        CountClass::Leaving => (row.standing()?, row.is_known(context), true, false),
        CountClass::Target { standing, known, overdue, .. } => (standing, known, false, overdue),
    };
    Some(Stood { standing, freshness: context.freshness, known, leaving, overdue })
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;
    use muster_contract::view::{Freshness, Standing};

    use super::*;

    fn as_stood(standing: Standing) -> Stood {
        Stood { standing, freshness: Freshness::Fresh, known: true, leaving: false, overdue: false }
    }

    fn is(standing: Standing) -> Option<Side> {
        Some(Side { stood: as_stood(standing), target: None, spec: None, also: Box::default() })
    }

    fn everything() -> Subscription {
        Subscription::named("all".parse().unwrap())
    }

    fn at(ledger_seq: u64) -> AsOf {
        AsOf { ledger_seq, at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn a_reverted_standing_is_no_change_and_the_last_one_holds() {
        let (web, db): (DeploymentId, DeploymentId) = ("web".parse().unwrap(), "db".parse().unwrap());
        let key: DeviceKey = "plant7/press-4".parse().unwrap();
        let mut change_log = ChangeLog::default();
        change_log.push(at(1), (0, 0), &web, None, is(Standing::Waiting));
        change_log.push(at(2), (0, 0), &web, is(Standing::Waiting), is(Standing::Installing));
        change_log.push(at(3), (0, 0), &db, is(Standing::Installed), is(Standing::Failed));
        change_log.push(at(4), (0, 0), &db, is(Standing::Failed), is(Standing::Installed));
        change_log.push(at(5), (0, 0), &web, is(Standing::Installing), is(Standing::Installing));
        let changes = change_log.changes(1, |_| key.clone(), |_, _| true, &everything());
        assert_eq!(changes.len(), 1, "{changes:?}");
        let [was, is] = [Standing::Waiting, Standing::Installing].map(as_stood);
        assert_eq!((changes[0].from, changes[0].to), (Some(was), Some(is)));
        assert_eq!(changes[0].ledger_seq, 2);
        assert!(change_log.changes(1, |_| key.clone(), |_, id| *id == db, &everything()).is_empty());
    }

    /// A side with a spec, and with components known by its report alone.
    fn of(spec: &Arc<AppSpec>, also: &[&str]) -> Option<Side> {
        let also = also.iter().map(|name| name.parse().unwrap()).collect();
        Some(Side { stood: as_stood(Standing::Installed), target: None, spec: Some(spec.clone()), also })
    }

    #[test]
    fn names_change_with_a_rows_spec_and_with_its_reported_components() {
        let spec = |app: &str, part: &str| {
            let components = [part.parse().unwrap()].into();
            Arc::new(AppSpec { application: app.into(), name: app.into(), components, stopped: false })
        };
        let (web, db) = (spec("web", "main"), spec("db", "disk"));
        for (from, to, apps, components) in [
            (of(&web, &[]), of(&web, &[]), &[][..], &[][..]),
            (of(&web, &[]), of(&spec("web", "main"), &[]), &[], &[]),
            (of(&web, &[]), is(Standing::Waiting), &["web"], &["main"]),
            (None, of(&db, &[]), &["db"], &["disk"]),
            (of(&db, &[]), of(&web, &[]), &["db", "web"], &["disk", "main"]),
            (of(&web, &["old", "side"]), of(&web, &["side"]), &[], &["old"]),
        ] {
            let mut change_log = ChangeLog::default();
            for seq in 1..=3 {
                change_log.push(at(seq), (0, 0), &"web".parse().unwrap(), from.clone(), to.clone());
            }
            let mut changed = ChangedSince::default();
            changed.insert_names(change_log.after(1));
            assert_eq!(changed.apps.iter().map(|app| &**app).collect::<Vec<_>>(), apps, "{from:?} {to:?}");
            let names: Vec<_> = changed.components.iter().map(ComponentName::as_str).collect();
            assert_eq!(names, components, "{from:?} {to:?}");
        }
    }

    #[test]
    fn a_full_log_reports_that_it_is_incomplete() {
        let web: DeploymentId = "web".parse().unwrap();
        let mut change_log = ChangeLog::default();
        change_log.reset(10);
        assert!(change_log.is_complete_after(10) && !change_log.is_complete_after(9));
        for seq in 0..=CHANGE_LOG_MAX as u64 {
            change_log.push(at(11 + seq), (0, 0), &web, None, is(Standing::Waiting));
        }
        assert_eq!(change_log.ring.len(), CHANGE_LOG_MAX);
        assert!(change_log.is_complete_after(11) && !change_log.is_complete_after(10));
    }

    #[test]
    fn a_log_of_no_size_keeps_nothing_and_is_incomplete_after_each_change() {
        let web: DeploymentId = "web".parse().unwrap();
        let mut change_log = ChangeLog::of_size(0);
        change_log.reset(10);
        assert!(change_log.is_complete_after(10));
        change_log.push(at(11), (0, 0), &web, None, is(Standing::Waiting));
        assert!(change_log.ring.is_empty() && !change_log.is_complete_after(10));
        assert!(change_log.is_complete_after(11));
    }
}
