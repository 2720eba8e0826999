//! Reads times of the command line by the clock of this machine. [`muster_client::time`] has their forms.

use muster_client::time::{Side, time_at};
use muster_contract::Timestamp;
use muster_service::clock::{Clock as _, SystemClock};

/// Reads a time of a flag about the past.
pub(super) fn past(text: &str) -> Result<Timestamp, String> {
    time_at(text, SystemClock.now(), Side::Past)
}

/// Reads a time of a flag about the future; a distance may have a plus sign before it.
pub(super) fn future(text: &str) -> Result<Timestamp, String> {
    time_at(text, SystemClock.now(), Side::Future)
}
