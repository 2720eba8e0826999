//! The pure core of ingest: decides what follows from every report, heartbeat and tick of one partition. Its caller does the
//! I/O.
//!
//! ```text
//! report, heartbeat, tick ──► IntakeState ──► Publication… ──► (LEDGER) ──► confirm ──► settled, receipts
//!                               │ ▲ ───► Rejection… ────► (QUARANTINE) ──► apply_store_answer
//!                               ▲ rewind, restore ◄── (LEDGER read again, when an outcome is unknown)
//! ```
//!
//! One [`IntakeState`] owns all state of its devices. A publication is in flight from the moment it is made. Decisions rest on
//! what LEDGER will hold once everything in flight is stored; receipts and accounts rest on what LEDGER has confirmed.
//! Publications are confirmed in the order in which they were made. When the outcome of one is unknown, the state forgets
//! everything in flight ([`IntakeState::rewind`]), reads from LEDGER what did arrive ([`IntakeState::restore`]), and the caller
//! hands in the unsettled messages again.
//!
//! Reading order: `state` (the data and its life cycle), `admit` (reports), `quota` (deployments and epochs of a device),
//! `reject` (messages that are not accepted), `rejection` (their payloads), `batch` (the rate limit of quarantine facts),
//! `unstorable` (facts that LEDGER refuses), `verdicts` (requeued and dropped reports), `timers` (leases, gaps, deadlines),
//! `desired_refusals` (devices that refuse a desired state), `token_ends` (tokens that end soon), `reassert`, `receipts`, `snapshot`,
//! `pulse`. Data without decisions: `device`, `ledger_state`, `change`, `content`, `message`, `reject_reason`, `sent_deployments`, `quarantine_batch`, `pending_rejections`, `pending_verdicts`, `limits`. No
//! I/O, no clock.

mod admit;
mod batch;
mod change;
mod content;
mod desired_refusals;
mod device;
mod ids;
mod ledger_state;
mod limits;
mod message;
mod pending_rejections;
mod pending_verdicts;
mod pulse;
mod quarantine_batch;
mod quota;
mod reassert;
mod receipts;
mod reject;
mod reject_reason;
mod rejection;
mod sent_deployments;
mod snapshot;
mod state;
mod timers;
mod token_ends;
mod unstorable;
mod verdicts;

pub use self::limits::{
    BATCH_EVERY, BATCH_FACTS_MAX, BATCH_MESSAGES_MAX, FACTS_PER_MINUTE, SENT_KEPT, UNSETTLED_MAX,
    UNVERIFIED_MAX, rejection_facts_max,
};
pub use self::message::{IncomingReport, Outcome};
pub use self::pending_rejections::{NotStored, Rejection};
pub use self::pending_verdicts::{Decision, QuarantinedReport, VerdictRequest};
pub use self::receipts::SINGLE_AFTER_REFUSAL;
pub use self::reject_reason::RejectReason;
pub use self::snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use self::state::{IntakeState, Publication, Rules};
pub use self::timers::Watermarks;
pub use self::unstorable::Unrecordable;

#[cfg(test)]
mod tests;
