//! The table of the bench: a row for each link.

use std::fmt;
use std::time::Duration;

use muster_tests::reconnect::{DEPLOYMENTS, Measured};

/// Time from the agent's connection within which the views have to be right.
const TRUTH_WITHIN: Duration = Duration::from_secs(2);

/// How much a link carries each way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LinkRate {
    /// So many kbit/s.
    Kbit(u64),
    /// As much as this machine can.
    Unlimited,
}

impl LinkRate {
    /// Bytes a second; 0 is unbounded, as for a link's shape.
    pub(crate) const fn bytes_a_second(self) -> u64 {
        match self {
            Self::Kbit(kbit) => kbit * 1_000 / 8,
            Self::Unlimited => 0,
        }
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kbit(kbit) => write!(f, "{kbit} kbit/s"),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// A run.
pub(crate) struct Row {
    pub(crate) link: LinkRate,
    pub(crate) measured: Measured,
}

impl Row {
    /// Whether the views were right within their bound.
    pub(crate) fn is_in_time(&self) -> bool {
        self.measured.newest_in_views <= TRUTH_WITHIN
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { waiting, newest_in_ledger, newest_in_views, older_before_newest, .. } = self.measured;
        let Measured { accounted_after, bytes_up, .. } = self.measured;
        let (link, seconds) = (self.link, accounted_after.as_secs_f64());
        let rate = waiting as f64 / seconds;
        let bytes = bytes_up / waiting.max(1);
        let (in_ledger, in_views) = (newest_in_ledger.as_millis(), newest_in_views.as_millis());
        let kept = if self.is_in_time() { "met" } else { "**missed**" };
        write!(
            f,
            "| {link} | {waiting} | {in_ledger} | {in_views} | {kept} | {older_before_newest} | {seconds:.1} | {rate:.0} | {bytes} |"
        )
    }
}

/// All rows below their heads.
pub(crate) fn render(rows: &[Row]) -> String {
    let rows: Vec<_> = rows.iter().map(ToString::to_string).collect();
    let bound = TRUTH_WITHIN.as_millis();
    format!(
        "{DEPLOYMENTS} deployments; times from the agent's connection (TLS and login included)\n\
         | link | reports waiting | newest states in LEDGER, ms | in the views, ms | within {bound} ms \
         | older reports before them | backlog accounted for, s | reports/s | bytes up a report |\n\
         |---|---:|---:|---:|---|---:|---:|---:|---:|\n{}",
        rows.join("\n")
    )
}
