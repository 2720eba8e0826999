//! Points of the past on the command line: times, sequences of LEDGER, the two ends of a comparison, and the begin of a timeline.

use clap::Args;
use muster_contract::history::{MomentAnswer, Point};
use muster_contract::query::PAGE_MAX;
use muster_contract::{DeploymentId, SiteId, Timestamp};

use super::time;

pub(super) const DIFF_EXAMPLES: &str = "\
A point is a time, which stands for the last fact that LEDGER stored at or before it, or a sequence of LEDGER. A
time may also be 2h or 3d (ago), today or yesterday (UTC). A federation answers no question about the past: ask the
hub of the site.

Examples:
  muster diff web --from 2h                                                what differs from two hours ago
  muster diff web --from 2026-11-20T10:00:00Z                              until now
  muster diff web --from 2026-11-20T10:00:00Z --to 2026-11-20T11:00:00Z
  muster diff web --from 4711 --to 4799 --site plant7
  muster diff web --from 4711 --format json | jq '.devices[].facts'";

pub(super) const VERIFY_HELP: &str = "\
The rollup that answers reads LEDGER again beside what it runs on, and compares every device's record and every view at
the same sequence. Where they differ, the first difference is named with both values, and `muster-rollup --rebuild` has it
start over from LEDGER. Of several rollups one answers, by chance: ask as often as it takes to hear each, and tell them
apart by the digest of what runs.

Once LEDGER's first fact has aged out, the rebuild begins from the oldest checkpoint of the same rollup that LEDGER leads on
from: what was wrong in that already is not found. `muster-rollup --rebuild` sets the checkpoints aside; until there is
another, LEDGER's window alone is the base, and views are compared with it, not devices' records.

Exit codes: 0 nothing differs; 1 something does; 2 nothing can be said.";

/// When.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct PointArgs {
    /// As known at this time, with the last fact that LEDGER stored at or before it; also 2h or 3d (ago), today, yesterday
    #[arg(long, value_name = "TIME", value_parser = time::past, conflicts_with = "at_seq")]
    at: Option<Timestamp>,
    /// As known with this fact of LEDGER, of one hub
    #[arg(long, value_name = "SEQ")]
    at_seq: Option<u64>,
    /// The state at this time by the devices' clocks: also by reports that were observed by then and came later
    #[arg(long, alias = "about", value_name = "TIME", value_parser = time::past)]
    event_time: Option<Timestamp>,
}

impl PointArgs {
    /// The time that it names, if any: the event time, else as known when.
    pub fn moment(&self) -> Option<Timestamp> {
        self.event_time.or(self.at)
    }

    /// As known with a fact of LEDGER.
    pub fn at_seq(seq: u64) -> Self {
        Self { at_seq: Some(seq), ..Self::default() }
    }

    /// Whether the flags go together as far as that can be told without a service.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> Result<(), String> {
        match (self.at, self.event_time) {
            (Some(at), Some(time)) if time > at => {
                Err(format!("--event-time {time} is later than --at {at}: nothing was known of it then"))
            }
            _ => Ok(()),
        }
    }

    /// The same point by the fact that it stands for.
    pub(crate) fn pinned_to(self, moment: &MomentAnswer) -> Self {
        Self { at: None, at_seq: Some(moment.as_of.ledger_seq), event_time: self.event_time }
    }
}

impl From<PointArgs> for Point {
    fn from(args: PointArgs) -> Self {
        Self { at: args.at, at_seq: args.at_seq, event_time: args.event_time }
    }
}

pub(super) const CHANGES_EXAMPLES: &str = "\
Lists every change in LEDGER's order with the fact that caused it, also changes that a later fact undid: a deployment on a
device (standing, freshness, target), and the verdict on a deployment. With --site the verdict covers these sites alone.

Examples:
  muster changes --since 1h
  muster changes --since yesterday --site plant7 --site plant8
  muster changes web --since 4711 --until 4799
  muster changes --since 1h --format json | jq '.changes[] | select(.type == \"verdict\")'";

/// `muster changes`
#[derive(Debug, Args)]
pub struct ChangesArgs {
    /// The deployment; all of them if left out
    pub deployment: Option<DeploymentId>,
    /// Only changes after this point
    #[arg(long, value_name = "TIME|SEQ", value_parser = point)]
    pub since: Point,
    /// Only changes up to this point [default: now]
    #[arg(long, value_name = "TIME|SEQ", value_parser = point)]
    pub until: Option<Point>,
    /// Only changes at this site; may be repeated
    #[arg(long)]
    pub site: Vec<SiteId>,
}

pub(super) const TIMELINE_EXAMPLES: &str = "\
The counts of a line hold until the next one. They are recorded in steps of 15 s; of older time, up to 14 days, each span
keeps six lines that bound the others: the first and last, the worst and best, the most silent and the furthest behind. A federation has no timeline: ask a hub.

Examples:
  muster timeline                                  the fleet for the last 24 hours
  muster timeline web --since 3d
  muster timeline web --format json | jq '.points[-1].converged'";

/// `muster timeline`
#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// The deployment; the fleet if left out
    pub deployment: Option<DeploymentId>,
    /// From this time on; the counts that hold then are on the first line
    #[arg(long, value_name = "TIME", value_parser = time::past, default_value = "24h")]
    pub since: Timestamp,
}

/// `muster diff`
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The deployment
    pub deployment: DeploymentId,
    /// The earlier point
    #[arg(long, value_name = "TIME|SEQ", value_parser = point)]
    pub from: Point,
    /// The later point [default: now]
    #[arg(long, value_name = "TIME|SEQ", value_parser = point)]
    pub to: Option<Point>,
    /// Only devices of a site
    #[arg(long)]
    pub site: Option<SiteId>,
    /// Devices shown at most
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=PAGE_MAX as i64))]
    pub limit: u16,
    /// Only devices after this one: how the answer before it ended
    #[arg(long, value_name = "SITE/DEVICE")]
    pub after: Option<String>,
}

fn point(text: &str) -> Result<Point, String> {
    match text.parse() {
        Ok(ledger_seq) => Ok(Point::at_seq(ledger_seq)),
        Err(_) => {
            time::past(text).map(Point::at).map_err(|error| format!("{error}, or a sequence of LEDGER"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_sequence_or_a_time() {
        assert_eq!(point("4711").unwrap(), Point::at_seq(4711));
        let at = "2026-11-20T10:00:00Z".parse().unwrap();
        assert_eq!(point("2026-11-20T11:00:00+01:00").unwrap(), Point::at(at));
        for text in ["tomorrow", "-3", "2026-11-20", "2 h", ""] {
            let refusal = point(text).unwrap_err();
            assert!(refusal.contains("2026-11-20T10:00:00Z") && refusal.contains("sequence"), "{refusal}");
        }
    }
}
