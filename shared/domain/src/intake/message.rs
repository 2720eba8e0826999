//! The forms of a device's message (as delivered, as the rules need it, as a quarantine fact shows it), and its outcome.

use muster_contract::limits::ERROR_MESSAGE_BYTES_MAX;
use muster_contract::report::Report;
use muster_contract::state::cut;
use muster_contract::subjects::Origin;
use muster_contract::{Refusal, Timestamp};

use super::reject_reason::RejectReason;

/// A report as UPLINK delivered it.
#[derive(Debug)]
pub struct IncomingReport<'a> {
    /// Its sender and its subject.
    pub origin: Origin,
    /// The parsed report, or the reason why it cannot be read.
    pub parsed: Result<Report, Refusal>,
    /// Its bytes.
    pub payload: &'a [u8],
    /// Its position in UPLINK.
    pub position: u64,
    /// When UPLINK stored it.
    pub stored_at: Timestamp,
    /// The hub's time now.
    pub now: Timestamp,
}

/// The outcome of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It becomes a fact.
    New,
    /// It becomes a fact, although a later report of its deployment was received before.
    Late,
    /// It was received before, and declares more numbers as coalesced than then: its fact is re-asserted.
    Amended,
    /// It was received before.
    Duplicate,
    /// It is quarantined.
    Quarantined,
    /// It was quarantined before.
    Repeated,
    /// It is quarantined in a batch with others of its device.
    Batched,
    /// QUARANTINE has no room for it: its number stays missing, and the device keeps it.
    Refused,
    /// It waits for QUARANTINE to store its payload: `IntakeState::apply_store_answer` returns its final outcome.
    Storing,
}

/// A message whose sender is known.
#[derive(Debug)]
pub(super) struct IncomingMessage<'a> {
    pub(super) subject: String,
    pub(super) payload: &'a [u8],
    pub(super) position: u64,
    pub(super) stored_at: Timestamp,
}

/// A rejected message as its fact shows it; the last one of a batch.
#[derive(Debug, Clone)]
pub(super) struct MessageSample {
    pub(super) reason: String,
    pub(super) subject: String,
    pub(super) excerpt: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) position: u64,
    pub(super) stored_at: Timestamp,
}

impl MessageSample {
    pub(super) fn of(message: &IncomingMessage<'_>, reason: &RejectReason, excerpt: &[u8]) -> Self {
        let IncomingMessage { subject, payload, position, stored_at } = message;
        Self {
            // A batch adds its count to the reason.
            reason: cut(reason.to_string(), ERROR_MESSAGE_BYTES_MAX / 2),
            subject: subject.clone(),
            excerpt: excerpt.to_vec(),
            bytes: payload.len() as u64,
            position: *position,
            stored_at: *stored_at,
        }
    }
}
