//! `muster watch approvals`: the waves that wait for an approval, each told once, and what became of it. It begins with all
//! that wait, so a start after an interruption misses none.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_client::rollout::{ApprovalRequest, ApprovalState, RequestKey, read_approvals};
use muster_contract::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::screen::Screen;
use super::watch::{is_waited_for, until_over};
use crate::config::Format;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// An event of an approval, as `muster watch approvals` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalEvent {
    /// The kind of event.
    pub event: ApprovalEventKind,
    /// The request.
    #[serde(flatten)]
    pub request: ApprovalRequest,
    /// Time at which this program has seen it.
    pub at: Timestamp,
}

/// A kind of event of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalEventKind {
    /// The wave waits, or its number of approvals has changed.
    Waiting,
    /// The wave has begun, or may begin.
    Approved,
    /// The rollout is paused, has ended, or waits for something else.
    Ended,
}

/// The requests that were printed.
#[derive(Default)]
struct Requests {
    waiting: BTreeMap<RequestKey, ApprovalRequest>,
    has_answered: bool,
    screen: Screen,
}

/// Follows the approvals that are waited for.
///
/// # Errors
/// Nobody answers the first question, or the output cannot be written.
pub async fn run(session: &mut Session<'_>, within: Option<Duration>) -> Result<(), CtlError> {
    let over = within.map(|within| Instant::now() + within);
    let mut requests = Requests::default();
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let question = async {
            ticks.tick().await;
            let before = requests.waiting.keys().map(|(deployment, ..)| deployment.clone());
            Ok(read_approvals(&session.hub, before, session.clock.now()).await?)
        };
        let answer = tokio::select! {
            answer = question => answer,
            () = until_over(over) => return Ok(()),
            _ = &mut interrupted => return Ok(()),
        };
        match answer {
            Ok(state) => requests.show(session, state)?,
            Err(error) if is_waited_for(&error, requests.has_answered) => requests.fail(session, &error)?,
            Err(error) => return Err(error),
        }
    }
}

impl Requests {
    /// Applies an answer; returns the events since the last one.
    fn events(&mut self, state: ApprovalState, at: Timestamp) -> Vec<ApprovalEvent> {
        let ApprovalState { mut waiting, approved, unknown } = state;
        let mut events = Vec::new();
        for (key, request) in std::mem::take(&mut self.waiting) {
            if unknown.contains(&key.0) {
                waiting.insert(key, request);
            } else if !waiting.contains_key(&key) {
                let is_approved = approved.contains(&key);
                let event = if is_approved { ApprovalEventKind::Approved } else { ApprovalEventKind::Ended };
                events.push(ApprovalEvent { event, request, at });
            } else {
                self.waiting.insert(key, request);
            }
        }
        for (key, request) in &waiting {
            if self.waiting.get(key) != Some(request) && !unknown.contains(&key.0) {
                let event = ApprovalEventKind::Waiting;
                events.push(ApprovalEvent { event, request: request.clone(), at });
            }
        }
        self.waiting = waiting;
        events
    }

    fn show(&mut self, session: &mut Session<'_>, state: ApprovalState) -> Result<(), CtlError> {
        let is_first = !std::mem::replace(&mut self.has_answered, true);
        self.screen.answer(session);
        let events = self.events(state, session.clock.now());
        if session.is_redrawn() {
            return self.redraw(session);
        }
        if is_first && events.is_empty() {
            session.terminal.print_note("muster: no wave waits for an approval; waiting for one\n");
        }
        for event in events {
            match session.format {
                Format::Json => {
                    let json = serde_json::to_string(&event).unwrap_or_default();
                    session.terminal.print_json(&(json + "\n"))?;
                }
                Format::Table => session.terminal.print(&render::rollout::approval(&event))?,
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
        let text = render::rollout::approvals(self.waiting.values(), session.frame());
        self.screen.redraw(session, &text)
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;
    use muster_domain::rollout::ApprovalCount;

    use super::*;

    fn request(given: usize) -> (RequestKey, ApprovalRequest) {
        let request = ApprovalRequest {
            deployment: "web".parse().unwrap(),
            digest: Digest::of_bytes(b"v2"),
            rollout: "fleet/rollout.yaml".to_owned(),
            wave: "quarter".to_owned(),
            devices: 3,
            approvals: ApprovalCount { given, needed: 2, void: 0 },
        };
        let ApprovalRequest { deployment, digest, rollout, wave, .. } = request.clone();
        ((deployment, digest, rollout, wave), request)
    }

    fn state(waiting: &[usize], is_approved: bool, is_unknown: bool) -> ApprovalState {
        let key = request(0).0;
        ApprovalState {
            waiting: waiting.iter().map(|given| request(*given)).collect(),
            approved: is_approved.then(|| key.clone()).into_iter().collect(),
            unknown: is_unknown.then_some(key.0).into_iter().collect(),
        }
    }

    #[test]
    fn a_request_is_told_once_then_when_it_changes_and_how_it_ends() {
        use ApprovalEventKind::{Approved, Ended, Waiting};
        let mut requests = Requests::default();
        let mut events = |state| {
            let events = requests.events(state, Timestamp::UNIX_EPOCH);
            events.iter().map(|event| event.event).collect::<Vec<_>>()
        };
        for (what, expected) in [
            (state(&[0], false, false), vec![Waiting]),
            (state(&[0], false, false), vec![]),
            (state(&[], false, true), vec![]),
            (state(&[1], false, false), vec![Waiting]),
            (state(&[], true, false), vec![Approved]),
            (state(&[], true, false), vec![]),
            (state(&[0], false, false), vec![Waiting]),
            (state(&[], false, false), vec![Ended]),
        ] {
            assert_eq!(events(what), expected);
        }
    }
}
