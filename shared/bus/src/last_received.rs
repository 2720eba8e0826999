//! When a reader last received anything from the server, shared with the code that judges silence.
//!
//! It does not read itself: [`crate::Replay`] keeps it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// When a reader last received a message, or the server's heartbeat that says that there is none. Every message that the
/// server sent before has been returned or is in the batch that comes next.
#[derive(Debug, Clone, Default)]
pub struct LastReceived(Arc<Mutex<Option<Instant>>>);

impl LastReceived {
    /// Time since then; `None` while the reader has no consumer.
    pub fn age(&self) -> Option<Duration> {
        self.get().map(|at| at.elapsed())
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, at: Instant) {
        self.replace(Some(at));
    }

    /// The reader has no consumer.
    pub fn clear(&self) {
        self.replace(None);
    }

    fn replace(&self, at: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}
