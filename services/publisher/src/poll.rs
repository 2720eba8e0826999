//! The corridor from Git to the announcer: ask for the commit, read its files, hand it on. A commit that breaks a
//! rule is refused as a whole, told once with everything that is wrong with it, and the fleet keeps what it has.

mod hang;

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

pub use self::hang::HangReport;
use crate::announce::{Desk, Surroundings};
use crate::git::Repository;
use crate::metrics::CommitResult;
use crate::problems::Problems;
use crate::source::{self, Fleet, Policy, Tree};

/// Longest delay between two polls while they fail, unless polls are rarer anyway.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// How a repository is asked, and what is taken from it.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Time between two polls.
    pub every: Duration,
    /// Time for one run of git that talks to the repository.
    pub timeout: Duration,
    /// Whether a commit without any device is taken.
    pub allow_empty: bool,
    /// How it is read.
    pub policy: Policy,
}

/// Asks a repository again and again.
pub struct Poller {
    repository: Repository,
    habits: Habits,
    desk: Desk,
    around: Surroundings,
    hang: HangReport,
    chance: Rng,
    /// The commit that was dealt with last, good or bad.
    known: Option<String>,
    /// The fleet of that commit, if it was refused for what is not in it: what was applied by request may be taken back.
    withstood: Option<(Fleet, Problems)>,
    /// The branch's commit, where it is the one that was handed on last.
    newest: Option<String>,
    /// Whether a commit was handed on since the start.
    handed_on: bool,
    /// Whether the commit that was published last was looked at since the start, because the branch's was refused.
    went_back: bool,
}

impl Poller {
    /// A poller that has not asked yet.
    pub const fn new(
        repository: Repository,
        habits: Habits,
        desk: Desk,
        around: Surroundings,
        hang: HangReport,
        chance: Rng,
    ) -> Self {
        let (known, withstood, newest, handed_on, went_back) = (None, None, None, false, false);
        Self {
            repository,
            habits,
            desk,
            around,
            hang,
            chance,
            known,
            withstood,
            newest,
            handed_on,
            went_back,
        }
    }

    /// Polls until `stop`. A git under way is ended: what it would have brought comes with the next start.
    pub async fn run(mut self, stop: CancellationToken) {
        let every = self.habits.every;
        let mut retry = FullJitter::new(every, RETRY_MAX.max(every));
        let polling = async {
            self.desk.known().await;
            loop {
                let delay = if self.poll().await {
                    retry.reset();
                    every
                } else {
                    retry.next(&mut self.chance)
                };
                tokio::time::sleep(delay).await;
            }
        };
        stop.run_until_cancelled(polling).await;
    }

    /// Asks once; true if there was an answer.
    async fn poll(&mut self) -> bool {
        // Before the branch is asked: what it says then is no older than what others had published.
        let unseen = self.desk.unseen().await;
        let polling = self.repository.poll(self.known.as_deref());
        let polled = self.hang.watch(self.habits.timeout, polling).await;
        if matches!(polled, Ok(Some(_))) {
            self.around.status.moved_on();
        }
        let now = self.around.clock.now();
        let error = polled.as_ref().err().map(|error| chain(error));
        if self.around.status.polled(now, error.clone()) {
            match &error {
                Some(error) if self.handed_on => {
                    tracing::warn!(error, "cannot ask Git; the fleet keeps its last good commit");
                }
                Some(error) => tracing::warn!(
                    error,
                    "cannot ask Git, and nothing of it is known since the start; devices keep what they have"
                ),
                None => tracing::info!("Git answers again"),
            }
        }
        let Ok(answer) = polled else {
            self.around.metrics.poll_failures.inc();
            return false;
        };
        self.around.metrics.polled_at.set(now.as_millisecond() as f64 / 1000.0);
        match answer {
            Some(tree) => {
                self.known = Some(tree.revision.clone());
                self.take(tree).await;
            }
            None => self.offer_again().await,
        }
        self.look_back(unseen).await;
        self.handed_on || self.went_back || self.go_back().await
    }

    /// Hands the branch's commit on.
    async fn take(&mut self, tree: Tree) {
        let revision = tree.revision.clone();
        (self.withstood, self.newest) = (None, None);
        match self.read(tree).await {
            Ok(fleet) => self.offer(fleet).await,
            Err(problems) => self.refuse(&revision, problems),
        }
    }

