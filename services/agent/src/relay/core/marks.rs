//! Decides when the outbox marks confirmed rows as sent: several together, after [`MARK_INTERVAL`], and again after
//! [`MARK_RETRY`] if the outbox failed. It writes nothing itself.

use std::time::Duration;

use tokio::time::Instant;

use super::io::Effect;
use crate::relay::send_queue::SendQueue;

/// How long confirmed rows wait for others to be marked with.
const MARK_INTERVAL: Duration = Duration::from_millis(100);
/// How long confirmed rows wait after the outbox could not mark rows.
pub(super) const MARK_RETRY: Duration = Duration::from_secs(1);

const _: () = assert!(MARK_INTERVAL.as_millis() < MARK_RETRY.as_millis());

/// The marks of one session.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The rows that the outbox is marking.
    under_way: Option<Vec<u64>>,
    due_at: Option<Instant>,
    has_failed: bool,
}

impl Marks {
    pub(super) const fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Rows were confirmed.
    pub(super) fn confirmed(&mut self, queue: &SendQueue, now: Instant) {
        if self.due_at.is_none() && self.under_way.is_none() && queue.has_acknowledged() {
            self.due_at = Some(now + MARK_INTERVAL);
        }
    }

    /// The effect that is due.
    pub(super) fn next_effect(&mut self, queue: &SendQueue, now: Instant) -> Option<Effect> {
        let is_due = self.due_at.is_some_and(|at| at <= now) || queue.should_mark() && !self.has_failed;
        if is_due { self.mark(queue) } else { None }
    }

    /// Marks all confirmed rows now, unless marks are under way.
    pub(super) fn mark(&mut self, queue: &SendQueue) -> Option<Effect> {
        if self.under_way.is_some() {
            return None;
        }
        self.due_at = None;
        let (epoch, seqs) = queue.acknowledged()?;
        self.under_way = Some(seqs.clone());
        Some(Effect::MarkSent(epoch, seqs))
    }

    /// The outbox has stored the marks under way, or could not.
    pub(super) fn marked(&mut self, queue: &mut SendQueue, is_stored: bool, now: Instant) {
        let Some(seqs) = self.under_way.take() else { return };
        self.has_failed = !is_stored;
        if is_stored {
            queue.marked(&seqs);
            self.confirmed(queue, now);
        } else {
            self.due_at = Some(now + MARK_RETRY);
        }
    }
}
