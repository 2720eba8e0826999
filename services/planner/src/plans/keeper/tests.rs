//! Tests of the keeper with a scripted PLANS and LEDGER: a node has an order for an instance that PLANS does not have, and another
//! planner appends first.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use bytes::Bytes;
use muster_bus::RequestError;
use muster_contract::Timestamp;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{Fact, PulseFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::subjects::LedgerSubject;
use muster_domain::fold::Position;
use muster_service::clock::ManualClock;
use muster_service::supervisor::Supervisor;
use serde_json::json;
use tokio::sync::oneshot;

use super::*;
use crate::asker::Asker;
use crate::ledger::LedgerEvent;
use crate::webhook::{WebhookConfig, Webhooks};

/// Age of an end that is too old.
const OLD: Duration = Duration::from_secs(6);
/// Sequence of the last message of LEDGER.
const LEDGER_END: u64 = PARTITIONS as u64 + 1;
/// Turns of the keeper, more than there are events.
const TURNS: usize = 16;

/// A publisher that records requests.
#[derive(Clone, Default)]
struct Publisher(Arc<Mutex<Vec<String>>>);

impl Requests for Publisher {
    async fn request(&self, subject: &str, _: Bytes, _: Duration) -> Result<Bytes, RequestError> {
        self.0.lock().unwrap().push(subject.to_owned());
        std::future::pending().await
    }
}

/// A stream that delivers these events and nothing more.
struct Events<E>(VecDeque<E>);

impl<E> Events<E> {
    async fn pop(&mut self) -> E {
        match self.0.pop_front() {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

impl Ledger for Events<LedgerEvent> {
    async fn next(&mut self) -> LedgerEvent {
        self.pop().await
    }
}

impl PlansLog for Events<LogEvent> {
    async fn next(&mut self) -> LogEvent {
        self.pop().await
    }

    async fn append(&mut self, _: u64, documents: &[PlansDocument]) -> (u64, Option<AppendError>) {
        (documents.len() as u64, None)
    }
}

/// Documents that were appended at once, with the sequence that they expected.
type Append = (u64, Vec<PlansDocument>);

/// PLANS, to which another planner appends before the first append of this one.
struct ContestedLog {
    /// The messages of the other planner, read after the conflict.
    others: Option<LogEvent>,
    events: Events<LogEvent>,
    appended: Arc<Mutex<Vec<Append>>>,
}

impl PlansLog for ContestedLog {
    async fn next(&mut self) -> LogEvent {
        self.events.pop().await
    }

    async fn append(&mut self, last: u64, documents: &[PlansDocument]) -> (u64, Option<AppendError>) {
        self.appended.lock().unwrap().push((last, documents.to_vec()));
        match self.others.take() {
            Some(others) => {
                self.events.0.push_back(others);
                (0, Some(AppendError::Conflict))
            }
            None => (documents.len() as u64, None),
        }
    }
}

fn time() -> Timestamp {
    Timestamp::from_second(1_790_000_000).unwrap()
}

/// LEDGER with pulses and an instance of the plan `web` on a node, read to its end just now.
fn ledger() -> Vec<LedgerEvent> {
    let at = |ledger_seq: u64| Position { ledger_seq, stored_at: time() };
    let pulse = |partition: u16| {
        let pulse = PulseFact {
            api_version: Default::default(),
            kind: Default::default(),
            owner: "hub/1/a".to_owned(),
            at: time(),
            lease_seconds: 30,
            current: true,
            unproven_since: None,
        };
        (at(u64::from(partition) + 1), Some((LedgerSubject::Hub(partition), Fact::Pulse(pulse))))
    };
    let digest = muster_contract::canonical::Digest::of_value(&json!(1));
    let component = json!({ "name": "main", "properties": { "command": "sleep" } });
    let desired: DesiredState = serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1, "issuedAt": time(),
        "source": { "kind": "api", "revision": "r1" },
        "deployments": [{ "id": "web-1", "name": "web-1", "applicationId": "muster-plan-web",
            "targetGeneration": 1, "digest": digest,
            "profile": { "type": "process", "components": [component] } }],
    }))
    .unwrap();
    let key = "plant7/press-1".parse().unwrap();
    let mut facts: Vec<_> = (0..PARTITIONS).map(pulse).collect();
    facts.push((at(LEDGER_END), Some((LedgerSubject::Desired(key), Fact::Desired(desired)))));
    let end = LedgerEvent::End { last_seq: LEDGER_END, at: time(), asked_at: Instant::now() };
    vec![LedgerEvent::Facts(facts), end]
}

fn plan_request(namespace: &str) -> PlansRequest {
    let spec = json!({ "name": "web", "namespace": namespace, "serviceName": "web", "profile": "process",
        "applications": [{ "payloadName": "main", "resources": { "cores": 2, "memory": 1 } }] });
    PlansRequest::PlanApply(serde_json::from_value(spec).unwrap())
}

fn deploy_request(id: &str) -> PlansRequest {
    let coordinates = json!({ "main": { "command": "sleep" } });
    let deploy = json!({ "plan": "web", "id": id, "instances": 1, "coordinates": coordinates });
    PlansRequest::PlanDeploy(serde_json::from_value(deploy).unwrap())
}

fn cancel_request(id: &str) -> PlansRequest {
    let cancel = json!({ "plan": "web", "id": id, "verb": "cancel" });
    PlansRequest::PlanRevision(serde_json::from_value(cancel).unwrap())
}

/// The documents of requests, one after another.
fn decided(requests: &[PlansRequest]) -> Vec<PlansDocument> {
    let mut state = PlansState::default();
    let decide = |request: &PlansRequest| {
        let Ok(Decision::Append(document)) = state.decide(request, None, time()) else {
            panic!("the request is refused");
        };
        state.apply((*document).clone());
        *document
    };
    requests.iter().map(decide).collect()
}

/// Messages of PLANS from a sequence on.
fn messages(first: u64, documents: Vec<PlansDocument>) -> LogEvent {
    LogEvent::Messages((first..).zip(documents.into_iter().map(Some)).collect())
}

/// The plan `web` without instances, as the message with sequence 1.
fn plan() -> LogEvent {
    messages(1, decided(&[plan_request("demo")]))
}

fn end(last_seq: u64, ago: Duration) -> LogEvent {
    LogEvent::End { last_seq, asked_at: Instant::now().checked_sub(ago).unwrap() }
}

/// Runs a keeper with this PLANS until it has read all events and answered these calls.
async fn run<P: PlansLog>(plans: P, publisher: &Publisher, metrics: &Metrics, calls: Vec<PlansCall>) {
    let (clock, supervisor) = (Arc::new(ManualClock::at(time())), Supervisor::new());
    let services = Services::new(publisher.clone());
    let asker = Asker::new(publisher.clone(), Webhooks::new(WebhookConfig::default()).unwrap());
    let hooks = Hooks::new(asker, metrics.clone());
    let keeper = PlansKeeper::new(plans, Events(ledger().into()), services, hooks, clock, metrics.clone());
    let (asked, waiting) = mpsc::channel(calls.len() + 1);
    let latch = supervisor.health().latch("PLANS");
    let keeper = tokio::spawn(keeper.run(waiting, latch, CancellationToken::new()));
    // One thread runs all tasks: in each turn the keeper takes every event that is there.
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    for call in calls {
        asked.send(call).await.unwrap();
    }
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    keeper.abort();
}

/// The requests to the publisher after these events of PLANS, and whether the keeper's metric shows that it is behind.
async fn ordered(plans: Vec<LogEvent>) -> (Vec<String>, bool) {
    let (publisher, metrics) = (Publisher::default(), Metrics::default());
    run(Events(plans.into()), &publisher, &metrics, Vec::new()).await;
    let requests = publisher.0.lock().unwrap().clone();
    (requests, metrics.plans_behind.get() == 1)
}

/// The documents that a keeper appends, with the sequences that it expects, and its answer to a request, if another planner appends
/// first.
async fn contested(
    read: Vec<PlansDocument>,
    others: Vec<PlansDocument>,
    asked: Option<PlansRequest>,
) -> (Vec<Append>, Option<PlansReply>, u64) {
    let (publisher, metrics) = (Publisher::default(), Metrics::default());
    let (first, appended) = (read.len() as u64 + 1, Arc::default());
    let events = Events([messages(1, read), LogEvent::Read].into());
    let others = Some(messages(first, others));
    let plans = ContestedLog { others, events, appended: Arc::clone(&appended) };
    let (reply, mut answer) = oneshot::channel();
    let question = asked.map(|asked| PlansQuestion::Change(Box::new(asked), None));
    let calls = question.map(|question| PlansCall { question, reply }).into_iter().collect();
    run(plans, &publisher, &metrics, calls).await;
    let appended = appended.lock().unwrap().clone();
    (appended, answer.try_recv().ok(), metrics.conflicts.get())
}

#[tokio::test]
async fn a_planner_removes_unwanted_instances_once_it_has_read_all_of_plans() {
    let plans = vec![plan(), LogEvent::Read, end(1, Duration::ZERO)];
    assert_eq!(ordered(plans).await, (vec!["muster.publisher.remove".to_owned()], false));
}

#[tokio::test]
async fn a_planner_that_is_behind_plans_orders_nothing() {
    let nothing = (Vec::new(), true);
    assert_eq!(ordered(vec![plan(), LogEvent::Read]).await, nothing, "the end of PLANS is unknown");
    let further = vec![plan(), LogEvent::Read, end(2, Duration::ZERO)];
    assert_eq!(ordered(further).await, nothing, "PLANS goes further");
    let old = vec![plan(), LogEvent::Read, end(1, OLD)];
    assert_eq!(ordered(old).await, nothing, "PLANS does not answer any more");
}

#[tokio::test]
async fn a_request_that_lost_to_another_planner_is_decided_again() {
    let read = decided(&[plan_request("demo")]);
    let both = decided(&[plan_request("demo"), deploy_request("r1")]);
    let (appended, answer, conflicts) = contested(read, both[1..].to_vec(), Some(deploy_request("r2"))).await;
    let refusal = answer.unwrap().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Precondition, "the revision of the other planner is open");
    assert!(refusal.message.contains("r1"), "{}", refusal.message);
    assert_eq!((appended[0].0, conflicts), (1, 1), "the first attempt expects what was read");
    let kept = appended[1..].iter().flat_map(|(_, documents)| documents);
    let ids = kept.filter_map(|document| match document {
        PlansDocument::Plan(plan) => {
            Some(plan.revisions.iter().map(|one| one.id.as_str()).collect::<Vec<_>>())
        }
        _ => None,
    });
    assert!(ids.into_iter().all(|ids| ids == ["r1"]), "nothing of the lost decision is kept");
}

#[tokio::test]
async fn documents_that_lost_to_another_planner_are_dropped_and_decided_again() {
    let requests = [plan_request("demo"), deploy_request("r1"), cancel_request("r1"), deploy_request("r2")];
    let all = decided(&requests);
    let (appended, _, conflicts) = contested(all[..2].to_vec(), all[2..].to_vec(), None).await;
    let names = |documents: &[PlansDocument]| -> BTreeSet<String> {
        let revision = |document: &PlansDocument| match document {
            PlansDocument::Plan(plan) => plan.revisions.last().map(|one| one.id.to_string()),
            PlansDocument::Instance(instance) => Some(instance.revision.to_string()),
            _ => None,
        };
        documents.iter().filter_map(revision).collect()
    };
    let sequences: Vec<_> = appended.iter().map(|(last, documents)| (*last, names(documents))).collect();
    let of = |id: &str| BTreeSet::from([id.to_owned()]);
    assert_eq!(sequences, [(2, of("r1")), (4, of("r2"))], "the cancelled revision gets no instance");
    assert_eq!(conflicts, 1);
}
