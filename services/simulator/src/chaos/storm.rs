//! Carries a plan out: strikes when it says so, mends when it is time, commits meanwhile; and in the end heals
//! everything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::cast::{Cast, Fall};
use super::plan::{Blow, Plan, Role};
use super::script::{Commit, Script};
use crate::error::Error;
use crate::flap::{self, Flapping};
use crate::link::Profile;
use crate::repository::Repository;

/// Time between two looks whether somebody has ended by himself.
const WATCH: Duration = Duration::from_millis(250);
/// Pause before one who fell for want of a disk is started again, as a service manager does.
const START_AGAIN: Duration = Duration::from_secs(1);

/// How often what was done.
#[derive(Debug, Clone, Default)]
pub(super) struct Toll {
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Toll {
    /// One more.
    pub(super) fn count(&self, what: impl Into<String>) {
        // A count is whole at any moment, so a panic elsewhere cannot have left half of one.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.into()).or_default() += 1;
    }

    /// All counts.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What mends a blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mend {
    Start(Role),
    Thaw(Role),
    ClearDisk(Role),
}

/// A storm over a cast.
pub(super) struct Storm<'a> {
    cast: &'a mut Cast,
    script: &'a mut Script,
    repository: &'a Repository,
    small_disks: Vec<usize>,
    toll: Toll,
    mends: BinaryHeap<Reverse<(Instant, Mend)>>,
    /// Who was asked to end, and how long it is to be away.
    dismissed: BTreeMap<Role, Duration>,
    links: JoinSet<()>,
    calm: CancellationToken,
}

impl<'a> Storm<'a> {
    /// A storm that has not begun.
    pub(super) fn new(
        cast: &'a mut Cast,
        script: &'a mut Script,
        repository: &'a Repository,
        small_disks: Vec<usize>,
        toll: Toll,
    ) -> Self {
        let (mends, dismissed, links) = (BinaryHeap::new(), BTreeMap::new(), JoinSet::new());
        let calm = CancellationToken::new();
        Self { cast, script, repository, small_disks, toll, mends, dismissed, links, calm }
    }

    /// Blows for a while, then heals everything; or ends with `stop`.
    ///
    /// # Errors
    /// Somebody ended by himself, or the machine failed.
    pub(super) async fn blow(
        mut self,
        seed: u64,
        length: Duration,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        self.break_links(seed);
        let mut plan = Plan::new(seed, self.cast.devices.len(), self.small_disks.len());
        let begin = Instant::now();
        let end = begin + length;
        while Instant::now() < end {
            let due = begin + plan.due();
            let mend = self.mends.peek().map_or(end, |Reverse((at, _))| *at);
            let next = due.min(mend).min(end).min(Instant::now() + WATCH);
            if stop.run_until_cancelled(sleep_until(next)).await.is_none() {
                // Whoever asks for the end does not ask for a healed fleet.
                return Ok(());
            }
            self.watch()?;
            self.mend_due()?;
            if begin + plan.due() <= Instant::now()
                && let Some((_, blow)) = plan.next()
            {
                self.strike(blow).await?;
            }
        }
        self.heal().await
    }

    fn break_links(&mut self, seed: u64) {
        let links: Vec<_> = self.cast.members().filter_map(|member| member.link.clone()).collect();
        for (at, link) in links.into_iter().enumerate() {
            let (toll, calm) = (self.toll.clone(), self.calm.clone());
            let flapping = Flapping::new(Profile::FLAKY, seed, at);
            self.links.spawn(async move {
                flap::follow(&link, flapping, &calm, |fault, _| {
                    toll.count(format!("link.{}", fault.name()));
                })
                .await;
            });
        }
    }

    async fn strike(&mut self, blow: Blow) -> Result<(), Error> {
        match blow {
            Blow::Kill(role, lasts) => {
                if self.cast.member(role).kill().await? {
                    self.toll.count(format!("kill.{}", kind(role)));
                    self.mend(Mend::Start(role), lasts);
                }
            }
            Blow::KillAndForget(role, lasts) => {
                if self.cast.member(role).kill().await? {
                    self.cast.forget(role)?;
                    self.toll.count(format!("kill.{}", kind(role)));
                    self.toll.count(format!("forget.{}", kind(role)));
                    self.mend(Mend::Start(role), lasts);
                }
            }
            Blow::Dismiss(role, lasts) => {
                if self.cast.member(role).dismiss() {
                    self.toll.count(format!("dismiss.{}", kind(role)));
                    self.dismissed.insert(role, lasts);
                }
            }
            Blow::Freeze(role, lasts) => {
                if self.cast.member(role).freeze() {
                    self.toll.count(format!("stall.{}", kind(role)));
                    self.mend(Mend::Thaw(role), lasts);
                }
            }
            Blow::FillDisk(at, lasts) => {
                let role = Role::Agent(self.small_disks[at]);
                if !self.cast.member(role).full && self.cast.member(role).fill_disk()? {
                    self.toll.count("disk.full");
                    self.mend(Mend::ClearDisk(role), lasts);
                }
            }
            Blow::Commit => self.commit().await?,
        }
        tracing::debug!(?blow, "struck");
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), Error> {
        let Commit { about, bad } = self.script.step();
        self.repository.replace(&self.script.files())?;
        self.repository.commit(&about).await?;
        self.toll.count(if bad { "commit.bad" } else { "commit.good" });
        tracing::info!(bad, "committed: {about}");
        Ok(())
    }

    fn mend(&mut self, mend: Mend, after: Duration) {
        self.mends.push(Reverse((Instant::now() + after, mend)));
    }

    fn mend_due(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        while self.mends.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, mend))) = self.mends.pop() else { break };
            let dir = &self.cast.places.dir.clone();
            match mend {
                Mend::Start(role) => self.cast.member(role).start(dir)?,
                Mend::Thaw(role) => self.cast.member(role).thaw(),
                Mend::ClearDisk(role) => self.cast.member(role).clear_disk()?,
            }
        }
        Ok(())
    }

    /// Nobody ends by himself, but for want of a disk; and whoever was asked to end does.
    fn watch(&mut self) -> Result<(), Error> {
        let mut fallen = Vec::new();
        for member in self.cast.members() {
            fallen.extend(member.has_fallen()?.map(|fall| (member.role, fall)));
        }
        for (role, fall) in fallen {
            if fall == Fall::NoRoom {
                self.toll.count("disk.ended");
            }
            let pause = self.dismissed.remove(&role).unwrap_or(START_AGAIN);
            self.mend(Mend::Start(role), pause);
        }
        Ok(())
    }

    async fn heal(mut self) -> Result<(), Error> {
        self.calm.cancel();
        while self.links.join_next().await.is_some() {}
        self.cast.raise_all()?;
        self.script.heal();
        self.repository.replace(&self.script.files())?;
        self.repository.commit("everything is well").await
    }
}

const fn kind(role: Role) -> &'static str {
    match role {
        Role::Server => "server",
        Role::Ingest => "ingest",
        Role::Rollup => "rollup",
        Role::Publisher => "publisher",
        Role::Agent(_) => "agent",
    }
}
