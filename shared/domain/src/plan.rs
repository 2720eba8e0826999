//! Computes the reconcile plan: the steps that bring a device from its actual to its desired state.
//!
//! This module decides and the agent executes; the agent decides only when a failure may be retried, and passes
//! that in [`Actual::retry_due`]. A step is about one deployment and depends on no other step, but removals
//! come first: they free the ports and the memory that an installation may need.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredDeployment;
use muster_contract::{DeploymentId, Generation, State};

/// A device's actual state of one deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actual {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The generation last applied, or being applied.
    pub generation: Generation,
    /// Digest of the entry last applied, or being applied.
    pub digest: Digest,
    /// How far that came.
    pub state: State,
    /// The last operation was a removal: distinguishes a failed removal from a failed installation.
    pub leaving: bool,
    /// A failure may be tried again now. Says nothing in any other state.
    pub retry_due: bool,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Stop any remains, then forget it.
    Remove(DeploymentId),
    /// Start it: no part of it exists.
    Install(DeploymentId),
    /// Stop any remains of another version, then start it.
    Update(DeploymentId),
    /// Go on where a crash interrupted this very version: adopt what runs, start what does not.
    Resume(DeploymentId),
    /// Start this very version again after it failed.
    Retry(DeploymentId),
    /// Stop every component and keep its data: the deployment is desired as stopped.
    Stop(DeploymentId),
    /// It runs as desired, but under an older generation: report it under the new one and touch nothing.
    Confirm(DeploymentId),
}

impl Step {
    /// The deployment.
    pub const fn deployment(&self) -> &DeploymentId {
        match self {
            Self::Remove(id)
            | Self::Install(id)
            | Self::Update(id)
            | Self::Resume(id)
            | Self::Retry(id)
            | Self::Stop(id)
            | Self::Confirm(id) => id,
        }
    }
}

/// The steps from `actual` to `desired`: at most one for each deployment, removals first, each part ordered by
/// id whatever the order of the arguments. Empty where nothing is to be done now.
///
/// Each side names a deployment at most once (a valid document does, and so does a table keyed by id); of
/// several entries the last counts.
pub fn plan(desired: &[DesiredDeployment], actual: &[Actual]) -> Vec<Step> {
    let wanted: BTreeMap<_, _> = desired.iter().map(|entry| (&entry.id, entry)).collect();
    let held: BTreeMap<_, _> = actual.iter().map(|entry| (&entry.deployment, entry)).collect();
    let removals = held.iter().filter(|(id, _)| !wanted.contains_key(*id)).filter_map(|(_, held)| away(held));
    let others = wanted.iter().filter_map(|(id, wanted)| towards(wanted, held.get(id).copied()));
    removals.chain(others).collect()
}

/// The step for a deployment that is no longer desired.
fn away(held: &Actual) -> Option<Step> {
    let waits = held.state == State::Failed && held.leaving && !held.retry_due;
    let gone = held.state == State::Removed;
    (!gone && !waits).then(|| Step::Remove(held.deployment.clone()))
}

/// The step for a deployment that is wanted.
fn towards(wanted: &DesiredDeployment, held: Option<&Actual>) -> Option<Step> {
    if wanted.stopped {
        return towards_stopped(wanted, held);
    }
    let id = wanted.id.clone();
    let Some(held) = held.filter(|held| held.state != State::Removed) else {
        return Some(Step::Install(id));
    };
    if held.leaving || held.digest != wanted.digest {
        return Some(Step::Update(id));
    }
    // The same content under a newer target (A → B → A, with B never seen) is news for the hub all the same.
    let same_target = held.generation >= wanted.target_generation;
    match held.state {
        State::Installed => (!same_target).then_some(Step::Confirm(id)),
        State::Failed => (!same_target || held.retry_due).then_some(Step::Retry(id)),
        State::Pending | State::Installing => Some(Step::Resume(id)),
        // Removing without `leaving` is inconsistent; the deployment is half gone, and an update clears it.
        State::Removing | State::Removed => Some(Step::Update(id)),
    }
}

