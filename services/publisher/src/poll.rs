//! The pipeline from Git to the announcer: polls the branch, reads the files of its commit and passes the fleet on. A commit
//! that breaks a rule is refused as a whole and logged once with all its problems; the fleet keeps its desired state.

mod hang;

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

pub(crate) use self::hang::HangReport;
use crate::announce::{AnnouncerHandle, Context};
use crate::git::{GitError, Repository};
use crate::metrics::CommitResult;
use crate::problems::Problems;
use crate::source::{self, Fleet, Policy, Tree};

/// Longest delay between two polls while they fail, unless polls are rarer anyway.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Commits that are read, at most, to find the newest good one after a start with a bad one.
const RESUME_COMMITS_MAX: usize = 20;

/// How the repository is polled, and which commits are published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollSettings {
    /// Time between two polls.
    pub every: Duration,
    /// Time limit of one run of git that contacts the repository.
    pub timeout: Duration,
    /// Whether a commit without any device is published.
    pub allow_empty: bool,
    /// How mistakes and removed folders are handled.
    pub policy: Policy,
}

/// Polls a repository.
pub(crate) struct Poller {
    repository: Repository,
    settings: PollSettings,
    announcer: AnnouncerHandle,
    context: Context,
    hang: HangReport,
    rng: Rng,
    /// The last commit that was read, good or bad.
    known: Option<String>,
    /// The fleet of that commit, if the announcer refused it because of requested deployments, which may be removed later.
    refused_fleet: Option<(Fleet, Problems)>,
    /// The last commit of the branch that the announcer accepted: the documents of its ancestors may be replaced.
    newest: Option<String>,
    /// Whether the announcer has accepted a commit since the start.
    has_published: bool,
    /// Whether an earlier commit was passed on since the start, because the branch's was refused.
    has_resumed: bool,
}

impl Poller {
    /// A poller that has not polled yet.
    pub(crate) const fn new(
        repository: Repository,
        settings: PollSettings,
        announcer: AnnouncerHandle,
        context: Context,
        hang: HangReport,
        rng: Rng,
    ) -> Self {
        let (known, refused_fleet, newest, has_published, has_resumed) = (None, None, None, false, false);
        Self {
            repository,
            settings,
            announcer,
            context,
            hang,
            rng,
            known,
            refused_fleet,
            newest,
            has_published,
            has_resumed,
        }
    }

