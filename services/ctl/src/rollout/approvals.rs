//! `muster watch approvals`: the waves of rollouts and the operations of plans that wait for an approval, each told once, and what
//! became of it. It begins with all that wait, so a start after an interruption misses none.
//!
//! The first questions are about waves and operations at once. Waves end the watch if nobody answers about them at first; a planner
//! that does not answer is noted, because a hub may have none.

mod operations;
mod waves;

use std::time::Duration;

use muster_client::operations::PendingApproval;
use muster_client::rollout::read_approvals;
use muster_contract::Timestamp;
use muster_contract::plans::OperationState;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::operations::{OperationNews, ToldOperations};
use self::waves::ToldWaves;
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
    /// The wave or operation; `kind` tells which.
    #[serde(flatten)]
    pub request: PendingApproval,
    /// The present state of an operation that does not wait any more; absent if its instance is gone, and of waves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<OperationState>,
    /// Time at which this program has seen it.
    pub at: Timestamp,
}

/// A kind of event of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalEventKind {
    /// It waits, or what is shown of it has changed.
    Waiting,
    /// The wave has begun, or may begin; the operation is approved.
    Approved,
    /// The rollout is paused, has ended, or waits for something else; the operation is rejected, has expired or is cancelled.
    Ended,
}

/// The requests that were printed.
#[derive(Default)]
struct Requests {
    waves: ToldWaves,
    operations: ToldOperations,
    screen: Screen,
}

/// Follows the approvals that are waited for.
///
/// # Errors
/// Nobody answers the first question about waves, or the output cannot be written.
pub async fn run(session: &mut Session<'_>, within: Option<Duration>) -> Result<(), CtlError> {
    let over = within.map(|within| Instant::now() + within);
    let mut requests = Requests::default();
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let Requests { waves, operations, .. } = &mut requests;
        let question = async {
            ticks.tick().await;
            let waves = read_approvals(&session.hub, waves.deployments(), session.clock.now());
            tokio::join!(waves, operations.read(&session.hub))
        };
        let (state, found) = tokio::select! {
            answers = question => answers,
            () = until_over(over) => return Ok(()),
            _ = &mut interrupted => return Ok(()),
        };
        let now = session.clock.now();
        let mut events = Vec::new();
        match state.map_err(CtlError::from) {
            Ok(state) => {
                requests.screen.answer(session);
                let (told, is_first) = requests.waves.apply(state, now);
                if is_first && told.is_empty() && !session.is_redrawn() {
                    let none = "muster: no wave waits for an approval; waiting for one\n";
                    session.terminal.print_note(none);
                }
                events = told;
            }
            Err(error) if is_waited_for(&error, requests.waves.has_answered()) => {
                requests.screen.fail(session, &error);
            }
            Err(error) => return Err(error),
        }
        let OperationNews { events: told, notes } = requests.operations.apply(found, now);
        events.extend(told);
        requests.show(session, &events, &notes)?;
    }
}

impl Requests {
    /// Shows events and notes; on a terminal all that waits.
    fn show(
        &mut self,
        session: &mut Session<'_>,
        events: &[ApprovalEvent],
        notes: &[String],
    ) -> Result<(), CtlError> {
        if session.is_redrawn() {
            return self.redraw(session);
        }
        for note in notes {
            session.terminal.print_note(&format!("muster: {note}\n"));
        }
        for event in events {
            match session.format {
                Format::Json => {
                    let json = serde_json::to_string(event).unwrap_or_default();
                    session.terminal.print_json(&(json + "\n"))?;
                }
                Format::Table => session.terminal.print(&render::rollout::approval(event))?,
            }
        }
        Ok(())
    }

    fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        let waiting: Vec<_> = self.waves.waiting().chain(self.operations.waiting()).collect();
        let text = render::rollout::approvals(&waiting, self.operations.gap());
        self.screen.redraw(session, &text)
    }
}
