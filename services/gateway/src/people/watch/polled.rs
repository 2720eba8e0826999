//! `/api/v1/watch/rollouts/{id}`, `/api/v1/watch/approvals` and EMCO's notifications: server-sent events of documents that no view
//! holds. One task for each address polls the services for all streams of the address, and ends with the last of them.
//!
//! The first event is the snapshot, unless `Last-Event-ID` names the current document; `change` follows when the content is
//! another one, not with each judgement. `stale` names why no service answers, `end` follows when there is no such rollout,
//! deployment or device any more. `partial` names why the newest document lacks a part, and `whole` follows when it does not any more.

mod approvals;
pub(crate) mod notices;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use muster_client::ask::AskError;
use muster_client::operations::PendingApproval;
use muster_client::rollout::{RolloutsFrame, gathered};
use muster_contract::canonical::Digest;
use muster_contract::{LabelError, Timestamp};
use muster_service::error::chain;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::sleep;

use self::approvals::ApprovalsReader;
use super::stream::{Event, EventSource, LAST_EVENT_ID, check_room, respond};
use super::topics::{Document, Gap, Known, NOTIFICATIONS_MAX, PolledTopic, TOPICS_MAX, Topic};
use crate::people::People;
use crate::people::api::handler_helpers::ungoverned;
use crate::people::api::params::Values;
use crate::people::emco::notify::read;
use crate::people::emco::watched::WatchedStatus;
use crate::problem::Problem;

/// Digits of a digest in an id.
const ID_DIGITS: usize = 12;

/// Polls the services until the topic has no stream.
async fn poll(people: People, topic: Topic, sender: Arc<Sender<Known>>) {
    let polled = PolledTopic { topics: Arc::clone(&people.topics), topic, sender };
    let mut asker = Asker::default();
    loop {
        let at = people.clock.now();
        let known = match Box::pin(asker.ask(&people, &polled.topic, at)).await {
            Ok(Some(document)) => Known::Current { document, at },
            Ok(None) => Known::Gone,
            Err(error) => asker.unanswered(at, &error),
        };
        asker.record(&known);
        polled.sender.send_replace(known);
        tokio::select! {
            () = sleep(polled.topic.interval()) => {}
            () = polled.sender.closed() => {}
            () = people.stop.cancelled() => {}
        }
        if people.stop.is_cancelled() || polled.remove_unused() {
            return;
        }
    }
}

/// Asks the services, and compares each answer with the one before.
#[derive(Default)]
struct Asker {
    rollouts: Option<RolloutsFrame>,
    approvals: ApprovalsReader,
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
                let (waiting, gap) = self.approvals.read(&people.hub, at).await?;
                Ok(Some(Document { gap, ..of_approvals(&waiting) }))
            }
            Topic::Notifications(watched) => {
                let Some((seq, content)) = read(watched, people).await? else { return Ok(None) };
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
    Document { id, data: Bytes::from(data), gap: None }
}

/// The rollouts of a deployment. Its id has a digest beside LEDGER's sequence, because decisions are not in LEDGER.
fn of_rollouts(found: &RolloutsFrame) -> Document {
    document(&format!("{}-", found.ledger_seq), found, &(&found.revision, &found.rollouts))
}

fn of_approvals(waiting: &[PendingApproval]) -> Document {
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

/// Follows the waves and operations that wait for an approval.
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
    Ok(respond(people, DocumentSource { known, has, is_stale: false, gap: None }))
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
    let start = |topic, sender| _ = tokio::spawn(poll(people.clone(), topic, sender));
    let mut known = people.topics.follow(topic.clone(), start).ok_or_else(too_many)?;
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
    /// The gap that the client knows of.
    gap: Option<Gap>,
}

impl DocumentSource {
    /// The event that tells a gap of the current document, or its end, if the client does not know it.
    fn gap_event(&mut self, gap: Option<Gap>) -> Option<Event> {
        if self.gap == gap {
            return None;
        }
        self.gap = gap;
        // Cannot fail: an object of texts.
        let data = |gap| serde_json::to_string(gap).unwrap_or_default();
        Some(match &self.gap {
            Some(gap) => Event::new("partial", data(gap)),
            None => Event::new("whole", "{}"),
        })
    }
}

impl EventSource for DocumentSource {
    fn due(&mut self, people: &People, is_first: bool) -> Option<Event> {
        let known = self.known.borrow_and_update().clone();
        match known.judged(people.clock.now()) {
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
            Known::Current { document, .. } => self.gap_event(document.gap),
            Known::Gone => Some(Event::end()),
            Known::Asking | Known::Unanswered { .. } => None,
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
