//! `muster rollout watch`: the rollouts of a deployment as they change, until a state is reached, has failed, or the time is
//! over. It asks the publisher and the query service once a second; one that does not answer any more is asked on.

use std::time::Duration;

use muster_client::rollout::{RolloutsFrame, gathered};
use muster_contract::query::{PublisherQuery, PublisherStatus};
use muster_contract::{CommitName, DeploymentId};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::gather::ungoverned;
use super::screen::Screen;
use crate::ask::{AskError, Hub, understood};
use crate::config::{Format, RolloutStates, RolloutWatchArgs};
use crate::error::{CommitError, CtlError};
use crate::render;
use crate::session::Session;

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The end that a watch waits for.
struct RolloutGoal {
    until: Option<RolloutStates>,
    fail_on: Vec<RolloutStates>,
    commit: Option<CommitName>,
}

/// The newest frame, and the screen that shows it.
#[derive(Default)]
struct Follower {
    frame: Option<RolloutsFrame>,
    screen: Screen,
}

/// Follows the rollouts of a deployment. False if the watch ended with a state that counts as failed.
///
/// # Errors
/// Nobody answers the first question, no rollout governs the deployment, the commit never comes, the time is over, or the
/// output cannot be written.
pub(super) async fn run(session: &mut Session<'_>, args: RolloutWatchArgs) -> Result<bool, CtlError> {
    let RolloutWatchArgs { deployment, until, fail_on, commit, within } = args;
    let goal = RolloutGoal { until, fail_on, commit };
    let over = within.map(|within| Instant::now() + within);
    let mut follower = Follower::default();
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let question = async {
            ticks.tick().await;
            read_frame(session, &deployment, &goal).await
        };
        let answer = tokio::select! {
            answer = question => answer,
            () = until_over(over) => return goal.over(&follower),
            _ = &mut interrupted => return Ok(goal.until.is_none()),
        };
        match answer {
            Ok(frame) => {
                let end = goal.end(&frame);
                match follower.show(session, &frame) {
                    // The exit code is the answer, also where its reader has gone.
                    Err(error) if error.is_reader_gone() && goal.until.is_some() => {
                        return Ok(end.unwrap_or(false));
                    }
                    shown => shown?,
                }
                if let Some(end) = end {
                    return Ok(end);
                }
            }
            Err(error) if is_waited_for(&error, follower.frame.is_some()) => {
                follower.fail(session, &error)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the time is over; for ever without one.
pub(super) async fn until_over(over: Option<Instant>) {
    match over {
        Some(over) => sleep_until(over).await,
        None => std::future::pending().await,
    }
}

/// Whether a watch goes on after an error: a service that has answered before is waited for, and a new commit always.
pub(super) const fn is_waited_for(error: &CtlError, has_answered: bool) -> bool {
    matches!(error, CtlError::Ask(AskError::CommitChanged)) || has_answered && passes(error)
}

/// Whether the same question may be answered in a moment.
const fn passes(error: &CtlError) -> bool {
    matches!(error, CtlError::Ask(error) if error.may_pass())
}

/// Asks once.
async fn read_frame(
    session: &Session<'_>,
    id: &DeploymentId,
    goal: &RolloutGoal,
) -> Result<RolloutsFrame, CtlError> {
    let at = session.clock.now();
    let found = gathered(&session.hub, id, at).await?;
    if let Some(commit) = goal.commit.as_ref().filter(|commit| !commit.names(&found.revision)) {
        check_commit(&session.hub, commit).await?;
    } else if found.rollouts.is_empty() {
        return Err(ungoverned(session, id).await);
    }
    Ok(RolloutsFrame::of(id.clone(), &found, at))
}

/// Whether a commit may still come.
async fn check_commit(hub: &Hub, commit: &CommitName) -> Result<(), CtlError> {
    let query = PublisherQuery { commit: Some(commit.clone()), ..PublisherQuery::default() };
    let status: PublisherStatus = understood(&hub.publisher("status", &query).await?)?;
    let Some(git) = status.git else { return Err(CommitError::NoGit.into()) };
    if let Some(refused) = git.refused.filter(|refused| commit.names(&refused.revision)) {
        return Err(CommitError::Refused(refused).into());
    }
    if git.replaced.is_some_and(|replaced| commit.names(&replaced)) {
        return Err(CommitError::Replaced { commit: commit.clone(), by: git.applied }.into());
    }
    Ok(())
}

impl RolloutGoal {
    /// Whether a frame ends the watch, and how.
    fn end(&self, frame: &RolloutsFrame) -> Option<bool> {
        let until = self.until.as_ref()?;
        let is_of_commit = self.commit.as_ref().is_none_or(|commit| commit.names(&frame.revision));
        if !is_of_commit || frame.rollouts.is_empty() {
            return None;
        }
        if self
            .fail_on
            .iter()
            .any(|states| frame.rollouts.iter().any(|rollout| states.states.contains(&rollout.state)))
        {
            return Some(false);
        }
        frame.rollouts.iter().all(|rollout| until.states.contains(&rollout.state)).then_some(true)
    }

    /// The end if the time is over.
    fn over(&self, follower: &Follower) -> Result<bool, CtlError> {
        let Some(until) = &self.until else { return Ok(true) };
        let states = follower.frame.as_ref().map_or_else(String::new, |frame| {
            let states: Vec<_> = frame.rollouts.iter().map(|rollout| rollout.state.as_str()).collect();
            states.join(", ")
        });
        let is_of_commit =
            |commit: &CommitName| follower.frame.as_ref().is_some_and(|frame| commit.names(&frame.revision));
        Err(CtlError::TimeOver(match &self.commit {
            Some(commit) if !is_of_commit(commit) => {
                format!(
                    "the time is over, and commit {commit} is not accepted: `muster publisher status` says why"
                )
            }
            _ if states.is_empty() => {
                format!("the time is over before the rollouts are {}; nothing was heard of them", until.word)
            }
            _ => format!("the time is over before the rollouts are {}: {states}", until.word),
        }))
    }
}

impl Follower {
    /// Shows a frame: on a terminal all of it, elsewhere what has changed.
    fn show(&mut self, session: &mut Session<'_>, frame: &RolloutsFrame) -> Result<(), CtlError> {
        self.screen.answer(session);
        let before = self.frame.replace(frame.clone());
        if session.is_redrawn() {
            return self.redraw(session);
        }
        let is_news = before.as_ref().is_none_or(|before| !before.is_same(frame));
        if !is_news {
            return Ok(());
        }
        match session.format {
            Format::Json => {
                let json = serde_json::to_string(frame).unwrap_or_default();
                session.terminal.print_json(&(json + "\n"))?;
            }
            Format::Table => {
                let lines = render::rollout::changed(before.as_ref(), frame);
                session.terminal.print(&lines)?;
            }
        }
        Ok(())
    }

    /// Records that there is no answer.
    fn fail(&mut self, session: &mut Session<'_>, error: &CtlError) -> Result<(), CtlError> {
        self.screen.fail(session, error);
        if session.is_redrawn() { self.redraw(session) } else { Ok(()) }
    }

    fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        let Some(frame) = &self.frame else { return Ok(()) };
        let text = render::rollout::bars(frame, session.frame());
        self.screen.redraw(session, &text)
    }
}

#[cfg(test)]
mod tests {
    use muster_client::rollout::RolloutSnapshot;
    use muster_contract::Timestamp;

    use super::*;
    use crate::config::RolloutWord;

    fn frame(revision: &str, states: &[RolloutWord]) -> RolloutsFrame {
        let rollout = |state: &RolloutWord| RolloutSnapshot {
            digest: muster_contract::canonical::Digest::of_bytes(b"v2"),
            rollout: "fleet/rollout.yaml".to_owned(),
            state: *state,
            why: String::new(),
            waves: Vec::new(),
        };
        RolloutsFrame {
            deployment: "web".parse().unwrap(),
            revision: revision.to_owned(),
            ledger_seq: 1,
            at: Timestamp::UNIX_EPOCH,
            rollouts: states.iter().map(rollout).collect(),
        }
    }

    fn goal(commit: Option<&str>) -> RolloutGoal {
        RolloutGoal {
            until: Some(RolloutStates::of("done".to_owned())),
            fail_on: ["failing", "paused"].map(|word| RolloutStates::of(word.to_owned())).to_vec(),
            commit: commit.map(|commit| commit.parse().unwrap()),
        }
    }

    #[test]
    fn a_watch_is_at_its_end_when_all_are_done_or_one_has_failed() {
        use RolloutWord::{Paused, Running, Succeeded as Done, SucceededWithDebt};
        for (states, end) in [
            (&[Done, SucceededWithDebt][..], Some(true)),
            (&[Done, Running], None),
            (&[Done, Paused], Some(false)),
            (&[], None),
        ] {
            assert_eq!(goal(None).end(&frame("abcdef0123", states)), end, "{states:?}");
        }
    }

    #[test]
    fn nothing_counts_before_the_commit_is_accepted() {
        let done = [RolloutWord::Succeeded];
        assert_eq!(goal(Some("1234567")).end(&frame("abcdef0123", &done)), None);
        assert_eq!(goal(Some("abcdef0")).end(&frame("abcdef0123", &done)), Some(true));
        let follower = Follower { frame: Some(frame("abcdef0123", &done)), ..Follower::default() };
        let error = goal(Some("1234567")).over(&follower).unwrap_err();
        assert!(error.to_string().contains("commit 1234567 is not accepted"), "{error}");
        assert_eq!(error.code(), crate::error::TIMEOUT);
    }

    #[test]
    fn an_answer_that_may_come_is_waited_for() {
        let gone = CtlError::Ask(AskError::NoService { service: "muster-rollup", subject: "a".to_owned() });
        assert!(is_waited_for(&gone, true) && is_waited_for(&CtlError::Ask(AskError::Lagging), true));
        assert!(!is_waited_for(&gone, false), "a first question without an answer ends the watch");
        assert!(is_waited_for(&CtlError::Ask(AskError::CommitChanged), false));
        assert!(!is_waited_for(&CtlError::Name("no".to_owned()), true));
    }
}
