//! What the publisher says of itself when it is asked: kept as the answer of `muster.publisher.status`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::query::{GitStatus, HeldBack, PublisherQuery, PublisherStatus, RefusedCommit};
use muster_contract::{CommitName, Timestamp};

use crate::git::{Branch, GitUrl};
use crate::problems::Problems;
use crate::roster::Census;

/// The publisher's status. Shared by all its parts.
#[derive(Debug)]
pub struct Status(Mutex<Known>);

#[derive(Debug)]
struct Known {
    status: PublisherStatus,
    poll_error: Option<String>,
    publish_error: Option<String>,
    past: Past,
}

/// What the branch's commit came after. It is had from Git where somebody asks about a commit that is not known here.
#[derive(Debug, Default)]
struct Past {
    /// Somebody has asked since the branch is at its commit.
    is_wanted: bool,
    commits: Option<BTreeSet<String>>,
}

impl Status {
    /// The status of a publisher that has done nothing, with its Git source if it has one.
    pub fn new(git: Option<(&GitUrl, &Branch)>) -> Self {
        let git = git.map(|(url, branch)| GitStatus {
            url: url.to_string(),
            branch: branch.as_str().to_owned(),
            applied: None,
            applied_through: None,
            replaced: None,
            refused: None,
            held_back: None,
            polled_at: None,
            failures: 0,
            error: None,
            hanging_since: None,
        });
        let status = stand(git, &Census::default(), 0);
        let past = Past::default();
        Self(Mutex::new(Known { status, poll_error: None, publish_error: None, past }))
    }

    /// The answer.
    pub fn answer(&self) -> PublisherStatus {
        let known = self.lock();
        let mut status = known.status.clone();
        if let Some(git) = &mut status.git {
            let errors = [&known.poll_error, &known.publish_error].into_iter().flatten();
            git.error = errors.cloned().reduce(|one, other| format!("{one}; {other}"));
        }
        status
    }

    /// The answer to a question, which may be about a commit. Where it is about one that is not known here, the poller is
    /// told to look for it, and the answer to the same question later is better.
    pub fn answer_to(&self, query: &PublisherQuery) -> PublisherStatus {
        let mut status = self.answer();
        if let (Some(commit), Some(git)) = (&query.commit, &mut status.git)
            && !is_known(commit, git)
        {
            git.replaced = self.lock().past.find(commit);
        }
        status
    }

    /// The branch is at another commit: what is known of its past holds no more, for the branch may have been set back.
    pub fn moved_on(&self) {
        self.lock().past = Past::default();
    }

    /// Whether somebody asks for what the branch's commit came after, and nobody has said it yet.
    pub fn is_past_wanted(&self) -> bool {
        let past = &self.lock().past;
        past.is_wanted && past.commits.is_none()
    }

    /// The branch's commit was taken, and came after these.
    pub fn came_after(&self, newest: &str, mut commits: BTreeSet<String>) {
        commits.remove(newest);
        self.lock().past.commits = Some(commits);
    }

    /// The repository was asked; `error` says why that came to nothing. True where that is news.
    pub fn polled(&self, at: Timestamp, error: Option<String>) -> bool {
        let mut known = self.lock();
        if let Some(git) = &mut known.status.git {
            if error.is_none() {
                (git.polled_at, git.failures) = (Some(at), 0);
            } else {
                git.failures += 1;
            }
        }
        let news = known.poll_error != error;
        known.poll_error = error;
        news
    }

    /// The repository gives no answer since then, or gives one again. Since when it hangs, and whether that is news: the
    /// first request without an answer counts, however often it was repeated.
    pub fn hangs(&self, since: Option<Timestamp>) -> (Option<Timestamp>, bool) {
        let mut known = self.lock();
        let Some(git) = &mut known.status.git else { return (None, false) };
        let before = git.hanging_since;
        git.hanging_since = since.map(|since| before.unwrap_or(since));
        (git.hanging_since, git.hanging_since != before)
    }

    /// A commit was refused.
    pub fn refused(&self, revision: &str, problems: Problems) {
        if let Some(git) = &mut self.lock().status.git {
            let problems = problems.into_list();
            git.refused = Some(RefusedCommit { revision: revision.to_owned(), problems });
        }
    }

    /// A newer commit was taken.
    pub fn accepted(&self) {
        if let Some(git) = &mut self.lock().status.git {
            git.refused = None;
        }
    }

    /// How things stand after a publish or a reading. A commit that is applied comes with the sequence up to which LEDGER
    /// holds all of it, if it does; while none is, documents of another one may have taken the place of some of its own.
    pub fn stands(&self, census: &Census, applied: Option<(&str, Option<u64>)>, error: Option<String>) {
        let mut known = self.lock();
        known.publish_error = error;
        known.status = stand(known.status.git.take(), census, known.status.published);
        if let Some(git) = &mut known.status.git {
            git.applied_through = applied.and_then(|(_, through)| through);
            git.applied = applied.map(|(revision, _)| revision.to_owned()).or(git.applied.take());
        }
    }

