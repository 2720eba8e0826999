//! The life of a process: named tasks in four stages, one request to stop, one ordered drain.
//!
//! ```text
//! stop ──► Intake ──► Work ──► Publish ──► Serve ──► drained
//!          each stage's token is cancelled when no task of the stages before it is left;
//!          one deadline for all four; who is late is named and left behind
//! ```
//!
//! A task that ends with an error, or panics, asks the whole process to stop. A task is not started again here:
//! whoever can go on after an error handles it inside the task. Signals and exit codes are in [`mod@crate::run`].

mod task;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

pub use self::task::{Outcome, TaskFailure};
use self::task::{Running, Task};
use crate::error;
use crate::health::Health;

/// Time a process has to finish what it holds, from the request to stop to its end.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(20);
/// Time in which late tasks are given up: long enough to drop what they hold, if they can be reached at all.
const ABANDON_GRACE: Duration = Duration::from_millis(500);

const _: () = assert!(ABANDON_GRACE.as_millis() * 10 < DRAIN_DEADLINE.as_millis());

/// What a task is for, and so when it stops: in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Takes new work in.
    Intake,
    /// Works on what was taken in.
    Work,
    /// Hands results on and waits until they are confirmed.
    Publish,
    /// Answers questions about the process: last, so that the drain can be watched.
    Serve,
}

/// The life of one process. Clones share it.
#[derive(Debug, Clone)]
pub struct Life {
    shared: Arc<Shared>,
}

/// How a drain ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// Names of the tasks that were still running at the deadline, in the order of their stages.
    pub late: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    stop: CancellationToken,
    stages: [CancellationToken; Stage::ALL.len()],
    abandon: CancellationToken,
    running: watch::Sender<Running>,
    failure: OnceLock<TaskFailure>,
    health: Health,
}

impl Stage {
    /// All stages, in the order in which they are drained.
    pub const ALL: [Self; 4] = [Self::Intake, Self::Work, Self::Publish, Self::Serve];
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Intake => "intake",
            Self::Work => "work",
            Self::Publish => "publish",
            Self::Serve => "serve",
        })
    }
}

impl Life {
    /// A life without tasks.
    pub fn new() -> Self {
        let stop = CancellationToken::new();
        let shared = Shared {
            health: Health::new(stop.clone()),
            stop,
            stages: std::array::from_fn(|_| CancellationToken::new()),
            abandon: CancellationToken::new(),
            running: watch::Sender::default(),
            failure: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The token that tells tasks of a stage to finish. It is cancelled when no task of an earlier stage is left.
    pub fn token(&self, stage: Stage) -> CancellationToken {
        self.shared.stages[stage as usize].clone()
    }

    /// The token that is cancelled as soon as the process is asked to stop: for waits during the start.
    pub fn stop_token(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// Where parts say that they are ready, and register their metrics.
    pub fn health(&self) -> &Health {
        &self.shared.health
    }

    /// Runs a task under a name until it ends. An error or a panic in it stops the process.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn<F>(&self, stage: Stage, name: impl Into<Cow<'static, str>>, future: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let task = Task { stage, name: name.into() };
        let life = self.clone();
        let mut id = 0;
        self.shared.running.send_modify(|running| id = running.add(task.clone()));
        tokio::spawn(async move {
            let ended = life.shared.abandon.run_until_cancelled(task::catch(future)).await;
            if let Some(Err(cause)) = ended {
                life.fail(TaskFailure { stage, task: task.name, cause });
            }
            life.shared.running.send_modify(|running| running.remove(id));
        });
    }

    /// Asks the process to stop. Says nothing more if it was asked before.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Waits until the process is asked to stop.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.shared.stop.clone().cancelled_owned()
    }

    /// The first failure of a task, if any failed.
    pub fn failure(&self) -> Option<&TaskFailure> {
        self.shared.failure.get()
    }

    /// Stops the process stage by stage and waits until every task has ended, or the deadline has passed: then the
    /// remaining tasks are named and dropped where they stand.
    pub async fn drain(&self, deadline: Duration) -> Drained {
        self.stop();
        let in_time = timeout(deadline, self.drain_stages()).await.is_ok();
        let late = if in_time { Vec::new() } else { self.shared.running.borrow().names() };
        if !late.is_empty() {
            tracing::error!(
                tasks = late.join(", "),
                deadline_seconds = deadline.as_secs_f64(),
                "tasks were late and are left behind"
            );
        }
        self.abandon().await;
        Drained { late }
    }

    /// Drops every task where it stands, as a crash would. What they hold is released as soon as they yield.
    pub async fn abandon(&self) {
        self.stop();
        self.shared.abandon.cancel();
        self.shared.stages.iter().for_each(CancellationToken::cancel);
        // A task that never yields cannot be dropped; the end of the process takes it along.
        let _ = timeout(ABANDON_GRACE, self.until(Running::is_empty)).await;
    }

    async fn drain_stages(&self) {
        for stage in Stage::ALL {
            self.token(stage).cancel();
            self.until(|running| !running.any_through(stage)).await;
            tracing::debug!(task.stage = %stage, "stage drained");
        }
    }

    async fn until(&self, reached: impl FnMut(&Running) -> bool) {
        let mut running = self.shared.running.subscribe();
        // Fails only when the sender is gone, and `self` holds it.
        let _ = running.wait_for(reached).await;
    }

    fn fail(&self, failure: TaskFailure) {
        // The cause first: it is what the person has to mend. Which task met it is for those who know the program.
        let cause = error::chain(failure.cause.as_ref());
        tracing::error!(task.name = %failure.task, task.stage = %failure.stage, "{cause}; the process stops");
        // Later failures follow from the first more often than not; each is logged, the first is kept.
        let _ = self.shared.failure.set(failure);
        self.stop();
    }
}

impl Default for Life {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
