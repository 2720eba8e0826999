//! The publisher's status, kept as the answer of `muster.publisher.status`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::limits::ROLLOUT_DEPLOYMENTS_MAX;
use muster_contract::query::{GitStatus, HeldBack, PublisherQuery, PublisherStatus, RefusedCommit};
use muster_contract::rollout::{HeldChange, OpenRollout};
use muster_contract::{CommitName, DeploymentId, Timestamp};

use crate::device_table::FleetSummary;
use crate::git::{Branch, GitUrl};
use crate::problems::Problems;

/// The publisher's status, shared by its tasks.
#[derive(Debug)]
pub struct Status(Mutex<StatusState>);

#[derive(Debug)]
struct StatusState {
    status: PublisherStatus,
    poll_error: Option<String>,
    publish_error: Option<String>,
    ancestors: Ancestors,
    /// The deployments with a held change or an open rollout.
    deployments: BTreeSet<DeploymentId>,
}

/// The ancestors of the branch's commit. The poller reads them from Git when a query names an unknown commit.
#[derive(Debug, Default)]
struct Ancestors {
    /// A query has named an unknown commit since the branch moved.
    is_wanted: bool,
    commits: Option<BTreeSet<String>>,
}

impl Status {
    /// The status at the start, with the Git source if there is one.
    pub fn new(git: Option<(&GitUrl, &Branch)>) -> Self {
        let git = git.map(|(url, branch)| GitStatus {
            url: url.to_string(),
            branch: branch.as_str().to_owned(),
            applied: None,
            applied_through: None,
            replaced: None,
            refused: None,
            held_back: None,
            held: Vec::new(),
            held_omitted: 0,
            open_rollouts: Vec::new(),
            open_omitted: 0,
            rollout_deployments: Vec::new(),
            has_more_deployments: false,
            polled_at: None,
            failures: 0,
            error: None,
            hanging_since: None,
        });
        let status = assemble(git, &FleetSummary::default(), 0);
        let ancestors = Ancestors::default();
        let deployments = BTreeSet::new();
        Self(Mutex::new(StatusState {
            status,
            poll_error: None,
            publish_error: None,
            ancestors,
            deployments,
        }))
    }

    /// The answer.
    pub fn answer(&self) -> PublisherStatus {
        let state = self.lock();
        let mut status = state.status.clone();
        if let Some(git) = &mut status.git {
            let errors = [&state.poll_error, &state.publish_error].into_iter().flatten();
            git.error = errors.cloned().reduce(|one, other| format!("{one}; {other}"));
        }
        status
    }

    /// The answer to a query, which may name a commit. If the commit is unknown here, the poller reads the branch's
    /// ancestors, and a later answer says whether the commit was replaced.
    pub fn answer_to(&self, query: &PublisherQuery) -> PublisherStatus {
        let mut status = self.answer();
        if let (Some(commit), Some(git)) = (&query.commit, &mut status.git)
            && !is_known(commit, git)
        {
            git.replaced = self.lock().ancestors.find(commit);
        }
        if let (Some(after), Some(git)) = (&query.rollouts_after, &mut status.git) {
            let state = self.lock();
            let mut further = state.deployments.iter().filter(|id| id.as_str() > after.as_str());
            git.rollout_deployments = further.by_ref().take(ROLLOUT_DEPLOYMENTS_MAX).cloned().collect();
            git.has_more_deployments = further.next().is_some();
        }
        status
    }

    /// Discards the ancestors: the branch is at another commit, and may have been set back.
    pub(crate) fn branch_moved(&self) {
        self.lock().ancestors = Ancestors::default();
    }

    /// Whether a query needs the ancestors, and they are not read yet.
    pub(crate) fn are_ancestors_wanted(&self) -> bool {
        let ancestors = &self.lock().ancestors;
        ancestors.is_wanted && ancestors.commits.is_none()
    }

    /// Sets the ancestors of the branch's commit.
    pub(crate) fn set_ancestors(&self, newest: &str, mut commits: BTreeSet<String>) {
        commits.remove(newest);
        self.lock().ancestors.commits = Some(commits);
    }

    /// Records a poll and its error, if it failed; true if the error differs from the one before.
    pub fn polled(&self, at: Timestamp, error: Option<String>) -> bool {
        let mut state = self.lock();
        if let Some(git) = &mut state.status.git {
            if error.is_none() {
                (git.polled_at, git.failures) = (Some(at), 0);
            } else {
                git.failures += 1;
            }
        }
        let is_news = state.poll_error != error;
        state.poll_error = error;
        is_news
    }

