//! Tests of single rules of the outbox. `hub` and `property` test any sequence of events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, Profile, ProfileType};
use muster_contract::receipt::RefusedNumbers;
use muster_contract::report::Report;
use muster_contract::state::ComponentStatus;
use muster_contract::version::ApiVersion;
use muster_contract::{DeploymentId, Generation, SeqRanges, State};
use serde_json::Map;

use super::*;
use crate::record::DeploymentRecord;
use crate::report::{Body, StatusBody};
use crate::store;

mod batches;
mod copies;
mod damage;
mod faults;
mod hub;
mod model;
mod property;
mod refusals;

pub(super) const AMPLE: Limits = Limits { rows: 100_000, bytes: 64 * 1024 * 1024 };

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(super) async fn open(dir: &std::path::Path, limits: Limits) -> (Db, Outbox) {
    let db = Db::open(dir, &"plant7/press-4".parse().unwrap(), &crate::app::schema(), at(0)).unwrap();
    let outbox = Outbox::open(db.clone(), limits).await.unwrap();
    (db, outbox)
}

/// A report of a deployment with its record; `mark` distinguishes reports of the same deployment and state.
pub(super) fn entry(deployment: &str, state: State, mark: u64) -> NewReport {
    let desired = DesiredDeployment {
        id: deployment.parse().unwrap(),
        name: "Web".to_owned(),
        application_id: "com-acme-web".to_owned(),
        namespace: None,
        labels: Default::default(),
        target_generation: Generation::FIRST,
        digest: Digest::of_bytes(b""),
        profile: Profile {
            profile_type: ProfileType::Simulated,
            components: Vec::new(),
            device_constraints: None,
        },
        parameters: BTreeMap::new(),
        stopped: false,
        restart: 0,
        source: None,
    };
    let mut record = DeploymentRecord::new(desired, Generation::new(mark.max(1)).unwrap());
    record.components = vec![ComponentStatus { name: "web".parse().unwrap(), state, error: None }];
    let body = Body::Status(record.body(at(0)));
    let change = match state {
        State::Removed => RecordChange::Remove(record.entry.id),
        _ => RecordChange::Store(Box::new(record)),
    };
    NewReport { body, change }
}

pub(super) fn capabilities() -> NewReport {
    let body = CapabilitiesBody {
        observed_at: at(0),
        properties: Map::new(),
        labels: BTreeMap::new(),
        agent_version: "1".to_owned(),
    };
    NewReport { body: Body::Capabilities(body), change: RecordChange::None }
}

fn one(entry: NewReport) -> Arc<Vec<NewReport>> {
    Arc::new(vec![entry])
}

fn all() -> ReadRequest {
    ReadRequest { newest_first: true, rows: READ_ROWS_MAX, bytes: READ_BYTES_MAX, ..ReadRequest::default() }
}

fn seqs(batch: &Batch) -> Vec<u64> {
    batch.rows.iter().map(|row| row.seq).collect()
}

fn receipt(epoch: Epoch, through: u64, missing: &[(u64, u64)]) -> Receipt {
    let missing = missing.to_vec().try_into().unwrap();
    Receipt {
        api_version: ApiVersion::V1,
        kind: Default::default(),
        epoch,
        through,
        missing,
        refused: Vec::new(),
        batches: Vec::new(),
        generation: None,
    }
}

async fn append(outbox: &Outbox, reports: &[(&str, State)]) {
    for (at, (deployment, state)) in reports.iter().enumerate() {
        outbox.append(one(entry(deployment, *state, at as u64))).await.unwrap();
    }
}

async fn send_all(outbox: &Outbox, now: Timestamp) -> Vec<u64> {
    let epoch = outbox.fix_epoch(now).await.unwrap();
    let sent = seqs(&outbox.read(all()).await.unwrap());
    outbox.mark_sent(epoch, sent.clone(), now).await.unwrap();
    sent
}

use State::{Failed, Installed, Installing, Pending, Removed};

