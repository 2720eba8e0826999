//! The inputs and effects of a session, and the conditions outside it. No behaviour.

use muster_bus::{Delivery, Link, Stored, Trace};
use muster_contract::fact::Fact;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::{NotStored, Publication, Rejection};

use crate::ledger_publisher::HighWater;

/// The state in which a session begins.
#[derive(Debug)]
pub struct SessionStart {
    /// The time.
    pub now: Timestamp,
    /// The connection.
    pub link: Link,
    /// The highest known sequence of LEDGER.
    pub high_water: HighWater,
    /// The intake contains LEDGER up to here: the partition was taken, and LEDGER read beyond the owner's record.
    pub read_through: u64,
    /// The position through which the oldest part of LEDGER is re-asserted.
    pub reasserted_through: u64,
}

/// Facts of the oldest part of LEDGER.
#[derive(Debug)]
pub struct OldFacts {
    /// The facts, each with its position, in order.
    pub facts: Vec<(u64, LedgerSubject, Fact)>,
    /// The position after which they are all facts of the partition, through `through`.
    pub after: u64,
    /// The position through which they are all facts of the partition.
    pub through: u64,
}

/// A message as a stream delivers it.
pub trait ReportDelivery {
    /// The subject it is stored under.
    fn subject(&self) -> &str;
    /// Its payload: the document, unless a header says otherwise.
    fn payload(&self) -> &[u8];
    /// The value of one of its headers.
    fn header(&self, name: &str) -> Option<&str>;
    /// Its position in its stream.
    fn position(&self) -> u64;
    /// When its stream stored it.
    fn stored_at(&self) -> Timestamp;
    /// The trace that it carries.
    fn trace(&self) -> Option<Trace>;
}

impl ReportDelivery for Delivery {
    fn subject(&self) -> &str {
        &self.subject
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    fn position(&self) -> u64 {
        self.stream_seq
    }

    fn stored_at(&self) -> Timestamp {
        self.stored_at
    }

    fn trace(&self) -> Option<Trace> {
        Trace::carried(&self.headers)
    }
}

/// LEDGER's answer to the oldest fact in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactAnswer {
    /// It is stored.
    Stored(Stored),
    /// LEDGER will never store it, for this reason, and has stored no part of it.
    Unstorable(String),
    /// LEDGER refused it, or its outcome is unknown.
    Unknown,
}

/// An event of a session.
#[derive(Debug)]
pub enum Input<D> {
    /// Reports came, in the order of their positions; and the time up to which every stored report has come, if it is known.
    Reports(Vec<D>, Option<Timestamp>),
    /// The intake knows every document of a device, or they cannot be read: [`Effect::ReadDocuments`] is done.
    DocumentsRead(DeviceKey, bool),
    /// Heartbeats came.
    Heartbeats(Vec<D>),
    /// LEDGER answered to the oldest fact in flight.
    FactAnswer(FactAnswer),
    /// QUARANTINE stored the rejected report with this ticket, or did not.
    RejectionAnswer(u64, Result<(), NotStored>),
    /// DOWNLINK stored the receipt of a device, or did not.
    ReceiptAnswer(DeviceKey, bool),
    /// It is time to check leases, gaps and deadlines.
    Tick,
    /// It is time to send receipts.
    ReceiptsDue,
    /// No other process owns the partition, or that is unknown: [`Effect::ReadOwner`] is done.
    OwnerRead(bool),
    /// It is time for a snapshot.
    SnapshotDue,
    /// Facts that LEDGER will discard because of their age.
    Aged(Vec<(LedgerSubject, Fact)>),
    /// Facts that a nearly full LEDGER will discard.
    OldFacts(OldFacts),
    /// The process stops: batches of quarantined messages are published now.
    Stop,
}

/// A message of UPLINK whose reports are all evaluated, with what it held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluatedMessage<D> {
    /// The message.
    pub delivery: D,
    /// Its reports: 1, or those of a batch.
    pub reports: usize,
    /// Bytes of its reports as single ones, headers not counted.
    pub bytes: usize,
}

/// An action that the driver carries out before it asks for the next one.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "an effect is carried out at once, and never stored")]
pub enum Effect<D> {
    /// Read every document of a device and apply it to the intake, then hand in [`Input::DocumentsRead`].
    ReadDocuments(DeviceKey),
    /// Hand in the heartbeats that have arrived.
    PollHeartbeats,
    /// Store a rejected report in QUARANTINE, then hand in [`Input::RejectionAnswer`]. Before that no fact says that the report
    /// is quarantined.
    StoreRejected(Rejection),
    /// Let the facts that follow share confirmations.
    BeginRun,
    /// Publish a fact to LEDGER, with its trace if it has one; hand in its answer as [`Input::FactAnswer`], in the order of
    /// publishing.
    Publish(Publication, Option<Trace>),
    /// Request the confirmation of the rest of the run.
    EndRun,
    /// Hand in the answers that have arrived.
    PollAnswers,
    /// Record that LEDGER holds everything that follows from a message of UPLINK: from all of its reports.
    Settle(EvaluatedMessage<D>),
    /// Settle the message as [`Effect::Settle`] does, and acknowledge it, which covers all messages before it.
    Acknowledge(EvaluatedMessage<D>),
    /// Record that every fact through this position that still holds is re-asserted, and that LEDGER has confirmed it.
    Reasserted(u64),
    /// Read whether another process owns the partition, then hand in [`Input::OwnerRead`].
    ReadOwner,
    /// Write the receipt of a device to DOWNLINK, then hand in [`Input::ReceiptAnswer`].
    SendReceipt(DeviceKey, Receipt),
    /// Save the state of the devices: it contains every fact of them that LEDGER holds up to this position.
    SaveSnapshot(u64),
}

/// The conditions under which an effect is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// The time.
    pub now: Timestamp,
    /// The connection.
    pub link: Link,
    /// The connection over which LEDGER was last checked.
    pub ledger_seen_over: Link,
    /// Every heartbeat stored up to this moment has been handed in; `None` if PRESENCE cannot be read.
    pub heartbeats_through: Option<Timestamp>,
}

impl Conditions {
    /// Whether LEDGER was checked over this connection. Over a new one it may be another LEDGER, or an older state of it.
    pub(crate) fn sees_ledger(&self) -> bool {
        self.link == self.ledger_seen_over
    }
}

/// A rule of order. All hold in a process; a test breaks one to show that the simulation notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderRule {
    /// A report is acknowledged after LEDGER has confirmed everything that follows from it.
    ConfirmedBeforeAcknowledged,
    /// A batch is acknowledged after LEDGER has confirmed everything that follows from the last of its reports.
    WholeBatchBeforeAcknowledged,
    /// A rejected report is in QUARANTINE before a fact says that its number is accounted for.
    StoredBeforeAccounted,
    /// A fact with an unknown outcome ends the session.
    UnknownIsNotStored,
    /// LEDGER is read again from before the oldest fact that is not confirmed.
    ReadAgainFromOldest,
    /// A device's documents are read before a report is rejected for its deployment.
    DocumentsBeforeRefusal,
    /// Over a new connection no effect is carried out before LEDGER was checked.
    LedgerBeforeEffects,
    /// After a standstill the owner is read before receipts are sent.
    OwnerBeforeReceipts,
    /// Time passes for devices only while the hub receives.
    ReceivedBeforeTime,
    /// Heartbeats that have arrived are applied before time passes.
    HeartbeatsBeforeTime,
    /// A snapshot names no position above a fact that is not confirmed.
    ConfirmedBeforeSnapshot,
}
