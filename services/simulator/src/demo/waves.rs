//! The releases of a run that has time for rollouts: the second goes out at once, each later one in waves. One in four cannot
//! start on any device: it fails at the canary, and the policy of `rollout.yaml` rolls it back.
//!
//! A release in waves is followed until it has succeeded or is rolled back; the next one waits for that. The planner
//! releases the waves and rolls back, nothing here does.

use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use tokio::time::{Instant, sleep};

use super::POLL_INTERVAL;
use super::releases::Stage;
use super::rollout::RolloutReader;
use crate::config::demo::RolloutPace;
use crate::error::Error;
use crate::repository;
use crate::result::{Commits, RolloutResult};

/// The first release that goes out in waves.
const FIRST_IN_WAVES: u32 = 3;
/// One release in so many cannot start.
const FAILING_EVERY: u32 = 4;
/// Time before the end of the faults in which no rollout begins: one takes two soak times and a few seconds.
const ROLLOUT_TIME: Duration = Duration::from_secs(45);

/// The releases of a run, and the rollouts of those that went out in waves.
pub(super) struct Waves {
    commits: Commits,
    rollouts: Vec<RolloutResult>,
    reader: RolloutReader,
    canary: DeviceKey,
    pace: RolloutPace,
    /// The rollout that has not ended.
    open: Option<Open>,
}

/// A rollout that has not ended.
struct Open {
    release: u32,
    commit: String,
}

impl Waves {
    /// A run with its first release committed.
    pub(super) fn new(pace: RolloutPace, canary: DeviceKey, bus: Bus) -> Self {
        let (commits, reader) = (Commits { made: 1, bad: 0 }, RolloutReader::new(bus));
        Self { commits, rollouts: Vec::new(), reader, canary, pace, open: None }
    }

    /// Commits releases until the faults end.
    ///
    /// # Errors
    /// A process of the fleet ended by itself, or the repository cannot be written.
    pub(super) async fn run(&mut self, stage: &mut Stage<'_>) -> Result<Commits, Error> {
        for release in 2..=self.pace.releases.unwrap_or(u32::MAX) {
            if !stage.pause(self.pace.pause).await? {
                break;
            }
            if release < FIRST_IN_WAVES {
                self.release_at_once(stage, release).await?;
            } else if stage.until.is_some_and(|until| Instant::now() + ROLLOUT_TIME >= until) {
                stage.rest().await;
                break;
            } else {
                self.release_in_waves(stage, release).await?;
                self.follow(stage).await?;
            }
        }
        Ok(self.commits)
    }

    /// Follows the last rollout to its end, or to the end of the stage; all rollouts.
    ///
    /// # Errors
    /// As [`Waves::run`].
    pub(super) async fn finish(mut self, stage: &mut Stage<'_>) -> Result<Vec<RolloutResult>, Error> {
        self.follow(stage).await?;
        if let Some(Open { release, commit }) = &self.open {
            self.rollouts.extend(self.reader.read(*release, commit).await);
        }
        Ok(self.rollouts)
    }

    async fn release_at_once(&mut self, stage: &Stage<'_>, release: u32) -> Result<(), Error> {
        repository::write_release(stage.repository, &stage.config.site_names(), release)?;
        stage.commit(release, &format!("Release {release}")).await?;
        stage.header.new_release(release);
        self.commits.made += 1;
        Ok(())
    }

    async fn release_in_waves(&mut self, stage: &Stage<'_>, release: u32) -> Result<(), Error> {
        repository::write_rollout(stage.repository, &self.canary, self.pace.soak)?;
        if release.is_multiple_of(FAILING_EVERY) {
            repository::write_failing_release(stage.repository, release)?;
            stage.header.failing_release(release);
        } else {
            repository::write_steady_release(stage.repository, release)?;
            stage.header.release_in_waves(release);
        }
        let commit = stage.commit(release, &format!("Release {release}, in waves")).await?;
        self.commits.made += 1;
        self.open = Some(Open { release, commit });
        Ok(())
    }

    /// Follows the open rollout until it has ended or the stage is over.
    async fn follow(&mut self, stage: &mut Stage<'_>) -> Result<(), Error> {
        let Some(open) = &self.open else { return Ok(()) };
        if let Some(ended) = followed(&self.reader, open, stage).await? {
            self.rollouts.push(ended);
            self.open = None;
        }
        Ok(())
    }
}

/// Follows a rollout until it has ended, and shows each sentence about it; `None` if the stage is over before.
async fn followed(
    reader: &RolloutReader,
    open: &Open,
    stage: &mut Stage<'_>,
) -> Result<Option<RolloutResult>, Error> {
    let mut shown = String::new();
    loop {
        stage.fleet.expect_running()?;
        if let Some(found) = reader.read(open.release, &open.commit).await {
            let sentence = format!("release {} {}: {}", open.release, found.word.words(), found.why);
            if sentence != shown {
                stage.header.rollout(&sentence);
                tracing::info!(sentence, "evaluated a rollout");
                shown = sentence;
            }
            if found.has_ended {
                return Ok(Some(found));
            }
        }
        if stage.is_over() {
            return Ok(None);
        }
        stage.stop.run_until_cancelled(sleep(POLL_INTERVAL)).await;
    }
}