#[tokio::test]
async fn the_newest_of_each_deployment_is_read_first_then_the_backlog_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending), ("b", Pending), ("a", Installing), ("c", Pending), ("a", Installed)])
        .await;
    let batch = outbox.read(all()).await.unwrap();
    assert_eq!(seqs(&batch), [2, 4, 5, 1, 3]);
    assert_eq!(batch.head, 5);
    let by_number = ReadRequest { newest_first: false, ..all() };
    assert_eq!(seqs(&outbox.read(by_number).await.unwrap()), [1, 2, 3, 4, 5]);
    let newest: Vec<_> = batch.rows.iter().map(|row| row.newest).collect();
    assert_eq!(newest, [true, true, true, false, false]);
    let letter = batch.rows[2].serialize(Epoch::FIRST, batch.head).unwrap();
    let Ok(Report::Status(report)) = Report::parse(&letter) else { panic!("a status, please") };
    assert!(report.current && report.seq.get() == 5 && report.head.get() == 5);
}

#[tokio::test]
async fn rows_under_way_are_left_out_and_limits_hold() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 6]).await;
    let request = ReadRequest { except: BTreeSet::from([1, 4, 6]), ..all() };
    assert_eq!(seqs(&outbox.read(request).await.unwrap()), [2, 3, 5]);
    assert_eq!(seqs(&outbox.read(ReadRequest { rows: 2, ..all() }).await.unwrap()), [6, 1]);
    assert_eq!(seqs(&outbox.read(ReadRequest { bytes: 1, ..all() }).await.unwrap()), [6], "one row at least");
}

#[tokio::test]
async fn numbers_and_epoch_go_on_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let (db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending), ("a", Installed)]).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    db.close().await;
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Failed)]).await;
    assert_eq!(outbox.fix_epoch(at(500)).await.unwrap(), epoch);
    assert_eq!(seqs(&outbox.read(all()).await.unwrap()), [3, 1, 2]);
}

/// Stored epoch, epoch and end of the hub's last receipt, the clock's seconds → the epoch that is sent.
type EpochCase = (Option<i64>, Option<(u64, u64)>, i64, u64);

#[tokio::test]
async fn an_epoch_is_the_clock_but_above_every_epoch_the_hub_ever_mentioned() {
    const NOW: u64 = 1_800_000_000;
    const CLOCK: i64 = NOW as i64;
    let cases: [EpochCase; 17] = [
        // A new database.
        (None, None, CLOCK, NOW),
        (None, None, 1_000_000_000, 1_000_000_000),
        (None, None, 0, 1),
        (None, None, -62_000_000_000, 1),
        // A new database of a device that the hub knows: a clock that is behind does not matter.
        (None, Some((NOW - 50, 7)), CLOCK, NOW),
        (None, Some((NOW, 7)), CLOCK, NOW + 1),
        (None, Some((NOW + 1_000_000, 0)), CLOCK, NOW + 1_000_001),
        (None, Some((40_000_000_000, 7)), CLOCK, 40_000_000_001),
        (None, Some((5, 7)), 0, 6),
        // A database keeps its epoch, wherever the clock jumps and whatever older receipts say.
        (Some(CLOCK - 50), None, CLOCK, NOW - 50),
        (Some(CLOCK - 50), None, 0, NOW - 50),
        (Some(CLOCK - 50), None, CLOCK + 1_000_000_000, NOW - 50),
        (Some(CLOCK - 50), Some((NOW - 60, 900)), CLOCK, NOW - 50),
        (Some(CLOCK - 50), Some((NOW - 50, 1)), CLOCK, NOW - 50),
        // An old copy of a database: the hub knows more of this epoch, or a later one.
        (Some(CLOCK - 50), Some((NOW - 50, 2)), 0, NOW - 49),
        (Some(CLOCK - 50), Some((NOW - 40, 0)), 0, NOW - 39),
        (Some(CLOCK - 50), Some((NOW - 40, 0)), CLOCK, NOW),
    ];
    for case @ (kept, heard, clock, expected) in cases {
        let base = tempfile::tempdir().unwrap();
        let device = faults::Device::open(&base.path().join("device"), AMPLE).await;
        let seconds = |seconds| Timestamp::from_second(seconds).unwrap();
        device.outbox.append(one(capabilities())).await.unwrap();
        if let Some(kept) = kept {
            device.outbox.fix_epoch(seconds(kept)).await.unwrap();
            device.outbox.read(all()).await.unwrap();
        }
        if let Some((epoch, through)) = heard {
            let receipt = receipt(Epoch::new(epoch).unwrap(), through, &[]);
            device.outbox.receive(receipt, seconds(clock)).await.unwrap();
        }
        let epoch = device.outbox.fix_epoch(seconds(clock)).await.unwrap();
        assert_eq!(epoch.get(), expected, "{case:?}");
        // The epoch is stored before a caller gets it: a crash now does not lose it.
        let crashed = base.path().join("crashed");
        faults::Image::of(&device.dir).put(&crashed);
        let revived = faults::Device::open(&crashed, AMPLE).await.outbox;
        assert_eq!(revived.fix_epoch(seconds(clock + 9)).await.unwrap(), epoch, "{case:?}");
    }
}

