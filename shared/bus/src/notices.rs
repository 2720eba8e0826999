//! The stream NOTICES: what subscribers want to be told of, and the newest notice of each.
//!
//! It holds one message of each subject, so a newer notice takes the place of an older one. A subscription that nobody
//! renews is taken out by the server itself, which leaves a mark that says so.

use std::time::Duration;

use bytes::Bytes;
use muster_contract::SubscriptionName;
use muster_contract::headers::TTL;
use muster_contract::subjects::{live_notice, notice, stream, subscription};

use crate::bus::Bus;
use crate::message::{Delivery, Outgoing};
use crate::publish::PublishError;
use crate::read::{ReadError, Subscription};
use crate::replay::{Replay, Start};

/// What stands in a subscription's place when somebody has ended it.
const OPERATION: &str = "KV-Operation";
/// The server's own mark, in place of what it has taken out.
const EXPIRED: &str = "Nats-Marker-Reason";
/// How long the mark of a subscription that was ended stays, for whoever was away.
const MARK_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeEntry {
    /// What it is.
    pub room: NoticeRoom,
    /// The subscription's name, as the subject has it.
    pub name: String,
    /// The document, or why there is none.
    pub value: Result<Bytes, NoticeGone>,
    /// Its sequence.
    pub revision: u64,
    /// Entries still to come before a reader has seen the present.
    pub pending: u64,
}

/// The two kinds of subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeRoom {
    /// `muster.subscription.<name>`
    Subscription,
    /// `muster.notice.<name>`
    Notice,
}

/// Why there is no document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeGone {
    /// Somebody has ended it.
    Ended,
    /// Its time was over.
    Expired,
}

impl Bus {
    /// Writes a subscription that lasts for a lease, in place of the revision that is expected (0 for none); its revision.
    pub async fn subscription_put(
        &self,
        name: &SubscriptionName,
        value: Bytes,
        lease: Duration,
        expected: u64,
    ) -> Result<u64, PublishError> {
        self.put_notice(subscription(name), value, Some(lease), expected).await
    }

    /// Ends a subscription at a revision; the revision of the mark that says so.
    pub async fn subscription_end(
        &self,
        name: &SubscriptionName,
        expected: u64,
    ) -> Result<u64, PublishError> {
        let mut mark = outgoing(subscription(name), Bytes::new(), Some(MARK_KEPT), expected);
        mark.headers.insert(OPERATION, "DEL");
        self.publish(mark).await.map(|stored| stored.sequence)
    }

    /// The last entry of a subscription.
    pub async fn subscription_last(&self, name: &SubscriptionName) -> Result<Option<NoticeEntry>, ReadError> {
        self.last_notice_of(&subscription(name)).await
    }

    /// Writes a notice in place of the revision that is expected (0 for none); its revision. A `keep` is how long it stays.
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

    /// Follows the notices of a subscription as they are stored: at most once, a hint to look at the newest.
    pub async fn notices_of(&self, name: &SubscriptionName) -> Result<Subscription, ReadError> {
        self.subscribe(&live_notice(name)).await
    }

    /// Follows all subscriptions and notices: the present first, then every change.
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
    /// A message of the stream; none where its subject is neither of the two.
    pub fn of(delivery: &Delivery) -> Option<Self> {
        let (room, name) =
            [(NoticeRoom::Subscription, "muster.subscription."), (NoticeRoom::Notice, "muster.notice.")]
                .into_iter()
                .find_map(|(room, prefix)| Some((room, delivery.subject.strip_prefix(prefix)?)))?;
        let value = if delivery.headers.get(EXPIRED).is_some() {
            Err(NoticeGone::Expired)
        } else if delivery.headers.get(OPERATION).is_some() {
            Err(NoticeGone::Ended)
        } else {
            Ok(delivery.payload.clone())
        };
        let (name, revision) = (name.to_owned(), delivery.stream_seq);
        Some(Self { room, name, value, revision, pending: delivery.pending })
    }
}
