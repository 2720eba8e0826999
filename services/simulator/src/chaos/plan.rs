//! Exercises and checks a plan during a chaos run. Its nodes are simulated devices that no rollout governs. While the fault schedule
//! runs, a person deploys, approves, rejects, relocates and stops at random. At the end the last deployment must complete, and devices
//! must run exactly the instances that the planner lists, each on one node, within the node's resources. It injects no fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::desired::DesiredDeployment;
use muster_contract::plans::{
    InstancesAnswer, InventoryAnswer, NodeStatus, OperationStatus, OperationsAnswer, PlanAnswer,
    PlannerErrorReply, Resources, RevisionState,
};
use muster_contract::subjects::PLANNER_PREFIX;
use muster_service::error::chain;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::executor::FaultCounts;
use super::script::Wanted;
use super::violation::Violation;
use crate::error::Error;

/// The plan, its cluster and its payload.
const NAME: &str = "line";
/// The deployment that must complete in the end, and its release. Those before it have lower ones.
const LAST: &str = "last";
const LAST_RELEASE: u64 = 1_000_000;
/// The property of a component in which a coordinate that no runtime reads is kept.
const RELEASE_PROPERTY: &str = "x-release";
/// Nodes at most.
const NODES_MAX: usize = 8;
/// Cores and memory of a node, and of an instance: two would fit, but a node has each payload once.
const NODE_SIZE: u64 = 2;
const INSTANCE_SIZE: u64 = 1;
/// Time for one answer, and the times that a request without one is sent: the planner is down for seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const SENT_MAX: usize = 10;
/// The times that a request is sent that must succeed.
const INSISTS_MAX: usize = 20;
/// Pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(500);
/// Time between two steps of the person, in milliseconds.
const STEP_EVERY_MS: std::ops::Range<u64> = 100..1_500;
/// One operation in so many is rejected.
const REJECTED_ONE_IN: usize = 12;
/// One deployment in so many cannot start: each of its first starts fails, more than a run makes.
const BROKEN_ONE_IN: usize = 5;
const FAILED_STARTS: u64 = 1_000_000;

/// The instances of each node.
type Placed = BTreeMap<DeviceKey, BTreeSet<String>>;

/// Why a request has no answer.
#[derive(Debug)]
enum Unanswered {
    /// The planner refuses it.
    Refused(String),
    /// There is no answer, or one that cannot be read.
    Silent(String),
}

/// The planner, asked as a person asks it.
#[derive(Clone)]
pub(super) struct PlanClient {
    bus: Bus,
    nodes: Vec<DeviceKey>,
}

/// The person who disturbs a plan. Dropped, it makes no further request.
pub(super) struct Person {
    counts: FaultCounts,
    requests: JoinSet<()>,
}

impl Person {
    /// Ends the requests; returns their numbers by kind.
    pub(super) async fn end(mut self) -> BTreeMap<String, u64> {
        self.requests.shutdown().await;
        self.counts.all()
    }
}

/// Prepares a plan, and starts a person who disturbs it.
///
/// # Errors
/// The planner does not accept the plan.
pub(super) async fn disturb(plan: Option<&PlanClient>, seed: u64) -> Result<Person, Error> {
    let (counts, mut requests) = (FaultCounts::default(), JoinSet::new());
    if let Some(plan) = plan {
        plan.prepare().await.map_err(|words| Error::Plan { words })?;
        requests.spawn(plan.clone().disturb(seed, counts.clone()));
    }
    Ok(Person { counts, requests })
}

impl Unanswered {
    fn into_words(self) -> String {
        match self {
            Self::Refused(words) | Self::Silent(words) => words,
        }
    }
}

impl PlanClient {
    /// A client for a plan on some of these devices; `None` if they are too few for a plan.
    pub(super) fn new(bus: Bus, devices: impl Iterator<Item = DeviceKey>) -> Option<Self> {
        let nodes: Vec<_> = devices.take(NODES_MAX).collect();
        (nodes.len() > 1).then_some(Self { bus, nodes })
    }

