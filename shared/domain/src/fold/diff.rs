//! What differs between two points of one LEDGER: the views, the devices whose standing is another, and of each the facts
//! between the two that made it so. Nothing is judged here; two folds are compared.
//!
//! The changes of the devices are the whole difference of the counts: taking each `from` out of the earlier counts and
//! putting each `to` in gives the later ones.

use std::collections::BTreeMap;

use muster_contract::history::{ComponentChange, DeviceChange, DiffAnswer, DiffSide, Stand};
use muster_contract::view::{AsOf, DeploymentView, Verdict};
use muster_contract::why::Evidence;
use muster_contract::{ComponentName, DeploymentId, DeviceKey, SiteId, State};

use super::answer::{Page, cut_page};
use super::device::{About, Device};
use super::fleet::Fleet;
use super::report::Report;
use super::standing::{Deadline, Row, Share};
use super::tally::Group;

/// A device with its row for the deployment, as one of the two folds has it.
#[derive(Clone, Copy)]
struct Seen<'a> {
    device: &'a Device,
    row: &'a Row,
}

impl Fleet {
    /// How a deployment differs between an earlier point and this one. None where neither has a view of it. Of both the
    /// LEDGER must be the same; then every device of the earlier is also in the later.
    pub fn diff(
        &self,
        earlier: &Self,
        id: &DeploymentId,
        site: Option<&SiteId>,
        page: &Page<DeviceKey>,
    ) -> Option<DiffAnswer> {
        let (from, to) = (earlier.deployment_view(id), self.deployment_view(id));
        if from.is_none() && to.is_none() {
            return None;
        }
        let numbers = [earlier, self].map(|fleet| fleet.totals.deployment_numbers.get(id).copied());
        let changes = |after| {
            self.devices_after(site, after, None).filter_map(move |device| {
                let was = earlier.find(&self.key_of(device)).and_then(|was| was.seen(numbers[0]));
                self.change(was, device.seen(numbers[1]), earlier.as_of.ledger_seq, device)
            })
        };
        let (devices, next) =
            cut_page(changes(page.after.as_ref()), page.limit, |change| change.key.to_string());
        // The first page is the whole where it is the last as well.
        let changed = match (&page.after, &next) {
            (None, None) => devices.len(),
            _ => changes(None).count(),
        } as u64;
        let (from, to) = (side(earlier.as_of, from), side(self.as_of, to));
        Some(DiffAnswer { deployment: id.clone(), from, to, changed, devices, next })
    }

    /// None where nothing differs of a device.
    fn change(
        &self,
        from: Option<Seen<'_>>,
        to: Option<Seen<'_>>,
        since: u64,
        device: &Device,
    ) -> Option<DeviceChange> {
        let stands = (from.and_then(Seen::stand), to.and_then(Seen::stand));
        let components = components(from, to);
        if stands.0 == stands.1 && components.is_empty() {
            return None;
        }
        let facts = facts((from, to), since, device, self.hearing_evidence(device));
        Some(DeviceChange { key: self.key_of(device), from: stands.0, to: stands.1, components, facts })
    }
}

/// A view as far as it is compared; also where there is none.
pub(super) fn side(as_of: AsOf, view: Option<DeploymentView>) -> DiffSide {
    let Some(view) = view else {
        let none = Group::default();
        return DiffSide {
            as_of,
            hubs: Vec::new(),
            verdict: Verdict::Empty,
            targets: 0,
            leaving: 0,
            overdue: 0,
            counts: none.counts(),
            converged: none.bounds(),
            complete: none.complete(),
            components: BTreeMap::new(),
            digest: None,
        };
    };
    DiffSide {
        as_of: view.as_of,
        hubs: Vec::new(),
        verdict: view.verdict,
        targets: view.targets,
        leaving: view.leaving,
        overdue: view.overdue,
        counts: view.counts,
        converged: view.converged,
        complete: view.complete,
        components: view.components,
        digest: Some(view.digest),
    }
}

impl Device {
    fn seen(&self, deployment: Option<u32>) -> Option<Seen<'_>> {
        let row = self.rows.iter().find(|row| Some(row.deployment) == deployment)?;
        Some(Seen { device: self, row })
    }
}

