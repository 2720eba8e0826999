//! A plan during a run. Its nodes are devices that pretend and that no rollout governs. While everything breaks, a person deploys,
//! approves, rejects, moves and stops at random. In the end the last deployment must complete, and what the planner says of its
//! instances must be what devices run: no instance twice, none lost, none that nobody asked for, and no node with more than it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::plans::{
    InstancesAnswer, InventoryAnswer, NodeStatus, OperationsAnswer, PlanAnswer, PlannerErrorReply, Resources,
    RevisionState,
};
use muster_contract::subjects::PLANNER_PREFIX;
use muster_service::error::chain;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::executor::FaultCounts;
use super::violation::Violation;

/// The plan, its cluster and its payload.
const NAME: &str = "line";
/// The deployment that must complete in the end.
const LAST: &str = "last";
/// Nodes at most.
const NODES_MAX: usize = 8;
/// Cores and memory of a node, and of an instance: two would fit, but a node has each payload once.
const NODE_SIZE: u64 = 2;
const INSTANCE_SIZE: u64 = 1;
/// Time for one answer, and the times that a request without one is sent: the planner is down for seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const SENT_MAX: usize = 10;
/// Pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(500);
/// Time between two steps of the person, in milliseconds.
const STEP_EVERY_MS: std::ops::Range<u64> = 100..1_500;
/// A rejection is rare, and so is a deployment that cannot start.
const REJECTED_ONE_IN: usize = 12;
const BROKEN_ONE_IN: usize = 5;

/// The instances of each node.
pub(super) type Placed = BTreeMap<DeviceKey, BTreeSet<String>>;

/// Why a request has no answer.
#[derive(Debug)]
enum Unanswered {
    /// The planner refuses it.
    Refused(String),
    /// Nobody answers, or with something else.
    Silent(String),
}

/// The planner, asked as a person asks it.
#[derive(Clone)]
pub(super) struct PlanClient {
    bus: Bus,
    nodes: Vec<DeviceKey>,
}