#[tokio::test]
async fn a_receipt_covers_rows_and_asks_again_for_what_was_sent_a_while_ago() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 5]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    let gaps = receipt(epoch, 5, &[(2, 3)]);
    assert_eq!(
        outbox.receive(gaps.clone(), at(1)).await.unwrap(),
        ReceiptOutcome::Applied { requeued: 0 },
        "on its way"
    );
    assert_eq!(outbox.receive(gaps, at(31)).await.unwrap(), ReceiptOutcome::Applied { requeued: 2 });
    let again = outbox.read(all()).await.unwrap();
    assert_eq!(seqs(&again), [2, 3]);
    outbox.receive(receipt(epoch, 5, &[]), at(32)).await.unwrap();
    assert_eq!(outbox.read(all()).await.unwrap().rows, [], "covered without being sent again");
}

#[tokio::test]
async fn a_summary_does_not_parse_the_receipt_again() {
    let dir = tempfile::tempdir().unwrap();
    let (db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 2]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    let refused = vec![RefusedNumbers { ranges: SeqRanges::span(2, 2), reason: "quarantineFull".to_owned() }];
    let receipt = Receipt { refused: refused.clone(), ..receipt(epoch, 2, &[(2, 2)]) };
    outbox.receive(receipt, at(1)).await.unwrap();
    let change = "UPDATE memory SET value = '{' WHERE name = 'receipt'";
    db.run(move |connection| connection.execute(change, [])).await.unwrap();
    assert_eq!(outbox.summary().await.unwrap().refused, refused);
}

#[tokio::test]
async fn a_hub_restored_from_an_old_backup_gets_covered_rows_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 4]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    outbox.receive(receipt(epoch, 4, &[]), at(1)).await.unwrap();
    outbox.receive(receipt(epoch, 4, &[(3, 4)]), at(3600)).await.unwrap();
    assert_eq!(seqs(&outbox.read(all()).await.unwrap()), [4, 3]);
}

#[tokio::test]
async fn covered_rows_are_forgotten_by_age_and_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 4]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    outbox.receive(receipt(epoch, 3, &[]), at(0)).await.unwrap();
    assert_eq!(outbox.summary().await.unwrap().rows, 4);
    outbox.maintain(at(24 * 60 * 60)).await.unwrap();
    assert_eq!(outbox.summary().await.unwrap().rows, 1, "number 4 is not covered");
    let many = (0..COVERED_ROWS_KEPT as u64 + 20).map(|mark| entry("a", Pending, mark)).collect();
    outbox.append(Arc::new(many)).await.unwrap();
    let newest = outbox.read(ReadRequest { rows: 1, ..all() }).await.unwrap();
    assert_eq!(seqs(&newest), [newest.head]);
    outbox.receive(receipt(epoch, newest.head, &[]), at(24 * 60 * 60)).await.unwrap();
    assert_eq!(outbox.summary().await.unwrap().rows, COVERED_ROWS_KEPT as u64);
}

