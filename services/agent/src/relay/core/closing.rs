//! Ends a session: because its connection is lost, something failed, or the agent stops. The outbox marks confirmed
//! rows before the session is over.

use muster_bus::Link;
use muster_contract::Epoch;
use tokio::time::Instant;

use super::{Effect, FLUSH, GOOD_SESSION, RelayCore, SessionEnd, SessionPhase};

impl RelayCore {
    pub(super) fn link_changed(&mut self, link: Link) {
        if link == self.link {
            return;
        }
        (self.link, self.is_new_link, self.retry_at) = (link, true, None);
        // A session that failed over the connection before delays none over this one.
        if let SessionPhase::Closing(end @ SessionEnd::Failed, _) = &mut self.phase {
            *end = SessionEnd::LinkLost;
        }
        self.end(SessionEnd::LinkLost);
        if self.phase == SessionPhase::Closed && self.is_stopping && !link.is_up() {
            self.phase = SessionPhase::Stopped;
        }
    }

    /// The agent stops: the remaining reports are sent if that is possible at once.
    pub(super) fn stop(&mut self, now: Instant) {
        self.is_stopping = true;
        match self.phase {
            SessionPhase::Closed if self.link.is_up() => self.retry_at = None,
            // Without an epoch nothing was ever sent, and nothing can be now.
            SessionPhase::Closed | SessionPhase::WithoutEpoch { needs_receipt: true } => {
                self.phase = SessionPhase::Stopped;
            }
            SessionPhase::Open(_) => self.flush_until = self.flush_until.or(Some(self.flush_end(now))),
            _ => {}
        }
    }

    /// Until when the remaining reports are sent. Without the receipt none may be sent, and a stopping
    /// agent no longer fetches it.
    pub(super) fn flush_end(&self, now: Instant) -> Instant {
        if self.is_receipt_fetched { now + FLUSH } else { now }
    }

    /// Begins to close the session: only marks and a last heartbeat follow.
    pub(super) fn end(&mut self, end: SessionEnd) {
        let epoch = match self.phase {
            SessionPhase::Open(epoch) => Some(epoch),
            SessionPhase::Opening | SessionPhase::WithoutEpoch { .. } => None,
            SessionPhase::Closed | SessionPhase::Closing(..) | SessionPhase::Stopped => return,
        };
        self.phase = SessionPhase::Closing(end, epoch);
        (self.is_awaiting, self.is_last_mark_requested, self.heartbeat) = (false, false, None);
    }

    /// The next effect of a closing session: the last marks, a last heartbeat if the agent stops, and the end.
    pub(super) fn close(&mut self, end: SessionEnd, epoch: Option<Epoch>, now: Instant) -> Option<Effect> {
        if epoch.is_some() {
            if self.marks.is_under_way() {
                return None;
            }
            if !std::mem::replace(&mut self.is_last_mark_requested, true)
                && let Some(effect) = self.marks.mark(&self.queue)
            {
                return Some(effect);
            }
            if end == SessionEnd::Stopped && !std::mem::replace(&mut self.is_last_heartbeat_requested, true) {
                return self.await_answer(Effect::ReadStatus);
            }
            if let Some(heartbeat) = self.heartbeat.take() {
                return Some(Effect::SendHeartbeat(heartbeat));
            }
        }
        let has_lasted =
            self.started_at.is_some_and(|begun| now.saturating_duration_since(begun) >= GOOD_SESSION);
        if has_lasted {
            self.retry_delays.reset();
        }
        let is_over = match end {
            SessionEnd::LinkLost => self.is_stopping && !self.link.is_up(),
            SessionEnd::Failed => self.is_stopping,
            SessionEnd::Stopped => true,
        };
        self.phase = if is_over { SessionPhase::Stopped } else { SessionPhase::Closed };
        let delay = (end == SessionEnd::Failed && !is_over).then(|| self.retry_delays.next(&mut self.rng));
        self.retry_at = delay.map(|delay| now + delay);
        Some(Effect::EndSession(delay))
    }
}
