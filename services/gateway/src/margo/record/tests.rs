//! The rules of the numbers: repeated, newer and slow reports, epochs, bounds.

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
    }
}

fn id(name: &str) -> DeploymentId {
    name.parse().unwrap()
}

/// Admits a report; its number, the numbers that it coalesces, and whether the number is new.
fn number(record: &mut HttpDevice, name: &str, text: &str, second: i64) -> Option<(u64, Vec<u64>, bool)> {
    match admit(record, Some(&id(name)), content(text), now(second)).unwrap() {
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
    confirm(record, (epoch, &open))
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
fn a_newer_report_of_the_deployment_coalesces_an_open_one_and_all_that_it_coalesced() {
    let mut record = begin(None, now(0));
    number(&mut record, "web", "pending", 0);
    assert_eq!(number(&mut record, "web", "installing", 1), Some((2, vec![1], true)));
    assert_eq!(number(&mut record, "web", "installed", 2), Some((3, vec![1, 2], true)));
    assert!(done(&mut record, 3) && record.open.is_empty());
}

#[test]
fn an_open_number_of_another_deployment_is_coalesced_only_once_it_is_abandoned() {
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
    assert!(!confirm(&mut record, (epoch, &slow)), "ingest may have dropped it: the device must try again");
    assert!(done(&mut record, 2));
    // Two gateways that published the same number agree.
    let mut both = begin(None, now(0));
    number(&mut both, "web", "installing", 0);
    let (open, epoch) = (both.open[0].clone(), both.epoch);
    assert!(confirm(&mut both, (epoch, &open)) && confirm(&mut both, (epoch, &open)));
    assert!(!confirm(&mut both, (epoch.next(), &open)), "a number of another epoch");
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
    assert_eq!(record.epoch.get(), (1 << 40) + 1, "above the last one, whatever the clock says");
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
    assert_eq!(digest_of(&record, &id("db"), Generation::FIRST), Digest::of_bytes(b""));
}

#[test]
fn a_record_is_bounded() {
    let mut record = begin(None, now(0));
    for at in 0..OPEN_MAX {
        number(&mut record, &format!("d-{at}"), "pending", 0);
    }
    assert_eq!(admit(&mut record, Some(&id("more")), content("a"), now(0)), Err(Refusal::TooManyOpen));
    for at in 0..HTTP_DEPLOYMENTS_MAX {
        record.deployments.insert(id(&format!("x-{at}")), HttpDeployment::default());
    }
    assert_eq!(
        admit(&mut record, Some(&id("more")), content("a"), now(99)),
        Err(Refusal::TooManyDeployments)
    );
    learn(&mut record, &desired(9, vec![package("web")]));
    assert_eq!(record.deployments.len(), HTTP_DEPLOYMENTS_MAX);
    assert!(record.deployments.contains_key(&id("web")), "a target stays");
}
