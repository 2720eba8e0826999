//! The last standings that changed, in the order of LEDGER: enough to say what is otherwise than a moment ago, and not the
//! history. It has a fixed size; whoever asks for more than it holds is told that there was more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_contract::notify::{StandingChange, Stood, Subscription};
use muster_contract::view::AsOf;
use muster_contract::{ComponentName, DeploymentId, DeviceKey, SiteId};

use super::blueprint::Blueprint;
use super::standing::{Facet, Row, Share};
use super::totals::Totals;

/// Changes that are kept: about what a busy fleet does within the shortest window of a notice.
pub(super) const SHIFTS_MAX: usize = 8192;

/// Changes since the position after which all of them are here.
#[derive(Debug, Default)]
pub(super) struct Shifts {
    ring: VecDeque<Shift>,
    /// Every change after this position is in the ring.
    complete_after: u64,
    /// Where a row that nobody sees was altered last: a component may be known by its report alone.
    unseen_at: u64,
    /// Where the hub stopped to listen to a partition, or listened again, last: that is said of everything there.
    turned_at: u64,
}

/// A standing that changed, or of which something within changed; or a device that was never heard of before.
#[derive(Debug)]
struct Shift {
    at: AsOf,
    site: u32,
    device: u32,
    /// None where it is a device that appeared.
    deployment: Option<DeploymentId>,
    from: Option<Side>,
    to: Option<Side>,
}

/// One side of a change: how a row stood, and what filters saw of it then. What shall run is let go of with the row, so a
/// row that has gone would pass no filter any more.
#[derive(Debug, Clone)]
pub(super) struct Side {
    stood: Stood,
    /// None where nobody had said what it is.
    print: Option<Arc<Blueprint>>,
    /// The components that it was of by its report alone: hardly ever any, unless it is leaving.
    also: Box<[ComponentName]>,
}

/// What may be otherwise than at a position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Too much changed to tell, or what the hub listens to did: anything may be otherwise.
    pub all: bool,
    /// Devices of which a standing changed.
    pub devices: BTreeSet<DeviceKey>,
    /// Deployments of which a standing changed.
    pub deployments: BTreeSet<DeploymentId>,
    /// Sites at which a standing changed.
    pub sites: BTreeSet<SiteId>,
    /// Devices that were never heard of before.
    pub appeared: BTreeSet<DeviceKey>,
    /// Sites at which a device appeared; one that was not there before may be one of them.
    pub appeared_at: BTreeSet<SiteId>,
    /// Applications that came to a row or went from it: whether they run anywhere may be otherwise.
    pub apps: BTreeSet<Arc<str>>,
    /// Components of which the same holds.
    pub components: BTreeSet<ComponentName>,
    /// A standing began or ended to leave, or one that nobody sees was altered: components are known by what is reported of
    /// it alone.
    pub left: bool,
}

impl Shifts {
    /// Begins at a position with nothing known of what was before.
    pub(super) fn begin(&mut self, ledger_seq: u64) {
        self.ring.clear();
        self.complete_after = ledger_seq;
    }

