//! What the publisher says of itself when it is asked: kept as the answer of `muster.publisher.status`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::Timestamp;
use muster_contract::query::{GitStatus, PublisherStatus, RefusedCommit};

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
}

impl Status {
    /// The status of a publisher that has done nothing, with its Git source if it has one.
    pub fn new(git: Option<(&GitUrl, &Branch)>) -> Self {
        let git = git.map(|(url, branch)| GitStatus {
            url: url.to_string(),
            branch: branch.as_str().to_owned(),
            applied: None,
            refused: None,
            polled_at: None,
            failures: 0,
            error: None,
        });
        let status = stand(git, &Census::default(), 0);
        Self(Mutex::new(Known { status, poll_error: None, publish_error: None }))
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

    /// How things stand after a publish or a reading.
    pub fn stands(&self, census: &Census, applied: Option<&str>, error: Option<String>) {
        let mut known = self.lock();
        known.publish_error = error;
        known.status = stand(known.status.git.take(), census, known.status.published);
        if let (Some(git), Some(applied)) = (&mut known.status.git, applied) {
            git.applied = Some(applied.to_owned());
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
        status.stands(&three(), Some("c1"), None);
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
    fn without_git_there_is_nothing_to_say_of_it() {
        let status = Status::new(None);
        status.polled(Timestamp::UNIX_EPOCH, None);
        status.stands(&three(), Some("c"), None);
        status.published(2);
        assert_eq!(status.answer(), stand(None, &three(), 2));
    }
}
