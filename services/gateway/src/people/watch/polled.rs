//! `/api/v1/watch/rollouts/{id}`, `/api/v1/watch/approvals` and EMCO's notifications: server-sent events of documents that no view
//! holds. One task for each address polls the services for all streams of the address, and ends with the last of them.
//!
//! The first event is the snapshot, unless `Last-Event-ID` names the current document; `change` follows when the content is
//! another one, not with each judgement. `stale` names why no service answers, `end` follows when there is no such rollout,
//! deployment or device any more.

pub(crate) mod notices;

use std::collections::HashMap;
use std::fmt;
use std::iter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use muster_client::ask::AskError;
use muster_client::rollout::{ApprovalRequest, RolloutsFrame, gathered, read_approvals};
use muster_contract::canonical::Digest;
use muster_contract::{DeploymentId, LabelError, Timestamp};
use muster_service::error::chain;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::time::sleep;

use super::LAST_EVENT_ID;
use super::stream::{Event, Source, check_room, respond};
use crate::people::People;
use crate::people::api::params::Values;
use crate::people::api::ungoverned;
use crate::people::emco::WatchedStatus;
use crate::problem::Problem;

/// Time between an answer and the next question.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The same for EMCO's notifications: as at EMCO, at most one in three seconds.
const NOTIFY_EVERY: Duration = Duration::from_secs(3);
/// Age in seconds beyond which the last answer is stale.
const ANSWER_AGE_MAX: i64 = 10;
/// Most addresses that are followed at once.
const TOPICS_MAX: usize = 200;
/// Most of them that are notifications of EMCO: their filters are chosen freely, so one client could take the places of all.
const NOTIFICATIONS_MAX: usize = 40;
const _: () = assert!(NOTIFICATIONS_MAX < TOPICS_MAX / 2);
/// Digits of a digest in an id.
const ID_DIGITS: usize = 12;

/// The subject of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Topic {
    Rollouts(DeploymentId),
    Approvals,
    Notifications(WatchedStatus),
}

impl Topic {
    const fn interval(&self) -> Duration {
        match self {
            Self::Rollouts(_) | Self::Approvals => ASK_EVERY,
            Self::Notifications(_) => NOTIFY_EVERY,
        }
    }
}

/// A document as an event.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Document {
    id: String,
    data: Bytes,
}

/// The newest state of a topic.
#[derive(Debug, Clone)]
enum Known {
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
    fn judged(self, now: Timestamp) -> Self {
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
pub(crate) struct Polls(Mutex<HashMap<Topic, Arc<Sender<Known>>>>);

/// Without the documents.
impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polls").finish_non_exhaustive()
    }
}

impl Polls {
    fn write<T>(&self, write: impl FnOnce(&mut HashMap<Topic, Arc<Sender<Known>>>) -> T) -> T {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Subscribes to a topic; starts its task if it has none. `None` at the bound of topics.
    fn follow(&self, people: &People, topic: Topic) -> Option<Receiver<Known>> {
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
            tokio::spawn(poll(people.clone(), topic, sender));
            Some(known)
        })
    }

    /// Removes a topic without streams; true if it is removed.
    fn remove_unused(&self, topic: &Topic, sender: &Sender<Known>) -> bool {
        // No stream can subscribe meanwhile: `follow` holds the same lock.
        self.write(|topics| sender.receiver_count() == 0 && topics.remove(topic).is_some())
    }
}

/// Removes a topic when its task ends, also by a panic: the next client then starts another task.
struct PolledTopic {
    polls: Arc<Polls>,
    topic: Topic,
    sender: Arc<Sender<Known>>,
}

impl Drop for PolledTopic {
    fn drop(&mut self) {
        self.polls.write(|topics| {
            if topics.get(&self.topic).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
                topics.remove(&self.topic);
            }
        });
    }
}

/// Polls the services until the topic has no stream.
async fn poll(people: People, topic: Topic, sender: Arc<Sender<Known>>) {
    let polls = Arc::clone(&people.polls);
    let _polled = PolledTopic { polls, topic: topic.clone(), sender: Arc::clone(&sender) };
    let mut asker = Asker::default();
    loop {
        let at = people.clock.now();
        let known = match Box::pin(asker.ask(&people, &topic, at)).await {
            Ok(Some(document)) => Known::Current { document, at },
            Ok(None) => Known::Gone,
            Err(error) => asker.unanswered(at, &error),
        };
        asker.record(&known);
        sender.send_replace(known);
        tokio::select! {
            () = sleep(topic.interval()) => {}
            () = sender.closed() => {}
            () = people.stop.cancelled() => {}
        }
        if people.stop.is_cancelled() || people.polls.remove_unused(&topic, &sender) {
            return;
        }
    }
}