    /// Takes in what became of a row. What neither was nor is anything is no change.
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
        self.keep(Shift { at, site, device, deployment: Some(deployment.clone()), from, to });
    }

    /// The hub stopped to listen to a partition, or listens again.
    pub(super) const fn turn(&mut self, ledger_seq: u64) {
        self.turned_at = ledger_seq;
    }

    /// Takes in a device that was never heard of before: its site may be new as well.
    pub(super) fn appear(&mut self, at: AsOf, place: (u32, u32)) {
        let (site, device) = place;
        self.keep(Shift { at, site, device, deployment: None, from: None, to: None });
    }

    fn keep(&mut self, shift: Shift) {
        if self.ring.len() >= SHIFTS_MAX
            && let Some(lost) = self.ring.pop_front()
        {
            self.complete_after = self.complete_after.max(lost.at.ledger_seq);
        }
        self.ring.push_back(shift);
    }

    fn after(&self, ledger_seq: u64) -> impl Iterator<Item = &Shift> {
        let first = self.ring.partition_point(|shift| shift.at.ledger_seq <= ledger_seq);
        self.ring.range(first..)
    }

    pub(super) const fn is_complete_after(&self, ledger_seq: u64) -> bool {
        self.complete_after <= ledger_seq
    }

    /// What may be otherwise than at a position. `key` names a device by its number.
    pub(super) fn touched(
        &self,
        ledger_seq: u64,
        totals: &Totals,
        key: impl Fn(u32) -> DeviceKey,
    ) -> Touched {
        let all = !self.is_complete_after(ledger_seq) || self.turned_at > ledger_seq;
        let mut touched = Touched { all, ..Touched::default() };
        if touched.all {
            return touched;
        }
        touched.left = self.unseen_at > ledger_seq;
        for shift in self.after(ledger_seq) {
            touched.devices.insert(key(shift.device));
            touched.sites.insert(totals.site(shift.site).id.clone());
            if shift.deployment.is_none() {
                touched.appeared.insert(key(shift.device));
                touched.appeared_at.insert(totals.site(shift.site).id.clone());
            }
            touched.deployments.extend(shift.deployment.clone());
        }
        touched.take_names(self.after(ledger_seq));
        touched
    }

    /// How each standing that `wanted` picks has changed since a position, as far as it passed the filters by application
    /// and component: from what it was then to what it is. One that is again as it was is left out.
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
        for Shift { at, device, deployment, from, to, .. } in self.after(ledger_seq) {
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

impl Touched {
    /// Takes in the names by which somebody may know that something is there at all. Many changes are of few blueprints, so
    /// each blueprint gives its names once.
    fn take_names<'a>(&mut self, shifts: impl Iterator<Item = &'a Shift>) {
        let mut turned: BTreeMap<*const Blueprint, &Blueprint> = BTreeMap::new();
        for Shift { from, to, .. } in shifts {
            let leaving = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.stood.leaving);
            self.left |= leaving(from) != leaving(to);
            let [was, is] = [from, to].map(|side| side.as_ref().and_then(|side| side.print.as_ref()));
            let is_same = match (was, is) {
                (Some(was), Some(is)) => Arc::ptr_eq(was, is) || was == is,
                (was, is) => was.is_none() && is.is_none(),
            };
            if !is_same {
                turned.extend(was.into_iter().chain(is).map(|print| (Arc::as_ptr(print), &**print)));
            }
            let [was, is] = [from, to].map(|side| side.as_ref().map_or(&[][..], |side| &*side.also));
            if was != is {
                let [was, is] = [was, is].map(|names| names.iter().collect::<BTreeSet<_>>());
                self.components.extend(was.symmetric_difference(&is).copied().cloned());
            }
        }
        for print in turned.into_values() {
            self.components.extend(print.components.iter().cloned());
            self.apps.insert(print.application.clone());
        }
    }
}

impl Side {
    /// How a row is for whoever looks; none where there is no such row for anybody.
    pub(super) fn of(row: &Row, share: Share, facet: &Facet, totals: &Totals) -> Option<Self> {
        let stood = stood(row, share, facet)?;
        let print = totals.blueprints.shared(row.blueprint);
        // What leaves is of its application still, and of the components that it reports.
        let asked =
            print.as_ref().filter(|_| !stood.leaving).map(|print| &*print.components).unwrap_or_default();
        let reported = row.report.iter().flat_map(|report| report.components.iter().map(|(name, _)| name));
        let also = reported.filter(|name| !asked.contains(name)).cloned().collect();
        Some(Self { stood, print, also })
    }

    /// Whether it passes the filters by application and by component, as it would in a question about status.
    fn passes(&self, Subscription { app, component, .. }: &Subscription) -> bool {
        let of_app = |print: &Arc<Blueprint>| app.iter().any(|app| **app == *print.application);
        let asked = self.print.iter().filter(|_| !self.stood.leaving).flat_map(|print| &print.components);
        (app.is_empty() || self.print.as_ref().is_some_and(of_app))
            && (component.is_empty() || asked.chain(&self.also).any(|name| component.contains(name)))
    }
}

