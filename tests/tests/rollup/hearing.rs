//! Tests the hub's own hearing: a stopped pulse becomes one fact, however many rollups there are, and ends with
//! the first current pulse; pulses that LEDGER has discarded do no harm.

use std::time::Duration;

use muster_bus::{Outgoing, Start};
use muster_contract::fact::{Fact, Hearing, HearingFact};
use muster_contract::history::Point;
use muster_contract::lag::AnswerLag;
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::query::Query;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_tests::wait::{soon, until};
use serde_json::json;

use crate::ledger::small_fleet;
use crate::{Hub, Rollup};

impl Hub {
    /// A pulse as ingest would write it, kept for so many seconds; its sequence.
    async fn pulse(&self, partition: u16, current: bool, kept_seconds: u64) -> u64 {
        let pulse = json!({ "apiVersion": "muster/v1", "kind": "PulseFact", "owner": "a/1/b",
            "at": "2026-11-24T08:00:00Z", "leaseSeconds": 1, "current": current });
        let message = Outgoing {
            ttl: Some(Duration::from_secs(kept_seconds)),
            ..Outgoing::new(LedgerSubject::Hub(partition).to_string(), pulse.to_string())
        };
        soon("a pulse", self.bus.publish(message)).await.unwrap().sequence
    }

    /// LEDGER's facts about a partition's hearing, in order.
    async fn said_of(&self, partition: u16) -> Vec<HearingFact> {
        let subject = LedgerSubject::Hearing(partition);
        let filters = [subject.to_string()];
        let filters = filters.each_ref().map(String::as_str);
        let mut replay = self.bus.replay(stream::LEDGER, &filters, Start::First).await.unwrap();
        let mut facts = Vec::new();
        while let Some(batch) = soon("LEDGER", replay.next_present(100)).await.unwrap() {
            facts.extend(batch.iter().map(
                |message| match Fact::parse(&subject, &message.payload).unwrap() {
                    Fact::Hearing(fact) => fact,
                    other => panic!("{other:?}"),
                },
            ));
        }
        facts
    }
}

fn partition() -> u16 {
    partition_of(&"plant7/press-4".parse::<DeviceKey>().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_pulse_is_one_fact_of_two_rollups_until_it_resumes() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let own = partition();
    let seq = hub.pulse(own, true, 60).await;
    let stored_at = hub.bus.at(stream::LEDGER, seq).await.unwrap().unwrap().stored_at;
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rollups = [Rollup::start(&hub, one.path()).await, Rollup::start(&hub, two.path()).await];
    let stopped = |facts: &Vec<HearingFact>| !facts.is_empty();
    let facts = until("a stop", || hub.said_of(own), stopped).await;
    assert_eq!((facts[0].state, facts[0].since), (Hearing::Stopped, stored_at), "since the last pulse");
    hub.bucket_says_what_ledger_gives().await;

    hub.pulse(own, false, 60).await;
    // A new subscriber knows nothing yet: the next fact follows that pulse.
    let behind = hub.end().await;
    for rollup in &rollups {
        let read = || async { rollup.handle.projection.progress().read_through() };
        until("the pulse is read", read, |through| *through >= behind).await;
    }
    hub.pulse(own, true, 60).await;
    let resumed = |facts: &Vec<HearingFact>| facts.last().is_some_and(|fact| fact.state == Hearing::Resumed);
    let facts = until("a resumption", || hub.said_of(own), resumed).await;
    let states: Vec<_> = facts.iter().map(|fact| fact.state).collect();
    assert_eq!(states, [Hearing::Stopped, Hearing::Resumed], "each once, of two rollups");
    hub.bucket_says_what_ledger_gives().await;
    for rollup in rollups {
        rollup.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_without_a_pulse_knows_how_long_the_partition_has_an_owner() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let owner = LedgerSubject::Owner { partition: partition(), fence: 0 }.to_string();
    let mut stored_at = Vec::new();
    for _ in 0..2 {
        let record = json!({ "apiVersion": "muster/v1", "kind": "Ownership", "owner": "a/1/b",
            "claimedAt": "2026-11-24T08:00:00Z", "lanes": 1 });
        let message = Outgoing::new(owner.clone(), record.to_string());
        let seq = soon("a record", hub.bus.publish(message)).await.unwrap().sequence;
        stored_at.push(hub.bus.at(stream::LEDGER, seq).await.unwrap().unwrap().stored_at);
    }
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    let owned = || async { rollup.handle.projection.progress().owned_since(partition()) };
    let since = until("the owner's records are read", owned, Option::is_some).await;
    assert_eq!(since, Some(stored_at[0]), "the oldest record");
    let other = (partition() + 1) % PARTITIONS;
    assert_eq!(rollup.handle.projection.progress().owned_since(other), None, "nobody owned it");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_goes_on_where_ledger_has_forgotten_the_pulses_at_its_end() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    let pulse = hub.pulse(partition(), true, 1).await;
    let read = || async { rollup.handle.projection.progress().read_through() };
    until("the pulse is read", read, |through| *through >= pulse).await;
    rollup.drain().await;
    let gone = || async { hub.bus.at(stream::LEDGER, pulse).await.unwrap().is_none() };
    until("the pulse is forgotten", gone, |gone| *gone).await;

    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let read = rollup.facts_read();
    assert!(read <= 2, "it goes on from its snapshot: {read} facts");
    // As of a pulse that is gone, and as of now: both are the fold as of the last fact.
    for point in [Point::at_seq(pulse), Point { at: Some(Timestamp::now()), ..Point::default() }] {
        let query = Query { point, ..Query::default() };
        let answer: serde_json::Value = hub.recalled("fleet", &query).await;
        assert_eq!(answer["digest"], hub.ask("fleet", &Query::default()).await["digest"], "{query:?}");
    }
    let said: AnswerLag = serde_json::from_value(hub.ask("fleet", &Query::default()).await).unwrap();
    assert_eq!(said.lag(), None, "nothing is unread");
    rollup.drain().await;
}
