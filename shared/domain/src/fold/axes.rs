//! Classifies a standing on two more axes: delivered and observed for each component (EMCO), and kstatus with
//! strategy, actuation and reconcile (kpt). It holds rules only.
//!
//! Nothing counts as Ready, Current or reconciled unless it is heard and known. A failure stays a failure when
//! the device falls silent, as in the verdict.

use muster_contract::status::{Actuation, Deployed, KAxes, KStatus, Ready, Reconcile, Strategy};
use muster_contract::view::{Freshness, Standing};
use muster_contract::{ComponentName, State};

use super::app_spec::AppSpec;
use super::delta::combine;
use super::report::Report;
use super::standing::{CountClass, Row};

/// Counts over components on the two axes, and over standings by kstatus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Axes {
    pub(super) deployed: [u32; Deployed::ALL.len()],
    pub(super) ready: [u32; Ready::ALL.len()],
    pub(super) kstatus: [u32; KStatus::ALL.len()],
}

/// A component as the two axes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ComponentCondition<'a> {
    pub(super) name: &'a ComponentName,
    /// The last reported state, of whatever generation.
    pub(super) state: Option<State>,
    pub(super) deployed: Deployed,
    /// None where the component is to be removed.
    pub(super) ready: Option<Ready>,
    pub(super) kstatus: KStatus,
}

/// The inputs of the rules from one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowCondition {
    /// The standing with the current target; none where the row has no target.
    pub(super) target: Option<Standing>,
    /// Heard, and known to be the last report.
    pub(super) is_confirmed: bool,
    pub(super) overdue: bool,
    /// It failed without any component that failed: the device refused it as a whole.
    refused: bool,
}

impl RowCondition {
    /// The condition of a row; none where the row is not shown.
    pub(super) fn of(row: &Row, class: CountClass) -> Option<Self> {
        let (target, is_confirmed, overdue) = match class {
            CountClass::Nothing => return None,
            CountClass::Leaving => (None, false, false),
            CountClass::Target { standing, freshness, known, overdue, .. } => {
                (Some(standing), freshness == Freshness::Fresh && known, overdue)
            }
        };
        let failed = |report: &Report| {
            report.is_crash_loop() || report.components.iter().any(|(_, state)| *state == State::Failed)
        };
        let refused = target == Some(Standing::Failed) && !row.report.as_ref().is_some_and(failed);
        Some(Self { target, is_confirmed, overdue, refused })
    }

    /// The same without what is about one generation alone.
    pub(super) const fn of_another(self) -> Self {
        Self { overdue: false, refused: false, ..self }
    }

    /// kstatus of the whole.
    pub(super) const fn kstatus(self) -> KStatus {
        match self.target {
            None => KStatus::Terminating,
            Some(Standing::Failed) => KStatus::Failed,
            Some(_) if !self.is_confirmed => KStatus::Unknown,
            Some(Standing::Installed) => KStatus::Current,
            Some(Standing::Waiting | Standing::Removed) => KStatus::NotFound,
            Some(Standing::Outdated | Standing::Pending | Standing::Installing | Standing::Removing) => {
                KStatus::InProgress
            }
        }
    }

    /// kstatus with its axes, of a component.
    pub(super) fn axes(self, part: &ComponentCondition<'_>) -> KAxes {
        let goes = matches!(part.deployed, Deployed::Deleting | Deployed::Deleted);
        let strategy = if goes { Strategy::Delete } else { self.strategy() };
        self.tried(strategy, part.kstatus, part.deployed, part.state)
    }

    /// kstatus and its axes for the row as a whole. The delivery of the components says how far it is, where
    /// the whole does not.
    pub(super) fn axes_of_whole(self, kstatus: KStatus, worst: Deployed, state: Option<State>) -> KAxes {
        let deployed = match (self.target, kstatus) {
            // A row that is gone as a whole is not shown.
            (None, _) => Deployed::Deleting,
            _ if self.refused => Deployed::Failed,
            // The device reported how its target ended, so it has acted on it, even if parts of it were never
            // begun.
            (_, KStatus::Failed | KStatus::Current) => Deployed::Applied,
            (Some(Standing::Waiting | Standing::Outdated), _) => Deployed::Pending,
            _ if worst == Deployed::Pending => Deployed::Pending,
            _ => Deployed::Applied,
        };
        self.tried(self.strategy(), kstatus, deployed, state)
    }

    const fn strategy(self) -> Strategy {
        if self.target.is_none() { Strategy::Delete } else { Strategy::Apply }
    }

    fn tried(self, strategy: Strategy, kstatus: KStatus, deployed: Deployed, state: Option<State>) -> KAxes {
        let actuation = match (strategy, deployed, state) {
            (Strategy::Delete, _, Some(State::Removing | State::Removed)) => Actuation::Succeeded,
            (Strategy::Delete, ..) | (_, Deployed::Pending, _) => Actuation::Pending,
            (_, Deployed::Failed, _) => Actuation::Failed,
            _ => Actuation::Succeeded,
        };
        let reconcile = match kstatus {
            _ if actuation == Actuation::Failed => Reconcile::Skipped,
            _ if deployed == Deployed::Deleted => Reconcile::Succeeded,
            KStatus::Current => Reconcile::Succeeded,
            KStatus::Failed => Reconcile::Failed,
            _ if self.overdue => Reconcile::Timeout,
            _ => Reconcile::Pending,
        };
        KAxes { kstatus, strategy, actuation, reconcile }
    }

