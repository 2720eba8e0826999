//! Tests of the planner's loop: a slow publisher answers while the evidence ends, or LEDGER is replaced.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use muster_bus::RequestError;
use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, PulseFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::rollout::{DecideRequest, ReleaseRefusal, ReleaseRequest, TargetsQuery};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{Generation, Timestamp};
use muster_domain::fold::Position;
use muster_service::clock::ManualClock;
use serde_json::json;

use super::*;
use crate::evidence::DocumentEntry;
use crate::read_end::BEHIND_AFTER;
use crate::rollouts::Refusal;
use crate::services::PAGES_MAX;
use crate::webhook::{WebhookConfig, Webhooks};

/// Age of the evidence, and delay of an answer that comes after its end.
const AGE: Duration = Duration::from_secs(3);
const ANSWERS_AFTER: Duration = Duration::from_millis(2_200);

const _: () = assert!(AGE.as_millis() + ANSWERS_AFTER.as_millis() > BEHIND_AFTER.as_millis());

/// A publisher that records requests.
#[derive(Clone)]
struct Publisher {
    requests: Arc<Mutex<Vec<String>>>,
    answers_after: Duration,
}

impl Requests for Publisher {
    async fn request(&self, subject: &str, payload: Bytes, _: Duration) -> Result<Bytes, RequestError> {
        tokio::time::sleep(self.answers_after).await;
        let (request, answer) = if subject.ends_with("decide") {
            let DecideRequest { deployment, digest, rollout, verb, wave, .. } =
                serde_json::from_slice(&payload).unwrap();
            let decision = json!({ "verb": verb, "wave": wave, "at": Timestamp::UNIX_EPOCH });
            let record = json!({ "digest": digest, "rollout": rollout, "decisions": [decision] });
            (format!("decide {deployment}"), json!({ "record": record, "changed": true }))
        } else if subject.ends_with("targets") {
            let TargetsQuery { deployment, after, .. } = serde_json::from_slice(&payload).unwrap();
            let (device, next) = if after.is_none() { ("d1", Some("s1/d1")) } else { ("d2", None) };
            let answer = serde_json::to_value(page("c2", device, next)).unwrap();
            (format!("targets {deployment} after {after:?}"), answer)
        } else {
            let ReleaseRequest { deployment, devices, .. } = serde_json::from_slice(&payload).unwrap();
            let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
            (
                format!("release {deployment} to {}", names.join(", ")),
                json!({ "released": devices, "refused": [] }),
            )
        };
        self.requests.lock().unwrap().push(request);
        Ok(Bytes::from(answer.to_string()))
    }
}

/// A LEDGER that delivers these events and nothing more.
struct Events(VecDeque<LedgerEvent>);

