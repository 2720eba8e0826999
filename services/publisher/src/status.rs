//! What the publisher says of itself when it is asked: kept as the answer of `muster.publisher.status`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::Timestamp;
use muster_contract::query::{GitStatus, PublisherStatus, RefusedCommit};

use crate::git::{Branch, GitUrl};
use crate::problems::Problems;

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
            error: None,
        });
        let status = PublisherStatus { git, devices: 0, published: 0 };
        Self(Mutex::new(Known { status, poll_error: None, publish_error: None }))
    }

    /// The answer.
    pub fn answer(&self) -> PublisherStatus {
        let known = self.lock();
        let mut status = known.status.clone();
        if let Some(git) = &mut status.git {
            git.error = known.poll_error.clone().or_else(|| known.publish_error.clone());
        }
        status
    }

    /// The repository was asked; `error` says why that came to nothing. True where that is news.
    pub fn polled(&self, at: Timestamp, error: Option<String>) -> bool {
        let mut known = self.lock();
        if let Some(git) = &mut known.status.git
            && error.is_none()
        {
            git.polled_at = Some(at);
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
    pub fn stands(&self, devices: usize, applied: Option<&str>, error: Option<String>) {
        let mut known = self.lock();
        known.publish_error = error;
        known.status.devices = devices as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status::new(Some((&"https://me@git.example/fleet".parse().unwrap(), &"main".parse().unwrap())))
    }

    #[test]
    fn a_refused_commit_is_shown_until_a_newer_one_is_taken() {
        let status = status();
        status.stands(3, Some("c1"), None);
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
        assert_eq!(status.answer().git.unwrap().error.as_deref(), Some("gone"));
        assert!(status.polled(at, None));
        assert_eq!(status.answer().git.unwrap().error, None);
    }

    #[test]
    fn without_git_there_is_nothing_to_say_of_it() {
        let status = Status::new(None);
        status.polled(Timestamp::UNIX_EPOCH, None);
        status.stands(1, Some("c"), None);
        status.published(2);
        assert_eq!(status.answer(), PublisherStatus { git: None, devices: 1, published: 2 });
    }
}