/// Asks the services, and compares each answer with the one before.
#[derive(Default)]
struct Asker {
    rollouts: Option<RolloutsFrame>,
    last: Option<Document>,
    silent_since: Option<Timestamp>,
}

impl Asker {
    async fn ask(
        &mut self,
        people: &People,
        topic: &Topic,
        at: Timestamp,
    ) -> Result<Option<Document>, AskError> {
        match topic {
            Topic::Rollouts(id) => {
                let found = RolloutsFrame::of(id.clone(), &gathered(&people.hub, id, at).await?, at);
                if found.rollouts.is_empty() {
                    return Ok(None);
                }
                if let Some(before) = self.rollouts.as_ref().filter(|before| before.is_same(&found)) {
                    return Ok(Some(of_rollouts(before)));
                }
                let document = of_rollouts(&found);
                self.rollouts = Some(found);
                Ok(Some(document))
            }
            Topic::Approvals => {
                let state = read_approvals(&people.hub, iter::empty(), at).await?;
                // A list that lacks a deployment would look complete.
                if !state.unknown.is_empty() {
                    return Err(AskError::CommitChanged);
                }
                Ok(Some(of_approvals(&state.waiting.into_values().collect::<Vec<_>>())))
            }
            Topic::Notifications(watched) => {
                let Some((seq, content)) = watched.read(people).await? else { return Ok(None) };
                let found = document(&format!("{seq}-"), &content, &content);
                // An equal notification is not sent again.
                let same = self.last.as_ref().filter(|last| last.data == found.data);
                Ok(Some(same.cloned().unwrap_or(found)))
            }
        }
    }

    fn unanswered(&self, at: Timestamp, error: &AskError) -> Known {
        let since = self.silent_since.unwrap_or(at);
        Known::Unanswered { since, cause: chain(error), last: self.last.clone() }
    }

    fn record(&mut self, known: &Known) {
        match known {
            Known::Current { document, .. } => {
                (self.last, self.silent_since) = (Some(document.clone()), None);
            }
            Known::Unanswered { since, .. } => self.silent_since = Some(*since),
            Known::Asking | Known::Gone => {}
        }
    }
}

/// A document; its id is a prefix and a digest of `identity`.
fn document(prefix: &str, content: &impl Serialize, identity: &impl Serialize) -> Document {
    // Cannot fail: objects of texts and numbers.
    let data = serde_json::to_string(content).unwrap_or_default();
    let identity = serde_json::to_vec(identity).unwrap_or_default();
    let digest = Digest::of_bytes(&identity).to_string();
    let digits = digest.rsplit(':').next().unwrap_or_default();
    let id = format!("{prefix}{}", digits.get(..ID_DIGITS).unwrap_or(digits));
    Document { id, data: Bytes::from(data) }
}

/// The rollouts of a deployment. Its id has a digest beside LEDGER's sequence, because decisions are not in LEDGER.
fn of_rollouts(found: &RolloutsFrame) -> Document {
    document(&format!("{}-", found.ledger_seq), found, &(&found.revision, &found.rollouts))
}

fn of_approvals(waiting: &[ApprovalRequest]) -> Document {
    document("", &waiting, &waiting)
}

/// Follows the rollouts of a deployment.
pub(super) async fn rollouts(
    State(people): State<People>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = path.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let id = path.iter().next().map(|(_, text)| text).unwrap_or_default();
    let id = id.parse().map_err(|error: LabelError| Problem::field("id", error.to_string()))?;
    Values::read(query.as_deref().unwrap_or_default(), &[])?;
    follow(people, Topic::Rollouts(id), &headers).await
}

/// Follows the waves that wait for an approval.
pub(super) async fn approvals(
    State(people): State<People>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Values::read(query.as_deref().unwrap_or_default(), &[])?;
    follow(people, Topic::Approvals, &headers).await
}

/// Follows EMCO's notifications.
pub(in crate::people) async fn notifications(
    people: People,
    watched: WatchedStatus,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    follow(people, Topic::Notifications(watched), headers).await
}