impl Seen<'_> {
    /// None where it counts for nothing.
    fn stand(self) -> Option<Stand> {
        let facet = self.device.about.facet();
        let (leaving, overdue, missing_reports) = match self.row.share(&facet) {
            Share::Nothing => return None,
            Share::Leaving => (true, false, 0),
            Share::Target { overdue, missing, .. } => (false, overdue, missing),
        };
        Some(Stand {
            standing: self.row.standing()?,
            freshness: facet.freshness,
            known: self.row.is_known(&facet),
            leaving,
            overdue,
            missing_reports,
            target_generation: self.row.target,
            generation: self.row.report.as_ref().map(|report| report.generation),
        })
    }

    /// The components that its share puts into the counts.
    fn components(self) -> BTreeMap<ComponentName, State> {
        let shown = self.row.share(&self.device.about.facet()).shows_components();
        let report = self.row.report.as_ref().filter(|_| shown);
        report.map(|report| report.components.iter().cloned().collect()).unwrap_or_default()
    }
}

fn components(from: Option<Seen<'_>>, to: Option<Seen<'_>>) -> Vec<ComponentChange> {
    let (was, is) =
        (from.map(Seen::components).unwrap_or_default(), to.map(Seen::components).unwrap_or_default());
    let mut names: Vec<_> = was.keys().chain(is.keys()).collect();
    names.sort();
    names.dedup();
    let change = |name: &ComponentName| ComponentChange {
        name: name.clone(),
        from: was.get(name).copied(),
        to: is.get(name).copied(),
    };
    names.into_iter().map(change).filter(|change| change.from != change.to).collect()
}

/// The facts after `since` that made the later what it is, where the earlier is otherwise. A report said again is no
/// change, so each kind of fact is named only where what it says is another.
fn facts(
    (from, to): (Option<Seen<'_>>, Option<Seen<'_>>),
    since: u64,
    device: &Device,
    hearing: Option<Evidence>,
) -> Vec<Evidence> {
    let was = from.map(|seen| (seen.row, &seen.device.about));
    let (about, row) = (&device.about, to.map(|seen| seen.row));
    let mut facts = Vec::new();
    let asked = |row: &Row| row.target;
    let retired = was.map(|(_, about)| about.is_retired());
    if was.and_then(|(row, _)| asked(row)) != row.and_then(asked)
        || retired.is_some_and(|was| was != about.is_retired())
    {
        facts.extend(about.desired_evidence(row.and_then(asked)));
    }
    let report = row.and_then(|row| row.report.as_ref());
    let held = was.and_then(|(row, _)| row.report.as_ref());
    if held.map(|report| report.place()) != report.map(|report| report.place()) {
        facts.extend(report.map(Report::evidence));
    }
    if was.is_none_or(|(_, was)| was.freshness() != about.freshness()) {
        facts.extend(about.liveness_evidence());
        facts.extend(hearing.filter(|_| was.and_then(|(_, was)| was.unheard_in) != about.unheard_in));
    }
    let is_overdue = |row: &Row| row.overdue().is_some();
    if was.is_some_and(|(row, _)| is_overdue(row)) != row.is_some_and(is_overdue) {
        // Also one of a target that is still to come: it took the place of the one that was passed.
        facts.extend(row.and_then(|row| row.deadline.as_deref()).map(Deadline::evidence));
    }
    if was.is_none_or(|(_, was)| was.holdings.missing() != about.holdings.missing()) {
        facts.extend(about.gap_evidence());
    }
    if was.is_none_or(|(_, was)| was.holdings.epoch() != about.holdings.epoch()) {
        facts.extend(about.head_evidence());
    }
    let known = |row: &Row, about: &About| row.is_known(&about.facet());
    if was.map(|(row, about)| known(row, about)) != row.map(|row| known(row, about)) {
        facts.extend(row.into_iter().flat_map(|row| about.ignorance(row)));
        facts.extend(
            was.filter(|(_, was)| was.facet().doubt != about.facet().doubt).map(|_| about.doubt_evidence()),
        );
    }
    facts.retain(|fact| fact.ledger_seq > since);
    if facts.is_empty() {
        // Known by a head that came with a report said again, or gone with the desired state that came after it ended.
        let desired = about.desired_evidence(row.and_then(asked));
        let others =
            [about.head_evidence(), report.map(Report::evidence), desired, Some(about.doubt_evidence())];
        facts.extend(others.into_iter().flatten().filter(|fact| fact.ledger_seq > since));
    }
    facts.sort_by_key(|fact| (fact.ledger_seq, fact.kind));
    facts.dedup_by_key(|fact| fact.ledger_seq);
    facts
}
