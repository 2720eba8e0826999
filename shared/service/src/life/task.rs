//! What the process knows of its tasks: which are running, and how one ended.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use super::Stage;
use crate::error::BoxError;

/// How a task may end: with nothing, or with a result.
pub trait Outcome: Send {
    /// The error, if it ended with one.
    fn error(self) -> Option<BoxError>;
}

/// A task that ended with an error or panicked.
#[derive(Debug, thiserror::Error)]
#[error("task '{task}' of stage {stage} failed")]
pub struct TaskFailure {
    /// Its stage.
    pub stage: Stage,
    /// Its name.
    pub task: Cow<'static, str>,
    /// Its error.
    #[source]
    pub cause: BoxError,
}

/// A task, as it was named when it was started.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) stage: Stage,
    pub(super) name: Cow<'static, str>,
}

/// The tasks that have not ended.
#[derive(Debug, Default)]
pub(super) struct Running {
    next: u64,
    tasks: BTreeMap<u64, Task>,
}

#[derive(Debug, thiserror::Error)]
#[error("it panicked: {0}")]
struct Panicked(String);

impl Outcome for () {
    fn error(self) -> Option<BoxError> {
        None
    }
}

impl<E: Into<BoxError> + Send> Outcome for Result<(), E> {
    fn error(self) -> Option<BoxError> {
        self.err().map(Into::into)
    }
}

/// Runs a future to its end; a panic in it is its error.
pub(super) async fn catch<F: Future<Output: Outcome>>(future: F) -> Result<(), BoxError> {
    // What the future shares with others is behind locks that are poisoned or never left half-written, and the process stops.
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(outcome) => outcome.error().map_or(Ok(()), Err),
        Err(panic) => Err(Box::new(Panicked(message(panic.as_ref())))),
    }
}

impl Running {
    pub(super) fn add(&mut self, task: Task) -> u64 {
        self.next += 1;
        self.tasks.insert(self.next, task);
        self.next
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.tasks.remove(&id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Is any task of this stage or an earlier one left?
    pub(super) fn any_through(&self, stage: Stage) -> bool {
        self.tasks.values().any(|task| task.stage <= stage)
    }

    /// The names, in the order of the stages.
    pub(super) fn names(&self) -> Vec<String> {
        let mut tasks: Vec<_> = self.tasks.values().collect();
        tasks.sort_by_key(|task| task.stage);
        tasks.into_iter().map(|task| task.name.to_string()).collect()
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
