//! Derives the state of a deployment from its components (Margo), and checks that a report obeys the rule.
//!
//! The rule, most severe first: failed, removing, installing, pending, removed, installed. An explicit error of
//! the deployment as a whole makes it failed even if no component failed; without components it is pending.
//! This module knows no devices, generations or counts.

use muster_contract::State;
use muster_contract::decode::Violation;
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};

/// The state of a deployment whose components are in these states.
pub fn overall(components: impl IntoIterator<Item = State>, error: Option<&StatusError>) -> State {
    if error.is_some() {
        return State::Failed;
    }
    components.into_iter().max_by_key(|state| severity(*state)).unwrap_or(State::Pending)
}

/// Whether a reported state is the one that the rule gives.
///
/// # Errors
/// A violation at `status.state` that says what the rule gives, and why.
pub fn check(status: &DeploymentStatus, components: &[ComponentStatus]) -> Result<(), Violation> {
    let ruled = overall(components.iter().map(|component| component.state), status.error.as_ref());
    if status.state == ruled {
        return Ok(());
    }
    let reason = match (&status.error, components) {
        (Some(_), _) => "an error of the deployment as a whole makes it so",
        (None, []) => "it has no components yet",
        (None, _) => "that is the most severe state of its components",
    };
    Err(Violation::at("status.state", format!("is {}; it must be {ruled}: {reason}", status.state)))
}

/// How severe a state is: a more severe one of a component decides about the whole.
pub const fn severity(state: State) -> u8 {
    match state {
        State::Installed => 0,
        State::Removed => 1,
        State::Pending => 2,
        State::Installing => 3,
        State::Removing => 4,
        State::Failed => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Margo's precedence as its specification writes it (with its typo set right).
    const PRECEDENCE: [State; 6] =
        [State::Failed, State::Removing, State::Installing, State::Pending, State::Removed, State::Installed];

    fn components(states: &[State]) -> Vec<ComponentStatus> {
        let name = |at| format!("c{at}").parse().unwrap();
        states
            .iter()
            .enumerate()
            .map(|(at, state)| ComponentStatus { name: name(at), state: *state, error: None })
            .collect()
    }

    fn status(state: State, error: bool) -> DeploymentStatus {
        let error = error.then(|| StatusError::new("X", "web", "broken"));
        DeploymentStatus { state, error, reason: None }
    }

    #[test]
    fn the_most_severe_state_wins_in_all_63_subsets_and_any_order() {
        for subset in 1u8..64 {
            let mut states: Vec<State> = PRECEDENCE
                .into_iter()
                .enumerate()
                .filter(|(at, _)| subset & (1 << at) != 0)
                .map(|(_, s)| s)
                .collect();
            let expected = states[0];
            for _ in 0..states.len() {
                states.rotate_left(1);
                assert_eq!(overall(states.iter().copied(), None), expected, "{states:?}");
                let twice = states.iter().chain(states.iter()).copied();
                assert_eq!(overall(twice, None), expected, "{states:?} twice");
            }
        }
    }

    #[test]
    fn an_error_of_the_deployment_makes_it_failed_over_any_components() {
        let error = StatusError::new("X", "", "");
        assert_eq!(overall([], Some(&error)), State::Failed);
        for state in State::ALL {
            assert_eq!(overall([state], Some(&error)), State::Failed);
        }
    }

    #[test]
    fn no_components_yet_is_pending() {
        assert_eq!(overall([], None), State::Pending);
    }

    #[test]
    fn a_report_with_a_wrong_state_is_refused_with_the_right_one() {
        for subset in 0u8..64 {
            let states: Vec<State> = State::ALL
                .into_iter()
                .enumerate()
                .filter(|(at, _)| subset & (1 << at) != 0)
                .map(|(_, s)| s)
                .collect();
            for (state, error) in State::ALL.into_iter().flat_map(|state| [(state, false), (state, true)]) {
                let status = status(state, error);
                let ruled = overall(states.iter().copied(), status.error.as_ref());
                let verdict = check(&status, &components(&states));
                assert_eq!(verdict.is_ok(), state == ruled);
                if let Err(violation) = verdict {
                    assert_eq!(violation.path, "status.state");
                    assert!(violation.rule.contains(&format!("must be {ruled}")), "{violation}");
                }
            }
        }
    }
}