#[tokio::test]
async fn what_no_receipt_ever_mentions_is_sent_again_ever_more_rarely() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending)]).await;
    send_all(&outbox, at(0)).await;
    let silence = UNMENTIONED_AGE.as_secs() as i64;
    let mut repetitions = Vec::new();
    for minute in 1..200 {
        outbox.maintain(at(minute * 60)).await.unwrap();
        if !send_all(&outbox, at(minute * 60)).await.is_empty() {
            repetitions.push(minute * 60 / silence);
        }
    }
    assert_eq!(repetitions, [1, 3, 7, 15]);
}

#[tokio::test]
async fn superseded_reports_are_folded_into_the_next_of_their_deployment() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), Limits { rows: 5, ..AMPLE }).await;
    append(&outbox, &[("a", Pending), ("b", Pending), ("a", Installing), ("a", Failed), ("b", Installing)])
        .await;
    append(&outbox, &[("a", Installing), ("a", Installed), ("c", Pending)]).await;
    let mut rows = outbox.read(all()).await.unwrap().rows;
    rows.sort_by_key(|row| row.seq);
    let kept: Vec<_> = rows.iter().map(|row| (row.seq, row.coalesced.to_string())).collect();
    let expected =
        [(4, "1,3"), (5, "2"), (6, ""), (7, ""), (8, "")].map(|(seq, folded)| (seq, folded.to_owned()));
    assert_eq!(kept[..], expected, "failures and the newest of each deployment stay");
}

#[tokio::test]
async fn when_nothing_can_be_folded_the_oldest_go_and_are_declared() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), Limits { rows: 3, ..AMPLE }).await;
    append(&outbox, &[("a", Failed), ("b", Failed), ("a", Failed), ("b", Failed), ("a", Failed)]).await;
    let mut rows = outbox.read(all()).await.unwrap().rows;
    rows.sort_by_key(|row| row.seq);
    let kept: Vec<_> = rows.iter().map(|row| (row.seq, row.coalesced.to_string())).collect();
    assert_eq!(kept, [(3, "1-2".to_owned()), (4, String::new()), (5, String::new())]);
}

#[tokio::test]
async fn one_range_declares_the_oldest_if_single_numbers_fit_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let rows_max = RANGES_PER_ROW_MAX as u64 + 100;
    let (_db, outbox) = open(dir.path(), Limits { rows: rows_max, ..AMPLE }).await;
    // Only the reports of `a` can be folded: every other number, all into the newest one.
    let reports = (0..4 * rows_max).map(|mark| match mark % 2 {
        0 => entry("a", Pending, mark),
        _ => entry("b", Failed, mark),
    });
    let reports: Vec<_> = reports.collect();
    for group in reports.chunks(64) {
        outbox.append(Arc::new(group.to_vec())).await.unwrap();
        assert!(outbox.summary().await.unwrap().rows <= rows_max);
    }
    let mut known = SeqRanges::new();
    let mut except = BTreeSet::new();
    loop {
        let batch = outbox.read(ReadRequest { except: except.clone(), ..all() }).await.unwrap();
        if batch.rows.is_empty() {
            assert_eq!(known.missing(batch.head), SeqRanges::new());
            return;
        }
        for row in batch.rows {
            assert!(row.coalesced.len() <= RANGES_PER_ROW_MAX);
            known.insert(row.seq);
            known.extend(&row.coalesced);
            except.insert(row.seq);
        }
    }
}

#[tokio::test]
async fn a_row_that_a_relay_has_seen_never_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), Limits { rows: 3, ..AMPLE }).await;
    append(&outbox, &[("a", Pending), ("a", Installing), ("a", Installed)]).await;
    let before = outbox.read(all()).await.unwrap();
    append(&outbox, &[("a", Installing), ("a", Installed)]).await;
    let after = outbox.read(all()).await.unwrap();
    let seen = after.rows.iter().find(|row| row.seq == 3).unwrap();
    assert_eq!(seen.coalesced, before.rows.iter().find(|row| row.seq == 3).unwrap().coalesced);
    assert_eq!(seqs(&after), [5, 3, 4]);
    let declared: Vec<_> = after.rows.iter().map(|row| row.coalesced.to_string()).collect();
    assert_eq!(declared, ["", "", "1-2"], "by the next row of the deployment that no relay saw");
}

