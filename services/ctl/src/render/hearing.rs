//! Partitions that the hub does not listen to: one cause, in one line, before all that follows from it.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::pulse::{HubHearing, UnheardPartition};
use serde::Deserialize as _;
use serde_json::Value;

use super::colour::{UNSURE, styled};
use super::format::age;

/// Partitions of a hub that stopped within this time of each other have one cause, most likely.
const TOGETHER: Duration = Duration::from_secs(60);

/// The state of the hub's partitions in an answer, as a whole or in its view.
pub(crate) fn of_answer(answer: &Value) -> HubHearing {
    let hub = if answer["hub"].is_null() { &answer["view"]["hub"] } else { &answer["hub"] };
    HubHearing::deserialize(hub).unwrap_or_default()
}

/// A line for each cause: `the hub has not listened to partition 5 since 2026-11-24T08:00:00Z (2m ago): its devices count as stale`.
pub fn lines(hub: &HubHearing, now: Timestamp) -> String {
    let mut text: String = together(&hub.unheard).iter().map(|stops| line(stops, now)).collect();
    if hub.omitted > 0 {
        text += &format!("and {} more partitions that are not listened to\n", hub.omitted);
    }
    text
}

/// The same within a line: empty where every partition is heard.
pub fn words(hub: &HubHearing) -> Vec<String> {
    together(&hub.unheard).iter().map(|stops| cause(stops)).collect()
}

fn line(stops: &[&UnheardPartition], now: Timestamp) -> String {
    let whose = if stops.len() == 1 { "its" } else { "their" };
    let since = stops.first().map_or_else(String::new, |first| age(now, first.since));
    let facts: Vec<String> =
        stops.iter().filter_map(|stop| stop.ledger_seq).map(|seq| seq.to_string()).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" (ledger {})", facts.join(", ")) };
    format!("{} ({since}): {whose} devices count as stale{facts}\n", styled(UNSURE, &cause(stops)))
}

fn cause(stops: &[&UnheardPartition]) -> String {
    let [first, .., last] = stops else {
        return stops.iter().map(|stop| to_the_second(stop).words()).collect();
    };
    let numbers: Vec<String> = stops.iter().map(|stop| stop.partition.to_string()).collect();
    let is_run = usize::from(last.partition - first.partition) + 1 == stops.len();
    let numbers =
        if is_run { format!("{} to {}", first.partition, last.partition) } else { numbers.join(", ") };
    let one = to_the_second(first).words();
    one.replace(&format!("partition {}", first.partition), &format!("partitions {numbers}"))
}

/// Rounds the time down to a second, for people.
fn to_the_second(stop: &UnheardPartition) -> UnheardPartition {
    let since = Timestamp::from_second(stop.since.as_second()).unwrap_or(stop.since);
    UnheardPartition { since, ..stop.clone() }
}

/// The partitions, those that stopped together beside each other.
fn together(unheard: &[UnheardPartition]) -> Vec<Vec<&UnheardPartition>> {
    let mut causes: Vec<Vec<&UnheardPartition>> = Vec::new();
    for stop in unheard {
        let is_same = |cause: &&mut Vec<&UnheardPartition>| {
            cause.first().is_some_and(|first| {
                let apart = first.since.duration_since(stop.since).unsigned_abs();
                first.hub == stop.hub && apart <= TOGETHER
            })
        };
        match causes.iter_mut().find(is_same) {
            Some(cause) => cause.push(stop),
            None => causes.push(vec![stop]),
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use serde_json::json;

    use super::*;

    fn stop(partition: u16, second: i64) -> UnheardPartition {
        let since = Timestamp::from_millisecond(second * 1_000 + 250).unwrap();
        UnheardPartition { hub: None, partition, since, ledger_seq: None }
    }

    #[test]
    fn partitions_that_stopped_together_are_one_cause() {
        let now = Timestamp::from_second(1_120).unwrap();
        let shown = |stops: Vec<UnheardPartition>| {
            strip_str(&lines(&HubHearing { unheard: stops, omitted: 0 }, now)).to_string()
        };
        assert_eq!(shown(Vec::new()), "");
        assert_eq!(
            shown(vec![stop(5, 1_000)]),
            "the hub has not listened to partition 5 since 1970-01-01T00:16:40Z (2m ago): its devices count as stale\n"
        );
        let all = (0..16).map(|partition| stop(partition, 1_000 + i64::from(partition))).collect();
        assert_eq!(
            shown(all),
            "the hub has not listened to partitions 0 to 15 since 1970-01-01T00:16:40Z (2m ago): their devices count as stale\n"
        );
        let named = UnheardPartition { ledger_seq: Some(4711), ..stop(5, 1_000) };
        assert!(shown(vec![named]).ends_with(": its devices count as stale (ledger 4711)\n"), "in `why`");
        let two = shown(vec![stop(1, 100), stop(3, 1_000), stop(7, 1_001)]);
        assert!(two.contains("partition 1 since") && two.contains("partitions 3, 7 since"), "{two}");
    }

    #[test]
    fn an_answer_says_it_as_a_whole_or_in_its_view() {
        let hub = json!({ "unheard": [{ "partition": 5, "since": "2026-11-24T08:00:00Z" }] });
        for answer in [json!({ "hub": hub }), json!({ "view": { "hub": hub } })] {
            assert_eq!(of_answer(&answer).unheard.len(), 1, "{answer}");
        }
        assert!(of_answer(&json!({ "devices": [] })).is_whole());
    }
}
