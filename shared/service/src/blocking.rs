//! Long work on a worker thread, while another thread runs the other tasks of that worker.
//!
//! The task that reads the connection wakes the task that reads from the bus, and the scheduler runs the woken task next, on
//! the same thread. The connection waits meanwhile and no other worker steals it, so one core works where there are two.
//! `block_in_place` avoids that, at the price of waking a thread. Work that blocks on a disk uses `spawn_blocking`.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// The number of items (facts, reports) from which on work is large: an item takes a few microseconds, so the work takes
/// several times as long as waking a thread.
pub const ITEMS_MIN: usize = 32;

/// Does work on this number of items on this thread. If it is large, another thread runs the other tasks of this worker.
///
/// Outside a runtime with several threads it only does the work.
pub fn block_in_place_if_large<T>(items: usize, work: impl FnOnce() -> T) -> T {
    let threads =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if threads && items >= ITEMS_MIN { block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Work that waits for a task of the same worker; true if that task ran in time.
    async fn wait_for_a_task_behind(items: usize) -> bool {
        let (done, behind) = mpsc::channel();
        // A task that a worker spawns waits on that worker.
        let work = tokio::spawn(async move {
            tokio::spawn(async move { done.send(()) });
            block_in_place_if_large(items, || behind.recv_timeout(TIMEOUT).is_ok())
        });
        work.await.is_ok_and(|done| done)
    }

    #[test]
    fn other_tasks_run_during_large_work_also_with_one_worker() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        assert!(runtime.is_ok_and(|runtime| runtime.block_on(wait_for_a_task_behind(ITEMS_MIN))));
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_does_the_work() {
        assert_eq!(block_in_place_if_large(ITEMS_MIN, || 7), 7);
    }

    #[test]
    fn the_work_is_done_without_a_runtime() {
        assert_eq!(block_in_place_if_large(ITEMS_MIN, || 7), 7);
    }
}
