//! The stream NOTICES: the subscriptions, and the newest notice of each.
//!
//! The stream keeps the last message of each subject, so a newer notice replaces an older one. The server removes a
//! subscription that its owner does not renew, and leaves a marker.

use std::time::Duration;

use bytes::Bytes;
use muster_contract::headers::TTL;
use muster_contract::subjects::{live_notice, notice, stream, subscription};
use muster_contract::{SubscriptionName, Timestamp};

use crate::bus::Bus;
use crate::message::{Delivery, Outgoing};
use crate::publish::PublishError;
use crate::read::Subscription;
use crate::read_error::ReadError;
use crate::replay::{Replay, Start};

/// The header of the marker that replaces an ended subscription.
const OPERATION: &str = "KV-Operation";
/// The header of the server's marker for an expired message.
const EXPIRED: &str = "Nats-Marker-Reason";
/// How long the marker of an ended subscription stays, for readers that were away.
const MARKER_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeEntry {
    /// Whether it is a subscription or a notice.
    pub kind: NoticeKind,
    /// The subscription's name, as the subject has it.
    pub name: String,
    /// The document, or the reason why there is none.
    pub value: Result<Bytes, NoticeAbsence>,
    /// Its sequence.
    pub revision: u64,
    /// When the stream stored it.
    pub stored_at: Timestamp,
    /// Entries that a reader has not seen yet.
    pub pending: u64,
}

/// The two kinds of entries, by their subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeKind {
    /// `muster.subscription.<name>`
    Subscription,
    /// `muster.notice.<name>`
    Notice,
}

/// Why there is no document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeAbsence {
    /// The subscription was ended.
    Ended,
    /// The entry expired.
    Expired,
}

impl Bus {
    /// Writes a subscription that lasts for a lease if its revision is `expected` (0: it does not exist); the new revision.
    pub async fn subscription_put(
        &self,
        name: &SubscriptionName,
        value: Bytes,
        lease: Duration,
        expected: u64,
    ) -> Result<u64, PublishError> {
        self.put_notice(subscription(name), value, Some(lease), expected).await
    }

    /// Ends a subscription if its revision is `expected`; the revision of the marker.
    pub async fn subscription_end(
        &self,
        name: &SubscriptionName,
        expected: u64,
    ) -> Result<u64, PublishError> {
        let mut marker = outgoing(subscription(name), Bytes::new(), Some(MARKER_KEPT), expected);
        marker.headers.insert(OPERATION, "DEL");
        self.publish(marker).await.map(|stored| stored.sequence)
    }

    /// The last entry of a subscription.
    pub async fn subscription_last(&self, name: &SubscriptionName) -> Result<Option<NoticeEntry>, ReadError> {
        self.last_notice_of(&subscription(name)).await
    }

    /// Writes a notice, for the time `keep` if there is one, if its revision is `expected` (0: it does not exist); the new
    /// revision.
    pub async fn notice_put(
        &self,
        name: &SubscriptionName,
        value: Bytes,
        keep: Option<Duration>,
        expected: u64,
    ) -> Result<u64, PublishError> {
        self.put_notice(notice(name), value, keep, expected).await
    }

    /// The newest notice of a subscription.
    pub async fn notice_last(&self, name: &SubscriptionName) -> Result<Option<NoticeEntry>, ReadError> {
        self.last_notice_of(&notice(name)).await
    }

    /// Follows the notices of a subscription as they are stored. Each comes at most once: a hint to read the newest.
    pub async fn notices_of(&self, name: &SubscriptionName) -> Result<Subscription, ReadError> {
        self.subscribe(&live_notice(name)).await
    }

    /// Follows all subscriptions and notices: the current ones first, then every change.
    pub async fn notices_all(&self) -> Result<Replay, ReadError> {
        self.replay(stream::NOTICES, &["muster.subscription.*", "muster.notice.*"], Start::LastPerSubject)
            .await
    }

    async fn put_notice(
        &self,
        subject: String,
        value: Bytes,
        keep: Option<Duration>,
        expected: u64,
    ) -> Result<u64, PublishError> {
        self.publish(outgoing(subject, value, keep, expected)).await.map(|stored| stored.sequence)
    }

    async fn last_notice_of(&self, subject: &str) -> Result<Option<NoticeEntry>, ReadError> {
        Ok(self.last(stream::NOTICES, subject).await?.and_then(|delivery| NoticeEntry::of(&delivery)))
    }
}

fn outgoing(subject: String, value: Bytes, keep: Option<Duration>, expected: u64) -> Outgoing {
    let mut message = Outgoing {
        expected_stream: Some(stream::NOTICES),
        expected_last_subject_sequence: Some(expected),
        ..Outgoing::new(subject, value)
    };
    if let Some(keep) = keep {
        message.headers.insert(TTL, format!("{}s", keep.as_secs().max(1)));
    }
    message
}

impl NoticeEntry {
    /// A message of the stream; `None` if its subject is neither of the two kinds.
    pub fn of(delivery: &Delivery) -> Option<Self> {
        let (kind, name) =
            [(NoticeKind::Subscription, "muster.subscription."), (NoticeKind::Notice, "muster.notice.")]
                .into_iter()
                .find_map(|(kind, prefix)| Some((kind, delivery.subject.strip_prefix(prefix)?)))?;
        let value = if delivery.headers.get(EXPIRED).is_some() {
            Err(NoticeAbsence::Expired)
        } else if delivery.headers.get(OPERATION).is_some() {
            Err(NoticeAbsence::Ended)
        } else {
            Ok(delivery.payload.clone())
        };
        let (name, revision) = (name.to_owned(), delivery.stream_seq);
        let (stored_at, pending) = (delivery.stored_at, delivery.pending);
        Some(Self { kind, name, value, revision, stored_at, pending })
    }
}
