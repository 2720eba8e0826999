//! The bounds of what the intake remembers of a device and publishes about it, with their relations.

use std::time::Duration;

use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, LEDGER_AGE_MAX, QUARANTINE_EXCERPT_BYTES_MAX};

use crate::account::PIECES_MAX;

/// Deployments of one device whose newest report is remembered: four times what it may run at once. A late report of another
/// deployment is not marked as late.
pub(super) const STANDINGS_KEPT: usize = 4 * DEPLOYMENTS_PER_DEVICE_MAX;
/// Deployments of one device whose passed deadline is remembered.
pub(super) const OVERDUE_KEPT: usize = STANDINGS_KEPT;
/// Rejected payloads of one device that are recognised when they come again.
pub(super) const REJECTED_PAYLOADS_KEPT: usize = 8;
/// Pairs of epochs whose clone incident is remembered.
pub(super) const CLONES_KEPT: usize = 8;
/// Numbers whose fork incident is remembered: as many as can be published while the messages themselves are in flight, which are
/// new rejected messages, or good reports whose numbers wait in quarantine.
pub(super) const FORKS_KEPT: usize = FACTS_PER_MINUTE as usize + UNRESOLVED_KEPT;
/// Messages of one device in quarantine that are re-asserted while they leave the device uncertain: the newest.
pub(super) const UNRESOLVED_KEPT: usize = 256;

/// Deployments of one device that are remembered as sent: those of four documents without a deployment in common.
pub const SENT_KEPT: usize = 4 * DEPLOYMENTS_PER_DEVICE_MAX;
/// Deployments that a device may have open, and that it may have reported without a document that the intake knows, while the
/// documents cannot be read: those of its document, and as many beside it.
pub const UNVERIFIED_MAX: usize = 2 * DEPLOYMENTS_PER_DEVICE_MAX;
/// Days for which LEDGER keeps facts, as rejections name them.
pub(super) const LEDGER_DAYS: u64 = LEDGER_AGE_MAX.as_secs() / (24 * 60 * 60);

/// Quarantine facts of single messages that a device may have in a minute.
pub const FACTS_PER_MINUTE: u32 = 10;
/// Time after which waiting batches are published. Shorter than the bus waits for an acknowledgement.
pub const BATCH_EVERY: Duration = Duration::from_secs(10);
/// Messages of a partition that may wait in batches; well below what the bus delivers without an acknowledgement.
pub const BATCH_MESSAGES_MAX: usize = 2048;
/// Messages, good ones too, that may wait behind those in a batch before it is published: far fewer than a partition's reader is
/// given without acknowledgements.
pub const UNSETTLED_MAX: usize = 4096;
/// Epochs of a device for which one turn of batches has a batch each; a healthy device has one epoch.
pub(super) const BATCH_EPOCHS_MAX: usize = 4;
/// Ranges of numbers that a batch may have.
pub(super) const BATCH_PIECES_MAX: usize = 512;
/// Facts of one device in one turn of batches: one for each epoch, and one for messages without a number.
pub const BATCH_FACTS_MAX: usize = BATCH_EPOCHS_MAX + 1;
/// The window of [`FACTS_PER_MINUTE`].
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// Bytes of a payload that its fact repeats after LEDGER has refused a fact with more of it.
pub(super) const EXCERPT_BYTES_MIN: usize = 256;
/// Messages that are remembered as recorded with a short excerpt: more than can be in flight.
pub(super) const SHORT_RECORDS_MAX: usize = 1024;

const _: () = {
    assert!(SENT_KEPT >= 2 * DEPLOYMENTS_PER_DEVICE_MAX);
    // Every open deployment of a device is remembered: those of its document, and as many beside it.
    assert!(STANDINGS_KEPT >= 2 * DEPLOYMENTS_PER_DEVICE_MAX);
    // Unverified ones are remembered beside those that were open before them, so that their count holds.
    assert!(STANDINGS_KEPT >= 2 * UNVERIFIED_MAX);
    assert!(LEDGER_AGE_MAX.as_secs().is_multiple_of(24 * 60 * 60));
    // A batch that is published early has at least BATCH_PIECES_MAX messages, whichever limit it reached.
    assert!(BATCH_PIECES_MAX <= BATCH_MESSAGES_MAX && BATCH_PIECES_MAX <= UNSETTLED_MAX);
    assert!(BATCH_EVERY.as_secs() * 2 < MINUTE.as_secs());
    assert!(BATCH_PIECES_MAX < PIECES_MAX);
    assert!(EXCERPT_BYTES_MIN < QUARANTINE_EXCERPT_BYTES_MAX);
};

/// Most quarantine facts of one device within `seconds`, in which its partition receives `messages`: single ones, the batches of
/// every [`BATCH_EVERY`], and one turn more for every `BATCH_PIECES_MAX` messages, because full batches are published early.
pub const fn rejection_facts_max(messages: u64, seconds: u64) -> u64 {
    // Both ends of the time may lie within a minute, or between two turns.
    let single = FACTS_PER_MINUTE as u64 * (seconds / MINUTE.as_secs() + 2);
    let turns = seconds / BATCH_EVERY.as_secs() + 2 + messages / BATCH_PIECES_MAX as u64;
    single + BATCH_FACTS_MAX as u64 * turns
}