impl Ledger for Events {
    async fn next(&mut self) -> LedgerEvent {
        match self.0.pop_front() {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

fn time() -> Timestamp {
    Timestamp::from_second(1_790_000_000).unwrap()
}

fn pulses() -> LedgerEvent {
    let pulse = |partition: u16| {
        let at = Position { ledger_seq: u64::from(partition) + 1, stored_at: time() };
        let pulse = PulseFact {
            api_version: Default::default(),
            kind: Default::default(),
            owner: "hub/1/a".to_owned(),
            at: time(),
            lease_seconds: 30,
            current: true,
            unproven_since: None,
        };
        (at, Some((LedgerSubject::Hub(partition), Fact::Pulse(pulse))))
    };
    LedgerEvent::Facts((0..PARTITIONS).map(pulse).collect())
}

/// LEDGER's end, read this long ago.
fn end(ago: Duration) -> LedgerEvent {
    let asked_at = Instant::now().checked_sub(ago).unwrap();
    LedgerEvent::End { last_seq: PARTITIONS.into(), at: time(), asked_at }
}

/// A page with a new content for one device; `next` is the device after which another page begins.
fn page(revision: &str, device: &str, next: Option<&str>) -> TargetsAnswer {
    let (old, new) = (Digest::of_bytes(b"v1"), Digest::of_bytes(b"v2"));
    let answer = json!({
        "revision": revision,
        "rollouts": { "rollout.yaml": { "apiVersion": "muster/v1", "kind": "Rollout" } },
        "targets": [{ "site": "s1", "device": device, "rollout": "rollout.yaml", "wanted": new, "published": old,
            "targetGeneration": 1 }],
        "next": next,
    });
    serde_json::from_value(answer).unwrap()
}

/// A document of the first device without deployments.
fn document() -> Document {
    Document {
        key: "s1/d1".parse().unwrap(),
        generation: Generation::new(7).unwrap(),
        at: time(),
        is_retired: false,
        entries: Vec::new(),
    }
}

impl Planner<Publisher, Events> {
    /// Lists a deployment with these pages.
    fn list(&mut self, id: &str, pages: Vec<TargetsAnswer>) {
        self.request_page(Listing::new(id.parse().unwrap(), Instant::now()));
        pages.into_iter().for_each(|page| self.add_page(Ok(page)));
    }

    /// The number of targets of each rollout.
    fn targets(&mut self) -> Vec<usize> {
        self.rollouts.all().map(|rollout| rollout.live.targets()).collect()
    }
}

/// A planner with the rollouts of the deployments `one` and `two`, whose evidence has this age.
fn planner(
    age: Duration,
    answers_after: Duration,
    later: Vec<LedgerEvent>,
) -> (Planner<Publisher, Events>, Publisher) {
    let publisher = Publisher { requests: Arc::default(), answers_after };
    let asker = Asker::new(publisher.clone(), Webhooks::new(WebhookConfig::default()).unwrap());
    let (services, clock) = (Services::new(publisher.clone()), Arc::new(ManualClock::at(time())));
    let mut planner = Planner::new(services, asker, Events(later.into()), clock, Metrics::default());
    planner.follow(pulses());
    planner.list("one", vec![page("c1", "d1", None)]);
    planner.list("two", vec![page("c1", "d1", None)]);
    planner.follow(end(age));
    (planner, publisher)
}

fn touched(planner: &mut Planner<Publisher, Events>) -> Vec<String> {
    let touched = planner.rollouts.all().filter(|rollout| rollout.is_touched);
    touched.map(|rollout| rollout.live.deployment().to_string()).collect()
}

#[tokio::test]
async fn nothing_is_requested_once_the_evidence_has_ended_during_a_request() {
    let (mut planner, publisher) = planner(AGE, ANSWERS_AFTER, Vec::new());
    assert!(!planner.judge(&CancellationToken::new()).await);
    assert_eq!(
        *publisher.requests.lock().unwrap(),
        ["decide one"],
        "neither its release nor another rollout"
    );
    assert_eq!(touched(&mut planner), ["one", "two"], "both are judged again");
}

#[tokio::test]
async fn a_device_that_the_list_refuses_gets_no_request() {
    let (mut planner, publisher) = planner(Duration::ZERO, Duration::ZERO, Vec::new());
    let mut answer = page("c1", "d1", None);
    let waves = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [{ "name": "all", "percent": "100%" }] });
    answer.rollouts.insert("rollout.yaml".to_owned(), serde_json::from_value(waves).unwrap());
    answer.targets[0].refused = Some(ReleaseRefusal::HeldBack);
    answer.targets.extend(page("c1", "d2", None).targets);
    planner.list("one", vec![answer.clone()]);
    // A release was refused to it before the list said so.
    let refusal = Refusal { reason: ReleaseRefusal::HeldBack, until: Instant::now() };
    let one = planner.rollouts.all().next().unwrap();
    one.live.set_refused_by_answer(0, true);
    one.refusals.insert("s1/d1".parse().unwrap(), refusal);
    planner.judge(&CancellationToken::new()).await;
    let requests = publisher.requests.lock().unwrap().clone();
    let releases: Vec<_> = requests.iter().filter(|request| request.starts_with("release one")).collect();
    assert_eq!(releases, ["release one to s1/d2"], "{requests:?}");
    answer.targets.iter_mut().for_each(|target| target.refused = None);
    planner.list("one", vec![answer]);
    planner.judge(&CancellationToken::new()).await;
    let requests = publisher.requests.lock().unwrap().clone();
    // By the second list, neither device has the content.
    assert_eq!(requests.last().unwrap(), "release one to s1/d1, s1/d2", "{requests:?}");
}

#[tokio::test]
async fn the_events_that_wait_are_applied_between_two_rollouts() {
    let (mut planner, publisher) = planner(Duration::ZERO, Duration::ZERO, vec![LedgerEvent::Restarted]);
    planner.judge(&CancellationToken::new()).await;
    assert_eq!(*publisher.requests.lock().unwrap(), [""; 0], "LEDGER is another one");
}

#[tokio::test]
async fn a_requested_list_is_requested_again_when_ledger_was_replaced() {
    let (mut planner, _) = planner(Duration::ZERO, Duration::ZERO, Vec::new());
    planner.to_list = VecDeque::from(["two".parse().unwrap(), "one".parse().unwrap()]);
    planner.list_next();
    planner.documents.push(document());
    planner.follow(LedgerEvent::Restarted);
    assert!(planner.listing.is_none());
    assert_eq!(planner.to_list, ["two".parse().unwrap(), "one".parse().unwrap()]);
    assert!(planner.documents.is_empty(), "the documents are of another LEDGER");
}

#[tokio::test]
async fn a_rollout_that_ends_the_evidence_again_and_again_holds_up_no_other() {
    let (mut planner, publisher) = planner(AGE, ANSWERS_AFTER, Vec::new());
    planner.judge(&CancellationToken::new()).await;
    planner.follow(end(AGE));
    planner.judge(&CancellationToken::new()).await;
    assert_eq!(*publisher.requests.lock().unwrap(), ["decide one", "decide two"]);
}

#[tokio::test]
async fn a_list_is_inserted_after_its_last_page_and_whole_or_not_at_all() {
    let (mut planner, _) = planner(AGE, ANSWERS_AFTER, Vec::new());
    planner.list("one", vec![page("c2", "d1", Some("s1/d1")), page("c2", "d2", Some("s1/d2"))]);
    assert_eq!(planner.targets(), [1, 1], "a page is missing");
    planner.add_page(Ok(page("c3", "d3", None)));
    assert_eq!(planner.targets(), [1, 1], "the last page is of another commit");
    assert!(planner.listing.is_none() && !planner.is_complete);
    planner.list("one", vec![page("c3", "d1", Some("s1/d1")), page("c3", "d2", None)]);
    assert_eq!(planner.targets(), [2, 1]);
}

#[tokio::test]
async fn a_document_between_two_pages_is_newer_than_both() {
    let (mut planner, publisher) = planner(AGE, Duration::ZERO, Vec::new());
    planner.to_list = VecDeque::from(["one".parse().unwrap()]);
    planner.list_next();
    let first = next_page(&mut planner.listing).await;
    planner.add_page(first);
    let entry = DocumentEntry {
        id: "one".parse().unwrap(),
        digest: Digest::of_bytes(b"v2"),
        generation: Generation::new(7).unwrap(),
        is_requested: false,
    };
    planner.documents.push(Document { entries: vec![entry], ..document() });
    let second = next_page(&mut planner.listing).await;
    planner.add_page(second);
    assert_eq!(
        *publisher.requests.lock().unwrap(),
        ["targets one after None", "targets one after Some(\"s1/d1\")"]
    );
    let one = planner.rollouts.all().next().unwrap();
    let contents: Vec<_> = one.live.listed_targets().map(|target| target.content.is_wanted).collect();
    assert_eq!(contents, [true, false], "the page has the old content of the first one");
}

#[tokio::test]
async fn a_list_without_an_end_is_given_up() {
    let (mut planner, _) = planner(AGE, ANSWERS_AFTER, Vec::new());
    let endless = (0..PAGES_MAX).map(|_| page("c2", "d1", Some("s1/d1"))).collect();
    planner.list("one", endless);
    assert!(planner.listing.is_none());
    assert_eq!(planner.targets(), [1, 1]);
}
