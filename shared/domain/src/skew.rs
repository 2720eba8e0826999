//! Judges whether a device's clock is off, by the hub's own. The result is used for an incident only, never for
//! order.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::limits::CLOCK_SKEW_MAX;

use crate::lease::elapsed;

/// A report's evidence about its device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skew {
    /// The clock is ahead by so many seconds (negative: behind), which exceeds the limit.
    Off(i64),
    /// The clock is right, as far as the contract asks.
    Right,
    /// The report may be old, so it cannot show whether the clock is behind.
    Unknown,
}

/// Judges by one report: `observed_at` by the device's clock, `stored_at` by the hub's. `not_before` is a moment in
/// hub time at which the device had not yet given the report its number, if the hub knows one.
pub(crate) fn judge(observed_at: Timestamp, stored_at: Timestamp, not_before: Option<Timestamp>) -> Skew {
    if let Some(seconds) = beyond(stored_at, observed_at) {
        return Skew::Off(seconds);
    }
    match not_before {
        None => Skew::Unknown,
        Some(earliest) => beyond(observed_at, earliest).map_or(Skew::Right, |seconds| Skew::Off(-seconds)),
    }
}

/// The seconds by which `to` is later than `from`, where that is more than the contract allows.
fn beyond(from: Timestamp, to: Timestamp) -> Option<i64> {
    let span: Duration = elapsed(from, to);
    (span > CLOCK_SKEW_MAX).then(|| i64::try_from(span.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_judged_only_by_what_the_hub_knows() {
        let at = |second| Timestamp::from_second(second).unwrap();
        // observed, stored, not before, judgement
        let table = [
            (1_000, 1_000, None, Skew::Unknown),
            (1_301, 1_000, None, Skew::Off(301)),
            (1_300, 1_000, None, Skew::Unknown),
            // A report from an outage of a day: old, not wrong.
            (1_000, 87_400, None, Skew::Unknown),
            (1_000, 87_400, Some(900), Skew::Right),
            (1_000, 87_400, Some(1_301), Skew::Off(-301)),
            (1_000, 87_400, Some(1_300), Skew::Right),
        ];
        for (observed, stored, not_before, judgement) in table {
            let found = judge(at(observed), at(stored), not_before.map(at));
            assert_eq!(found, judgement, "{observed} {stored} {not_before:?}");
        }
    }
}
