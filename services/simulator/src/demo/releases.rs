//! The releases of a short run: each goes out at once, and the publisher refuses one. It starts and ends nothing.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::config::demo::DemoConfig;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::header::Header;
use crate::repository::{self, Repository};
use crate::result::Commits;

/// Time between two commits.
const COMMIT_EVERY: Duration = Duration::from_secs(8);
/// Which commit has a mistake in it, counted from 1.
const BAD_COMMIT: u64 = 2;

/// The fleet and the repository of a run while its links break.
pub(super) struct Stage<'a> {
    pub(super) config: &'a DemoConfig,
    pub(super) fleet: &'a mut Fleet,
    pub(super) repository: &'a Repository,
    pub(super) header: &'a Header,
    /// The end of the faults; none before the operator stops the run.
    pub(super) until: Option<Instant>,
    pub(super) stop: &'a CancellationToken,
}

impl Stage<'_> {
    /// Waits that long; false if the end of the faults or of the run comes first.
    ///
    /// # Errors
    /// A process of the fleet ended by itself.
    pub(super) async fn pause(&mut self, length: Duration) -> Result<bool, Error> {
        let next = Instant::now() + length;
        let is_over = self.until.is_some_and(|until| next >= until);
        let pause = sleep_until(self.until.filter(|_| is_over).unwrap_or(next));
        if self.stop.run_until_cancelled(pause).await.is_none() || is_over {
            return Ok(false);
        }
        self.fleet.expect_running().map(|()| true)
    }

    /// Waits for the end of the faults or of the run.
    pub(super) async fn rest(&self) {
        let Some(until) = self.until else { return self.stop.cancelled().await };
        self.stop.run_until_cancelled(sleep_until(until)).await;
    }

    /// Whether the faults or the run have ended.
    pub(super) fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Commits what was written; the commit.
    ///
    /// # Errors
    /// Git refuses.
    pub(super) async fn commit(&self, release: u32, message: &str) -> Result<String, Error> {
        self.repository.commit(message).await?;
        tracing::info!(release, "committed");
        self.repository.head().await
    }
}

/// Commits releases until the faults end.
///
/// # Errors
/// A process of the fleet ended by itself, or the repository cannot be written.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<Commits, Error> {
    let mut commits = Commits { made: 1, bad: 0 };
    while stage.pause(COMMIT_EVERY).await? {
        commits.made += 1;
        let release = u32::try_from(commits.made).unwrap_or(u32::MAX);
        if commits.made == BAD_COMMIT {
            commits.bad += 1;
            repository::write_bad_release(stage.repository, release)?;
            stage.commit(release, "Release with a slip of the pen").await?;
            stage.header.bad_release(release);
        } else {
            repository::write_release(stage.repository, &stage.config.site_names(), release)?;
            stage.commit(release, &format!("Release {release}")).await?;
            stage.header.new_release(release);
        }
    }
    Ok(commits)
}
