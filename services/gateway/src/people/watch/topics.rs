//! The documents that streams follow and no view holds, each with its newest state. A topic has one task, which ends with the last
//! of its streams; their number is bounded. It asks no service.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use muster_contract::{DeploymentId, Timestamp};
use serde::Serialize;
use tokio::sync::watch::{self, Receiver, Sender};

use crate::people::emco::watched::WatchedStatus;

/// Time between an answer and the next question.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The same for EMCO's notifications: as at EMCO, at most one in three seconds.
const NOTIFY_EVERY: Duration = Duration::from_secs(3);
/// Age in seconds beyond which the last answer is stale.
const ANSWER_AGE_MAX: i64 = 10;
/// Most addresses that are followed at once.
pub(super) const TOPICS_MAX: usize = 200;
/// Most of them that are notifications of EMCO: their filters are chosen freely, so one client could take the places of all.
pub(super) const NOTIFICATIONS_MAX: usize = 40;
const _: () = assert!(NOTIFICATIONS_MAX < TOPICS_MAX / 2);

/// The subject of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    Rollouts(DeploymentId),
    Approvals,
    Notifications(WatchedStatus),
}

impl Topic {
    /// Time between an answer and the next question.
    pub(super) const fn interval(&self) -> Duration {
        match self {
            Self::Rollouts(_) | Self::Approvals => ASK_EVERY,
            Self::Notifications(_) => NOTIFY_EVERY,
        }
    }
}

/// A document as an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document {
    /// The id by which a client names it.
    pub(super) id: String,
    /// Its JSON.
    pub(super) data: Bytes,
    /// Why it lacks something; `None` if it is whole.
    pub(super) gap: Option<Gap>,
}

/// The lack of a part of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Gap {
    /// Time since which the part is not known; absent if it is beyond a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
    /// The cause, in one sentence.
    pub(super) cause: String,
}

/// The newest state of a topic.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// No service has answered yet.
    Asking,
    Current {
        document: Document,
        /// Time of the question.
        at: Timestamp,
    },
    /// There is no such rollout, deployment or device.
    Gone,
    /// No service answers.
    Unanswered { since: Timestamp, cause: String, last: Option<Document> },
}

impl Known {
    /// The state at a time: a current document that is too old counts as unanswered.
    pub(super) fn judged(self, now: Timestamp) -> Self {
        match self {
            Self::Current { at, .. } if now.as_second() - at.as_second() > ANSWER_AGE_MAX => {
                let cause = format!("the services have not answered for more than {ANSWER_AGE_MAX} s");
                Self::Unanswered { since: at, cause, last: None }
            }
            known => known,
        }
    }
}

/// The topics that are followed.
#[derive(Default)]
pub(crate) struct Topics(Mutex<HashMap<Topic, Arc<Sender<Known>>>>);

/// Without the documents.
impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topics").finish_non_exhaustive()
    }
}

impl Topics {
    fn write<T>(&self, write: impl FnOnce(&mut HashMap<Topic, Arc<Sender<Known>>>) -> T) -> T {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Subscribes to a topic; without a task, `start` starts one. `None` at the bound of topics.
    pub(super) fn follow(
        &self,
        topic: Topic,
        start: impl FnOnce(Topic, Arc<Sender<Known>>),
    ) -> Option<Receiver<Known>> {
        self.write(|topics| {
            if let Some(sender) = topics.get(&topic) {
                return Some(sender.subscribe());
            }
            let is_notification = |topic: &Topic| matches!(topic, Topic::Notifications(_));
            let is_full = is_notification(&topic)
                && topics.keys().filter(|topic| is_notification(topic)).count() >= NOTIFICATIONS_MAX;
            if is_full || topics.len() >= TOPICS_MAX {
                return None;
            }
            let (sender, known) = watch::channel(Known::Asking);
            let sender = Arc::new(sender);
            topics.insert(topic.clone(), sender.clone());
            start(topic, sender);
            Some(known)
        })
    }
}

/// Removes a topic when its task ends, also by a panic: the next client then starts another task.
pub(super) struct PolledTopic {
    /// All topics.
    pub(super) topics: Arc<Topics>,
    /// The topic.
    pub(super) topic: Topic,
    /// Its state, for its streams.
    pub(super) sender: Arc<Sender<Known>>,
}

impl PolledTopic {
    /// Removes the topic if it has no stream; true if it is removed.
    pub(super) fn remove_unused(&self) -> bool {
        // No stream can subscribe meanwhile: `follow` holds the same lock.
        self.topics.write(|topics| self.sender.receiver_count() == 0 && topics.remove(&self.topic).is_some())
    }
}

impl Drop for PolledTopic {
    fn drop(&mut self) {
        self.topics.write(|topics| {
            if topics.get(&self.topic).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
                topics.remove(&self.topic);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_answer_is_stale_and_none_for_a_new_client() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let document = Document { id: String::new(), data: Bytes::new(), gap: None };
        let known = Known::Current { document, at: at(100) };
        assert!(matches!(known.clone().judged(at(110)), Known::Current { .. }));
        let old = known.judged(at(111));
        assert!(matches!(old, Known::Unanswered { since, last: None, .. } if since == at(100)));
    }

    #[tokio::test]
    async fn a_topic_goes_with_its_task_even_if_that_panics() {
        let topics = Arc::new(Topics::default());
        let begin = || {
            let sender = Arc::new(watch::channel(Known::Asking).0);
            topics.write(|topics| topics.insert(Topic::Approvals, sender.clone()));
            PolledTopic { topics: topics.clone(), topic: Topic::Approvals, sender }
        };
        let polled = begin();
        let failed = tokio::spawn(async move {
            let _polled = polled;
            panic!("a fault");
        });
        assert!(failed.await.is_err());
        assert!(topics.write(|topics| topics.is_empty()));
        let (before, _now) = (begin(), begin());
        drop(before);
        assert_eq!(topics.write(|topics| topics.len()), 1, "another task's topic stays");
    }
}
