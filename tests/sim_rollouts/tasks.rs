//! Runs the real asynchronous programs step by step, on one thread and in virtual time: a task is polled only after
//! something woke it, and a process dies by dropping its tasks wherever they wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::wire::Process;

/// Whether something woke a task.
#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    owner: Process,
    woken: Arc<Woken>,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The tasks of all processes.
#[derive(Default)]
pub(crate) struct Tasks(Vec<Task>);

impl Tasks {
    pub(crate) fn spawn(&mut self, owner: Process, future: impl Future<Output = ()> + Send + 'static) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.0.push(Task { owner, woken, future: Box::pin(future) });
    }

    /// Polls woken tasks until none is woken.
    pub(crate) fn run_until_idle(&mut self) {
        loop {
            let mut is_idle = true;
            self.0.retain_mut(|task| {
                if !task.woken.0.swap(false, Ordering::Relaxed) {
                    return true;
                }
                is_idle = false;
                let waker = Waker::from(task.woken.clone());
                let polled = tokio::task::unconstrained(task.future.as_mut());
                std::pin::pin!(polled).poll(&mut Context::from_waker(&waker)) != Poll::Ready(())
            });
            if is_idle {
                return;
            }
        }
    }

    /// Ends a process at once, wherever it is.
    pub(crate) fn kill(&mut self, owner: Process) {
        self.0.retain(|task| task.owner != owner);
    }
}
