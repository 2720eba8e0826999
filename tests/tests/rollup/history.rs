//! Tests the past on a real server: points by sequence and by time, event time, comparisons, and the proof that
//! the projection equals LEDGER.

use std::path::Path;

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::history::{DiffAnswer, DiffQuery, DigestsAnswer, MomentAnswer, Point, VerifyAnswer};
use muster_contract::query::{DeploymentAnswer, Output, PAGE_DEFAULT, Query};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_contract::subjects::{QUERY_PREFIX, stream};
use muster_contract::view::{Standing, Verdict};
use muster_domain::fold::Fleet;
use muster_rollup::metrics::RebuildResult;
use muster_tests::wait::until;
use rusqlite::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ledger::small_fleet;
use crate::{Hub, PATIENCE, Rollup};

/// A snapshot and a checkpoint after every few facts.
pub(crate) const DENSE: [&str; 6] =
    ["--snapshot-every", "100ms", "--checkpoint-facts", "5", "--checkpoint-every", "100ms"];

impl Hub {
    /// An answer about the past, asked for until what has to be rebuilt is there.
    async fn past(&self, what: &str, question: &(impl Serialize + Sync)) -> Value {
        let ask = || async {
            let (subject, question) =
                (format!("{QUERY_PREFIX}.{what}"), serde_json::to_vec(question).unwrap());
            let answer = self.bus.request(&subject, question.into(), PATIENCE).await.unwrap();
            serde_json::from_slice::<Value>(&answer).unwrap()
        };
        until("an answer about the past", ask, |answer| answer["error"]["code"] != "notReady").await
    }

