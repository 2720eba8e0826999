//! Renders the lag between an answer and LEDGER, as a line above the answer.

use muster_contract::Timestamp;
use muster_contract::lag::{Lagging, RollupLag};

use super::colour::{UNSURE, styled};
use super::format::{age, grouped};

/// A line for each thing that stands between; empty where nothing does.
pub fn lines(lag: &RollupLag, now: Timestamp) -> String {
    let since = |at: Timestamp| format!("since {} ({})", second(at), age(now, at));
    let lagging = lag.lagging.map(|Lagging { facts, since: at }| {
        format!("muster-rollup lags {}: it has not read {} of LEDGER", since(at), facts_of(facts))
    });
    let cut_off = lag.cut_off_since.map(|at| format!("muster-rollup is cut off from LEDGER {}", since(at)));
    let unrecorded = lag.unrecorded_since.map(|at| {
        format!("LEDGER does not take what the hub hears {}: what is shown as fresh may not be", since(at))
    });
    let causes = [lagging, cut_off, unrecorded];
    causes
        .into_iter()
        .flatten()
        .map(|cause| styled(UNSURE, &format!("{cause}; this may be old")) + "\n")
        .collect()
}

fn facts_of(count: u64) -> String {
    if count == 1 { "1 fact".to_owned() } else { format!("{} facts", grouped(count)) }
}

/// Cuts a time to full seconds.
fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
