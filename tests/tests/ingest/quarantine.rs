//! Tests rejected reports: their payloads in QUARANTINE, a full QUARANTINE, and decisions of an operator on the
//! command line.

use std::process::Command;

use muster_bus::Outgoing;
use muster_contract::decode::{parse, to_bytes};
use muster_contract::fact::{Fact, Incident, IncidentKind};
use muster_contract::incident::QuarantineBound;
use muster_contract::limits::QUARANTINE_BYTES_MAX;
use muster_contract::quarantine::{QuarantineDecision, QuarantineVerdict, RejectedReport};
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_tests::server::device;
use muster_tests::system::program;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::{Hub, edit, held, status, with};

/// Reports of a state that this hub does not know.
const UNKNOWN: u64 = 60;

/// The output of `muster quarantine …`, and its exit code.
pub(super) async fn muster(hub: &Hub, words: &[&str]) -> (i32, Value) {
    let (url, words) = (hub.url.clone(), words.iter().map(ToString::to_string).collect::<Vec<_>>());
    let run = move || {
        let mut command = Command::new(program("muster"));
        command.args(["--nats-url", &url, "--format", "json", "quarantine"]).args(words);
        command.output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| json!(String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), said)
}

async fn list(hub: &Hub, more: &[&str]) -> Value {
    let (code, said) = muster(hub, &[&["list"], more].concat()).await;
    assert_eq!(code, 0, "{said}");
    said
}

/// The numbers that `list` shows, in the order of the stream.
async fn listed(hub: &Hub) -> Vec<String> {
    let list = list(hub, &[]).await;
    list["reports"].as_array().unwrap().iter().map(|held| held["quarantineSeq"].to_string()).collect()
}

/// A report of a newer agent.
fn unknown(seq: u64, head: u64) -> Value {
    let report = with(status(1, seq, head), "observedAt", json!("2026-01-01T00:00:00Z"));
    with(report, "status", json!({"state": "hibernating"}))
}

/// Every report that QUARANTINE holds, by its own sequence.
pub(super) async fn kept(hub: &Hub) -> Vec<RejectedReport> {
    let (mut kept, mut next) = (Vec::new(), 1);
    while let Some(held) = hub.bus.from(stream::QUARANTINE, next).await.unwrap() {
        next = held.stream_seq + 1;
        kept.push(parse::<RejectedReport>(&held.payload).unwrap());
    }
    kept
}

async fn kept_numbers(hub: &Hub) -> Vec<u64> {
    kept(hub).await.iter().map(|report| report.seq.unwrap().get()).collect()
}

/// The missing and the refused numbers of a device's newest receipt.
pub(super) async fn missing_and_refused(
    hub: &Hub,
    key: &DeviceKey,
) -> Option<(String, Vec<(String, String)>)> {
    let receipt = hub.receipt(key).await?;
    let refused = receipt.refused.iter().map(|named| (named.ranges.to_string(), named.reason.clone()));
    Some((receipt.missing.to_string(), refused.collect()))
}

async fn verdicts(hub: &Hub, key: &DeviceKey) -> Vec<QuarantineVerdict> {
    hub.facts(key, |fact| if let Fact::Verdict(fact) = fact { Some(fact) } else { None }).await
}