/// How a row stands for whoever looks; none where there is no such row for anybody.
fn stood(row: &Row, share: Share, facet: &Facet) -> Option<Stood> {
    let (standing, known, leaving, overdue) = match share {
        Share::Nothing => return None,
        Share::Leaving => (row.standing()?, row.is_known(facet), true, false),
        Share::Target { standing, known, overdue, .. } => (standing, known, false, overdue),
    };
    Some(Stood { standing, freshness: facet.freshness, known, leaving, overdue })
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
        Some(Side { stood: as_stood(standing), print: None, also: Box::default() })
    }

    fn everything() -> Subscription {
        Subscription::named("all".parse().unwrap())
    }

    fn at(ledger_seq: u64) -> AsOf {
        AsOf { ledger_seq, at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn what_is_again_as_it_was_is_no_change_and_the_last_holds() {
        let (web, db): (DeploymentId, DeploymentId) = ("web".parse().unwrap(), "db".parse().unwrap());
        let key: DeviceKey = "plant7/press-4".parse().unwrap();
        let mut shifts = Shifts::default();
        shifts.push(at(1), (0, 0), &web, None, is(Standing::Waiting));
        shifts.push(at(2), (0, 0), &web, is(Standing::Waiting), is(Standing::Installing));
        shifts.push(at(3), (0, 0), &db, is(Standing::Installed), is(Standing::Failed));
        shifts.push(at(4), (0, 0), &db, is(Standing::Failed), is(Standing::Installed));
        shifts.push(at(5), (0, 0), &web, is(Standing::Installing), is(Standing::Installing));
        let changes = shifts.changes(1, |_| key.clone(), |_, _| true, &everything());
        assert_eq!(changes.len(), 1, "{changes:?}");
        let [was, is] = [Standing::Waiting, Standing::Installing].map(as_stood);
        assert_eq!((changes[0].from, changes[0].to), (Some(was), Some(is)));
        assert_eq!(changes[0].ledger_seq, 2);
        assert!(shifts.changes(1, |_| key.clone(), |_, id| *id == db, &everything()).is_empty());
    }

    /// A side with a blueprint, and with components that it is of by its report alone.
    fn of(print: &Arc<Blueprint>, also: &[&str]) -> Option<Side> {
        let also = also.iter().map(|name| name.parse().unwrap()).collect();
        Some(Side { stood: as_stood(Standing::Installed), print: Some(print.clone()), also })
    }

    #[test]
    fn names_are_touched_where_a_row_takes_another_blueprint_and_where_it_reports_others() {
        let print = |app: &str, part: &str| {
            Arc::new(Blueprint { application: app.into(), components: [part.parse().unwrap()].into() })
        };
        let (web, db) = (print("web", "main"), print("db", "disk"));
        for (from, to, apps, components) in [
            (of(&web, &[]), of(&web, &[]), &[][..], &[][..]),
            (of(&web, &[]), of(&print("web", "main"), &[]), &[], &[]),
            (of(&web, &[]), is(Standing::Waiting), &["web"], &["main"]),
            (None, of(&db, &[]), &["db"], &["disk"]),
            (of(&db, &[]), of(&web, &[]), &["db", "web"], &["disk", "main"]),
            (of(&web, &["old", "side"]), of(&web, &["side"]), &[], &["old"]),
        ] {
            let mut shifts = Shifts::default();
            for seq in 1..=3 {
                shifts.push(at(seq), (0, 0), &"web".parse().unwrap(), from.clone(), to.clone());
            }
            let mut touched = Touched::default();
            touched.take_names(shifts.after(1));
            assert_eq!(touched.apps.iter().map(|app| &**app).collect::<Vec<_>>(), apps, "{from:?} {to:?}");
            let names: Vec<_> = touched.components.iter().map(ComponentName::as_str).collect();
            assert_eq!(names, components, "{from:?} {to:?}");
        }
    }

    #[test]
    fn what_no_longer_fits_is_said_to_be_missing() {
        let web: DeploymentId = "web".parse().unwrap();
        let mut shifts = Shifts::default();
        shifts.begin(10);
        assert!(shifts.is_complete_after(10) && !shifts.is_complete_after(9));
        for seq in 0..=SHIFTS_MAX as u64 {
            shifts.push(at(11 + seq), (0, 0), &web, None, is(Standing::Waiting));
        }
        assert_eq!(shifts.ring.len(), SHIFTS_MAX);
        assert!(shifts.is_complete_after(11) && !shifts.is_complete_after(10));
    }
}
