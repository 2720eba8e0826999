//! Tests of the keeper with a scripted PLANS and LEDGER: a node has an order for an instance that PLANS does not have.

use std::collections::VecDeque;
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

/// The plan `web` without instances, as the message with sequence 1.
fn plan() -> LogEvent {
    let state = PlansState::default();
    let spec = json!({ "name": "web", "namespace": "demo", "serviceName": "web", "profile": "process",
        "applications": [{ "payloadName": "main", "resources": { "cores": 2, "memory": 1 } }] });
    let request = PlansRequest::PlanApply(serde_json::from_value(spec).unwrap());
    let Ok(Decision::Append(plan)) = state.decide(&request, None, time()) else {
        panic!("the plan is refused");
    };
    LogEvent::Messages(vec![(1, Some(*plan))])
}

fn end(last_seq: u64, ago: Duration) -> LogEvent {
    LogEvent::End { last_seq, asked_at: Instant::now().checked_sub(ago).unwrap() }
}

/// The requests to the publisher after these events of PLANS, and whether the keeper's metric shows that it is behind.
async fn ordered(plans: Vec<LogEvent>) -> (Vec<String>, bool) {
    let (publisher, metrics, supervisor) = (Publisher::default(), Metrics::default(), Supervisor::new());
    let clock = Arc::new(ManualClock::at(time()));
    let services = Services::new(publisher.clone());
    let asker = Asker::new(publisher.clone(), Webhooks::new(WebhookConfig::default()).unwrap());
    let hooks = Hooks::new(asker, metrics.clone());
    let keeper = PlansKeeper::new(
        Events(plans.into()),
        Events(ledger().into()),
        services,
        hooks,
        clock,
        metrics.clone(),
    );
    let (_calls, waiting) = mpsc::channel(1);
    let latch = supervisor.health().latch("PLANS");
    let keeper = tokio::spawn(keeper.run(waiting, latch, CancellationToken::new()));
    // One thread runs all tasks: in each turn the keeper takes every event that is there.
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    keeper.abort();
    let requests = publisher.0.lock().unwrap().clone();
    (requests, metrics.plans_behind.get() == 1)
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
