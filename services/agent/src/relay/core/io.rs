//! The inputs and effects of the relay, and its rules of order. No behaviour.

use std::time::Duration;

use muster_bus::{Link, PublishErrorKind};
use muster_contract::Epoch;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::presence::Heartbeat;
use muster_contract::token::TokenTerm;
use tokio::time::Instant;

use crate::outbox::{Batch, Encoding, ReadRequest, Row, Summary};

/// The state of the device that a heartbeat reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// The contents of the outbox.
    pub summary: Summary,
    /// The generation accepted last; 0 before the first.
    pub generation: u64,
    /// The device is retired: it sends no heartbeats.
    pub is_retired: bool,
    /// The device can store reports.
    pub is_storing: bool,
    /// The desired state that it refused, while it has accepted none since.
    pub refused: Option<DesiredRefusal>,
    /// The term of its token.
    pub token: Option<TokenTerm>,
}

/// A report to be sent. The driver serialises it, once.
#[derive(Debug, PartialEq)]
pub struct OutgoingReport {
    /// The epoch of its number.
    pub epoch: Epoch,
    /// The highest number given when it was read.
    pub head: u64,
    /// The report.
    pub row: Row,
    /// The encoding that the hub reads.
    pub encoding: Encoding,
}

/// Reports to be sent in one message. The driver serialises them, once.
#[derive(Debug, PartialEq)]
pub struct OutgoingBatch {
    /// The epoch of their numbers.
    pub epoch: Epoch,
    /// The highest number given when they were read.
    pub head: u64,
    /// The reports.
    pub rows: Vec<Row>,
    /// The encoding that the hub reads.
    pub encoding: Encoding,
}

/// Identifies a message under way. It comes back with the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The session that sent it.
    pub(super) session: u64,
    /// The number of its report; of the first row of a batch.
    pub(super) seq: u64,
    /// When it was sent.
    pub(super) sent_at: Instant,
}

impl Ticket {
    /// The number of its report; of the first row of a batch.
    pub const fn seq(&self) -> u64 {
        self.seq
    }
}

/// An event that the relay takes in.
#[derive(Debug)]
pub enum Input {
    /// The connection is another one, or there is none.
    Link(Link),
    /// The hub's last receipt was fetched and stored, or there is none.
    ReceiptFetched,
    /// The outbox has changed: more rows may wait than before.
    OutboxChanged,
    /// The device can no longer store reports, or can again; it refuses its desired state, or no longer does; or its token is
    /// another one.
    StateChanged,
    /// The answer to [`Effect::ReadStatus`].
    Status(DeviceStatus),
    /// The answer to [`Effect::FixEpoch`].
    EpochFixed(Epoch),
    /// The answer to [`Effect::ReadRows`] and [`Effect::TakeReadAhead`].
    Rows(Batch),
    /// The outbox failed to answer [`Effect::ReadStatus`], [`Effect::FixEpoch`], [`Effect::ReadRows`] or
    /// [`Effect::TakeReadAhead`].
    StorageFailed,
    /// A report or a heartbeat with this number of bytes is written to the connection.
    Written(usize),
    /// UPLINK answered, or did not within its time.
    Answer(Ticket, Result<(), PublishErrorKind>),
    /// [`Effect::MarkSent`] is done; false where the outbox could not store it.
    Marked(bool),
    /// UPLINK ended a batch for a reason other than a message of it.
    BatchFailed,
    /// The agent stops: waiting reports are sent if that is quick.
    Stop,
}

/// An action that the driver carries out before it asks for the next one.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Read the state that a heartbeat reports: [`Input::Status`].
    ReadStatus,
    /// Make the epoch durable, if there is none yet: [`Input::EpochFixed`].
    FixEpoch,
    /// Publish a heartbeat. There is no answer.
    SendHeartbeat(Heartbeat),
    /// Read rows, in place of any that were read ahead: [`Input::Rows`].
    ReadRows(ReadRequest),
    /// Begin to read rows ahead, concurrently.
    ReadAhead(ReadRequest),
    /// Hand in the rows that were read ahead: [`Input::Rows`].
    TakeReadAhead,
    /// Begin a batch: up to this number of the reports that follow share one answer.
    BeginBatch(usize),
    /// Publish a report to UPLINK: [`Input::Answer`].
    SendReport(OutgoingReport, Ticket),
    /// Publish several reports in one message to UPLINK: [`Input::Answer`]. If they cannot be packed, the answer is
    /// [`PublishErrorKind::Permanent`].
    SendBatch(OutgoingBatch, Ticket),
    /// End the batch: UPLINK answers the rest of it.
    EndBatch,
    /// Begin to mark rows of an epoch as sent, concurrently: [`Input::Marked`].
    MarkSent(Epoch, Vec<u64>),
    /// Requeue rows that were sent long ago and that no receipt mentions, and delete rows that were covered long
    /// ago.
    MaintainOutbox,
    /// Drop the outstanding answers. After a failure the next session begins after this delay.
    EndSession(Option<Duration>),
}

/// A rule of order. All hold in an agent; a test breaks one to show that the simulation notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderRule {
    /// The hub's last receipt is fetched before a new epoch is fixed, and before the first report is sent.
    ReceiptBeforeReports,
    /// A session begins with a heartbeat.
    HeartbeatBeforeReports,
    /// Rows of another epoch end the session.
    ReportsOfOneEpoch,
    /// A row is marked as sent after UPLINK has confirmed it.
    ConfirmedBeforeMarked,
    /// A report without an answer ends the session and is sent again.
    UnknownIsNotStored,
    /// A report that a full share refused is sent again.
    RefusedIsNotStored,
}
