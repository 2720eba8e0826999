//! Tests that contradictions about the same facts are found: between two rollups by the bucket's content and by
//! their answers, between the projection and a rebuild by `verify`, also when LEDGER has discarded its
//! beginning.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use muster_bus::ViewResult;
use muster_contract::Timestamp;
use muster_contract::history::{RebuildBase, VerifyAnswer};
use muster_contract::query::Query;
use muster_contract::view::content_digest;
use muster_rollup::metrics::Metrics;
use muster_rollup::projection::Projection;
use muster_rollup::publish::Publisher;
use muster_tests::streams::forget_up_to;
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::history::{DENSE, sabotage};
use crate::ledger::{Device, small_fleet};
use crate::{Hub, Rollup};

/// Makes a component of press-4 look installed that has failed: nothing but the view of `db` tells.
fn gloss_over(directory: &Path) {
    sabotage(directory, r#"["main","failed"]"#, r#"["main","installed"]"#);
}

impl Hub {
    async fn verified(&self) -> VerifyAnswer {
        self.recalled("verify", &Query::default()).await
    }

    /// The fleet's view as somebody writes it who has read to the same fact and counts otherwise.
    async fn put_another_fleet(&self) {
        let entry = self.bus.view_get("fleet").await.unwrap().unwrap();
        let mut view: Value = serde_json::from_slice(&entry.value.unwrap()).unwrap();
        view["targets"] = json!(7);
        view["asOf"] = serde_json::to_value(self.folded().await.as_of()).unwrap();
        view["digest"] = json!(content_digest(&view).to_string());
        self.bus.view_put("fleet", view.to_string().into(), None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_differs_for_the_same_facts_is_disputed_and_rewritten() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let present = Arc::new(Projection::new(Timestamp::UNIX_EPOCH, hub.folded().await));
    present.set_caught_up();
    let (metrics, stop) = (Metrics::default(), CancellationToken::new());
    let (incidents, _) = muster_bus::IncidentReporter::new();
    let publisher = Publisher::new(hub.bus.clone(), present, metrics.clone(), incidents, Rng::new());
    let task = tokio::spawn(publisher.learning_every(Duration::from_secs(1)).run(stop.clone()));
    let disputed = || async { metrics.queries.views_with(ViewResult::Disputed) };
    hub.bucket_says_what_ledger_gives().await;
    assert_eq!(disputed().await, 0, "nobody else has written");
    hub.put_another_fleet().await;
    until("the other's view to be seen", disputed, |count| *count == 1).await;
    hub.bucket_says_what_ledger_gives().await;
    stop.cancel();
    task.await.unwrap();
    assert_eq!(disputed().await, 1, "only that one");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_differing_rollups_dispute_and_both_answer_questions() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for dir in &dirs {
        let rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
        rollup.ready().await;
        rollup.reads_to(hub.end().await).await;
        rollup.drain().await;
    }
    gloss_over(dirs[1].path());
    let right = Rollup::start_with(&hub, dirs[0].path(), &DENSE).await;
    let wrong = Rollup::start_with(&hub, dirs[1].path(), &DENSE).await;
    for rollup in [&right, &wrong] {
        rollup.ready().await;
        assert_eq!(rollup.facts_read(), 0, "it believes its snapshot");
    }
    devices[1].reports(&hub, "db", "failed").await;
    let disputed = || async {
        [&right, &wrong]
            .map(|rollup| rollup.handle.metrics.queries.views_with(ViewResult::Disputed))
            .iter()
            .sum()
    };
    until("a dispute", disputed, |count: &u64| *count > 0).await;

    // One of the two answers: which, is chance.
    let end = hub.end().await;
    right.reads_to(end).await;
    wrong.reads_to(end).await;
    let heard = Mutex::new(BTreeSet::new());
    let query = Query { id: Some("db".parse().unwrap()), ..Query::default() };
    let ask = || async {
        let view = hub.ask("deployment", &query).await["view"].take();
        assert_eq!(view["asOf"]["ledgerSeq"], end, "{view}");
        let mut heard = heard.lock().unwrap();
        heard.insert(view["digest"].as_str().unwrap().to_owned());
        heard.len()
    };
    until("both digests", ask, |heard| *heard == 2).await;
    let verdicts = Mutex::new(BTreeSet::new());
    let verify = || async {
        let answer = hub.verified().await;
        let mut verdicts = verdicts.lock().unwrap();
        verdicts.insert((answer.same, answer.running.to_string()));
        verdicts.iter().map(|(same, _)| *same).collect::<Vec<_>>()
    };
    until("one that is right and one that is not", verify, |seen| *seen == [false, true]).await;
    right.drain().await;
    wrong.drain().await;
}

/// Re-asserts the current state; returns LEDGER's end before that.
async fn said_again(hub: &Hub, devices: &mut [Device]) -> u64 {
    let before = hub.end().await;
    devices[0].is_said_again(hub, &[(2, "web", "installed"), (3, "db", "failed")], "fresh").await;
    devices[1].is_said_again(hub, &[(2, "web", "installed")], "fresh").await;
    devices[2].is_said_again(hub, &[(2, "web", "installed")], "stale").await;
    before
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_starts_from_a_checkpoint_if_ledgers_beginning_is_gone() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
    rollup.ready().await;
    let begun = hub.verified().await;
    assert_eq!((begun.base, begun.base_seq, begun.same), (RebuildBase::Ledger, 0, true));
    let forgotten = said_again(&hub, &mut devices).await;
    rollup.reads_to(hub.end().await).await;
    forget_up_to(&hub.bus, forgotten).await;

    let from_a_checkpoint = |found: &VerifyAnswer| found.base == RebuildBase::Checkpoint;
    let found = until("a checkpoint that LEDGER leads on from", || hub.verified(), from_a_checkpoint).await;
    assert!(found.same && found.base_seq >= forgotten, "{found:?}");
    assert_eq!((found.devices, found.views, found.running), (3, 5, found.rebuilt));
    rollup.drain().await;

    sabotage(dir.path(), "\"epoch\":1,\"seq\":3", "\"epoch\":1,\"seq\":2");
    let rollup = Rollup::start_with(&hub, dir.path(), &DENSE).await;
    rollup.ready().await;
    let found = hub.verified().await;
    assert_eq!((found.base, found.same, found.differences), (RebuildBase::Checkpoint, false, 1), "{found:?}");
    let first = found.first.unwrap();
    assert_eq!((first.key.as_str(), first.field.as_str()), ("plant7/press-4", "rows[0].report.seq"));
    assert_eq!((first.running, first.rebuilt), (Some(2.into()), Some(3.into())));
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_checkpoint_verify_compares_with_ledgers_remainder() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let forgotten = said_again(&hub, &mut devices).await;
    rollup.reads_to(hub.end().await).await;
    forget_up_to(&hub.bus, forgotten).await;
    let found = hub.verified().await;
    assert_eq!((found.base, found.base_seq, found.devices), (RebuildBase::Window, 0, 0), "{found:?}");
    assert!(found.same && found.views == 5 && found.running == found.rebuilt, "{found:?}");
    rollup.drain().await;

    gloss_over(dir.path());
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let found = hub.verified().await;
    assert_eq!((found.base, found.same, found.differences), (RebuildBase::Window, false, 1), "{found:?}");
    let first = found.first.unwrap();
    assert_eq!((first.key.as_str(), first.field.as_str()), ("deployment.db", "components.main.failed"));
    assert_eq!((first.running, first.rebuilt), (None, Some(1.into())));
    rollup.drain().await;
}
