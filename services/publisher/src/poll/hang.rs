//! Reports a hanging repository, and since when, in the status, in `/metrics`, in `/ready` and in the log.
//!
//! A repository hangs when it has not answered for [`REPORT_AFTER`], or git was killed at its time limit. The hang ends when
//! the repository answers or refuses. This module does not kill git.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_service::clock::Clock;
use muster_service::health::Health;
use tokio::time::timeout;

use crate::announce::Context;
use crate::git::{GitError, REMOTE_TIMEOUT};
use crate::metrics::Metrics;
use crate::status::Status;

/// Time without an answer after which the repository counts as hanging; half of git's time limit, if that is less.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// Name of the repository in the body of `/ready`.
const PART: &str = "Git";

const _: () = assert!(REPORT_AFTER.as_millis() < REMOTE_TIMEOUT.as_millis());

/// Reports hangs.
pub(crate) struct HangReport {
    clock: Arc<dyn Clock>,
    status: Arc<Status>,
    metrics: Metrics,
    health: Health,
}

impl HangReport {
    /// A report with the poller's context, and the health for `/ready`.
    pub(crate) fn new(context: &Context, health: Health) -> Self {
        let Context { clock, status, metrics, .. } = context;
        Self { clock: Arc::clone(clock), status: Arc::clone(status), metrics: metrics.clone(), health }
    }

    /// Waits for the repository's answer, and reports meanwhile that it hangs.
    pub(super) async fn watch<T>(
        &self,
        git_timeout: Duration,
        asking: impl Future<Output = Result<T, GitError>>,
    ) -> Result<T, GitError> {
        let (since, mut asking) = (self.clock.now(), pin!(asking));
        let answer = match timeout(REPORT_AFTER.min(git_timeout / 2), asking.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                self.report(Some(since));
                asking.await
            }
        };
        let is_timeout = answer.as_ref().err().is_some_and(GitError::is_timeout);
        self.report(is_timeout.then_some(since));
        answer
    }

    fn report(&self, since: Option<Timestamp>) {
        let (since, is_news) = self.status.set_hanging(since);
        if !is_news {
            return;
        }
        self.metrics.hanging_since.set(since.map_or(0.0, |since| since.as_millisecond() as f64 / 1000.0));
        match since {
            Some(since) => {
                tracing::warn!(%since, "the Git repository does not answer; requests are still served");
                self.health.note(PART, format!("hangs since {since}"));
            }
            None => {
                tracing::info!("the Git repository answers again");
                self.health.note(PART, "answers");
            }
        }
    }
}
