//! The handle everyone holds. What it can do is written beside what it does it with, in the other modules.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::link::Link;
use crate::wire::Wire;

/// A connection to the bus. Cloning is cheap; all clones share the connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Bus {
    pub(crate) wire: Arc<Wire>,
}

impl Bus {
    /// The link, watched.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.wire.link.clone()
    }

    /// Completes when nobody has answered for [`UNANSWERED_MAX`](crate::link::UNANSWERED_MAX) questions in a row although
    /// the link seems to be up. Then another connection may help: drop this one and make a new one.
    pub async fn stalled(&self) {
        self.wire.silence.long().await;
    }

    /// What the server refused last, in its words: a permission that is missing shows itself no other way than here and
    /// in the log.
    pub fn refusal(&self) -> Option<String> {
        self.wire.refusal.borrow().clone()
    }

    /// Waits until what was handed to the connection is on its way, at most `timeout`; true if it is. To be called
    /// before the last handle is dropped: acknowledgements and core messages are not confirmed otherwise.
    pub async fn flush(&self, timeout: Duration) -> bool {
        matches!(tokio::time::timeout(timeout, self.wire.client.flush()).await, Ok(Ok(())))
    }
}