async fn follow(people: People, topic: Topic, headers: &HeaderMap) -> Result<Response, Problem> {
    check_room(&people)?;
    let mut known = subscribe(&people, &topic).await?;
    known.mark_changed();
    let has = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    Ok(respond(people, DocumentSource { known, has, is_stale: false }))
}

/// Subscribes to a topic, once its task has an answer.
///
/// # Errors
/// There is no such thing, no service answers, or as many topics are followed as may be.
async fn subscribe(people: &People, topic: &Topic) -> Result<Receiver<Known>, Problem> {
    let too_many = || {
        let detail = format!(
            "this gateway follows {TOPICS_MAX} rollouts and statuses already, or {NOTIFICATIONS_MAX} statuses"
        );
        Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    let mut known = people.polls.follow(people, topic.clone()).ok_or_else(too_many)?;
    // The task answers within the timeouts of its questions; it ends with the gateway alone.
    let first = known.wait_for(|known| !matches!(known, Known::Asking)).await;
    let first = first.map(|known| known.clone().judged(people.clock.now()));
    match (first, topic) {
        (Ok(Known::Gone), Topic::Rollouts(id)) => return Err(ungoverned(id)),
        (Ok(Known::Gone), Topic::Notifications(watched)) => return Err(watched.absent()),
        (Ok(Known::Unanswered { cause, last: None, .. }), _) => {
            return Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, cause));
        }
        (Err(_), _) => return Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, "the gateway stops")),
        _ => {}
    }
    Ok(known)
}

/// The events of one topic.
struct DocumentSource {
    known: Receiver<Known>,
    /// The id of the document that the client has.
    has: Option<String>,
    /// The client knows that its document may be out of date: the next one is sent even if it is the same.
    is_stale: bool,
}

impl Source for DocumentSource {
    fn due(&mut self, people: &People, is_first: bool) -> Option<Event> {
        match self.known.borrow_and_update().clone().judged(people.clock.now()) {
            Known::Current { document, .. } if self.is_stale || self.has.as_ref() != Some(&document.id) => {
                self.is_stale = false;
                self.has = Some(document.id.clone());
                let name = if is_first { "snapshot" } else { "change" };
                Some(Event::with_id(name, document.id, document.data))
            }
            Known::Unanswered { since, cause, .. } if !self.is_stale => {
                self.is_stale = true;
                Some(Event::new("stale", json!({ "since": since, "cause": cause }).to_string()))
            }
            Known::Gone => Some(Event::end()),
            _ => None,
        }
    }

    async fn changed(&mut self) -> Option<()> {
        self.known.changed().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_answer_is_stale_and_none_for_a_new_client() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let known = Known::Current { document: of_approvals(&[]), at: at(100) };
        assert!(matches!(known.clone().judged(at(110)), Known::Current { .. }));
        let old = known.judged(at(111));
        assert!(matches!(old, Known::Unanswered { since, last: None, .. } if since == at(100)));
    }

    #[tokio::test]
    async fn a_topic_goes_with_its_task_even_if_that_panics() {
        let polls = Arc::new(Polls::default());
        let begin = || {
            let sender = Arc::new(watch::channel(Known::Asking).0);
            polls.write(|topics| topics.insert(Topic::Approvals, sender.clone()));
            PolledTopic { polls: polls.clone(), topic: Topic::Approvals, sender }
        };
        let polled = begin();
        let failed = tokio::spawn(async move {
            let _polled = polled;
            panic!("a fault");
        });
        assert!(failed.await.is_err());
        assert!(polls.write(|topics| topics.is_empty()));
        let (before, _now) = (begin(), begin());
        drop(before);
        assert_eq!(polls.write(|topics| topics.len()), 1, "another task's topic stays");
    }

    #[test]
    fn the_id_of_a_document_changes_with_its_content_and_not_with_a_judgement() {
        let found = |revision: &str, second| RolloutsFrame {
            deployment: "web".parse().unwrap(),
            revision: revision.to_owned(),
            ledger_seq: 7,
            at: Timestamp::from_second(second).unwrap(),
            rollouts: Vec::new(),
        };
        let id = |revision, second| of_rollouts(&found(revision, second)).id;
        assert_eq!(id("a", 1), id("a", 2));
        assert_ne!(id("a", 1), id("b", 1));
        assert!(id("a", 1).starts_with("7-"));
        assert_eq!(of_approvals(&[]).data, "[]");
    }
}
