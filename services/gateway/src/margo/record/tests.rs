//! Tests of numbering: repeated, newer and slow reports, epochs, bounds.

use muster_contract::receipt::RefusedNumbers;

use super::*;
use crate::margo::manifest::tests::{desired, package};

fn now(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn content(text: &str) -> Digest {
    Digest::of_bytes(text.as_bytes())
}

fn receipt(epoch: Epoch, through: u64) -> Receipt {
    let (api_version, kind) = (ApiVersion::V1, Default::default());
    Receipt {
        api_version,
        kind,
        epoch,
        through,
        missing: SeqRanges::new(),
        refused: Vec::new(),
        batches: Vec::new(),
        generation: None,
    }
}

fn id(name: &str) -> DeploymentId {
    name.parse().unwrap()
}

/// Admits a report; its number, the numbers that it coalesces, and whether the number is new.
fn number(record: &mut HttpDevice, name: &str, text: &str, second: i64) -> Option<(u64, Vec<u64>, bool)> {
    resent(record, name, text, second, None)
}

/// The same beside a receipt.
fn resent(
    record: &mut HttpDevice,
    name: &str,
    text: &str,
    second: i64,
    receipt: Option<&Receipt>,
) -> Option<(u64, Vec<u64>, bool)> {
    let id = id(name);
    let (adopted, unreachable) = (Some(Generation::FIRST), None);
    let sent =
        SentReport { deployment: Some(&id), content: content(text), adopted, unreachable, snapshot: None };
    match admit(record, sent, receipt, now(second)).unwrap() {
        Admission::Confirmed => None,
        Admission::Publish { open, is_new, .. } => {
            let coalesced = open.coalesced.iter().flat_map(|(from, to)| from..=to).collect();
            Some((open.seq.get(), coalesced, is_new))
        }
    }
}

fn done(record: &mut HttpDevice, seq: u64) -> bool {
    let open = record.open.iter().find(|open| open.seq.get() == seq).cloned().unwrap();
    let epoch = record.epoch;
    confirm(record, epoch, &open)
}

#[test]
fn a_repeated_report_has_one_number_whenever_the_gateway_died() {
    let mut record = begin(None, now(0));
    assert_eq!(number(&mut record, "web", "installing", 0), Some((1, vec![], true)));
    // Dead before or after UPLINK had it: the next gateway publishes the same number.
    assert_eq!(number(&mut record, "web", "installing", 900), Some((1, vec![], false)));
    let before = record.open[0].clone();
    assert_eq!(before.at, now(0), "the report is the same, so ingest sees no fork");
    assert!(done(&mut record, 1));
    // Dead after the record was stored: there is nothing left to do.
    assert_eq!(number(&mut record, "web", "installing", 901), None);
    assert_eq!(record.head, 1);
}

#[test]
fn a_newer_report_coalesces_an_open_one_with_all_that_it_coalesced() {
    let mut record = begin(None, now(0));
    number(&mut record, "web", "pending", 0);
    assert_eq!(number(&mut record, "web", "installing", 1), Some((2, vec![1], true)));
    assert_eq!(number(&mut record, "web", "installed", 2), Some((3, vec![1, 2], true)));
    assert!(done(&mut record, 3) && record.open.is_empty());
}

#[test]
fn another_deployments_open_number_is_coalesced_only_once_abandoned() {
    let mut record = begin(None, now(0));
    number(&mut record, "web", "pending", 0);
    assert_eq!(number(&mut record, "db", "pending", 30), Some((2, vec![], true)));
    assert_eq!(number(&mut record, "db", "installing", 31), Some((3, vec![1, 2], true)));
}

#[test]
fn a_slow_gateway_learns_that_its_number_was_coalesced() {
    let mut record = begin(None, now(0));
    number(&mut record, "web", "installing", 0);
    let slow = record.open[0].clone();
    number(&mut record, "web", "installed", 1);
    let epoch = record.epoch;
    assert!(!confirm(&mut record, epoch, &slow), "ingest may have dropped it: the device must try again");
    assert!(done(&mut record, 2));
    // Two gateways that published the same number agree.
    let mut both = begin(None, now(0));
    number(&mut both, "web", "installing", 0);
    let (open, epoch) = (both.open[0].clone(), both.epoch);
    assert!(confirm(&mut both, epoch, &open) && confirm(&mut both, epoch, &open));
    assert!(!confirm(&mut both, epoch.next(), &open), "a number of another epoch");
}

#[test]
fn a_state_that_returns_is_a_new_report() {
    let mut record = begin(None, now(0));
    for (seq, text) in [(1, "installed"), (2, "failed"), (3, "installed")] {
        assert_eq!(number(&mut record, "web", text, seq), Some((seq as u64, vec![], true)));
        assert!(done(&mut record, seq as u64));
    }
}

#[test]
fn a_bucket_that_was_set_back_begins_an_epoch_and_keeps_what_was_served() {
    let mut record = begin(Some(&receipt(Epoch::new(1 << 40).unwrap(), 4)), now(0));
    assert_eq!(record.epoch.get(), (1 << 40) + 1, "above the last one, though the clock is behind");
    learn(&mut record, &desired(7, vec![package("web")]));
    number(&mut record, "web", "installed", 0);
    done(&mut record, 1);
    assert!(!is_set_back(&record, &receipt(record.epoch, 1)));
    let ahead = receipt(record.epoch, 2);
    assert!(is_set_back(&record, &ahead));
    let renewed = renew(&record, &ahead, now(1));
    assert_eq!((renewed.epoch, renewed.head), (record.epoch.next(), 0));
    assert_eq!(renewed.deployments[&id("web")].targets, record.deployments[&id("web")].targets);
    assert!(confirmed(&renewed, Some(&id("web"))).is_none(), "the state is reported again");
}

#[test]
fn a_status_is_of_the_content_that_its_version_targeted() {
    let mut record = begin(None, now(0));
    let (mut first, mut second) = (package("web"), package("web"));
    first.target_generation = Generation::new(3).unwrap();
    second.name = "Web 2".to_owned();
    second.digest = second.content_digest();
    second.target_generation = Generation::new(5).unwrap();
    assert!(learn(&mut record, &desired(3, vec![first.clone()])));
    assert!(!learn(&mut record, &desired(3, vec![first.clone()])), "once");
    learn(&mut record, &desired(6, vec![second.clone()]));
    let of = |version| digest_of(&record, &id("web"), Generation::new(version).unwrap());
    assert_eq!([of(3), of(4)], [first.digest; 2]);
    assert_eq!([of(5), of(6)], [second.digest; 2]);
    let nothing = Digest::of_bytes(b"");
    assert_eq!(of(2), nothing, "a content that is not remembered is not another one");
    assert_eq!(digest_of(&record, &id("db"), Generation::FIRST), nothing);
}

#[test]
fn a_record_is_bounded() {
    let mut record = begin(None, now(0));
    for at in 0..OPEN_MAX {
        number(&mut record, &format!("d-{at}"), "pending", 0);
    }
    let more = id("more");
    let sent = SentReport {
        deployment: Some(&more),
        content: content("a"),
        adopted: None,
        unreachable: None,
        snapshot: None,
    };
    assert_eq!(admit(&mut record, sent, None, now(0)), Err(Refusal::TooManyOpen));
    for at in 0..HTTP_DEPLOYMENTS_MAX {
        record.deployments.insert(id(&format!("x-{at}")), HttpDeployment::default());
    }
    assert_eq!(admit(&mut record, sent, None, now(99)), Err(Refusal::TooManyDeployments));
    learn(&mut record, &desired(9, vec![package("web")]));
    assert_eq!(record.deployments.len(), HTTP_DEPLOYMENTS_MAX);
    assert!(record.deployments.contains_key(&id("web")), "a target stays");
}

#[test]
fn a_confirmed_report_that_the_hub_lacks_is_resent_with_a_new_number() {
    let missing = |epoch, through, missing: SeqRanges| Receipt { missing, ..receipt(epoch, through) };
    let confirmed_twice = || {
        let mut record = begin(None, now(0));
        for (seq, name) in [(1, "web"), (2, "db")] {
            number(&mut record, name, "installed", 0);
            assert!(done(&mut record, seq));
        }
        record
    };
    let mut record = confirmed_twice();
    let lost = missing(record.epoch, 2, SeqRanges::span(1, 1));
    assert_eq!(resent(&mut record, "db", "installed", 1, Some(&lost)), None, "the other one is there");
    assert_eq!(resent(&mut record, "web", "installed", 1, Some(&lost)), Some((3, vec![1], true)));
    // Abandoned, coalesced by another, and so missed no more: it must not count as confirmed.
    assert_eq!(resent(&mut record, "db", "failed", 60, Some(&lost)), Some((4, vec![1, 3], true)));
    let through = receipt(record.epoch, 4);
    assert_eq!(resent(&mut record, "web", "installed", 61, Some(&through)), Some((5, vec![], true)));

    let mut newer = confirmed_twice();
    assert_eq!(
        resent(&mut newer, "web", "failed", 1, Some(&lost)),
        Some((3, vec![1], true)),
        "so is a newer one"
    );
    // A receipt that is not so far yet, or of another epoch, misses nothing.
    let mut whole = confirmed_twice();
    for receipt in [receipt(whole.epoch, 0), missing(whole.epoch.next(), 2, SeqRanges::span(1, 1))] {
        assert_eq!(resent(&mut whole, "web", "installed", 1, Some(&receipt)), None);
    }
}

#[test]
fn a_refused_report_of_capabilities_is_sent_again() {
    let mut record = begin(None, now(0));
    let sent = SentReport {
        deployment: None,
        content: content("8Gi"),
        adopted: None,
        unreachable: None,
        snapshot: None,
    };
    admit(&mut record, sent, None, now(0)).unwrap();
    assert!(done(&mut record, 1));
    let reason = "quarantineFull".to_owned();
    let refused = vec![RefusedNumbers { ranges: SeqRanges::span(1, 1), reason }];
    let missing = SeqRanges::span(1, 1);
    let receipt = Receipt { missing, refused, ..receipt(record.epoch, 1) };
    let Admission::Publish { open, is_new, .. } = admit(&mut record, sent, Some(&receipt), now(1)).unwrap()
    else {
        panic!("it is lost");
    };
    assert_eq!((open.seq.get(), is_new, open.coalesced), (2, true, SeqRanges::span(1, 1)));
    assert_eq!(record.capabilities, None);
}

#[test]
fn a_manifest_never_falls_below_one_that_was_served() {
    let mut record = begin(None, now(0));
    assert!(!is_hub_behind(&record, 0));
    learn(&mut record, &desired(7, vec![package("web")]));
    assert!(is_hub_behind(&record, 6) && is_hub_behind(&record, 0));
    assert!(!is_hub_behind(&record, 7) && !is_hub_behind(&record, 8));
}

#[test]
fn a_version_is_refused_for_good_only_if_the_hub_is_not_behind() {
    let mut record = begin(None, now(0));
    let check =
        |record: &_, newest, adopted| check_adopted(record, newest, Generation::new(adopted).unwrap());
    assert_eq!(check(&record, 0, 9), Ok(()), "nothing is known of versions");
    assert_eq!(check(&record, 5, 6), Err(VersionRefusal::Above(5)));
    learn(&mut record, &desired(7, vec![package("web")]));
    assert_eq!(check(&record, 7, 8), Err(VersionRefusal::Above(7)));
    assert_eq!(check(&record, 5, 7), Ok(()), "it was served");
    assert_eq!([check(&record, 5, 8), check(&record, 0, 8)], [Err(VersionRefusal::HubIsBehind); 2]);
}

#[test]
fn a_resumed_number_has_the_content_that_it_was_taken_with() {
    let mut record = begin(None, now(0));
    learn(&mut record, &desired(3, vec![package("web")]));
    let id = id("web");
    let sent = SentReport {
        deployment: Some(&id),
        content: content("a"),
        adopted: Generation::new(3),
        unreachable: None,
        snapshot: None,
    };
    let admit = |record: &mut _, sent| match admit(record, sent, None, now(0)).unwrap() {
        Admission::Publish { open, .. } => open,
        Admission::Confirmed => panic!("it is open"),
    };
    let first = admit(&mut record, sent);
    assert_eq!((first.target, &first.agent_version), (Some(package("web").digest), &None));
    record.deployments.get_mut(&id).unwrap().targets.clear();
    assert_eq!(admit(&mut record, sent), first, "its target is forgotten");

    let sent = SentReport {
        deployment: None,
        content: content("b"),
        adopted: None,
        unreachable: None,
        snapshot: None,
    };
    assert_eq!(admit(&mut record, sent).agent_version, Some(agent_version()));
    let older = Some("muster-gateway 0.0.1".to_owned());
    record.open.last_mut().unwrap().agent_version.clone_from(&older);
    assert_eq!(admit(&mut record, sent).agent_version, older, "another release took it");
}

/// Admits and confirms a report made of a snapshot of 60 s, at a second.
fn snapshot(record: &mut HttpDevice, name: &str, text: &str, second: i64, leaving: bool) {
    let (id, at) = (id(name), now(second));
    let sent = SentReport {
        deployment: Some(&id),
        content: content(text),
        adopted: Some(Generation::FIRST),
        unreachable: None,
        snapshot: Some(Snapshot {
            fresh_until: (!leaving).then(|| now(second + 60)),
            taken_at: None,
            severity: 0,
        }),
    };
    if let Admission::Publish { open, epoch, .. } = admit(record, sent, None, at).unwrap() {
        assert!(confirm(record, epoch, &open));
    }
}

#[test]
fn the_oldest_wanted_snapshot_decides_how_long_a_heartbeat_counts() {
    let mut record = begin(None, now(0));
    assert_eq!(heartbeat_lease(&record, now(0)), HeartbeatLease::Hub);
    snapshot(&mut record, "web", "a", 0, false);
    snapshot(&mut record, "shop", "a", 40, false);
    assert_eq!(heartbeat_lease(&record, now(40)), HeartbeatLease::Evidence(20_000));
    assert_eq!(heartbeat_lease(&record, now(60)), HeartbeatLease::Expired);
    // The same content again is no report, and a newer snapshot.
    snapshot(&mut record, "web", "a", 50, false);
    assert_eq!((record.head, heartbeat_lease(&record, now(60))), (2, HeartbeatLease::Evidence(40_000)));
    // Nobody waits for a deployment that is no target.
    assert!(learn(&mut record, &desired(2, vec![package("web")])));
    assert_eq!(heartbeat_lease(&record, now(105)), HeartbeatLease::Evidence(5_000));
    snapshot(&mut record, "shop", "b", 106, true);
    assert_eq!(heartbeat_lease(&record, now(106)), HeartbeatLease::Evidence(4_000));
    // A target again: its group has to come.
    assert!(learn(&mut record, &desired(3, vec![package("web"), package("shop")])));
    assert_eq!(heartbeat_lease(&record, now(106)), HeartbeatLease::Expired);
    assert!(learn(&mut record, &desired(4, vec![package("web")])));
    // A status of the device itself ends the snapshots of its deployment.
    let seq = number(&mut record, "web", "own", 107).unwrap().0;
    assert!(done(&mut record, seq));
    assert_eq!(heartbeat_lease(&record, now(999)), HeartbeatLease::Hub);
}

#[test]
fn a_snapshot_that_a_dead_gateway_took_counts_until_it_comes_again() {
    let mut record = begin(None, now(0));
    let id = id("web");
    let sent = |second: i64| SentReport {
        deployment: Some(&id),
        content: content("a"),
        adopted: None,
        unreachable: None,
        snapshot: Some(Snapshot { fresh_until: Some(now(second + 60)), taken_at: None, severity: 0 }),
    };
    assert!(matches!(admit(&mut record, sent(0), None, now(0)), Ok(Admission::Publish { is_new: true, .. })));
    assert_eq!(heartbeat_lease(&record, now(100)), HeartbeatLease::Expired, "its report may be in");
    let Ok(Admission::Publish { open, epoch, .. }) = admit(&mut record, sent(100), None, now(100)) else {
        panic!("it is open");
    };
    assert!(confirm(&mut record, epoch, &open));
    assert_eq!(heartbeat_lease(&record, now(100)), HeartbeatLease::Evidence(60_000));
}

#[test]
fn a_sample_that_is_older_or_milder_than_one_that_came_changes_nothing() {
    let (mut record, id) = (begin(None, now(0)), id("web"));
    let mut admitted = |text: &str, taken: i64, severity: u64, at: i64| {
        let snapshot = Snapshot { fresh_until: Some(now(taken + 60)), taken_at: Some(now(taken)), severity };
        let sent = SentReport {
            deployment: Some(&id),
            content: content(text),
            adopted: None,
            unreachable: None,
            snapshot: Some(snapshot),
        };
        match admit(&mut record, sent, None, now(at)).unwrap() {
            Admission::Publish { open, epoch, .. } => confirm(&mut record, epoch, &open),
            Admission::Confirmed => false,
        }
    };
    assert!(admitted("failed", 10, 5, 10));
    assert!(!admitted("installed", 9, 0, 11), "older");
    assert!(!admitted("installed", 10, 0, 11), "milder, of the same time");
    assert!(admitted("installed", 11, 0, 11), "newer");
    assert!(admitted("failed", 11, 5, 12), "more severe, of the same time");
    // The clock was an hour ahead.
    assert!(admitted("pending", 3612, 2, 3612));
    assert!(admitted("installed", 20, 0, 20), "a sample of the future holds nothing up");
}
