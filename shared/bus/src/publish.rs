//! Publishing one message, and what a failure means.

use bytes::Bytes;

use crate::bus::Bus;
use crate::message::{Headers, Outgoing, Stored};

/// What a failed publish means for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishErrorKind {
    /// Try again later, in the same order. Whether it was stored is unknown.
    Transient,
    /// The subject's last sequence is another than expected; nothing was stored.
    Conflict,
    /// It will be refused every time; nothing was stored.
    Permanent,
}

/// Why a message is not known to be stored.
#[derive(Debug, Clone, thiserror::Error)]
#[error("publishing to {subject}: {reason}")]
pub struct PublishError {
    /// What it means.
    pub kind: PublishErrorKind,
    /// Where to.
    pub subject: String,
    /// What happened, and what to do where something can be done.
    pub reason: String,
}

impl Bus {
    /// Publishes and waits for the stream's answer.
    pub async fn publish(&self, message: Outgoing) -> Result<Stored, PublishError> {
        let _ = message;
        std::future::pending().await
    }

    /// Publishes without an answer. Refuses while the link is down, so that nothing is queued behind it.
    pub async fn publish_core(
        &self,
        subject: &str,
        headers: Headers,
        payload: Bytes,
    ) -> Result<(), PublishError> {
        let _ = (subject, headers, payload);
        std::future::pending().await
    }
}