/// The step for a deployment that is wanted as stopped. The digest covers `stopped`, so a pending deployment of the same digest
/// is stopped.
fn towards_stopped(wanted: &DesiredDeployment, held: Option<&Actual>) -> Option<Step> {
    let id = wanted.id.clone();
    let Some(held) = held.filter(|held| !held.leaving && held.digest == wanted.digest) else {
        return Some(Step::Stop(id));
    };
    let same_target = held.generation >= wanted.target_generation;
    match held.state {
        State::Pending => (!same_target).then_some(Step::Confirm(id)),
        State::Failed => (!same_target || held.retry_due).then_some(Step::Stop(id)),
        State::Installing | State::Installed | State::Removing | State::Removed => Some(Step::Stop(id)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_contract::desired::{Profile, ProfileType};
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> DeploymentId {
        format!("d{number}").parse().unwrap()
    }

    fn generation(number: u64) -> Generation {
        Generation::new(number).unwrap()
    }

    fn wanted(number: u8, version: u8, target: u64) -> DesiredDeployment {
        DesiredDeployment {
            id: id(number),
            name: String::new(),
            application_id: String::new(),
            namespace: None,
            labels: Default::default(),
            target_generation: generation(target),
            digest: Digest::of_bytes(&[version]),
            profile: Profile {
                profile_type: ProfileType::Simulated,
                components: Vec::new(),
                device_constraints: None,
            },
            parameters: BTreeMap::new(),
            stopped: false,
            restart: 0,
            source: None,
        }
    }

    fn held(number: u8, version: u8, at: u64, state: State) -> Actual {
        Actual {
            deployment: id(number),
            generation: generation(at),
            digest: Digest::of_bytes(&[version]),
            state,
            leaving: matches!(state, State::Removing | State::Removed),
            retry_due: false,
        }
    }

    /// Executes a plan as the agent does when every step succeeds.
    fn execute(step: &Step, desired: &[DesiredDeployment], actual: &mut Vec<Actual>) {
        actual.retain(|held| held.deployment != *step.deployment());
        if let Step::Remove(_) = step {
            return;
        }
        let entry = desired.iter().find(|entry| entry.id == *step.deployment()).unwrap();
        actual.push(Actual {
            deployment: entry.id.clone(),
            generation: entry.target_generation,
            digest: entry.digest,
            state: if entry.stopped { State::Pending } else { State::Installed },
            leaving: false,
            retry_due: false,
        });
    }

    #[test]
    fn every_pair_of_wanted_and_held_has_one_answer() {
        use State::{Failed, Installed, Installing, Pending, Removed, Removing};
        let due = |held: Actual| Actual { retry_due: true, ..held };
        let leaving = |held: Actual| Actual { leaving: true, ..held };
        let same = || Some(wanted(1, 1, 5));
        let table = [
            ("wanted and not there", same(), None, Some(Step::Install(id(1)))),
            ("wanted again", same(), Some(held(1, 1, 5, Removed)), Some(Step::Install(id(1)))),
            ("there as wanted", same(), Some(held(1, 1, 5, Installed)), None),
            ("there, newer document", same(), Some(held(1, 1, 9, Installed)), None),
            ("there, older target", same(), Some(held(1, 1, 3, Installed)), Some(Step::Confirm(id(1)))),
            ("taken in, not begun", same(), Some(held(1, 1, 5, Pending)), Some(Step::Resume(id(1)))),
            ("interrupted", same(), Some(held(1, 1, 5, Installing)), Some(Step::Resume(id(1)))),
            ("failed, too early", same(), Some(held(1, 1, 5, Failed)), None),
            ("failed, due", same(), Some(due(held(1, 1, 5, Failed))), Some(Step::Retry(id(1)))),
            ("failed, newer target", same(), Some(held(1, 1, 4, Failed)), Some(Step::Retry(id(1)))),
            ("other version", same(), Some(held(1, 2, 4, Installed)), Some(Step::Update(id(1)))),
            ("other version, begun", same(), Some(held(1, 2, 4, Installing)), Some(Step::Update(id(1)))),
            ("other version, failed", same(), Some(held(1, 2, 4, Failed)), Some(Step::Update(id(1)))),
            ("half gone, wanted again", same(), Some(held(1, 1, 5, Removing)), Some(Step::Update(id(1)))),
            ("stuck in removal", same(), Some(leaving(held(1, 1, 5, Failed))), Some(Step::Update(id(1)))),
            ("unwanted", None, Some(held(1, 1, 5, Installed)), Some(Step::Remove(id(1)))),
            ("unwanted, begun", None, Some(held(1, 1, 5, Pending)), Some(Step::Remove(id(1)))),
            ("unwanted, failed", None, Some(held(1, 1, 5, Failed)), Some(Step::Remove(id(1)))),
            ("half gone", None, Some(held(1, 1, 5, Removing)), Some(Step::Remove(id(1)))),
            ("removal failed, too early", None, Some(leaving(held(1, 1, 5, Failed))), None),
            ("removal failed", None, Some(due(leaving(held(1, 1, 5, Failed)))), Some(Step::Remove(id(1)))),
            ("gone", None, Some(held(1, 1, 5, Removed)), None),
        ];
        for (case, wanted, held, step) in table {
            let steps = plan(wanted.as_slice(), held.as_slice());
            assert_eq!(steps, Vec::from_iter(step), "{case}");
        }
    }

    #[test]
    fn a_deployment_that_is_wanted_as_stopped_is_stopped_once() {
        use State::{Failed, Installed, Installing, Pending, Removed, Removing};
        let due = |held: Actual| Actual { retry_due: true, ..held };
        let leaving = |held: Actual| Actual { leaving: true, ..held };
        let stopping = |held: Actual| Actual { leaving: false, ..held };
        let stop = || Some(Step::Stop(id(1)));
        let table = [
            ("never ran here", None, stop()),
            ("was removed", Some(held(1, 1, 5, Removed)), stop()),
            ("runs", Some(held(1, 2, 4, Installed)), stop()),
            ("is being started", Some(held(1, 2, 4, Installing)), stop()),
            ("failed", Some(held(1, 2, 4, Failed)), stop()),
            ("is being removed", Some(held(1, 1, 5, Removing)), stop()),
            ("stuck in removal", Some(leaving(held(1, 1, 5, Failed))), stop()),
            ("interrupted", Some(stopping(held(1, 1, 5, Removing))), stop()),
            ("stopped", Some(held(1, 1, 5, Pending)), None),
            ("stopped, newer document", Some(held(1, 1, 9, Pending)), None),
            ("stopped, older target", Some(held(1, 1, 3, Pending)), Some(Step::Confirm(id(1)))),
            ("did not stop, too early", Some(held(1, 1, 5, Failed)), None),
            ("did not stop, due", Some(due(held(1, 1, 5, Failed))), stop()),
            ("did not stop, newer target", Some(held(1, 1, 4, Failed)), stop()),
        ];
        for (case, held, step) in table {
            let wanted = DesiredDeployment { stopped: true, ..wanted(1, 1, 5) };
            assert_eq!(plan(&[wanted], held.as_slice()), Vec::from_iter(step), "{case}");
        }
        let started = plan(&[wanted(1, 2, 6)], &[held(1, 1, 5, Pending)]);
        assert_eq!(started, [Step::Update(id(1))], "wanted as running again");
    }

    #[test]
    fn removals_come_first_and_each_part_is_ordered_by_id() {
        let desired = [wanted(3, 1, 1), wanted(1, 1, 1)];
        let actual = [held(4, 1, 1, State::Installed), held(2, 1, 1, State::Failed)];
        let steps = plan(&desired, &actual);
        let ordered = [Step::Remove(id(2)), Step::Remove(id(4)), Step::Install(id(1)), Step::Install(id(3))];
        assert_eq!(steps, ordered);
    }

    fn any_desired() -> impl Strategy<Value = Vec<DesiredDeployment>> {
        let entry = (0..8_u8, 0..3_u8, 1..6_u64);
        let unique = |entries: Vec<(u8, u8, u64)>| {
            let by_id: BTreeMap<_, _> = entries.into_iter().map(|(n, v, t)| (n, (v, t))).collect();
            by_id.into_iter().map(|(n, (v, t))| wanted(n, v, t)).collect::<Vec<_>>()
        };
        prop::collection::vec(entry, 0..8).prop_map(unique).prop_shuffle()
    }

    fn any_actual() -> impl Strategy<Value = Vec<Actual>> {
        let entry =
            (0..8_u8, 0..3_u8, 1..6_u64, prop::sample::select(State::ALL.to_vec()), any::<[bool; 2]>());
        let unique = |entries: Vec<(u8, u8, u64, State, [bool; 2])>| {
            let one = |(n, v, at, state, [leaving, retry_due]): (u8, u8, u64, State, [bool; 2])| {
                let entry = held(n, v, at, state);
                let leaving = entry.leaving || (state == State::Failed && leaving);
                (n, Actual { leaving, retry_due, ..entry })
            };
            entries.into_iter().map(one).collect::<BTreeMap<_, _>>().into_values().collect::<Vec<_>>()
        };
        prop::collection::vec(entry, 0..8).prop_map(unique).prop_shuffle()
    }

    proptest! {
        #[test]
        fn a_plan_carried_out_reaches_what_is_desired(desired in any_desired(), actual in any_actual()) {
            let mut world: Vec<_> = actual.into_iter().map(|held| Actual { retry_due: true, ..held }).collect();
            for step in plan(&desired, &world.clone()) {
                execute(&step, &desired, &mut world);
            }
            world.retain(|held| held.state != State::Removed);
            let reached: BTreeSet<_> = world.iter().map(|held| (&held.deployment, held.digest)).collect();
            prop_assert_eq!(reached, desired.iter().map(|entry| (&entry.id, entry.digest)).collect());
            prop_assert!(world.iter().all(|held| held.state == State::Installed));
            prop_assert_eq!(plan(&desired, &world), []);
        }

        #[test]
        fn a_plan_cut_short_anywhere_still_ends_where_it_should(
            desired in any_desired(), actual in any_actual(), cut in 0..8_usize,
        ) {
            let mut world: Vec<_> = actual.into_iter().map(|held| Actual { retry_due: true, ..held }).collect();
            for step in plan(&desired, &world.clone()).into_iter().take(cut) {
                execute(&step, &desired, &mut world);
            }
            for step in plan(&desired, &world.clone()) {
                execute(&step, &desired, &mut world);
            }
            prop_assert_eq!(plan(&desired, &world), []);
        }

        #[test]
        fn a_deployment_is_planned_without_regard_to_any_other(desired in any_desired(), actual in any_actual()) {
            let steps = plan(&desired, &actual);
            let ids: BTreeSet<_> = steps.iter().map(Step::deployment).collect();
            prop_assert_eq!(ids.len(), steps.len(), "one step a deployment at most");
            for number in 0..8 {
                let desired: Vec<_> = desired.iter().filter(|entry| entry.id == id(number)).cloned().collect();
                let actual: Vec<_> =
                    actual.iter().filter(|held| held.deployment == id(number)).cloned().collect();
                let alone = plan(&desired, &actual);
                let among: Vec<_> =
                    steps.iter().filter(|step| *step.deployment() == id(number)).cloned().collect();
                prop_assert_eq!(alone, among);
            }
        }

        #[test]
        fn the_order_of_the_arguments_changes_nothing(
            desired in any_desired(), actual in any_actual(),
        ) {
            let steps = plan(&desired, &actual);
            let (mut desired, mut actual) = (desired, actual);
            desired.reverse();
            actual.reverse();
            prop_assert_eq!(plan(&desired, &actual), steps);
        }
    }
}
