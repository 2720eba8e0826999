//! The rate limit of a link: a token bucket that may go into debt. Pure: the caller passes the time.
//!
//! The bucket holds the bytes of [`BURST`]. A sent message is charged in full, into debt if need be; backlog waits
//! while there is debt or little left. So a heartbeat never waits, a report larger than the bucket is sent in its
//! turn, and over any time no more is sent than the limit, one bucket, and one part of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use muster_contract::limits::HEARTBEAT;
use tokio::time::Instant;

/// The size of the bucket, as time at the limit.
const BURST: Duration = Duration::from_secs(1);
/// Backlog is sent in this many parts of the bucket: to wake for every row would cost more than it sends.
const PARTS: u64 = 4;
/// The permitted bits a second.
const RATE_BITS: std::ops::RangeInclusive<u64> = 4_000..=1_000_000_000;
/// More than a heartbeat has with its headers.
const HEARTBEAT_BYTES: u64 = 1_000;

// At the least rate, heartbeats at their default interval leave reports half of it.
const _: () = assert!(*RATE_BITS.start() / 8 * HEARTBEAT.as_secs() > 2 * HEARTBEAT_BYTES);

/// A rate in bits a second, such as `64kbit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    bits: u64,
}

/// The error of a text that is not a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a number of bits a second with the unit bit, kbit or mbit, such as 9600bit, 64kbit or 2mbit, from 4kbit to 1000mbit"
)]
pub struct RateError;

impl Rate {
    /// Whether heartbeats at this interval leave reports half of it.
    pub fn carries(self, heartbeat: Duration) -> bool {
        self.bytes_in(heartbeat) >= 2 * HEARTBEAT_BYTES
    }

    /// The bytes of a time.
    fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.bits) * time.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The time of a number of bytes.
    pub(crate) fn time_of(self, bytes: u64) -> Duration {
        let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.bits));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let units = [("kbit", 1_000), ("mbit", 1_000_000), ("bit", 1)];
        let found = units.into_iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
        let bits = found.and_then(|(number, factor)| number.trim().parse::<u64>().ok()?.checked_mul(factor));
        bits.filter(|bits| RATE_BITS.contains(bits)).map(|bits| Self { bits }).ok_or(RateError)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}bit", self.bits)
    }
}

/// Whether backlog may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowance {
    /// This number of bytes, or one row that is larger.
    Bytes(usize),
    /// Nothing before this time.
    NotBefore(Instant),
}

/// The remaining rate of a link.
#[derive(Debug)]
pub struct Budget {
    limit: Option<Limit>,
}

#[derive(Debug)]
struct Limit {
    rate: Rate,
    /// Bytes that may be sent; a negative number is debt.
    tokens: i64,
    /// Until when tokens were added.
    counted: Instant,
}

impl Budget {
    /// A full bucket, or no limit.
    pub fn new(rate: Option<Rate>, now: Instant) -> Self {
        let limit = |rate: Rate| Limit { rate, tokens: signed(rate.bytes_in(BURST)), counted: now };
        Self { limit: rate.map(limit) }
    }

    /// Whether backlog never waits.
    pub(super) const fn is_unlimited(&self) -> bool {
        self.limit.is_none()
    }

    /// The bytes of the backlog that may be sent now.
    pub(super) fn allowance(&mut self, now: Instant) -> Allowance {
        let Some(limit) = &mut self.limit else { return Allowance::Bytes(usize::MAX) };
        limit.refill(now);
        let lacking = limit.part() - limit.tokens;
        match u64::try_from(lacking) {
            Err(_) | Ok(0) => Allowance::Bytes(usize::try_from(limit.tokens).unwrap_or_default()),
            Ok(lacking) => Allowance::NotBefore(limit.counted + limit.rate.time_of(lacking)),
        }
    }

    /// Charges a sent message, backlog or not.
    pub(super) fn charge(&mut self, bytes: usize, now: Instant) {
        if let Some(limit) = &mut self.limit {
            limit.refill(now);
            limit.tokens = limit.tokens.saturating_sub(signed(bytes as u64));
        }
    }
}

impl Limit {
    fn refill(&mut self, now: Instant) {
        let full = signed(self.rate.bytes_in(BURST));
        let new = self.rate.bytes_in(now.saturating_duration_since(self.counted));
        self.tokens = self.tokens.saturating_add(signed(new));
        if self.tokens >= full {
            (self.tokens, self.counted) = (full, now.max(self.counted));
        } else {
            // Whole bytes only; the rest of the time is kept, so that frequent refills add no less than one.
            self.counted += self.rate.time_of(new).min(now.saturating_duration_since(self.counted));
        }
    }

