//! Starts the tasks of plans, and tries again until that succeeds. No other task of the planner waits for them: with bad credentials
//! or another PLANS the process is not ready, and rollouts go on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use muster_service::clock::SystemClock;
use muster_service::error::chain;
use muster_service::health::{Health, Latch};
use muster_service::supervisor::{Stage, Supervisor};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::history::PlansHistory;
use super::hooks::Hooks;
use super::keeper::{HEALTH_PART, PlansKeeper};
use super::log::BusLog;
use super::responder::PlansResponder;
use crate::asker::Asker;
use crate::checkpoint::{self, Checkpoint, Checkpoints};
use crate::error::PlansStartError;
use crate::ledger::BusLedger;
use crate::metrics::Metrics;
use crate::services::Services;

/// Requests about plans that wait for the keeper, at most.
const CALLS_WAITING_MAX: usize = 256;
/// Time for one attempt to connect and to create PLANS.
const OPEN_WITHIN: Duration = Duration::from_secs(30);
/// Delay before the next attempt.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Starts the tasks of plans, over a connection of their own.
pub(crate) fn spawn(
    config: BusConfig,
    publisher: Bus,
    asker: Asker<Bus>,
    supervisor: &Supervisor,
    metrics: Metrics,
    checkpoints: Option<Checkpoints>,
) {
    let health = supervisor.health();
    let read = health.latch("PLANS, read to its end");
    let offered = health.latch("requests about plans");
    let (tasks, stop) = (supervisor.clone(), supervisor.token(Stage::Intake));
    supervisor.spawn(Stage::Intake, "start of plans", async move {
        let attempt = || open(config.clone());
        if let Some(bus) = until_open(attempt, OPEN_AGAIN_AFTER, tasks.health(), &stop).await {
            let restored = checkpoint::restore(checkpoints.clone()).await;
            let hooks = Hooks::new(asker, metrics.clone());
            keep(bus, publisher, hooks, &tasks, metrics, (read, offered), checkpoints.zip(restored));
        }
    });
}

/// Connects, and creates PLANS.
async fn open(config: BusConfig) -> Result<Bus, PlansStartError> {
    let opened = timeout(OPEN_WITHIN, async {
        let bus = Bus::connect_once(config).await?;
        bus.converge_plans().await?;
        Ok(bus)
    });
    opened.await.unwrap_or(Err(PlansStartError::Late(OPEN_WITHIN)))
}

/// Repeats an attempt until it succeeds; `None` once `stop` is cancelled. Shows each cause in the health, and logs it once.
async fn until_open<T, F>(
    mut attempt: impl FnMut() -> F,
    again_after: Duration,
    health: &Health,
    stop: &CancellationToken,
) -> Option<T>
where
    F: Future<Output = Result<T, PlansStartError>>,
{
    let mut logged = None;
    loop {
        let error = match stop.run_until_cancelled(attempt()).await? {
            Ok(opened) => return Some(opened),
            Err(error) => chain(&error),
        };
        if logged.as_ref() != Some(&error) {
            tracing::warn!(error, retry_in = ?again_after, "cannot keep plans");
            health.note(HEALTH_PART, format!("not kept: {error}"));
            logged = Some(error);
        }
        stop.run_until_cancelled(sleep(again_after)).await?;
    }
}

/// Keeps plans over an open connection.
fn keep(
    bus: Bus,
    publisher: Bus,
    hooks: Hooks<Bus>,
    supervisor: &Supervisor,
    metrics: Metrics,
    (read, offered): (Latch, Latch),
    restored: Option<(Checkpoints, Checkpoint)>,
) {
    let (calls, waiting) = mpsc::channel(CALLS_WAITING_MAX);
    let resume = restored.as_ref().map(|(checkpoints, of)| (checkpoints.clone(), of.mark()));
    let keeper = PlansKeeper::new(
        BusLog::open(bus.clone()),
        BusLedger::resume(publisher.clone(), resume),
        Services::new(publisher),
        hooks,
        Arc::new(SystemClock),
        metrics,
    )
    .resumed(restored.map(|(_, checkpoint)| checkpoint))
    .with_health(supervisor.health());
    let stop = || supervisor.token(Stage::Intake);
    supervisor.spawn(Stage::Intake, "plans", keeper.run(waiting, read, stop()));
    let responder = PlansResponder::new(calls, PlansHistory::new(bus.clone()));
    supervisor.spawn(Stage::Intake, "requests about plans", responder.serve(bus, offered, stop()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN_AFTER: Duration = Duration::from_millis(1);

    fn late() -> PlansStartError {
        PlansStartError::Late(OPEN_WITHIN)
    }

    #[tokio::test]
    async fn a_failed_start_of_plans_is_repeated_and_ends_nothing_else() {
        let (supervisor, mut attempts) = (Supervisor::new(), 0);
        let attempt = || {
            attempts += 1;
            std::future::ready(if attempts < 3 { Err(late()) } else { Ok("open") })
        };
        let stop = supervisor.stop_token();
        assert_eq!(until_open(attempt, AGAIN_AFTER, supervisor.health(), &stop).await, Some("open"));
        assert_eq!(attempts, 3);
        assert!(!stop.is_cancelled() && supervisor.failure().is_none());
    }

    #[tokio::test]
    async fn plans_that_never_start_wait_in_a_task_of_their_own_until_the_stop() {
        let supervisor = Supervisor::new();
        let config = BusConfig {
            creds: Some("/nonexistent/scheduler.creds".into()),
            ..BusConfig::service("nats://127.0.0.1:1", "test")
        };
        let error = open(config).await.unwrap_err();
        assert!(matches!(error, PlansStartError::Connect(_)), "{error}");
        let (of, stop) = (supervisor.clone(), supervisor.token(Stage::Intake));
        supervisor.spawn(Stage::Intake, "start of plans", async move {
            let never = || std::future::ready(Err::<(), _>(late()));
            assert_eq!(until_open(never, AGAIN_AFTER, of.health(), &stop).await, None);
        });
        let drained = supervisor.drain(Duration::from_secs(10)).await;
        assert!(drained.late.is_empty() && supervisor.failure().is_none());
    }
}