    /// Devices that cannot use what the commit that was taken last says of them.
    pub fn holds_back(&self, held_back: Option<HeldBack>) {
        if let Some(git) = &mut self.lock().status.git {
            git.held_back = held_back;
        }
    }

    /// What LEDGER holds is read anew.
    pub fn ledger_anew(&self) {
        if let Some(git) = &mut self.lock().status.git {
            git.applied_through = None;
        }
    }

    /// Documents were published.
    pub fn published(&self, count: usize) {
        self.lock().status.published += count as u64;
    }

    /// Every change above is whole, so a panic elsewhere leaves nothing half-done.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the answer says of this commit what became of it.
fn is_known(commit: &CommitName, git: &GitStatus) -> bool {
    let refused = git.refused.as_ref().map(|refused| refused.revision.as_str());
    [git.applied.as_deref(), refused].into_iter().flatten().any(|revision| commit.names(revision))
}

impl Past {
    /// The commit of that name, if the branch's came after it.
    fn find(&mut self, commit: &CommitName) -> Option<String> {
        self.is_wanted = true;
        self.commits.as_ref()?.iter().find(|revision| commit.names(revision)).cloned()
    }
}

fn stand(git: Option<GitStatus>, census: &Census, published: u64) -> PublisherStatus {
    PublisherStatus {
        git,
        devices: census.devices as u64,
        in_git: census.in_git.map(|count| count as u64),
        retired: census.retired as u64,
        left_over: census.left_over.clone(),
        unreadable: census.unreadable.clone(),
        published,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Census {
        Census { devices: 3, ..Census::default() }
    }

    fn status() -> Status {
        Status::new(Some((&"https://me@git.example/fleet".parse().unwrap(), &"main".parse().unwrap())))
    }

    #[test]
    fn a_refused_commit_is_shown_until_a_newer_one_is_taken() {
        let status = status();
        status.stands(&three(), Some(("c1", None)), None);
        let mut problems = Problems::default();
        problems.push("fleet/a.yaml", || Some(2), "id", "is missing");
        status.refused("c2", problems);
        let git = status.answer().git.unwrap();
        assert_eq!((git.url.as_str(), git.applied.as_deref()), ("https://git.example/fleet", Some("c1")));
        assert_eq!(git.refused.unwrap().problems[0].line, Some(2));
        status.accepted();
        assert_eq!(status.answer().git.unwrap().refused, None);
    }

    #[test]
    fn where_ledger_holds_a_commit_is_told_of_that_commit_alone() {
        let status = status();
        let told = || status.answer().git.map(|git| (git.applied, git.applied_through)).unwrap();
        status.stands(&three(), Some(("c1", Some(12))), None);
        status.stands(&three(), None, None);
        assert_eq!(told(), (Some("c1".to_owned()), None), "the next one is on its way");
        status.stands(&three(), Some(("c2", None)), None);
        assert_eq!(told(), (Some("c2".to_owned()), None));
        status.stands(&three(), Some(("c2", Some(20))), None);
        status.ledger_anew();
        assert_eq!(told(), (Some("c2".to_owned()), None), "another LEDGER counts otherwise");
    }

    #[test]
    fn a_commit_is_replaced_where_the_branchs_came_after_it_as_far_as_that_was_looked_up() {
        let status = status();
        let [old, new] = ["9f2c1e5d", "0a1b2c3d"].map(|start| start.repeat(5));
        let replaced = |name: &str| {
            let commit = Some(name.parse().unwrap());
            status.answer_to(&PublisherQuery { commit }).git.unwrap().replaced
        };
        status.stands(&three(), Some((&new, None)), None);
        assert!(replaced("0a1b2c3").is_none() && !status.is_past_wanted(), "it is what is applied");
        assert!(replaced("9f2c1e5").is_none() && status.is_past_wanted());
        status.came_after(&new, [old.clone(), new.clone()].into());
        assert!(!status.is_past_wanted(), "once is enough");
        assert_eq!((replaced("9f2c1e5"), replaced("7777777")), (Some(old), None));
        assert_eq!(status.answer().git.unwrap().replaced, None, "nobody has asked");
        status.moved_on();
        assert!(!status.is_past_wanted());
        assert_eq!(replaced("9f2c1e5"), None, "the branch may have been set back to it");
    }

    #[test]
    fn the_same_trouble_is_news_once() {
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
        assert_eq!(status.hangs(Some(at)), (Some(at), true));
        assert_eq!(status.hangs(Some(later)), (Some(at), false));
        assert_eq!(status.answer().git.unwrap().hanging_since, Some(at));
        assert_eq!(status.hangs(None), (None, true));
        assert_eq!(status.hangs(None), (None, false));
        assert_eq!(Status::new(None).hangs(Some(at)), (None, false));
    }

    #[test]
    fn without_git_there_is_nothing_to_say_of_it() {
        let status = Status::new(None);
        status.polled(Timestamp::UNIX_EPOCH, None);
        status.stands(&three(), Some(("c", Some(7))), None);
        status.ledger_anew();
        status.published(2);
        assert_eq!(status.answer(), stand(None, &three(), 2));
    }
}