/// The person who disturbs a plan.
pub(super) struct Person {
    counts: FaultCounts,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Person {
    /// Ends the requests; returns their numbers by kind.
    pub(super) async fn end(self) -> BTreeMap<String, u64> {
        self.stop.cancel();
        if let Some(task) = self.task
            && let Err(error) = task.await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        self.counts.all()
    }
}

/// Prepares a plan, and starts a person who disturbs it.
pub(super) async fn disturb(plan: Option<&PlanClient>, seed: u64, stop: &CancellationToken) -> Person {
    let (counts, own_stop) = (FaultCounts::default(), stop.child_token());
    let mut task = None;
    if let Some(plan) = plan {
        plan.prepare(stop).await;
        task = Some(tokio::spawn(plan.clone().disturb(seed, counts.clone(), own_stop.clone())));
    }
    Person { counts, stop: own_stop, task }
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

    /// Makes the nodes and the plan. Ends early with `stop`.
    pub(super) async fn prepare(&self, stop: &CancellationToken) {
        let cluster = json!({ "item": { "cluster": { "name": NAME } } });
        self.insist("inventory-apply", &cluster, stop).await;
        for (at, node) in self.nodes.iter().enumerate() {
            let size = json!({ "cores": NODE_SIZE, "memory": NODE_SIZE });
            let spec = json!({ "site": node.site, "device": node.device, "updateDomain": format!("d{at}"), "totalResources": size });
            self.insist("inventory-apply", &json!({ "item": { "node": spec } }), stop).await;
            for state in ["allocating", "allocated"] {
                let request = json!({ "item": { "node": node }, "nodeState": state, "cluster": NAME });
                self.insist("inventory-state", &request, stop).await;
            }
        }
        let size = json!({ "cores": INSTANCE_SIZE, "memory": INSTANCE_SIZE });
        let plan = json!({ "name": NAME, "namespace": "chaos", "serviceName": NAME, "profile": "simulated",
            "applications": [{ "payloadName": NAME, "resources": size }] });
        self.insist("plan-apply", &plan, stop).await;
    }

    /// Requests at random until `stop`, and counts what the planner accepts.
    async fn disturb(self, seed: u64, counts: FaultCounts, stop: CancellationToken) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x9A1E_77E5);
        for step in 1_u64.. {
            let pause = Duration::from_millis(rng.u64(STEP_EVERY_MS));
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            let (kind, answer) = match rng.usize(0..10) {
                0..5 => ("approve", self.decide(&mut rng).await),
                5..8 => ("deploy", self.deploy(&mut rng, step).await),
                8 => ("relocate", self.relocate(&mut rng).await),
                _ => ("stop", self.stop_open().await),
            };
            match answer {
                Ok(number) => (0..number).for_each(|_| counts.add(kind)),
                Err(Unanswered::Refused(words)) => {
                    tracing::debug!(kind, words, "the planner refused a request");
                    counts.add("refused");
                }
                Err(Unanswered::Silent(_)) => counts.add("unanswered"),
            }
        }
    }

    /// Deploys the last time, whatever is open. Ends early with `stop`.
    pub(super) async fn deploy_last(&self, stop: &CancellationToken) {
        let request = json!({ "plan": NAME, "id": LAST, "instances": self.instances(), "coordinates": coordinates(0, false) });
        while !stop.is_cancelled() {
            match self.change("plan-deploy", request.clone()).await {
                Ok(()) => return,
                Err(unanswered) => tracing::debug!(why = unanswered.into_words(), "cannot deploy the last time yet"),
            }
            // A deployment that is open excludes another one.
            _ = self.stop_open().await;
        }
    }

    /// Approves what waits, and returns what each node runs once the last deployment has completed.
    ///
    /// # Errors
    /// What is not as it must be.
    pub(super) async fn settle(&self) -> Result<Placed, Vec<Violation>> {
        self.settled().await.map_err(|unanswered| vec![format!("plan {NAME}: {}", unanswered.into_words())])?
    }

    async fn settled(&self) -> Result<Result<Placed, Vec<Violation>>, Unanswered> {
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

    /// Approves or rejects some of the operations that wait; returns their number.
    async fn decide(&self, rng: &mut fastrand::Rng) -> Result<usize, Unanswered> {
        let mut decided = 0;
        for request in self.waiting().await? {
            let verb = match rng.usize(0..REJECTED_ONE_IN) {
                0 => "operation-reject",
                1..4 => continue,
                _ => "operation-approve",
            };
            self.change(verb, request).await?;
            decided += 1;
        }
        Ok(decided)
    }

    async fn approve_all(&self) -> Result<(), Unanswered> {
        for request in self.waiting().await? {
            self.change("operation-approve", request).await?;
        }
        Ok(())
    }

    /// The requests about the operations that wait for an approval.
    async fn waiting(&self) -> Result<Vec<Value>, Unanswered> {
        let query = json!({ "state": ["PENDING_APPROVAL"] });
        let OperationsAnswer { operations, .. } = self.ask("operation-list", &query).await?;
        let request = |of: &muster_contract::plans::OperationStatus| {
            json!({ "plan": of.plan, "instance": of.instance, "operation": of.operation.id })
        };
        Ok(operations.iter().map(request).collect())
    }

    async fn deploy(&self, rng: &mut fastrand::Rng, step: u64) -> Result<usize, Unanswered> {
        let is_broken = rng.usize(0..BROKEN_ONE_IN) == 0;
        let request = json!({ "plan": NAME, "id": format!("r{step}"), "instances": rng.usize(0..=self.nodes.len()),
            "coordinates": coordinates(step, is_broken), "skipUnchanged": rng.bool() });
        self.change("plan-deploy", request).await.map(|()| 1)
    }

    async fn relocate(&self, rng: &mut fastrand::Rng) -> Result<usize, Unanswered> {
        let InstancesAnswer { instances, .. } = self.ask("instance-list", &json!({ "plan": [NAME] })).await?;
        let Some(of) = rng.choice(&instances) else { return Ok(0) };
        let request = json!({ "plan": NAME, "instance": of.instance.name, "type": "RELOCATE" });
        self.change("operation-request", request).await.map(|()| 1)
    }

    /// Stops the deployments that have not ended; returns their number.
    async fn stop_open(&self) -> Result<usize, Unanswered> {
        let PlanAnswer { plan, .. } = self.ask("plan-get", &json!({ "plan": NAME })).await?;
        let open: Vec<_> = plan.revisions.iter().filter(|revision| !revision.state.is_final()).collect();
        for revision in &open {
            let request = json!({ "plan": NAME, "id": revision.id, "verb": "stop" });
            self.change("plan-revision", request).await?;
        }
        Ok(open.len())
    }

    /// Repeats a request until the planner has accepted it, or `stop`.
    async fn insist(&self, verb: &str, request: &Value, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            match self.change(verb, request.clone()).await {
                Ok(()) => return,
                Err(unanswered) => tracing::debug!(verb, why = unanswered.into_words(), "the planner is asked again"),
            }
            // A refusal is not repeated at once.
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Requests a change, under an id of its own: however often it is sent, it happens once.
    async fn change(&self, verb: &str, mut request: Value) -> Result<(), Unanswered> {
        request["requestId"] = json!(format!("{:016x}", fastrand::u64(..)));
        self.ask::<Value>(verb, &request).await.map(drop)
    }

    /// Asks until there is an answer, so many times at most.
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

/// The coordinates of a release, which a device may be unable to start.
fn coordinates(release: u64, is_broken: bool) -> Value {
    let fails = if is_broken { 1_000_000 } else { 0 };
    json!({ NAME: { "startDelay": "200ms", "stopDelay": "100ms", "failStarts": fails, "release": release.to_string() } })
}

/// What is wrong with the resources of a node.
fn overcommitted(status: &NodeStatus, placed: &Placed) -> Option<Violation> {
    let Resources { cores, memory } = status.remaining_resources;
    let holds = placed.get(&status.node.key).map_or(0, BTreeSet::len) as u64;
    let left = NODE_SIZE.saturating_sub(holds * INSTANCE_SIZE);
    let is_right = holds <= 1 && (cores, memory) == (left.try_into().ok()?, left.try_into().ok()?);
    (!is_right).then(|| {
        format!("node {} has {holds} instances, and {cores} cores and {memory} GiB left", status.node.key)
    })
}
