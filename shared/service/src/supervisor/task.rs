//! The running tasks of a process, and their outcome.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use crate::error::BoxError;
use crate::stage::Stage;

/// The output of a task: `()` or a `Result`.
pub trait Outcome: Send {
    /// The error, if there is one.
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

/// A task with its name.
#[derive(Debug, Clone)]
pub(super) struct NamedTask {
    pub(super) stage: Stage,
    pub(super) name: Cow<'static, str>,
}

/// The running tasks.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    next: u64,
    tasks: BTreeMap<u64, NamedTask>,
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

/// Runs a future to its end; a panic in it is an error.
pub(super) async fn catch<F: Future<Output: Outcome>>(future: F) -> Result<(), BoxError> {
    // Unwind safe: state that the future shares is behind locks, and the process stops.
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(outcome) => outcome.error().map_or(Ok(()), Err),
        Err(panic) => Err(Box::new(Panicked(message(panic.as_ref())))),
    }
}

impl TaskTable {
    pub(super) fn add(&mut self, task: NamedTask) -> u64 {
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

    /// Whether a task of this stage or an earlier one runs.
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