    /// A commit that was refused for what is not in it is good once that is gone, without another commit.
    async fn offer_again(&mut self) {
        if let Some((fleet, _)) = &self.withstood {
            self.offer(fleet.clone()).await;
        }
    }

    /// Tells which of the commits that others have published the branch's newest came after, and those that somebody asks
    /// about. Where Git does not have one of them, it may be behind itself.
    async fn look_back(&self, mut unseen: BTreeSet<String>) {
        let is_wanted = !unseen.is_empty() || self.around.status.is_past_wanted();
        let Some(newest) = self.newest.as_ref().filter(|_| is_wanted) else { return };
        let reading = self.repository.history(newest);
        match self.hang.watch(self.habits.timeout, reading).await {
            Ok(history) => {
                unseen.retain(|commit| history.contains(commit));
                self.around.status.came_after(newest, history);
                if !unseen.is_empty() {
                    self.desk.follows(newest.clone(), unseen).await;
                }
            }
            // The next poll asks again.
            Err(error) => tracing::debug!(error = chain(&error), "cannot read what the commit came after"),
        }
    }

    async fn offer(&mut self, fleet: Fleet) {
        let before = self.withstood.take().map(|(_, problems)| problems);
        match self.desk.commit(fleet.clone()).await {
            Ok(()) => {
                self.newest = Some(fleet.revision);
                self.handed_on = true;
                self.around.status.accepted();
            }
            Err(problems) => {
                // The same words every few seconds help nobody.
                if before.as_ref() != Some(&problems) {
                    self.refuse(&fleet.revision, problems.clone());
                }
                self.withstood = Some((fleet, problems));
            }
        }
    }

    fn refuse(&self, revision: &str, problems: Problems) {
        warn_of(revision, &problems);
        self.around.metrics.commit(CommitResult::Refused, 1);
        self.around.status.refused(revision, problems);
    }

    /// After a start with a bad commit: takes the one that was published last again, so that a publish that broke
    /// off is completed and what Git says is known. False where it cannot be had at the moment; until then the fleet keeps
    /// what it has.
    async fn go_back(&mut self) -> bool {
        if let Some(last) = self.desk.last_published().await {
            let reading = self.repository.commit(&last);
            let tree = match self.hang.watch(self.habits.timeout, reading).await {
                Ok(tree) => tree,
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(
                        commit.id = last,
                        error,
                        "the commit that was published last cannot be had"
                    );
                    return false;
                }
            };
            tracing::info!(commit.id = last, "taking the commit that was published last again");
            // It was good when it was published; if this version thinks otherwise, nothing is changed.
            if let Err(problems) = self.hand_on(tree).await {
                warn_of(&last, &problems);
            }
        }
        self.went_back = true;
        true
    }

    async fn hand_on(&mut self, tree: Tree) -> Result<(), Problems> {
        let fleet = self.read(tree).await?;
        self.desk.resume(fleet).await?;
        self.handed_on = true;
        Ok(())
    }

    /// What a commit asks for, if it keeps to the rules.
    async fn read(&self, tree: Tree) -> Result<Fleet, Problems> {
        let fleet = read(tree, self.habits.policy).await?;
        if !self.habits.allow_empty {
            source::check_not_empty(&fleet)?;
        }
        Ok(fleet)
    }
}

/// Thousands of files take a moment; nobody else waits for it.
async fn read(tree: Tree, policy: Policy) -> Result<Fleet, Problems> {
    let revision = tree.revision.clone();
    tokio::task::spawn_blocking(move || source::read(&tree, policy)).await.unwrap_or_else(|error| {
        let mut problems = Problems::default();
        let rule = format!("reading {revision} failed, which is a mistake of ours: {error}");
        problems.push("", || None, "", rule);
        Err(problems)
    })
}

/// Tells the log everything that is wrong with a commit.
fn warn_of(revision: &str, problems: &Problems) {
    for problem in problems.clone().into_list() {
        tracing::warn!(
            commit.id = revision,
            file = problem.file,
            line = problem.line,
            field = problem.field,
            rule = problem.rule,
            "a commit breaks a rule"
        );
    }
    tracing::warn!(commit.id = revision, "the commit is refused as a whole; the fleet keeps what it has");
}
