//! The time for which a snapshot is fresh, as a cluster names it in the address of a request.

use std::time::Duration;

use muster_contract::limits::{EVIDENCE_LEASE_MS_MAX, LEASE};
use muster_contract::profile::parse_duration;

use crate::margo::problems;
use crate::problem::Problem;

/// The parameter with the time for which a snapshot is fresh.
const PERIOD: &str = "period";
/// Bounds of that time.
pub(crate) const PERIOD_MIN: Duration = Duration::from_secs(1);
pub(crate) const PERIOD_MAX: Duration = Duration::from_millis(EVIDENCE_LEASE_MS_MAX);

const _: () = assert!(LEASE.as_millis() < PERIOD_MAX.as_millis());

/// The period in the query of an address; without one, the lease of the hub.
///
/// # Errors
/// It is out of bounds, or there is another parameter.
pub(crate) fn period(query: &str) -> Result<Duration, Problem> {
    let mut period = LEASE;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != PERIOD {
            return Err(problems::semantic_error(name, format!("is unknown here; {PERIOD} is known")));
        }
        let read = parse_duration(&value).ok().filter(|period| (PERIOD_MIN..=PERIOD_MAX).contains(period));
        let rule = || format!("is '{value}'; must be a time of 1s to 1h, such as 90s or 5m");
        period = read.ok_or_else(|| problems::semantic_error(PERIOD, rule()))?;
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_bounded_and_other_parameters_are_refused() {
        assert_eq!(period("").unwrap(), LEASE);
        assert_eq!(period("period=5m").unwrap(), Duration::from_secs(300));
        for bad in ["period=", "period=0s", "period=2h", "period=soon"] {
            assert_eq!(period(bad).unwrap_err().errors[0].field, "period", "{bad}");
        }
        assert_eq!(period("perioda=5m").unwrap_err().errors[0].field, "perioda");
    }
}
