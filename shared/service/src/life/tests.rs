//! The drain in virtual time: its order, its deadline, and what a failure does.

use std::sync::Mutex;

use tokio::time::{Instant, sleep};

use super::*;

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A task that takes a second to finish after its stage was told to, and then says so.
fn slow(life: &Life, stage: Stage, name: &'static str, log: &Log) {
    let (token, log) = (life.token(stage), log.clone());
    life.spawn(stage, name, async move {
        token.cancelled().await;
        sleep(Duration::from_secs(1)).await;
        log.lock().unwrap().push(name);
    });
}

fn deaf(life: &Life, stage: Stage, name: &'static str) {
    life.spawn(stage, name, std::future::pending::<()>());
}

#[tokio::test(start_paused = true)]
async fn stages_are_drained_in_order_whatever_the_order_of_start() {
    let (life, log) = (Life::new(), Log::default());
    slow(&life, Stage::Serve, "http", &log);
    slow(&life, Stage::Publish, "relay", &log);
    slow(&life, Stage::Intake, "follow", &log);
    slow(&life, Stage::Work, "reconcile", &log);
    let began = Instant::now();
    assert_eq!(life.drain(DRAIN_DEADLINE).await, Drained::default());
    assert_eq!(*log.lock().unwrap(), ["follow", "reconcile", "relay", "http"]);
    assert_eq!(began.elapsed().as_secs(), 4, "no stage may start to stop before the one ahead of it is done");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_names_who_is_late_and_leaves_them() {
    let (life, log) = (Life::new(), Log::default());
    deaf(&life, Stage::Publish, "relay");
    deaf(&life, Stage::Work, "reconcile");
    slow(&life, Stage::Intake, "follow", &log);
    let began = Instant::now();
    let drained = life.drain(DRAIN_DEADLINE).await;
    assert_eq!(drained.late, ["reconcile", "relay"]);
    assert_eq!(*log.lock().unwrap(), ["follow"], "who is in time is not late");
    assert_eq!(began.elapsed(), DRAIN_DEADLINE);
    assert!(life.shared.running.borrow().is_empty(), "late tasks are dropped");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_one_for_all_stages() {
    let life = Life::new();
    for stage in Stage::ALL {
        deaf(&life, stage, "deaf");
    }
    let began = Instant::now();
    assert_eq!(life.drain(Duration::from_secs(3)).await.late.len(), 4);
    assert_eq!(began.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_failing_task_stops_the_process_and_is_named_with_its_causes() {
    let (life, log) = (Life::new(), Log::default());
    slow(&life, Stage::Publish, "relay", &log);
    life.spawn(Stage::Work, "store", async { Err(std::io::Error::other("disk full")) });
    life.stopped().await;
    assert_eq!(life.drain(DRAIN_DEADLINE).await, Drained::default());
    assert_eq!(*log.lock().unwrap(), ["relay"], "the others still finish what they hold");
    assert_eq!(error::chain(life.failure().unwrap()), "task 'store' of stage work failed: disk full");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_task_stops_the_process() {
    let life = Life::new();
    life.spawn(Stage::Work, "fold", async {
        let row = 7;
        assert!(row < 7, "row {row} is gone");
    });
    life.stopped().await;
    assert_eq!(
        error::chain(life.failure().unwrap()),
        "task 'fold' of stage work failed: it panicked: row 7 is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_is_kept() {
    let life = Life::new();
    for text in ["first", "second"] {
        life.spawn(Stage::Work, text, async move { Err::<(), _>(text) });
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(life.failure().unwrap().task, "first");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_well_stops_nothing() {
    let life = Life::new();
    life.spawn(Stage::Work, "once", async {});
    life.until(Running::is_empty).await;
    assert!(!life.stop_token().is_cancelled() && life.failure().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_task_started_during_the_drain_is_waited_for() {
    let (life, log) = (Life::new(), Log::default());
    let (within, last) = (life.clone(), log.clone());
    let token = life.token(Stage::Intake);
    life.spawn(Stage::Intake, "follow", async move {
        token.cancelled().await;
        slow(&within, Stage::Work, "last", &last);
    });
    assert_eq!(life.drain(DRAIN_DEADLINE).await, Drained::default());
    assert_eq!(*log.lock().unwrap(), ["last"]);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_life_drops_its_tasks_where_they_stand() {
    let (life, log) = (Life::new(), Log::default());
    slow(&life, Stage::Work, "reconcile", &log);
    deaf(&life, Stage::Intake, "follow");
    let began = Instant::now();
    life.abandon().await;
    assert!(began.elapsed() < ABANDON_GRACE && life.shared.running.borrow().is_empty());
    assert!(log.lock().unwrap().is_empty() && life.failure().is_none(), "nothing finishes and nothing fails");
}