    /// The components of a report, classified as if they were the target.
    pub(super) fn reported<'a>(self, row: &'a Row) -> impl Iterator<Item = ComponentCondition<'a>> {
        let reported = row.report.as_ref().map_or(&[][..], |report| &**report.components);
        reported.iter().map(move |(name, state)| self.expected(name, Some(*state), row))
    }

    /// A targeted component, with its state if it is reported for the current target.
    fn expected<'a>(self, name: &'a ComponentName, held: Option<State>, row: &Row) -> ComponentCondition<'a> {
        let is_crash_loop = row.report.as_ref().is_some_and(|report| report.has_crash_loop(name));
        let absent = |kstatus| (Deployed::Pending, Ready::NotPresent, kstatus);
        let unsure = |deployed| (deployed, Ready::Unknown, KStatus::Unknown);
        let (deployed, ready, kstatus) = match (self.target, held) {
            (Some(Standing::Waiting | Standing::Outdated) | None, _) => absent(self.kstatus()),
            _ if self.refused => (Deployed::Failed, Ready::NotReady, KStatus::Failed),
            (_, Some(_)) if is_crash_loop => (Deployed::Applied, Ready::NotReady, KStatus::Failed),
            (_, Some(State::Failed)) => (Deployed::Applied, Ready::NotReady, KStatus::Failed),
            (_, None | Some(State::Removed)) if !self.is_confirmed => absent(KStatus::Unknown),
            (_, None | Some(State::Removed)) => absent(KStatus::NotFound),
            (_, Some(State::Pending)) if !self.is_confirmed => unsure(Deployed::Pending),
            (_, Some(_)) if !self.is_confirmed => unsure(Deployed::Applied),
            (_, Some(State::Installed)) => (Deployed::Applied, Ready::Ready, KStatus::Current),
            (_, Some(State::Pending)) => (Deployed::Pending, Ready::NotReady, KStatus::InProgress),
            (_, Some(State::Installing | State::Removing)) => {
                (Deployed::Applied, Ready::NotReady, KStatus::InProgress)
            }
        };
        ComponentCondition { name, state: held, deployed, ready: Some(ready), kstatus }
    }
}

/// A component to be removed.
fn going(name: &ComponentName, state: State) -> ComponentCondition<'_> {
    let deployed = if state == State::Removed { Deployed::Deleted } else { Deployed::Deleting };
    ComponentCondition { name, state: Some(state), deployed, ready: None, kstatus: KStatus::Terminating }
}

/// The components of a row: the targeted ones, and those reported beyond them. Each appears once.
pub(super) fn parts<'a>(
    row: &'a Row,
    spec: Option<&'a AppSpec>,
    scan: RowCondition,
) -> impl Iterator<Item = ComponentCondition<'a>> {
    let reported = row.report.as_ref().map_or(&[][..], |report| &**report.components);
    let wanted = spec.filter(|_| scan.target.is_some()).map_or(&[][..], |spec| &spec.components);
    let expected = wanted
        .iter()
        .enumerate()
        .map(move |(at, name)| scan.expected(name, state_of(reported, at, name), row));
    let left = reported.iter().enumerate().filter(move |(at, (name, _))| !is_among(wanted, *at, name));
    expected.chain(left.map(|(_, (name, state))| going(name, *state)))
}

/// The state of a component. Reports have the order of the desired state, so the first look is mostly the last.
fn state_of(reported: &[(ComponentName, State)], at: usize, name: &ComponentName) -> Option<State> {
    let here = reported.get(at).filter(|(held, _)| held == name);
    here.or_else(|| reported.iter().find(|(held, _)| held == name)).map(|(_, state)| *state)
}

/// Whether a component that is reported at a position is wanted. Reports have the order of the desired state.
pub(super) fn is_among(wanted: &[ComponentName], at: usize, name: &ComponentName) -> bool {
    wanted.get(at) == Some(name) || wanted.contains(name)
}

impl Axes {
    /// A row's contribution to the counts.
    pub(super) fn of(row: &Row, spec: Option<&AppSpec>, class: CountClass) -> Self {
        let mut axes = Self::default();
        let Some(scan) = RowCondition::of(row, class) else { return axes };
        parts(row, spec, scan).for_each(|part| axes.count(&part));
        axes.count_row(scan);
        axes
    }

    /// Counts a component.
    pub(super) fn count(&mut self, part: &ComponentCondition<'_>) {
        self.deployed[part.deployed as usize] += 1;
        if let Some(ready) = part.ready {
            self.ready[ready as usize] += 1;
        }
    }

    /// Counts a row without its components.
    pub(super) fn count_row(&mut self, scan: RowCondition) {
        self.kstatus[scan.kstatus() as usize] += 1;
    }

    /// Combines each count with that of other axes.
    #[inline]
    pub(super) fn combine(&mut self, other: &Self, how: impl Fn(u32, u32) -> u32) {
        combine(&mut self.deployed, &other.deployed, &how);
        combine(&mut self.ready, &other.ready, &how);
        combine(&mut self.kstatus, &other.kstatus, &how);
    }

    /// The worst on the axis of delivery.
    pub(super) fn deployed_status(&self) -> Deployed {
        first(&Deployed::ALL, &self.deployed).unwrap_or(Deployed::Empty)
    }

    /// The worst value on the axis of observation: a component that is absent is not ready.
    pub(super) fn ready_status(&self) -> Ready {
        match first(&Ready::ALL, &self.ready) {
            Some(Ready::NotPresent) => Ready::NotReady,
            worst => worst.unwrap_or(Ready::Empty),
        }
    }
}

fn first<K: Copy>(all: &[K], counts: &[u32]) -> Option<K> {
    all.iter().zip(counts).find(|(_, count)| **count > 0).map(|(key, _)| *key)
}

#[cfg(test)]
mod tests;
