//! Values of gauges.

/// A count as the value of a gauge.
pub(super) fn shown(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