    /// The tokens required before backlog is sent.
    fn part(&self) -> i64 {
        signed(self.rate.bytes_in(BURST) / PARTS).max(1)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: &str = "64kbit";
    /// Bytes of a second at 64 kbit/s, the size of the bucket.
    const SECOND: usize = 8_000;

    fn budget(now: Instant) -> Budget {
        Budget::new(Some(RATE.parse().unwrap()), now)
    }

    #[test]
    fn rates_have_units_and_a_refusal_names_the_forms() {
        for (text, bits) in
            [("64kbit", 64_000), ("2mbit", 2_000_000), ("9600bit", 9_600), ("256 kbit", 256_000)]
        {
            assert_eq!(text.parse::<Rate>().map(|rate| rate.bits), Ok(bits), "{text}");
        }
        for bad in
            ["", "64", "64kb", "64kB/s", "fast", "-1kbit", "3999bit", "1001mbit", "99999999999999999999mbit"]
        {
            let said = bad.parse::<Rate>().unwrap_err().to_string();
            assert!(said.contains("9600bit, 64kbit or 2mbit"), "{bad}: {said}");
        }
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let now = Instant::now();
        let mut budget = Budget::new(None, now);
        budget.charge(usize::MAX, now);
        assert_eq!(budget.allowance(now), Allowance::Bytes(usize::MAX));
    }

    #[test]
    fn a_heartbeat_or_report_beyond_the_bucket_goes_and_the_backlog_pays() {
        let begin = Instant::now();
        let mut budget = budget(begin);
        assert_eq!(budget.allowance(begin), Allowance::Bytes(SECOND), "the bucket begins full");
        budget.charge(10 * SECOND, begin);
        // Nine seconds of debt, then a quarter of the bucket.
        let due = begin + Duration::from_millis(9_250);
        assert_eq!(budget.allowance(begin), Allowance::NotBefore(due));
        budget.charge(SECOND / 8, begin);
        let later = due + Duration::from_millis(125);
        assert_eq!(budget.allowance(due), Allowance::NotBefore(later), "a heartbeat in between is charged");
        assert_eq!(budget.allowance(later), Allowance::Bytes(SECOND / 4));
    }

    #[test]
    fn a_pause_fills_the_bucket_and_no_more() {
        let begin = Instant::now();
        let mut budget = budget(begin);
        budget.charge(SECOND, begin);
        let later = begin + Duration::from_secs(3_600);
        assert_eq!(budget.allowance(later), Allowance::Bytes(SECOND));
        assert_eq!(
            budget.allowance(begin),
            Allowance::Bytes(SECOND),
            "a clock that steps back takes nothing"
        );
    }

    proptest! {
        /// If everything is sent as soon as it may: over any time no more than the limit, one bucket and one row.
        #[test]
        fn no_more_goes_than_the_limit_and_one_bucket(
            rows in prop::collection::vec(1_usize..20_000, 1..200),
            looks in prop::collection::vec(0_u64..400_000_000, 1..50),
        ) {
            let begin = Instant::now();
            let (mut budget, mut now, mut sent) = (budget(begin), begin, 0);
            for (at, row) in rows.iter().enumerate() {
                // Further calls change nothing.
                now += Duration::from_nanos(looks[at % looks.len()]);
                if let Allowance::NotBefore(due) = budget.allowance(now) {
                    prop_assert!(due > now);
                    now = due;
                }
                prop_assert!(matches!(budget.allowance(now), Allowance::Bytes(_)), "what was promised holds");
                let carried = SECOND as f64 * (now - begin).as_secs_f64();
                prop_assert!(sent as f64 <= carried + SECOND as f64 + 1.0, "{sent} bytes in {:?}", now - begin);
                budget.charge(*row, now);
                sent += row;
            }
        }

        /// A backlog that never pauses uses the link: at least nine tenths of it.
        #[test]
        fn a_backlog_uses_what_there_is(row in 100_usize..4_000) {
            let begin = Instant::now();
            let (mut budget, mut now, mut sent) = (budget(begin), begin, 0);
            while now - begin < Duration::from_secs(60) {
                match budget.allowance(now) {
                    Allowance::NotBefore(due) => now = due,
                    Allowance::Bytes(_) => { budget.charge(row, now); sent += row; }
                }
            }
            prop_assert!(sent as f64 >= 0.9 * SECOND as f64 * 60.0, "{sent}");
        }
    }
}