#[tokio::test]
async fn the_byte_limit_counts_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), Limits { bytes: 4_000, ..AMPLE }).await;
    for mark in 1..40 {
        outbox.append(one(entry("a", Pending, mark))).await.unwrap();
        assert!(outbox.summary().await.unwrap().bytes <= 4_000);
    }
    let batch = outbox.read(all()).await.unwrap();
    let declared: u64 = batch.rows.iter().map(|row| row.coalesced.count()).sum();
    assert_eq!(declared + batch.rows.len() as u64, 39);
}

#[tokio::test]
async fn a_removed_deployment_leaves_its_report_and_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let (db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Installed), ("b", Installed), ("a", Removed)]).await;
    let left: Vec<_> =
        store::records(&db).await.unwrap().iter().map(|record| record.id().to_string()).collect();
    assert_eq!(left, ["b"]);
    assert_eq!(seqs(&outbox.read(all()).await.unwrap()), [2, 3, 1]);
}

#[tokio::test]
async fn lost_numbers_are_declared() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    outbox.append(one(capabilities())).await.unwrap();
    append(&outbox, &[("a", Pending), ("a", Installed)]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    outbox.receive(receipt(epoch, 3, &[]), at(1)).await.unwrap();
    let later = 2 * 24 * 60 * 60;
    outbox.maintain(at(later)).await.unwrap();
    outbox.receive(receipt(epoch, 3, &[(2, 3)]), at(later)).await.unwrap();
    let batch = outbox.read(all()).await.unwrap();
    assert_eq!(seqs(&batch), [4, 5], "a report that the hub may have lost goes again");
    assert_eq!(batch.rows[1].body.read().unwrap().deployment().unwrap().as_str(), "a");
    assert_eq!(batch.rows[0].coalesced.to_string(), "2-3");
    outbox.receive(receipt(epoch, 3, &[(2, 3)]), at(later + 120)).await.unwrap();
    assert_eq!(outbox.summary().await.unwrap().head, 5, "said once");
}

#[tokio::test]
async fn rows_that_a_receipt_brings_about_keep_the_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), Limits { rows: 4, ..AMPLE }).await;
    outbox.append(one(capabilities())).await.unwrap();
    append(&outbox, &[("c", Installed)]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    outbox.receive(receipt(epoch, 2, &[]), at(1)).await.unwrap();
    append(&outbox, &[("a", Failed); 3]).await;
    // The three, the capabilities and the record of `c` are reported in the new epoch: one more than the limit.
    outbox.receive(receipt(epoch, 100, &[]), at(2)).await.unwrap();
    let batch = outbox.read(all()).await.unwrap();
    let mut told: Vec<_> = batch.rows.iter().map(|row| (row.seq, row.coalesced.to_string())).collect();
    told.sort();
    assert_eq!(told, [(1, ""), (3, "2"), (4, ""), (5, "")].map(|(seq, declared)| (seq, declared.to_owned())));
}

#[tokio::test]
async fn waiting_reports_share_a_commit_and_are_answered_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let device = faults::Device::open(dir.path(), AMPLE).await;
    for refused in [true, false] {
        device.refuse_commits(refused);
        // The first job holds the writer, so the others wait behind it.
        let (held, hold) = std::sync::mpsc::channel::<()>();
        let first = device.db.run(move |_| {
            _ = hold.recv();
            Ok(())
        });
        let appends = (0..100).map(|mark| device.outbox.append(one(entry("a", Failed, mark))));
        let appends = futures_util::future::join_all(appends);
        let (_, outcomes, ()) = tokio::join!(first, appends, async { drop(held) });
        let kept = device.outbox.summary().await.unwrap().rows;
        assert!(outcomes.iter().all(|outcome| outcome.is_err() == refused), "{outcomes:?}");
        assert_eq!(
            kept,
            if refused { 0 } else { 100 },
            "an answer before the commit would have been a good one"
        );
        assert!((1..=3).contains(&device.commits()), "{} commits for 100 reports", device.commits());
    }
}