/// Lets QUARANTINE hold so many reports of a device.
pub(super) async fn share(hub: &Hub, count: u64) {
    edit(&hub.bus, stream::QUARANTINE, |config| config["max_msgs_per_subject"] = json!(count)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_payload_that_a_receipt_covers_is_kept_over_kills() {
    let mut hub = Hub::start(&[]).await;
    let (key, head) = (device("press-4"), UNKNOWN + 1);
    hub.send(&key, &status(1, 1, head)).await;
    hub.statuses_are(&key, 1).await;
    for seq in 2..=head {
        hub.send(&key, &unknown(seq, head)).await;
        if seq % 20 == 0 {
            hub.kill_ingest().await;
            hub.start_ingest();
        }
    }
    hub.receipt_after_a_beat(&key, 1, head).await;
    let kept = kept(&hub).await;
    let wanted: Vec<Vec<u8>> = (2..=head).map(|seq| unknown(seq, head).to_string().into_bytes()).collect();
    let payloads: Vec<Vec<u8>> = kept.iter().map(|report| report.payload().unwrap()).collect();
    assert_eq!(payloads, wanted, "each once, and whole");
    assert_eq!(held(&hub.ledger().await)[&key], (1..=head).collect::<Vec<_>>());
    let list = list(&hub, &["--limit", "5", "--device", &key.to_string()]).await;
    let bytes: usize = wanted.iter().map(Vec::len).sum();
    assert_eq!(
        (&list["held"], &list["bytes"], &list["before"]),
        (&json!(UNKNOWN), &json!(bytes), &json!(55))
    );
    assert_eq!(
        (list["reports"].as_array().unwrap().len(), &list["reasons"]),
        (5, &json!({"unreadable": UNKNOWN}))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_without_room_stays_missing_and_comes_later() {
    let hub = Hub::start(&[]).await;
    hub.started(1).await;
    share(&hub, 3).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 9)).await;
    for seq in 2..=9 {
        hub.send(&key, &unknown(seq, 9)).await;
    }
    hub.beat(&key, 1, 9).await;
    let full = |seqs: &str| Some((seqs.to_owned(), vec![(seqs.to_owned(), "quarantineFull".to_owned())]));
    until("it is refused", || missing_and_refused(&hub, &key), |said| *said == full("5-9")).await;
    assert_eq!(
        (kept_numbers(&hub).await, held(&hub.ledger().await)[&key].clone()),
        (vec![2, 3, 4], vec![1, 2, 3, 4])
    );
    let told = list(&hub, &[]).await;
    assert_eq!((&told["held"], &told["refused"]), (&json!(3), &json!(5)));
    assert_eq!(told["refusedDevices"][0]["refused"][0]["reason"], json!("quarantineFull"));
    let incidents = async || hub.incidents(&key).await;
    let share_full = IncidentKind::QuarantineFull { bound: QuarantineBound::Reports, limit: 256 };
    until("the incident", incidents, |told| told.contains(&share_full)).await;
    // An old agent sends every missing report again. It is refused again, and the next receipt still names it.
    hub.send(&key, &unknown(5, 9)).await;
    hub.send(&key, &with(status(1, 10, 10), "observedAt", json!("2026-01-01T00:00:00Z"))).await;
    let through = || async { hub.receipt(&key).await.unwrap().through };
    until("the next receipt", through, |through| *through == 10).await;
    assert_eq!(missing_and_refused(&hub, &key).await, full("5-9"));
    // An operator drops one and requests the rest: the receipt lists them as missing, and the device sends them.
    let first = listed(&hub).await[0].clone();
    let (code, said) = muster(&hub, &["drop", &first, "--reason", "a test"]).await;
    assert_eq!((code, &said["messages"][0]["verdict"]), (0, &json!("dropped")), "{said}");
    share(&hub, 256).await;
    let (code, said) = muster(&hub, &["requeue", "--device", &key.to_string()]).await;
    assert_eq!(code, 1, "those that it holds stay: {said}");
    let asked = Some(("5-9".to_owned(), Vec::new()));
    until("it is asked for", || missing_and_refused(&hub, &key), |said| *said == asked).await;
    for seq in 5..=9 {
        hub.send(&key, &unknown(seq, 10)).await;
    }
    hub.receipt_after_a_beat(&key, 1, 10).await;
    assert_eq!(kept_numbers(&hub).await, [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(list(&hub, &[]).await["refused"], json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_report_of_a_quarantined_number_is_a_fork_and_both_are_kept() {
    let mut hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 3)).await;
    hub.send(&key, &unknown(2, 3)).await;
    until("it is quarantined", || hub.quarantine(&key), |facts| facts.len() == 1).await;
    hub.kill_ingest().await;
    hub.start_ingest();
    hub.send(&key, &status(1, 2, 3)).await;
    hub.send(&key, &status(1, 3, 3)).await;
    hub.receipt_after_a_beat(&key, 1, 3).await;
    let incidents = hub.incidents(&key).await;
    let forks = incidents.iter().filter(
        |what| matches!(what, IncidentKind::SequenceFork { seq, held, other, .. } if seq.get() == 2 && held != other),
    );
    assert_eq!(forks.count(), 1, "{incidents:?}");
    assert_eq!((hub.statuses(&key).await.len(), kept_numbers(&hub).await), (3, vec![2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_rejected_contents_of_a_number_are_both_kept_over_a_kill() {
    let mut hub = Hub::start(&[]).await;
    let key = device("press-4");
    let other = with(unknown(2, 3), "status", json!({"state": "dreaming"}));
    hub.send(&key, &status(1, 1, 3)).await;
    hub.send(&key, &unknown(2, 3)).await;
    until("the first is quarantined", || hub.quarantine(&key), |facts| facts.len() == 1).await;
    hub.kill_ingest().await;
    hub.start_ingest();
    for report in [&other, &unknown(2, 3), &other, &status(1, 3, 3)] {
        hub.send(&key, report).await;
    }
    hub.receipt_after_a_beat(&key, 1, 3).await;
    assert_eq!(kept_numbers(&hub).await, [2, 2]);
    assert_eq!(hub.quarantine(&key).await.len(), 2);
    let forks = hub.incidents(&key).await;
    assert!(matches!(forks[..], [IncidentKind::SequenceFork { seq, .. }] if seq.get() == 2), "{forks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn quarantine_at_its_bytes_refuses_all_reports_as_an_incident_of_the_hub() {
    let hub = Hub::start(&[]).await;
    hub.started(1).await;
    let state = hub.bus.stream_state(stream::QUARANTINE).await.unwrap();
    assert_eq!(state.bytes_max, Some(512 * 1024 * 1024));
    edit(&hub.bus, stream::QUARANTINE, |config| config["max_bytes"] = json!(2_000)).await;
    let keys = ["press-4", "press-5", "press-6"].map(device);
    for key in &keys {
        hub.send(key, &status(1, 1, 2)).await;
        hub.send(key, &unknown(2, 2)).await;
        hub.beat(key, 1, 2).await;
    }
    // One report has more than half of these bytes.
    // Until ingest answers for every partition, the command fails.
    let refused = async || muster(&hub, &["list"]).await.1["refused"].clone();
    until("two are refused", refused, |refused| *refused == json!(2)).await;
    let told = list(&hub, &[]).await;
    assert_eq!(told["held"], json!(1));
    for device in told["refusedDevices"].as_array().unwrap() {
        assert_eq!(device["refused"][0]["reason"], json!("quarantineFull"), "{told}");
    }
    let last = async || hub.bus.last(stream::LEDGER, "muster.incident._._").await.unwrap();
    let incident = until("the incident", last, Option::is_some).await.unwrap();
    let limit = QUARANTINE_BYTES_MAX;
    assert_eq!(
        parse::<Incident>(&incident.payload).unwrap().what,
        IncidentKind::QuarantineFull { bound: QuarantineBound::Bytes, limit }
    );
    let ledger = hub.ledger().await;
    let incidents = ledger.iter().filter(|entry| matches!(entry.fact, Fact::Incident(_)));
    assert_eq!(incidents.count(), 1, "of the hub, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_between_store_and_fact_leaves_one_payload_and_one_fact() {
    let mut hub = Hub::start(&[]).await;
    hub.started(1).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 3)).await;
    hub.statuses_are(&key, 1).await;
    edit(&hub.bus, stream::LEDGER, |config| {
        config["discard"] = json!("new");
        config["max_msgs"] = json!(1);
    })
    .await;
    hub.send(&key, &unknown(2, 3)).await;
    hub.send(&key, &unknown(3, 3)).await;
    // Whether the other one is stored as well depends on when LEDGER's refusal arrives.
    until("a payload is stored", || kept_numbers(&hub), |kept| !kept.is_empty()).await;
    hub.kill_ingest().await;
    assert_eq!(hub.quarantine(&key).await, [], "no fact says that they are quarantined");
    edit(&hub.bus, stream::LEDGER, |config| {
        config["discard"] = json!("old");
        config["max_msgs"] = json!(-1);
    })
    .await;
    hub.start_ingest();
    hub.receipt_after_a_beat(&key, 1, 3).await;
    assert_eq!(kept_numbers(&hub).await, [2, 3]);
    assert_eq!(held(&hub.ledger().await)[&key], [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_report_is_recorded_removed_and_stays_counted() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 4)).await;
    for seq in 2..=4 {
        hub.send(&key, &unknown(seq, 4)).await;
    }
    until("the poison", || kept_numbers(&hub), |kept| kept.len() == 3).await;
    let numbers = listed(&hub).await;
    let (code, said) = muster(&hub, &["requeue", &numbers[0]]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said["messages"][0]["refused"].as_str().unwrap().contains("hibernating"), "{said}");
    let (code, said) = muster(&hub, &["drop", &numbers[0], "4711"]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.as_str().unwrap().contains("holds no report 4711"), "{said}");
    assert_eq!(listed(&hub).await.len(), 3, "a wrong number changes nothing");
    let (code, said) = muster(&hub, &["drop", &numbers[0], "--reason", "a test"]).await;
    assert_eq!((code, &said["messages"][0]["verdict"]), (0, &json!("dropped")), "{said}");
    let none = ["drop", "--code", "oldEpoch"];
    assert_eq!(muster(&hub, &none).await.1["messages"], json!([]), "none is of that reason");
    let (code, said) =
        muster(&hub, &["drop", "--code", "unreadable", "--since", "2026-01-01T00:00:00Z"]).await;
    assert_eq!((code, said["messages"].as_array().unwrap().len()), (0, 2), "{said}");
    let list = list(&hub, &["--settled"]).await;
    assert_eq!((&list["held"], &list["settled"]["dropped"]), (&json!(0), &json!(3)));
    assert_eq!(list["verdicts"][0]["reason"], json!("a test"));
    assert_eq!(held(&hub.ledger().await)[&key], [1, 2, 3, 4]);
    assert_eq!(kept_numbers(&hub).await, [0; 0]);
    // The device sends one of them again, as after a lost receipt.
    hub.send(&key, &with(unknown(3, 5), "current", json!(false))).await;
    hub.send(&key, &status(1, 5, 5)).await;
    hub.receipt_after_a_beat(&key, 1, 5).await;
    assert_eq!(kept_numbers(&hub).await, [0; 0], "a verdict removed it");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_dropped_by_the_time_before_which_they_came_and_all_at_once() {
    let hub = Hub::start(&[]).await;
    let (key, other) = (device("press-4"), device("press-5"));
    hub.send(&key, &status(1, 1, 2)).await;
    hub.send(&key, &unknown(2, 2)).await;
    until("the first", || kept_numbers(&hub), |kept| kept.len() == 1).await;
    let between = kept(&hub).await[0].received_at;
    // The hub's clock goes on between the two.
    let time = until("a later time", || async { Timestamp::now() }, |now| *now > between).await.to_string();
    hub.send(&other, &status(1, 1, 2)).await;
    hub.send(&other, &unknown(2, 2)).await;
    until("the second", || kept_numbers(&hub), |kept| kept.len() == 2).await;
    let early = between.to_string();
    assert_eq!(muster(&hub, &["drop", "--until", &early]).await.1["messages"], json!([]), "none came before");
    let shown = list(&hub, &["--until", &time]).await;
    assert_eq!(shown["reports"].as_array().unwrap().len(), 1, "{shown}");
    let (code, said) = muster(&hub, &["drop", "--until", &time]).await;
    assert_eq!((code, said["messages"].as_array().unwrap().len()), (0, 1), "{said}");
    assert_eq!(said["messages"][0]["quarantineSeq"], shown["reports"][0]["quarantineSeq"], "{said}");
    assert_eq!(kept_numbers(&hub).await, [2], "the later one stays");
    let (code, said) = muster(&hub, &["drop", "--all", "--reason", "a test"]).await;
    assert_eq!((code, said["messages"].as_array().unwrap().len()), (0, 1), "{said}");
    let list = list(&hub, &["--settled"]).await;
    assert_eq!((&list["held"], &list["settled"]["dropped"]), (&json!(0), &json!(2)));
    for key in [&key, &other] {
        assert_eq!(held(&hub.ledger().await)[key], [1, 2], "a dropped number stays counted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_beyond_its_age_expires_on_record() {
    let hub = Hub::start(&["--quarantine-max-age", "1s"]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 1, 2)).await;
    hub.send(&key, &unknown(2, 2)).await;
    let told = until("the record", || verdicts(&hub, &key), |told| !told.is_empty()).await;
    assert_eq!((told[0].verdict, told[0].seq.unwrap().get()), (QuarantineDecision::Expired, 2));
    until("it is removed", || kept_numbers(&hub), Vec::is_empty).await;
    assert_eq!(held(&hub.ledger().await)[&key], [1, 2]);
    assert_eq!(list(&hub, &[]).await["settled"]["expired"], json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_fix_a_report_is_accepted_once_over_kills_of_ingest() {
    let mut hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 2, 2)).await;
    hub.statuses_are(&key, 1).await;
    hub.kill_ingest().await;
    // As an older ingest left it: it did not know the state.
    let payload = RejectedReport::encode_payload(status(1, 1, 2).to_string().as_bytes());
    let common = json!({
        "apiVersion": "muster/v1", "reason": "unknown state", "epoch": 1, "seq": 1,
        "subject": subjects::report(&key), "receivedAt": "2026-01-01T00:00:00Z", "payloadBase64": payload,
    });
    let fact = with(with(common.clone(), "kind", json!("QuarantineFact")), "bytes", json!(9));
    let fact = with(fact, "countForDevice", json!(1));
    let report = with(with(common, "kind", json!("RejectedReport")), "code", json!("unreadable"));
    let report: RejectedReport = serde_json::from_value(report).unwrap();
    for (subject, payload) in [
        (subjects::rejected(Some(&key)), to_bytes(&report)),
        (LedgerSubject::Quarantine(Some(key.clone())).to_string(), fact.to_string().into_bytes()),
    ] {
        hub.bus.publish(Outgoing::new(subject, payload)).await.unwrap();
    }
    hub.start_ingest();
    hub.receipt_after_a_beat(&key, 1, 2).await;
    let number = listed(&hub).await[0].clone();
    for _ in 0..3 {
        let words = ["requeue", &number, "--reason", "updated"];
        let requeue = muster(&hub, &words);
        // Killed at some moment during a request: a requester without an answer repeats the request.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(fastrand::u64(5..60)), requeue).await;
        hub.kill_ingest().await;
        hub.start_ingest();
    }
    let asked = || async { muster(&hub, &["requeue", "--all"]).await };
    until("it is answered", asked, |(code, _)| *code == 0).await;
    until("it is removed", || kept_numbers(&hub), Vec::is_empty).await;
    let facts = hub.statuses(&key).await;
    assert_eq!(facts.iter().filter(|fact| fact.seq.get() == 1).count(), 1, "{facts:?}");
    assert!(verdicts(&hub, &key).await.iter().all(|told| told.verdict != QuarantineDecision::Dropped));
    hub.receipt_after_a_beat(&key, 1, 2).await;
}
