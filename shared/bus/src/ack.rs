//! Acknowledging and removing messages of one partition of UPLINK, for as long as the consumer session lasts that
//! delivered them.
//!
//! A later session of the same reader, or another link, ends a session: then these handles do nothing, because an
//! acknowledgement could cover messages that never arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::Subject;
use bytes::Bytes;
use muster_contract::subjects::report_partition;
use muster_contract::subjects::stream::UPLINK;
use serde::Deserialize;
use serde_json::json;

use crate::link::Link;
use crate::read_error::ReadError;
use crate::wire::Wire;

/// The session of a partition's consumer; removes acknowledged messages of the partition from UPLINK while it lasts.
/// Positions mean something else in a stream that was created again.
#[derive(Debug, Clone)]
pub struct UplinkPurger {
    pub(crate) wire: Arc<Wire>,
    pub(crate) partition: u16,
    /// The link that the session uses.
    pub(crate) over: Link,
    /// The number of the reader's current session.
    pub(crate) current_session: Arc<AtomicU64>,
    /// The number of this session.
    pub(crate) session: u64,
}

/// Acknowledges one message, while its session lasts.
#[derive(Debug, Clone)]
pub(crate) struct AckHandle {
    pub(crate) session: UplinkPurger,
    pub(crate) reply: Subject,
}

#[derive(Deserialize)]
struct Purged {
    purged: u64,
}

impl AckHandle {
    /// Acknowledges the message and every earlier one of its partition.
    pub(crate) async fn ack_all(&self) {
        let Self { session, reply } = self;
        if session.is_newest() && session.wire.link_now().is_up() {
            // A failure means that the link is lost, which ends the session.
            let _ = session.wire.post(reply.clone(), None, None, Bytes::from_static(b"+ACK")).await;
        }
    }
}

impl UplinkPurger {
    /// Removes the partition's messages up to a sequence; the number of removed messages, `None` once the session is over.
    ///
    /// # Errors
    /// The server refused, or its answer was lost.
    pub async fn purge_partition(&self, through: u64) -> Result<Option<u64>, ReadError> {
        self.purge_subject(&report_partition(self.partition), through).await
    }

    /// Removes the messages of one stored subject up to a sequence; the number of removed messages, `None` once the session
    /// is over.
    ///
    /// # Errors
    /// The server refused, or its answer was lost.
    pub async fn purge_subject(&self, subject: &str, through: u64) -> Result<Option<u64>, ReadError> {
        if !self.is_current() {
            return Ok(None);
        }
        purge(&self.wire, subject, through).await.map(Some)
    }

    /// True while the session lasts.
    pub fn is_current(&self) -> bool {
        self.is_newest() && self.wire.link_now() == self.over
    }

    /// True if both are of the same session.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current_session, &other.current_session) && self.session == other.session
    }

    /// True while the reader has begun no later session.
    fn is_newest(&self) -> bool {
        self.current_session.load(Ordering::Acquire) == self.session
    }
}

/// Removes UPLINK's messages of a subject, or of a subject pattern, up to a sequence; the number of removed messages.
pub(crate) async fn purge(wire: &Wire, subject: &str, through: u64) -> Result<u64, ReadError> {
    let request = json!({ "filter": subject, "seq": through + 1 });
    let purged = wire.api::<Purged>(&format!("STREAM.PURGE.{UPLINK}"), &request).await;
    purged.map(|done| done.purged).map_err(|error| ReadError::of("UPLINK to trim it", error))
}
