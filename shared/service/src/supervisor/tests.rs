//! The drain in virtual time: its order, its deadline, and what a failure does.

use std::sync::Mutex;

use tokio::time::{Instant, sleep};

use super::*;

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A task that takes a second to finish after its stage's token is cancelled, and then logs its name.
fn slow(supervisor: &Supervisor, stage: Stage, name: &'static str, log: &Log) {
    let (token, log) = (supervisor.token(stage), log.clone());
    supervisor.spawn(stage, name, async move {
        token.cancelled().await;
        sleep(Duration::from_secs(1)).await;
        log.lock().unwrap().push(name);
    });
}

fn never_ending(supervisor: &Supervisor, stage: Stage, name: &'static str) {
    supervisor.spawn(stage, name, std::future::pending::<()>());
}

#[tokio::test(start_paused = true)]
async fn stages_are_drained_in_order_independent_of_the_order_of_start() {
    let (supervisor, log) = (Supervisor::new(), Log::default());
    slow(&supervisor, Stage::Serve, "http", &log);
    slow(&supervisor, Stage::Publish, "relay", &log);
    slow(&supervisor, Stage::Intake, "follow", &log);
    slow(&supervisor, Stage::Work, "reconcile", &log);
    let began = Instant::now();
    assert_eq!(supervisor.drain(DRAIN_DEADLINE).await, Drained::default());
    assert_eq!(*log.lock().unwrap(), ["follow", "reconcile", "relay", "http"]);
    assert_eq!(began.elapsed().as_secs(), 4, "no stage may start to stop before the one ahead of it is done");
}

#[tokio::test(start_paused = true)]
async fn the_drain_names_and_drops_tasks_that_are_late() {
    let (supervisor, log) = (Supervisor::new(), Log::default());
    never_ending(&supervisor, Stage::Publish, "relay");
    never_ending(&supervisor, Stage::Work, "reconcile");
    slow(&supervisor, Stage::Intake, "follow", &log);
    let began = Instant::now();
    let drained = supervisor.drain(DRAIN_DEADLINE).await;
    assert_eq!(drained.late, ["reconcile", "relay"]);
    assert_eq!(*log.lock().unwrap(), ["follow"], "who is in time is not late");
    assert_eq!(began.elapsed(), DRAIN_DEADLINE);
    assert!(supervisor.shared.running.borrow().is_empty(), "late tasks are dropped");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_one_for_all_stages() {
    let supervisor = Supervisor::new();
    for stage in Stage::ALL {
        never_ending(&supervisor, stage, "deaf");
    }
    let began = Instant::now();
    assert_eq!(supervisor.drain(Duration::from_secs(3)).await.late.len(), 4);
    assert_eq!(began.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_failing_task_stops_the_process_and_is_named_with_its_causes() {
    let (supervisor, log) = (Supervisor::new(), Log::default());
    slow(&supervisor, Stage::Publish, "relay", &log);
    supervisor.spawn(Stage::Work, "store", async { Err(std::io::Error::other("disk full")) });
    supervisor.stopped().await;
    assert_eq!(supervisor.drain(DRAIN_DEADLINE).await, Drained::default());
    assert_eq!(*log.lock().unwrap(), ["relay"], "the others still finish what they hold");
    assert_eq!(error::chain(supervisor.failure().unwrap()), "task 'store' of stage work failed: disk full");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_task_stops_the_process() {
    let supervisor = Supervisor::new();
    supervisor.spawn(Stage::Work, "fold", async {
        let row = 7;
        assert!(row < 7, "row {row} is gone");
    });
    supervisor.stopped().await;
    assert_eq!(
        error::chain(supervisor.failure().unwrap()),
        "task 'fold' of stage work failed: it panicked: row 7 is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_is_kept() {
    let supervisor = Supervisor::new();
    for text in ["first", "second"] {
        supervisor.spawn(Stage::Work, text, async move { Err::<(), _>(text) });
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(supervisor.failure().unwrap().task, "first");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_without_error_stops_nothing() {
    let supervisor = Supervisor::new();
    supervisor.spawn(Stage::Work, "once", async {});
    supervisor.until(TaskTable::is_empty).await;
    assert!(!supervisor.stop_token().is_cancelled() && supervisor.failure().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_task_started_during_the_drain_is_waited_for() {
    let (supervisor, log) = (Supervisor::new(), Log::default());
    let (within, last) = (supervisor.clone(), log.clone());
    let token = supervisor.token(Stage::Intake);
    supervisor.spawn(Stage::Intake, "follow", async move {
        token.cancelled().await;
        slow(&within, Stage::Work, "last", &last);
    });
    assert_eq!(supervisor.drain(DRAIN_DEADLINE).await, Drained::default());
    assert_eq!(*log.lock().unwrap(), ["last"]);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_supervisor_drops_its_tasks() {
    let (supervisor, log) = (Supervisor::new(), Log::default());
    slow(&supervisor, Stage::Work, "reconcile", &log);
    never_ending(&supervisor, Stage::Intake, "follow");
    let began = Instant::now();
    supervisor.abandon().await;
    assert!(began.elapsed() < ABANDON_GRACE && supervisor.shared.running.borrow().is_empty());
    assert!(
        log.lock().unwrap().is_empty() && supervisor.failure().is_none(),
        "nothing finishes and nothing fails"
    );
}