    /// Makes the nodes and the plan.
    async fn prepare(&self) -> Result<(), String> {
        let cluster = json!({ "item": { "cluster": { "name": NAME } } });
        self.insist("inventory-apply", cluster).await?;
        for (at, node) in self.nodes.iter().enumerate() {
            let size = json!({ "cores": NODE_SIZE, "memory": NODE_SIZE });
            let spec = json!({ "site": node.site, "device": node.device, "updateDomain": format!("d{at}"), "totalResources": size });
            self.insist("inventory-apply", json!({ "item": { "node": spec } })).await?;
            for state in ["allocating", "allocated"] {
                let request = json!({ "item": { "node": node }, "nodeState": state, "cluster": NAME });
                self.insist("inventory-state", request).await?;
            }
        }
        let size = json!({ "cores": INSTANCE_SIZE, "memory": INSTANCE_SIZE });
        let plan = json!({ "name": NAME, "namespace": "chaos", "serviceName": NAME, "profile": "simulated",
            "applications": [{ "payloadName": NAME, "resources": size }] });
        self.insist("plan-apply", plan).await
    }

    /// Requests at random, for ever.
    async fn disturb(self, seed: u64, counts: FaultCounts) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x9A1E_77E5);
        for step in 1_u64.. {
            tokio::time::sleep(Duration::from_millis(rng.u64(STEP_EVERY_MS))).await;
            let requested = match rng.usize(0..10) {
                0..4 => self.decide(&mut rng, &counts).await,
                4..6 => self.deploy(&mut rng, step, &counts).await,
                6..9 => self.relocate(&mut rng, &counts).await,
                _ => self.stop_open(&counts).await,
            };
            if let Err(unanswered) = requested {
                tracing::debug!(why = unanswered.into_words(), "the planner did not answer a query");
            }
        }
    }

    /// Deploys the last time, whatever is open.
    ///
    /// # Errors
    /// The planner does not accept it.
    pub(super) async fn deploy_last(&self) -> Result<(), Error> {
        // A deployment that is open excludes another one.
        let counts = FaultCounts::default();
        if let Err(unanswered) = self.stop_open(&counts).await {
            return Err(Error::Plan { words: unanswered.into_words() });
        }
        let request = json!({ "plan": NAME, "id": LAST, "instances": self.instances(),
            "coordinates": coordinates(LAST_RELEASE, false) });
        self.insist("plan-deploy", request).await.map_err(|words| Error::Plan { words })
    }

    /// Approves what waits, and returns the release of each instance on each node once the last deployment has completed.
    ///
    /// # Errors
    /// The differences from what must be.
    pub(super) async fn approve_and_check(&self) -> Result<Wanted, Vec<Violation>> {
        let placed = self.placed().await;
        let placed =
            placed.map_err(|unanswered| vec![format!("plan {NAME}: {}", unanswered.into_words())])??;
        let released = |names: BTreeSet<String>| names.into_iter().map(|name| (name, LAST_RELEASE)).collect();
        Ok(placed.into_iter().map(|(node, names)| (node, released(names))).collect())
    }

    async fn placed(&self) -> Result<Result<Placed, Vec<Violation>>, Unanswered> {
        self.approve_all().await?;
        let PlanAnswer { plan, .. } = self.ask("plan-get", &json!({ "plan": NAME })).await?;
        let last = plan.revisions.last().filter(|last| last.id.as_str() == LAST);
        let state = last.map(|last| (last.state, last.message.as_str()));
        if state.is_none_or(|(state, _)| state != RevisionState::Completed) {
            return Ok(Err(vec![format!("plan {NAME}: its last deployment is {state:?}")]));
        }
        let query = json!({ "plan": [NAME] });
        let InstancesAnswer { instances, .. } = self.ask("instance-list", &query).await?;
        let InventoryAnswer { nodes, .. } = self.ask("inventory-list", &json!({ "kind": "node" })).await?;
        let (mut placed, mut found) = (Placed::new(), Vec::new());
        for status in &instances {
            let [placement] = &status.instance.placements[..] else {
                let number = status.instance.placements.len();
                found.push(format!("instance {} is on {number} nodes", status.instance.name));
                continue;
            };
            placed.entry(placement.node.clone()).or_default().insert(status.instance.name.to_string());
        }
        if instances.len() != self.instances() {
            found.push(format!("plan {NAME} has {} instances of {}", instances.len(), self.instances()));
        }
        found.extend(nodes.iter().filter_map(|node| overcommitted(node, &placed)));
        Ok(if found.is_empty() { Ok(placed) } else { Err(found) })
    }

    /// Instances of the last deployment: one node stays free.
    const fn instances(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Approves or rejects some of the operations that wait.
    async fn decide(&self, rng: &mut fastrand::Rng, counts: &FaultCounts) -> Result<(), Unanswered> {
        for request in self.waiting().await? {
            let (kind, verb) = match rng.usize(0..REJECTED_ONE_IN) {
                0 => ("reject", "operation-reject"),
                1..4 => continue,
                _ => ("approve", "operation-approve"),
            };
            self.request_change(counts, kind, verb, request).await;
        }
        Ok(())
    }

    async fn approve_all(&self) -> Result<(), Unanswered> {
        for request in self.waiting().await? {
            self.ask::<Value>("operation-approve", &identified(request)).await?;
        }
        Ok(())
    }

    /// The requests about the operations that wait for an approval.
    async fn waiting(&self) -> Result<Vec<Value>, Unanswered> {
        let query = json!({ "state": ["PENDING_APPROVAL"] });
        let OperationsAnswer { operations, .. } = self.ask("operation-list", &query).await?;
        let request = |status: &OperationStatus| json!({ "plan": status.plan, "instance": status.instance, "operation": status.operation.id });
        Ok(operations.iter().map(request).collect())
    }

    async fn deploy(
        &self,
        rng: &mut fastrand::Rng,
        step: u64,
        counts: &FaultCounts,
    ) -> Result<(), Unanswered> {
        let is_broken = rng.usize(0..BROKEN_ONE_IN) == 0;
        let request = json!({ "plan": NAME, "id": format!("r{step}"), "instances": rng.usize(0..=self.nodes.len()),
            "coordinates": coordinates(step, is_broken), "skipUnchanged": rng.bool() });
        self.request_change(counts, "deploy", "plan-deploy", request).await;
        Ok(())
    }

    async fn relocate(&self, rng: &mut fastrand::Rng, counts: &FaultCounts) -> Result<(), Unanswered> {
        let InstancesAnswer { instances, .. } = self.ask("instance-list", &json!({ "plan": [NAME] })).await?;
        let Some(picked) = rng.choice(&instances) else { return Ok(()) };
        let request = json!({ "plan": NAME, "instance": picked.instance.name, "type": "RELOCATE" });
        self.request_change(counts, "relocate", "operation-request", request).await;
        Ok(())
    }

    /// Stops the deployments that have not ended.
    async fn stop_open(&self, counts: &FaultCounts) -> Result<(), Unanswered> {
        let PlanAnswer { plan, .. } = self.ask("plan-get", &json!({ "plan": NAME })).await?;
        let open: Vec<_> = plan.revisions.iter().filter(|revision| !revision.state.is_final()).collect();
        for revision in &open {
            let request = json!({ "plan": NAME, "id": revision.id, "verb": "stop" });
            self.request_change(counts, "stop", "plan-revision", request).await;
        }
        Ok(())
    }

    /// Repeats a request until the planner has accepted it.
    async fn insist(&self, verb: &str, request: Value) -> Result<(), String> {
        let (request, mut words) = (identified(request), String::new());
        for _ in 0..INSISTS_MAX {
            match self.ask::<Value>(verb, &request).await {
                Ok(_) => return Ok(()),
                Err(unanswered) => words = unanswered.into_words(),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(words)
    }

    /// Requests a change, and counts it under its kind if the planner accepts it.
    async fn request_change(&self, counts: &FaultCounts, kind: &str, verb: &str, request: Value) {
        match self.ask::<Value>(verb, &identified(request)).await {
            Ok(_) => counts.add(kind),
            Err(Unanswered::Refused(words)) => {
                tracing::debug!(kind, words, "the planner refused a request");
                counts.add("refused");
            }
            Err(Unanswered::Silent(_)) => counts.add("unanswered"),
        }
    }

    /// Sends a request until it is answered, [`SENT_MAX`] times at most.
    async fn ask<A: DeserializeOwned>(&self, verb: &str, request: &Value) -> Result<A, Unanswered> {
        for _ in 1..SENT_MAX {
            match self.ask_once(verb, request).await {
                Err(Unanswered::Silent(_)) => tokio::time::sleep(PAUSE).await,
                answered => return answered,
            }
        }
        self.ask_once(verb, request).await
    }

    async fn ask_once<A: DeserializeOwned>(&self, verb: &str, request: &Value) -> Result<A, Unanswered> {
        let subject = format!("{PLANNER_PREFIX}.{verb}");
        let payload = request.to_string().into_bytes();
        let reply = self.bus.request(&subject, payload.into(), ANSWER_WITHIN).await;
        let reply = reply.map_err(|error| Unanswered::Silent(format!("{verb}: {}", chain(&error))))?;
        if let Ok(PlannerErrorReply { error }) = serde_json::from_slice(&reply) {
            return Err(Unanswered::Refused(format!("{verb}: {}", error.message)));
        }
        serde_json::from_slice(&reply).map_err(|error| Unanswered::Silent(format!("{verb}: {error}")))
    }
}

/// A request under an id of its own: however often it is sent, it happens once.
fn identified(mut request: Value) -> Value {
    request["requestId"] = json!(format!("{:016x}", fastrand::u64(..)));
    request
}

/// The release of an instance in a desired state; none of a deployment that is no instance of the plan.
pub(super) fn release(entry: &DesiredDeployment) -> Option<u64> {
    let properties = entry.profile.components.first().map(|component| &component.properties)?;
    properties.get(RELEASE_PROPERTY)?.as_str()?.parse().ok()
}

/// The coordinates of a release, which a device may be unable to start.
fn coordinates(release: u64, is_broken: bool) -> Value {
    let fails = if is_broken { FAILED_STARTS } else { 0 };
    json!({ NAME: { "startDelay": "200ms", "stopDelay": "100ms", "failStarts": fails, "release": release.to_string() } })
}

/// A violation by the resources of a node.
fn overcommitted(status: &NodeStatus, placed: &Placed) -> Option<Violation> {
    let Resources { cores, memory } = status.remaining_resources;
    let holds = placed.get(&status.node.key).map_or(0, BTreeSet::len) as u64;
    let left = NODE_SIZE.saturating_sub(holds * INSTANCE_SIZE);
    let is_right = holds <= 1 && (cores, memory) == (left, left);
    (!is_right).then(|| {
        format!("node {} has {holds} instances, and {cores} cores and {memory} GiB left", status.node.key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cores: u64) -> NodeStatus {
        serde_json::from_value(json!({
            "node": {
                "apiVersion": "muster/v1", "kind": "Node", "site": "a", "device": "one", "version": 0, "state": "allocated",
                "updateDomain": "d0", "totalResources": { "cores": NODE_SIZE, "memory": NODE_SIZE },
                "createdAt": "2026-11-21T00:00:00Z", "change": { "at": "2026-11-21T00:00:00Z", "message": "made" },
            },
            "remainingResources": { "cores": cores, "memory": cores }, "payloads": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_node_that_has_given_more_or_less_than_it_says_is_found() {
        let with = |names: &[&str]| {
            let names: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Placed::from([("a/one".parse().unwrap(), names)])
        };
        assert_eq!(overcommitted(&node(2), &Placed::new()), None);
        assert_eq!(overcommitted(&node(1), &with(&["x"])), None);
        let leaked = overcommitted(&node(1), &Placed::new()).unwrap();
        assert!(leaked.contains("a/one has 0 instances, and 1 cores"), "{leaked}");
        assert!(overcommitted(&node(2), &with(&["x"])).is_some(), "its resources were given twice");
        assert!(overcommitted(&node(0), &with(&["x", "y"])).is_some(), "each payload is once on a node");
    }
}