    /// Polls until `stop`, which also ends a running git.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let every = self.settings.every;
        let mut retry = FullJitter::new(every, RETRY_MAX.max(every));
        let polling = async {
            self.announcer.known().await;
            loop {
                let delay = if self.poll().await {
                    retry.reset();
                    every
                } else {
                    retry.next(&mut self.rng)
                };
                tokio::time::sleep(delay).await;
            }
        };
        stop.run_until_cancelled(polling).await;
    }

    /// Polls once; true if the repository answered.
    async fn poll(&mut self) -> bool {
        // Read before the branch, so that the branch's history is no older than these commits.
        let unseen = self.announcer.unseen().await;
        let polling = self.repository.poll(self.known.as_deref());
        let polled = self.hang.watch(self.settings.timeout, polling).await;
        if matches!(polled, Ok(Some(_))) {
            self.context.status.branch_moved();
        }
        let now = self.context.clock.now();
        let error = polled.as_ref().err().map(|error| chain(error));
        if self.context.status.polled(now, error.clone()) {
            match &error {
                Some(error) if self.has_published => {
                    tracing::warn!(error, "cannot poll Git; the fleet keeps its last good commit");
                }
                Some(error) => tracing::warn!(
                    error,
                    "cannot poll Git, which has not answered since the start; devices keep their desired state"
                ),
                None => tracing::info!("Git answers again"),
            }
        }
        let Ok(answer) = polled else {
            self.context.metrics.poll_failures.inc();
            return false;
        };
        self.context.metrics.polled_at.set(now.as_millisecond() as f64 / 1000.0);
        match answer {
            Some(tree) => {
                self.known = Some(tree.revision.clone());
                self.publish_tree(tree).await;
            }
            None => self.retry_refused().await,
        }
        self.report_ancestors(unseen).await;
        self.has_published || self.has_resumed || self.resume().await
    }

    /// Reads the branch's commit and passes it on.
    async fn publish_tree(&mut self, tree: Tree) {
        let revision = tree.revision.clone();
        self.refused_fleet = None;
        match self.read(tree).await {
            Ok(fleet) => self.publish(fleet).await,
            Err(problems) => self.refuse(&revision, problems),
        }
    }

    /// Passes on a commit again that was refused because of requested deployments: removing them makes it good.
    async fn retry_refused(&mut self) {
        if let Some((fleet, _)) = &self.refused_fleet {
            self.publish(fleet.clone()).await;
        }
    }

    /// Reports which commits of other publishers are ancestors of the branch's newest commit, and the ancestors for status
    /// queries. A commit that is missing in the history may be newer than this repository.
    async fn report_ancestors(&self, mut unseen: BTreeSet<String>) {
        let is_wanted = !unseen.is_empty() || self.context.status.are_ancestors_wanted();
        let Some(newest) = self.newest.as_ref().filter(|_| is_wanted) else { return };
        let reading = self.repository.history(newest);
        match self.hang.watch(self.settings.timeout, reading).await {
            Ok(history) => {
                unseen.retain(|commit| history.contains(commit));
                self.context.status.set_ancestors(newest, history);
                if !unseen.is_empty() {
                    self.announcer.follows(newest.clone(), unseen).await;
                }
            }
            // The next poll asks again.
            Err(error) => tracing::debug!(error = chain(&error), "cannot read the ancestors of the commit"),
        }
    }

    async fn publish(&mut self, fleet: Fleet) {
        let before = self.refused_fleet.take().map(|(_, problems)| problems);
        match self.announcer.commit(fleet.clone()).await {
            Ok(()) => {
                self.newest = Some(fleet.revision);
                self.has_published = true;
                self.context.status.clear_refused();
            }
            Err(problems) => {
                // Log and count the same problems once, not at every poll.
                if before.as_ref() != Some(&problems) {
                    self.refuse(&fleet.revision, problems.clone());
                }
                self.refused_fleet = Some((fleet, problems));
            }
        }
    }

    fn refuse(&self, revision: &str, problems: Problems) {
        warn_of(revision, &problems);
        self.context.metrics.commit(CommitResult::Refused, 1);
        self.context.status.set_refused(revision, problems);
    }

    /// After a start with a bad commit: passes on the newest good one before it, or else the last published one, to complete an
    /// interrupted publish and to know Git's contents and rollouts. False if commits cannot be read now; until then the fleet keeps its
    /// desired state.
    async fn resume(&mut self) -> bool {
        match self.resume_branch().await {
            Ok(true) => {
                self.has_resumed = true;
                true
            }
            Ok(false) => self.resume_last_published().await,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "cannot read the commits before the branch's, which was refused");
                false
            }
        }
    }

    /// Passes on the newest good commit before the branch's. False if none of the nearest ones is good, or the announcer refuses it: an
    /// even older one may have policies that no longer hold.
    async fn resume_branch(&mut self) -> Result<bool, GitError> {
        let Some(refused) = self.known.clone() else { return Ok(false) };
        let timeout = self.settings.timeout;
        let parents = self.repository.first_parents(&refused, RESUME_COMMITS_MAX + 1);
        for commit in self.hang.watch(timeout, parents).await?.into_iter().skip(1) {
            let tree = self.hang.watch(timeout, self.repository.mirrored(&commit)).await?;
            let Ok(fleet) = self.read(tree).await else { continue };
            let older = self.hang.watch(timeout, self.repository.history(&commit)).await?;
            if let Err(problems) = self.announcer.resume(fleet, older).await {
                warn_of(&commit, &problems);
                return Ok(false);
            }
            tracing::info!(commit.id = commit, "resumed the newest good commit before the branch's");
            (self.has_published, self.newest) = (true, Some(commit));
            return Ok(true);
        }
        Ok(false)
    }

    /// Passes on the commit of the newest document. False if it cannot be read now.
    async fn resume_last_published(&mut self) -> bool {
        if let Some(last) = self.announcer.last_published().await {
            let reading = self.repository.commit(&last);
            let tree = match self.hang.watch(self.settings.timeout, reading).await {
                Ok(tree) => tree,
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(commit.id = last, error, "cannot read the last published commit");
                    return false;
                }
            };
            tracing::info!(commit.id = last, "resuming the last published commit");
            // It was good when it was published; if this version refuses it, nothing changes.
            if let Err(problems) = self.resume_tree(tree).await {
                warn_of(&last, &problems);
            }
        }
        self.has_resumed = true;
        true
    }

    async fn resume_tree(&mut self, tree: Tree) -> Result<(), Problems> {
        let fleet = self.read(tree).await?;
        self.announcer.resume(fleet, BTreeSet::new()).await?;
        self.has_published = true;
        Ok(())
    }

    /// The fleet of a commit that breaks no rule.
    async fn read(&self, tree: Tree) -> Result<Fleet, Problems> {
        let fleet = read(tree, self.settings.policy).await?;
        if !self.settings.allow_empty {
            source::check_not_empty(&fleet)?;
        }
        Ok(fleet)
    }
}

/// Reads a commit on another thread, because thousands of files would delay other tasks.
pub(crate) async fn read(tree: Tree, policy: Policy) -> Result<Fleet, Problems> {
    let revision = tree.revision.clone();
    tokio::task::spawn_blocking(move || source::read(&tree, policy)).await.unwrap_or_else(|error| {
        let mut problems = Problems::default();
        let rule = format!("reading {revision} failed, which is an error of the publisher: {error}");
        problems.push("", || None, "", rule);
        Err(problems)
    })
}

/// Logs all problems of a commit.
fn warn_of(revision: &str, problems: &Problems) {
    for problem in problems.clone().into_list() {
        tracing::warn!(
            commit.id = revision,
            file = problem.file,
            line = problem.line,
            field = problem.field,
            rule = problem.rule,
            "found a problem in a commit"
        );
    }
    tracing::warn!(commit.id = revision, "refused the commit; the fleet keeps its desired state");
}
