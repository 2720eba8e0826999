//! Compares two points of one LEDGER: the views, the devices whose standing differs, and for each the facts
//! that changed it. It compares two folds and judges nothing.
//!
//! The device changes explain the whole difference of the counts: retracting each `from` from the earlier
//! counts and adding each `to` gives the later ones.

use std::collections::BTreeMap;

use muster_contract::history::{ComponentChange, DeviceChange, DiffAnswer, DiffSide, Stand};
use muster_contract::view::{AsOf, DeploymentView, Verdict};
use muster_contract::why::Evidence;
use muster_contract::{ComponentName, DeploymentId, DeviceKey, SiteId, State};

use super::answer::{Page, cut_page};
use super::device::{Device, DeviceState};
use super::fleet::Fleet;
use super::report::Report;
use super::standing::{CountClass, Deadline, Row};
use super::tally::Group;

/// A device with its row for the deployment, as one of the two folds has it.
#[derive(Clone, Copy)]
struct DeviceRow<'a> {
    device: &'a Device,
    row: &'a Row,
}

impl Fleet {
    /// How a deployment differs between an earlier point and this one. None where neither has a view of it.
    /// Both must be of the same LEDGER; then every device of the earlier is also in the later.
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
            self.devices_after(move |at| site.is_none_or(|site| site == at), after, None).filter_map(
                move |device| {
                    let was = earlier.find(&self.key_of(device)).and_then(|was| was.seen(numbers[0]));
                    self.change(was, device.seen(numbers[1]), earlier.as_of.ledger_seq, device)
                },
            )
        };
        let (devices, next) =
            cut_page(changes(page.after.as_ref()), page.limit, |change| change.key.to_string());
        // A first page without a next one has all changes.
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
        from: Option<DeviceRow<'_>>,
        to: Option<DeviceRow<'_>>,
        since: u64,
        device: &Device,
    ) -> Option<DeviceChange> {
        let stands = (from.and_then(DeviceRow::stand), to.and_then(DeviceRow::stand));
        let components = components(from, to);
        if stands.0 == stands.1 && components.is_empty() {
            return None;
        }
        let is_stopped = to.is_some_and(|seen| self.totals.specs.is_stopped(seen.row.spec));
        let facts = facts(from, to, since, device, self.hearing_evidence(device), is_stopped);
        Some(DeviceChange { key: self.key_of(device), from: stands.0, to: stands.1, components, facts })
    }
}

/// The compared part of a view; empty where there is no view.
fn side(as_of: AsOf, view: Option<DeploymentView>) -> DiffSide {
    let Some(view) = view else {
        let none = Group::default();
        return DiffSide {
            as_of,
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
    fn seen(&self, deployment: Option<u32>) -> Option<DeviceRow<'_>> {
        let row = self.rows.iter().find(|row| Some(row.deployment) == deployment)?;
        Some(DeviceRow { device: self, row })
    }
}

impl DeviceRow<'_> {
    /// None where the row is not shown.
    fn stand(self) -> Option<Stand> {
        let context = self.device.state.context();
        let (leaving, overdue, missing_reports) = match self.row.count_class(&context) {
            CountClass::Nothing => return None,
            CountClass::Leaving => (true, false, 0),
            CountClass::Target { overdue, missing, .. } => (false, overdue, missing),
        };
        Some(Stand {
            standing: self.row.standing()?,
            freshness: context.freshness,
            known: self.row.is_known(&context),
            leaving,
            overdue,
            missing_reports,
            target_generation: self.row.target,
            generation: self.row.report.as_ref().map(|report| report.generation),
        })
    }

    /// The components that its share puts into the counts.
    fn components(self) -> BTreeMap<ComponentName, State> {
        let shown = self.row.count_class(&self.device.state.context()).shows_components();
        let report = self.row.report.as_ref().filter(|_| shown);
        report.map(|report| report.components.iter().cloned().collect()).unwrap_or_default()
    }
}

fn components(from: Option<DeviceRow<'_>>, to: Option<DeviceRow<'_>>) -> Vec<ComponentChange> {
    let (was, is) = (
        from.map(DeviceRow::components).unwrap_or_default(),
        to.map(DeviceRow::components).unwrap_or_default(),
    );
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

/// The facts after `since` that explain the difference. A re-asserted report is no change, so each kind of fact
/// is named only where its content differs.
fn facts(
    from: Option<DeviceRow<'_>>,
    to: Option<DeviceRow<'_>>,
    since: u64,
    device: &Device,
    hearing: Option<Evidence>,
    is_stopped: bool,
) -> Vec<Evidence> {
    let was = from.map(|seen| (seen.row, &seen.device.state));
    let (state, row) = (&device.state, to.map(|seen| seen.row));
    let mut facts = Vec::new();
    let asked = |row: &Row| row.target;
    let retired = was.map(|(_, state)| state.is_retired());
    if was.and_then(|(row, _)| asked(row)) != row.and_then(asked)
        || retired.is_some_and(|was| was != state.is_retired())
    {
        facts.extend(state.desired_evidence(row.and_then(asked), is_stopped));
    }
    let report = row.and_then(|row| row.report.as_ref());
    let held = was.and_then(|(row, _)| row.report.as_ref());
    if held.map(|report| report.place()) != report.map(|report| report.place()) {
        facts.extend(report.map(Report::evidence));
    }
    if was.is_none_or(|(_, was)| was.freshness() != state.freshness()) {
        facts.extend(state.liveness_evidence());
        facts.extend(hearing.filter(|_| was.and_then(|(_, was)| was.unheard_in) != state.unheard_in));
    }
    let is_overdue = |row: &Row| row.overdue().is_some();
    if was.is_some_and(|(row, _)| is_overdue(row)) != row.is_some_and(is_overdue) {
        // Also one of a target that is still to come: it took the place of the one that was passed.
        facts.extend(row.and_then(|row| row.deadline.as_deref()).map(Deadline::evidence));
    }
    if was.is_none_or(|(_, was)| was.seq_account.missing() != state.seq_account.missing()) {
        facts.extend(state.gap_evidence());
    }
    if was.is_none_or(|(_, was)| was.seq_account.epoch() != state.seq_account.epoch()) {
        facts.extend(state.head_evidence());
    }
    let known = |row: &Row, state: &DeviceState| row.is_known(&state.context());
    if was.map(|(row, state)| known(row, state)) != row.map(|row| known(row, state)) {
        facts.extend(row.into_iter().flat_map(|row| state.ignorance(row)));
        facts.extend(
            was.filter(|(_, was)| was.context().doubt != state.context().doubt)
                .map(|_| state.doubt_evidence()),
        );
    }
    facts.retain(|fact| fact.ledger_seq > since);
    if facts.is_empty() {
        // It became known by a head that came with a re-asserted report, or left with the desired state that
        // came after it ended.
        let desired = state.desired_evidence(row.and_then(asked), is_stopped);
        let others =
            [state.head_evidence(), report.map(Report::evidence), desired, Some(state.doubt_evidence())];
        facts.extend(others.into_iter().flatten().filter(|fact| fact.ledger_seq > since));
    }
    facts.sort_by_key(|fact| (fact.ledger_seq, fact.kind));
    facts.dedup_by_key(|fact| fact.ledger_seq);
    facts
}
