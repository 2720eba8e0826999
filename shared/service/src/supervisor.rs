//! The supervisor of a process: named tasks in four stages, one stop, one ordered drain.
//!
//! ```text
//! stop ──► Intake ──► Work ──► Publish ──► Serve ──► drained
//!          each stage's token is cancelled when no task of the stages before it runs;
//!          one deadline for all four; tasks that are late are logged and dropped
//! ```
//!
//! A task that ends with an error, or panics, stops the whole process. The supervisor does not restart tasks: a task that
//! can continue after an error handles it itself. [`mod@crate::run`] handles signals and exit codes.

mod task;

use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use self::task::{NamedTask, TaskTable};
pub use self::task::{Outcome, TaskFailure};
use crate::error;
use crate::health::Health;
pub use crate::stage::Stage;

/// Time for a drain.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(20);
/// Time for late tasks to yield and be dropped.
const ABANDON_GRACE: Duration = Duration::from_millis(500);

const _: () = assert!(ABANDON_GRACE.as_millis() * 10 < DRAIN_DEADLINE.as_millis());

/// The supervisor of one process. Clones share it.
#[derive(Debug, Clone)]
pub struct Supervisor {
    shared: Arc<SupervisorState>,
}

/// The result of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// The names of the tasks that still ran at the deadline, in the order of their stages.
    pub late: Vec<String>,
}

#[derive(Debug)]
struct SupervisorState {
    stop: CancellationToken,
    stages: [CancellationToken; Stage::ALL.len()],
    abandon: CancellationToken,
    running: watch::Sender<TaskTable>,
    failure: OnceLock<TaskFailure>,
    health: Health,
}

impl Supervisor {
    /// A supervisor without tasks.
    pub fn new() -> Self {
        let stop = CancellationToken::new();
        let shared = SupervisorState {
            health: Health::new(stop.clone()),
            stop,
            stages: std::array::from_fn(|_| CancellationToken::new()),
            abandon: CancellationToken::new(),
            running: watch::Sender::default(),
            failure: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The token of a stage, whose tasks finish once it is cancelled: when no task of an earlier stage runs any more.
    pub fn token(&self, stage: Stage) -> CancellationToken {
        self.shared.stages[stage as usize].clone()
    }

    /// The token that is cancelled as soon as the process has to stop: for waits during the start.
    pub fn stop_token(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// The health of the process, with which parts report that they are ready and register metrics.
    pub fn health(&self) -> &Health {
        &self.shared.health
    }

    /// Runs a named task. An error or a panic of it stops the process.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn<F>(&self, stage: Stage, name: impl Into<Cow<'static, str>>, future: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let task = NamedTask { stage, name: name.into() };
        let supervisor = self.clone();
        let mut id = 0;
        self.shared.running.send_modify(|running| id = running.add(task.clone()));
        tokio::spawn(async move {
            let ended = supervisor.shared.abandon.run_until_cancelled(task::catch(future)).await;
            if let Some(Err(cause)) = ended {
                supervisor.fail(TaskFailure { stage, task: task.name, cause });
            }
            supervisor.shared.running.send_modify(|running| running.remove(id));
        });
    }

    /// Stops the process. Another call has no effect.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Waits until the process has to stop.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.shared.stop.clone().cancelled_owned()
    }

    /// The first failure of a task.
    pub fn failure(&self) -> Option<&TaskFailure> {
        self.shared.failure.get()
    }

    /// Stops the process stage by stage and waits until every task has ended. At the deadline it logs and drops the tasks
    /// that still run.
    pub async fn drain(&self, deadline: Duration) -> Drained {
        self.stop();
        let in_time = timeout(deadline, self.drain_stages()).await.is_ok();
        let late = if in_time { Vec::new() } else { self.shared.running.borrow().names() };
        if !late.is_empty() {
            tracing::error!(
                tasks = late.join(", "),
                deadline_seconds = deadline.as_secs_f64(),
                "dropping tasks that did not end in time"
            );
        }
        self.abandon().await;
        Drained { late }
    }

    /// Drops every task as soon as it yields, as a crash would.
    pub async fn abandon(&self) {
        self.stop();
        self.shared.abandon.cancel();
        self.shared.stages.iter().for_each(CancellationToken::cancel);
        // A task that never yields cannot be dropped; it ends with the process.
        let _ = timeout(ABANDON_GRACE, self.until(TaskTable::is_empty)).await;
    }

    async fn drain_stages(&self) {
        for stage in Stage::ALL {
            self.token(stage).cancel();
            self.until(|running| !running.any_through(stage)).await;
            tracing::debug!(task.stage = %stage, "stage drained");
        }
    }

    async fn until(&self, reached: impl FnMut(&TaskTable) -> bool) {
        let mut running = self.shared.running.subscribe();
        // This cannot fail: `self` holds the sender.
        let _ = running.wait_for(reached).await;
    }

    fn fail(&self, failure: TaskFailure) {
        // The message begins with the cause, which an operator can remove; the task is a field.
        let cause = error::chain(failure.cause.as_ref());
        tracing::error!(task.name = %failure.task, task.stage = %failure.stage, "{cause}; the process stops");
        // Later failures often follow from the first: each is logged, the first is kept.
        let _ = self.shared.failure.set(failure);
        self.stop();
    }
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
