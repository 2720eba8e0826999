//! The bounds of one partition's work and the delays that several modules share, with their relations.

use std::time::Duration;

use muster_bus::deliveries::UNACKNOWLEDGED_MAX;
use muster_contract::limits::PARTITIONS;
use muster_domain::intake::UNSETTLED_MAX;
use muster_service::retry::RetryPolicy;

/// Delays between attempts to read a stream.
pub(crate) const READ_RETRY: RetryPolicy =
    RetryPolicy { min: Duration::from_millis(100), max: Duration::from_secs(10) };
/// Reports read at once.
pub const BATCH: usize = 512;
/// Facts of one partition in flight. All partitions together stay below what a stream of the oldest supported server takes in at
/// once (10,000 messages), and more would gain little.
pub const FACTS_IN_FLIGHT: usize = 128;
/// Facts of a run with one confirmation.
pub const RUN_ANSWER: usize = FACTS_IN_FLIGHT / 4;
/// Receipts of one partition in one turn, and in flight: all partitions together spend at most a tenth of what a small machine
/// stores in a second on receipts.
pub(crate) const RECEIPTS_IN_FLIGHT: usize = 64;
/// Rejected reports of one partition in flight.
pub(crate) const REJECTIONS_IN_FLIGHT: usize = 32;

const _: () = {
    assert!(FACTS_IN_FLIGHT * (PARTITIONS as usize) < 10_000);
    assert!(FACTS_IN_FLIGHT <= BATCH && FACTS_IN_FLIGHT <= u16::MAX as usize);
    // The messages that wait for a batch of quarantine facts, and one read more, must not keep the server from delivering.
    assert!(UNSETTLED_MAX + BATCH < UNACKNOWLEDGED_MAX);
};