    pub(crate) async fn recalled<T: DeserializeOwned>(
        &self,
        what: &str,
        question: &(impl Serialize + Sync),
    ) -> T {
        let answer = self.past(what, question).await;
        serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    async fn refused(&self, what: &str, question: &(impl Serialize + Sync)) -> (String, String) {
        let answer = self.past(what, question).await;
        let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
        (text("code"), text("message"))
    }

    async fn digests_at(&self, ledger_seq: u64) -> DigestsAnswer {
        self.recalled("digests", &Query { point: Point::at_seq(ledger_seq), ..Query::default() }).await
    }

    async fn web(&self, point: Point) -> DeploymentAnswer {
        let query = Query { id: Some("web".parse().unwrap()), point, ..Query::default() };
        self.recalled("deployment", &query).await
    }

    pub(crate) async fn end(&self) -> u64 {
        self.bus.stream_state(stream::LEDGER).await.unwrap().last_seq
    }

    /// When LEDGER stored a fact.
    async fn stored_at(&self, ledger_seq: u64) -> Timestamp {
        self.bus.at(stream::LEDGER, ledger_seq).await.unwrap().unwrap().stored_at
    }

    /// The fold of LEDGER up to a fact, by the rules alone.
    async fn folded_to(&self, ledger_seq: u64) -> Fleet {
        self.fold_while(|seq| seq <= ledger_seq).await.0
    }
}

async fn checkpoints(rollup: &Rollup, count: i64) {
    let made = || async { rollup.handle.metrics.checkpoints.get() };
    until("checkpoints", made, |made| *made >= count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_point_equals_the_fold_of_its_facts_across_restarts() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let mut rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
    for round in 0..5 {
        for step in 0..8 {
            let state = ["installing", "installed", "failed"][(round + step) % 3];
            devices[step % 3].reports(&hub, "web", state).await;
        }
        checkpoints(&rollup, round as i64 + 1).await;
    }
    let end = hub.end().await;
    for supervisor in 0..2 {
        for ledger_seq in (0..=end).step_by(if supervisor == 0 { 5 } else { 7 }) {
            let (wanted, answer) = (hub.folded_to(ledger_seq).await, hub.digests_at(ledger_seq).await);
            assert_eq!(answer.as_of, wanted.as_of());
            assert_eq!(answer.views, wanted.digests(), "ledger {ledger_seq}");
        }
        rollup.drain().await;
        damage_a_checkpoint(dir.path());
        rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
        rollup.ready().await;
        assert_eq!(rollup.facts_read(), 0);
    }
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rebuild_missing_checkpoints_are_backfilled_correctly() {
    const APART: u64 = 10;
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    for step in 0..90 {
        let state = ["installing", "installed", "failed"][step % 4 % 3];
        devices[step % 3].reports(&hub, "web", state).await;
    }
    let (end, dir) = (hub.end().await, tempfile::tempdir().unwrap());
    let apart = APART.to_string();
    let cadence = ["--snapshot-facts", "1", "--checkpoint-facts", &apart, "--rebuild"];
    let rollup = Rollup::start_with(&hub, dir.path(), &cadence).await;
    rollup.ready().await;
    checkpoints(&rollup, end.div_ceil(APART) as i64).await;
    let filled = rollup.handle.metrics.checkpoints_filled.get();
    assert!(filled >= end / APART - 1, "{filled} of {end} facts: none was made while they were read");
    // Between two of them, at one, and before the first.
    for ledger_seq in (0..=end).step_by(7) {
        let (wanted, answer) = (hub.folded_to(ledger_seq).await, hub.digests_at(ledger_seq).await);
        assert_eq!((answer.as_of, answer.views), (wanted.as_of(), wanted.digests()), "ledger {ledger_seq}");
    }
    rollup.drain().await;
    let history = Connection::open(dir.path().join("history.db")).unwrap();
    let mut seqs = history.prepare("SELECT ledger_seq FROM checkpoint ORDER BY ledger_seq").unwrap();
    let seqs: Vec<u64> = seqs.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let before = std::iter::once(0).chain(seqs.iter().copied());
    assert!(before.zip(&seqs).all(|(one, next)| next - one <= APART), "{seqs:?}");
    assert_eq!(seqs.last(), Some(&end));
}

/// A checkpoint is rotten: an older one is taken in its place.
fn damage_a_checkpoint(directory: &Path) {
    let history = Connection::open(directory.join("history.db")).unwrap();
    let middle = "SELECT ledger_seq FROM checkpoint ORDER BY ledger_seq LIMIT 1 OFFSET 2";
    let seq: i64 = history.query_row(middle, (), |row| row.get(0)).unwrap();
    let rot = "UPDATE part SET packed = x'28b52ffd00' WHERE ledger_seq = ?1";
    assert!(history.execute(rot, [seq]).unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_is_the_last_fact_stored_at_or_before_it() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let end = hub.end().await;
    rollup.reads_to(end).await;
    for seq in [1, 5, end] {
        let at = hub.stored_at(seq).await;
        let moment: MomentAnswer =
            hub.recalled("moment", &Query { point: Point::at(at), ..Query::default() }).await;
        assert_eq!((moment.as_of.ledger_seq, moment.as_of.at), (seq, at));
    }
    let before = hub.stored_at(1).await - std::time::Duration::from_nanos(1);
    let moment: MomentAnswer =
        hub.recalled("moment", &Query { point: Point::at(before), ..Query::default() }).await;
    assert_eq!(moment.as_of.ledger_seq, 0);

    for (point, code, says) in [
        (Point::at_seq(end + 1000), "badRequest", "in the future"),
        (Point::at("2999-01-01T00:00:00Z".parse().unwrap()), "badRequest", "in the future"),
        (Point { at_seq: Some(1), ..Point::at(before) }, "badRequest", "one of the two"),
        (Point { event_time: Some(Timestamp::now()), ..Point::at_seq(1) }, "badRequest", "after the point"),
    ] {
        let (found, message) = hub.refused("fleet", &Query { point, ..Query::default() }).await;
        assert!(found == code && message.contains(says), "{point:?}: {found} {message}");
    }
    // The present is answered as ever, also while the past is asked for.
    hub.answers_say_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_backlog_tells_what_was_true_of_a_moment() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    devices[0].reports(&hub, "web", "installing").await;
    let moment = hub.stored_at(hub.end().await).await;
    let observed = moment - std::time::Duration::from_millis(1);
    devices[1].reports(&hub, "web", "installed").await;
    devices[0].reported_at(&hub, "web", "failed", observed).await;
    let end = hub.end().await;
    rollup.reads_to(end).await;

    let then = hub.web(Point::at(moment)).await.view;
    assert_eq!(then.verdict, Verdict::Progressing, "as known then");
    let about = Point { event_time: Some(moment), ..Point::default() };
    let known = hub.web(about).await.view;
    assert_eq!((known.verdict, known.counts[&Standing::Failed].fresh), (Verdict::Failing, 1));
    let rests: MomentAnswer = hub.recalled("moment", &Query { point: about, ..Query::default() }).await;
    let about = rests.event_time.unwrap();
    assert_eq!((rests.as_of.ledger_seq, about.late_reports), (end, 1));
    assert!(about.known_then.at <= moment && about.known_then.ledger_seq < end);
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_after_filters_is_told_of_any_point() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    devices[0].reports(&hub, "web", "installing").await;
    let then = hub.end().await;
    devices[0].reports(&hub, "web", "failed").await;
    let end = hub.end().await;
    rollup.reads_to(end).await;
    let mut seen = Vec::new();
    for ledger_seq in [then, end] {
        let query = StatusQuery {
            id: Some("web".parse().unwrap()),
            output: Output::All,
            point: Point::at_seq(ledger_seq),
            ..StatusQuery::default()
        };
        let answer: StatusAnswer = hub.recalled("status", &query).await;
        let wanted = hub.folded_to(ledger_seq).await.status_answer(&query, None, PAGE_DEFAULT).unwrap();
        assert_eq!(answer, wanted, "ledger {ledger_seq}");
        seen.push(answer.verdict.unwrap());
    }
    assert_eq!(seen, [Verdict::Progressing, Verdict::Failing]);
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_names_devices_counts_and_the_facts_that_did_it() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let from = hub.end().await;
    devices[0].reports(&hub, "web", "failed").await;
    devices[1].is(&hub, "stale").await;
    rollup.reads_to(from + 2).await;
    let query = DiffQuery {
        id: "web".parse().unwrap(),
        site: None,
        from: Point::at_seq(from),
        to: Point::default(),
        limit: None,
        after: None,
    };
    let diff: DiffAnswer = hub.recalled("diff", &query).await;
    assert_eq!((diff.from.verdict, diff.to.verdict), (Verdict::ConvergedStale, Verdict::Failing));
    assert_eq!((diff.from.as_of.ledger_seq, diff.to.as_of.ledger_seq, diff.changed), (from, from + 2, 2));
    let facts: Vec<_> =
        diff.devices.iter().map(|change| (change.key.to_string(), change.facts[0].ledger_seq)).collect();
    assert_eq!(facts, [("plant7/drill-1".to_owned(), from + 2), ("plant7/press-4".to_owned(), from + 1)]);
    assert_eq!(diff.devices[1].components[0].name.as_str(), "main");

    let (code, message) = hub
        .refused(
            "diff",
            &DiffQuery { from: Point::at_seq(from + 1), to: Point::at_seq(from), ..query.clone() },
        )
        .await;
    assert!(code == "badRequest" && message.contains("is after"), "{message}");
    let (code, _) = hub.refused("diff", &DiffQuery { id: "nothing".parse().unwrap(), ..query }).await;
    assert_eq!(code, "notFound");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_asking_for_the_past_is_deferred_and_delays_no_one() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    for step in 0..60 {
        devices[step % 3].reports(&hub, "web", ["installing", "installed"][step % 2]).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(hub.end().await).await;
    let ask = |seq: u64| {
        let query = Query { point: Point::at_seq(seq), ..Query::default() };
        let (bus, question) = (hub.bus.clone(), serde_json::to_vec(&query).unwrap());
        tokio::spawn(async move {
            let answer = bus.request("muster.query.moment", question.into(), PATIENCE).await.unwrap();
            serde_json::from_slice::<Value>(&answer).unwrap()
        })
    };
    let crowd: Vec<_> = (1..=60).map(ask).collect();
    hub.answers_say_what_ledger_gives().await;
    let mut refused = 0;
    for (at, answer) in crowd.into_iter().enumerate() {
        let answer = answer.await.unwrap();
        match answer["error"]["code"].as_str() {
            None => assert_eq!(answer["asOf"]["ledgerSeq"], at + 1, "{answer}"),
            Some(code) => {
                assert_eq!(code, "notReady", "{answer}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the queue has an end");
    for seq in [1, 30, 60] {
        assert_eq!(hub.digests_at(seq).await.views, hub.folded_to(seq).await.digests());
    }
    rollup.drain().await;
}

/// Alters the record of press-4 in the snapshot as a disk never would: its checksum fits.
pub(crate) fn sabotage(directory: &Path, from: &str, to: &str) {
    let snapshot = Connection::open(directory.join("snapshot.db")).unwrap();
    let key = "plant7/press-4";
    let read = "SELECT record FROM device WHERE key = ?1";
    let record: String = snapshot.query_row(read, [key], |row| row.get(0)).unwrap();
    let altered = record.replacen(from, to, 1);
    assert_ne!(altered, record, "{record}");
    let digest = Digest::of_bytes(altered.as_bytes());
    let mark = digest.as_bytes().iter().take(8).fold(0i64, |mark, byte| (mark << 8) | i64::from(*byte));
    let write = "UPDATE device SET record = ?1, mark = ?2 WHERE key = ?3";
    assert_eq!(snapshot.execute(write, (altered, mark, key)).unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_what_was_altered_and_a_rebuild_heals_it() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
    rollup.ready().await;
    rollup.reads_to(hub.end().await).await;
    let clean: VerifyAnswer = hub.recalled("verify", &Query::default()).await;
    assert!(
        clean.same && clean.running == clean.rebuilt && clean.devices == 3 && clean.views == 5,
        "{clean:?}"
    );
    let published: DigestsAnswer = hub.recalled("digests", &Query::default()).await;
    assert_eq!(published.digest, clean.running, "anybody can compare");
    rollup.drain().await;

    sabotage(dir.path(), "\"epoch\":1,\"seq\":3", "\"epoch\":1,\"seq\":2");
    let rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
    rollup.ready().await;
    assert_eq!(rollup.facts_read(), 0, "it believes its snapshot");
    devices[2].reports(&hub, "web", "installed").await;
    let found: VerifyAnswer = hub.recalled("verify", &Query::default()).await;
    assert!(!found.same && found.differences >= 1, "{found:?}");
    let first = found.first.unwrap();
    assert_eq!((first.key.as_str(), first.field.as_str()), ("plant7/press-4", "rows[0].report.seq"));
    assert_eq!((first.running, first.rebuilt), (Some(2.into()), Some(3.into())));
    rollup.drain().await;

    let again = [&DENSE[..], &["--rebuild"]].concat();
    let rollup = Rollup::start_with(&hub, dir.path(), &again).await;
    rollup.ready().await;
    rollup.reads_to(hub.end().await).await;
    assert_eq!(rollup.facts_read(), hub.end().await, "all of LEDGER");
    let healed: VerifyAnswer = hub.recalled("verify", &Query::default()).await;
    assert!(healed.same, "{healed:?}");
    for aside in ["snapshot.db.set-aside", "history.db.set-aside"] {
        assert!(dir.path().join(aside).exists(), "{aside}");
    }
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_rollups_compare_digests_at_the_same_sequence() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let (one_dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = Rollup::start_with(&hub, one_dir.path(), &DENSE).await;
    one.ready().await;
    one.reads_to(hub.end().await).await;
    let at = hub.end().await;
    let of_one = hub.digests_at(at).await;
    one.drain().await;
    for step in 0..20 {
        devices[step % 3].reports(&hub, "db", ["failed", "installed"][step % 2]).await;
    }
    let other = Rollup::start_with(&hub, other_dir.path(), &DENSE).await;
    other.ready().await;
    assert_eq!(hub.digests_at(at).await, of_one);
    other.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_for_the_present_finds_the_rebuild() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(hub.end().await).await;
    let about = Point { event_time: Some(hub.stored_at(5).await), ..Point::default() };
    let moment = |point| Query { point, ..Query::default() };
    let diff = DiffQuery {
        id: "web".parse().unwrap(),
        site: None,
        from: Point::at_seq(5),
        to: Point::default(),
        limit: None,
        after: None,
    };
    let rebuilt = || rollup.handle.metrics.rebuilds_with(RebuildResult::Reached);
    let first: MomentAnswer = hub.recalled("moment", &moment(about)).await;
    assert_eq!(rebuilt(), 1);
    let mut end = hub.end().await;
    for state in ["failed", "installed", "failed"] {
        devices[0].reports(&hub, "web", state).await;
        end = hub.end().await;
        rollup.reads_to(end).await;
        let again: MomentAnswer = hub.recalled("moment", &moment(about)).await;
        assert_eq!(again.as_of, first.as_of);
    }
    assert_eq!(rebuilt(), 1, "what was made is the answer");
    let named: MomentAnswer = hub.recalled("moment", &moment(Point { at_seq: Some(end), ..about })).await;
    assert_eq!((named.as_of.ledger_seq, rebuilt()), (end, 2), "who names a fact is answered of that");

    let compared: DiffAnswer = hub.recalled("diff", &diff).await;
    assert_eq!(rebuilt(), 4, "both ends");
    devices[0].reports(&hub, "web", "installed").await;
    rollup.reads_to(hub.end().await).await;
    assert_eq!(hub.recalled::<DiffAnswer>("diff", &diff).await, compared);
    assert_eq!(rebuilt(), 4);
    // A present that does not know of the earlier end is of no use.
    let from = Point::at_seq(hub.end().await);
    let later: DiffAnswer = hub.recalled("diff", &DiffQuery { from, ..diff }).await;
    assert!(later.devices.is_empty());
    rollup.drain().await;
}
