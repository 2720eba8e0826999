//! Work that keeps its thread for long, with whatever would wait behind it handed to another thread.
//!
//! A task that reads from the bus is woken by the task that reads the connection, and the scheduler then runs it on that
//! task's thread, next. The connection waits meanwhile, and nobody steals it: one core works where there are two. A
//! stretch of work that is much longer than the handing over is better done aside. This is not for work that blocks on a
//! disk; that has the runtime's `spawn_blocking`.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Items (facts, reports) from which on a stretch of work is done aside: a few microseconds each, so it takes several times
/// as long as waking a thread does.
pub const ITEMS_MIN: usize = 32;

/// Does work on so many items now, on this thread. Where it is long, the other tasks of this thread go on at another.
///
/// A runtime of one thread has no other to hand them to: there it is only done.
pub fn aside<T>(items: usize, work: impl FnOnce() -> T) -> T {
    let threads =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if threads && items >= ITEMS_MIN { block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Work that is over once a task of the same thread has run, or nobody will ever run it.
    async fn wait_for_a_task_behind(items: usize) -> bool {
        let (done, behind) = mpsc::channel();
        // From within the runtime, so that it waits on this very thread.
        let work = tokio::spawn(async move {
            tokio::spawn(async move { done.send(()) });
            aside(items, || behind.recv_timeout(PATIENCE).is_ok())
        });
        work.await.is_ok_and(|done| done)
    }

    #[test]
    fn what_waits_behind_a_long_stretch_of_work_goes_on_although_there_is_one_worker() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        assert!(runtime.is_ok_and(|runtime| runtime.block_on(wait_for_a_task_behind(ITEMS_MIN))));
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_does_the_work_all_the_same() {
        assert_eq!(aside(ITEMS_MIN, || 7), 7);
    }

    #[test]
    fn without_a_runtime_the_work_is_done_all_the_same() {
        assert_eq!(aside(ITEMS_MIN, || 7), 7);
    }
}