    /// Records that the repository has not answered since then, or answers again. Returns since when it hangs, counted from
    /// the first request without an answer, and whether that has changed.
    pub(crate) fn set_hanging(&self, since: Option<Timestamp>) -> (Option<Timestamp>, bool) {
        let mut state = self.lock();
        let Some(git) = &mut state.status.git else { return (None, false) };
        let before = git.hanging_since;
        git.hanging_since = since.map(|since| before.unwrap_or(since));
        (git.hanging_since, git.hanging_since != before)
    }

    /// Sets the refused commit.
    pub fn set_refused(&self, revision: &str, problems: Problems) {
        if let Some(git) = &mut self.lock().status.git {
            let problems = problems.into_list();
            git.refused = Some(RefusedCommit { revision: revision.to_owned(), problems });
        }
    }

    /// Clears the refused commit: a newer one was accepted.
    pub(crate) fn clear_refused(&self) {
        if let Some(git) = &mut self.lock().status.git {
            git.refused = None;
        }
    }

    /// Updates the status after a publish or a read. An applied commit comes with the sequence up to which LEDGER holds all
    /// its documents, if it does. While no commit is applied, documents of another commit may have replaced some. Without
    /// `rollouts` the status keeps those that it has. They are set in the same step: a watch for a commit must not see the commit in LEDGER before its held changes.
    pub fn update(
        &self,
        summary: &FleetSummary,
        applied: Option<(&str, Option<u64>)>,
        error: Option<String>,
        rollouts: Option<RolloutsStatus>,
    ) {
        let mut state = self.lock();
        state.publish_error = error;
        state.status = assemble(state.status.git.take(), summary, state.status.published);
        if let Some(git) = &mut state.status.git {
            git.applied_through = applied.and_then(|(_, through)| through);
            git.applied = applied.map(|(revision, _)| revision.to_owned()).or(git.applied.take());
            if let Some(RolloutsStatus { held, held_omitted, open, open_omitted, deployments }) = rollouts {
                (git.held, git.held_omitted) = (held, held_omitted);
                (git.open_rollouts, git.open_omitted) = (open, open_omitted);
                state.deployments = deployments;
            }
        }
    }

    /// Sets the devices for which the last accepted commit has mistakes.
    pub(crate) fn set_held_back(&self, held_back: Option<HeldBack>) {
        if let Some(git) = &mut self.lock().status.git {
            git.held_back = held_back;
        }
    }

    /// Clears the sequence in LEDGER, which is read from its beginning.
    pub(crate) fn ledger_restarted(&self) {
        if let Some(git) = &mut self.lock().status.git {
            git.applied_through = None;
        }
    }

    /// Counts published documents.
    pub fn published(&self, count: usize) {
        self.lock().status.published += count as u64;
    }

