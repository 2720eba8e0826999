//! The handle of a connection to NATS. Other modules add its operations beside the types that these need.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use muster_identity::Requester;
use tokio::sync::watch;

use crate::link::Link;
use crate::requester::requester;
use crate::wire::Wire;

/// A connection to the bus. Clones share the connection, which closes when the last of them is dropped.
#[derive(Debug, Clone)]
pub struct Bus {
    pub(crate) wire: Arc<Wire>,
}

impl Bus {
    /// The state of the link, as a watched value.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.wire.link.clone()
    }

    /// Completes when [`UNANSWERED_MAX`](crate::link::UNANSWERED_MAX) requests in a row got no answer although the link is
    /// up. Another connection may help then: drop this one and open a new one.
    pub async fn stalled(&self) {
        self.wire.silence.stalled().await;
    }

    /// The server's last refusal, in its words. A missing permission shows itself only here and in the log.
    pub fn refusal(&self) -> Option<String> {
        self.wire.refusal.borrow().clone()
    }

    /// Writes all queued messages to the socket, within `timeout`; false if that took longer. Call it before the last
    /// handle is dropped: nothing else confirms acknowledgements and core messages.
    pub async fn flush(&self, timeout: Duration) -> bool {
        matches!(tokio::time::timeout(timeout, self.wire.client.flush()).await, Ok(Ok(())))
    }

    /// The requester of a request; `None` if its reply subject is not one that this process answers to. Such a request is
    /// counted, logged and dropped.
    pub(crate) fn admit(&self, message: &Message) -> Option<Requester> {
        let admitted = requester(message, &self.wire.signers, self.wire.own_replies);
        if admitted.is_none() {
            if let Some(dropped) = self.wire.dropped_requests.get() {
                dropped.inc();
            }
            let reply = message.reply.as_deref().unwrap_or_default();
            tracing::debug!(subject = %message.subject, reply, "dropped a request with a foreign reply subject");
        }
        admitted
    }
}