    /// Every change is complete, so a panic elsewhere cannot leave the state inconsistent.
    fn lock(&self) -> MutexGuard<'_, StatusState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the status that is about rollouts.
#[derive(Debug, Clone, Default)]
pub struct RolloutsStatus {
    /// The listed held changes.
    pub held: Vec<HeldChange>,
    /// The number of further ones.
    pub held_omitted: u64,
    /// Open rollouts.
    pub open: Vec<OpenRollout>,
    /// The number of further ones.
    pub open_omitted: u64,
    /// The deployments of all of them.
    pub deployments: BTreeSet<DeploymentId>,
}

/// Whether the answer has the result of this commit.
fn is_known(commit: &CommitName, git: &GitStatus) -> bool {
    let refused = git.refused.as_ref().map(|refused| refused.revision.as_str());
    [git.applied.as_deref(), refused].into_iter().flatten().any(|revision| commit.names(revision))
}

impl Ancestors {
    /// The commit of that name, if it is an ancestor.
    fn find(&mut self, commit: &CommitName) -> Option<String> {
        self.is_wanted = true;
        self.commits.as_ref()?.iter().find(|revision| commit.names(revision)).cloned()
    }
}

fn assemble(git: Option<GitStatus>, summary: &FleetSummary, published: u64) -> PublisherStatus {
    PublisherStatus {
        git,
        devices: summary.devices as u64,
        in_git: summary.in_git.map(|count| count as u64),
        retired: summary.retired as u64,
        left_over: summary.left_over.clone(),
        unreadable: summary.unreadable.clone(),
        published,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> FleetSummary {
        FleetSummary { devices: 3, ..FleetSummary::default() }
    }

    fn status() -> Status {
        Status::new(Some((&"https://me@git.example/fleet".parse().unwrap(), &"main".parse().unwrap())))
    }

    #[test]
    fn a_refused_commit_is_shown_until_a_newer_one_is_accepted() {
        let status = status();
        status.update(&three(), Some(("c1", None)), None, None);
        let mut problems = Problems::default();
        problems.push("fleet/a.yaml", || Some(2), "id", "is missing");
        status.set_refused("c2", problems);
        let git = status.answer().git.unwrap();
        assert_eq!((git.url.as_str(), git.applied.as_deref()), ("https://git.example/fleet", Some("c1")));
        assert_eq!(git.refused.unwrap().problems[0].line, Some(2));
        status.clear_refused();
        assert_eq!(status.answer().git.unwrap().refused, None);
    }

    #[test]
    fn the_sequence_in_ledger_is_shown_for_the_applied_commit_alone() {
        let status = status();
        let shown = || status.answer().git.map(|git| (git.applied, git.applied_through)).unwrap();
        status.update(&three(), Some(("c1", Some(12))), None, None);
        status.update(&three(), None, None, None);
        assert_eq!(shown(), (Some("c1".to_owned()), None), "the next one is on its way");
        status.update(&three(), Some(("c2", None)), None, None);
        assert_eq!(shown(), (Some("c2".to_owned()), None));
        status.update(&three(), Some(("c2", Some(20))), None, None);
        status.ledger_restarted();
        assert_eq!(shown(), (Some("c2".to_owned()), None), "another LEDGER counts otherwise");
    }

    #[test]
    fn an_ancestor_of_the_branchs_commit_is_replaced_once_it_is_read() {
        let status = status();
        let [old, new] = ["9f2c1e5d", "0a1b2c3d"].map(|start| start.repeat(5));
        let replaced = |name: &str| {
            let commit = Some(name.parse().unwrap());
            status.answer_to(&PublisherQuery { commit, rollouts_after: None }).git.unwrap().replaced
        };
        status.update(&three(), Some((&new, None)), None, None);
        assert!(replaced("0a1b2c3").is_none() && !status.are_ancestors_wanted(), "it is what is applied");
        assert!(replaced("9f2c1e5").is_none() && status.are_ancestors_wanted());
        status.set_ancestors(&new, [old.clone(), new.clone()].into());
        assert!(!status.are_ancestors_wanted(), "once is enough");
        assert_eq!((replaced("9f2c1e5"), replaced("7777777")), (Some(old), None));
        assert_eq!(status.answer().git.unwrap().replaced, None, "nobody has asked");
        status.branch_moved();
        assert!(!status.are_ancestors_wanted());
        assert_eq!(replaced("9f2c1e5"), None, "the branch may have been set back to it");
    }

    #[test]
    fn the_same_error_is_new_once() {
        let (status, at) = (status(), Timestamp::UNIX_EPOCH);
        assert!(status.polled(at, Some("gone".to_owned())));
        assert!(!status.polled(at, Some("gone".to_owned())));
        let git = status.answer().git.unwrap();
        assert_eq!((git.error.as_deref(), git.polled_at, git.failures), (Some("gone"), None, 2));
        assert!(status.polled(at, None));
        let git = status.answer().git.unwrap();
        assert_eq!((git.error, git.polled_at, git.failures), (None, Some(at), 0));
    }

    #[test]
    fn a_hang_counts_from_the_first_request_without_an_answer() {
        let (status, at) = (status(), Timestamp::UNIX_EPOCH);
        let later = Timestamp::from_second(60).unwrap();
        assert_eq!(status.set_hanging(Some(at)), (Some(at), true));
        assert_eq!(status.set_hanging(Some(later)), (Some(at), false));
        assert_eq!(status.answer().git.unwrap().hanging_since, Some(at));
        assert_eq!(status.set_hanging(None), (None, true));
        assert_eq!(status.set_hanging(None), (None, false));
        assert_eq!(Status::new(None).set_hanging(Some(at)), (None, false));
    }

    #[test]
    fn without_git_the_status_has_no_git_part() {
        let status = Status::new(None);
        status.polled(Timestamp::UNIX_EPOCH, None);
        status.update(&three(), Some(("c", Some(7))), None, None);
        status.ledger_restarted();
        status.published(2);
        assert_eq!(status.answer(), assemble(None, &three(), 2));
    }
}
