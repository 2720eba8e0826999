//! The publisher, LEDGER and the devices of the simulated hub. A device is apart from its reports: it runs what it runs, whatever
//! LEDGER has of it.

use muster_contract::view::Freshness;

use super::*;
use crate::fold::DeviceHearing;
use crate::rollout::Line;

/// An order for an instance in the document of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) content: Digest,
    pub(super) plan: PlanName,
    /// The generation at which the node got this content.
    pub(super) since: u64,
    pub(super) is_stop: bool,
}

/// The desired state of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeDocument {
    pub(super) generation: u64,
    pub(super) orders: BTreeMap<InstanceName, Order>,
}

/// A node by LEDGER.
#[derive(Debug, Clone, Default)]
pub(super) struct LedgerNode {
    pub(super) document: NodeDocument,
    /// The last report of each instance, with its generation.
    reports: BTreeMap<InstanceName, (u64, Standing)>,
    /// Withdrawn orders.
    withdrawn: BTreeMap<InstanceName, SimWithdrawal>,
    /// Whether LEDGER knows that the device is silent.
    is_silent: bool,
    /// Whether LEDGER knows that a report is missing.
    is_missing: bool,
    pub(super) is_retired: bool,
    /// The last generation at which a person has retired the device: the person vouches for all that it ran before.
    pub(super) vouched: u64,
}

/// A document that withdrew an order, and the second since which the device is heard after it.
#[derive(Debug, Clone, Copy)]
struct SimWithdrawal {
    generation: u64,
    at: i64,
    heard_since: i64,
}

/// LEDGER at one sequence. A planner that is behind has an old one.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    pub(super) nodes: BTreeMap<DeviceKey, LedgerNode>,
    /// The second at which it was read, and the present one.
    pub(super) read_at: i64,
    pub(super) now: i64,
    broken: Option<BrokenRule>,
}

impl SimWithdrawal {
    const fn new(generation: u64, at: i64) -> Self {
        Self { generation, at, heard_since: at }
    }
}

impl LedgerNode {
    /// The device is heard.
    fn hear(&mut self, at: i64) {
        if std::mem::take(&mut self.is_silent) {
            self.withdrawn.values_mut().for_each(|by| by.heard_since = by.heard_since.max(at));
        }
    }
}

impl PlansEvidence for Ledger {
    fn placement(&self, node: &DeviceKey, instance: &InstanceName) -> PlacementEvidence<'_> {
        let of = &self.nodes[node];
        let order = of.document.orders.get(instance);
        let report = of.reports.get(instance);
        let standing = match (report, order) {
            _ if of.is_retired => None,
            (Some((generation, _)), Some(order)) if *generation < order.since => Some(Standing::Outdated),
            (None, Some(_)) => Some(Standing::Waiting),
            (None | Some((_, Standing::Removed)), None) => None,
            (Some(_), None) if self.broken == Some(BrokenRule::AssumesRemovals) => None,
            (Some((_, standing)), _) => Some(*standing),
        };
        let freshness = if of.is_silent { Freshness::Stale } else { Freshness::Fresh };
        let line = standing.map(|standing| Line {
            standing,
            freshness,
            known: !of.is_missing,
            leaving: order.is_none(),
            target_generation: None,
            changed_at: None,
            last_heard_at: None,
            retries: &[],
            overdue: None,
        });
        let desired = order.map(|order| order.content);
        let heard = DeviceHearing { freshness, last_heard_at: None, is_complete: !of.is_missing };
        let removed = report.filter(|(_, standing)| *standing == Standing::Removed);
        let withdrawal = of.withdrawn.get(instance).map(|by| WithdrawalEvidence {
            stored_at: second(by.at),
            heard_since: second(by.heard_since),
            is_removed: removed.is_some_and(|removed| removed.0 >= by.generation)
                || report.is_none() && self.broken == Some(BrokenRule::AssumesUnreported)
                || self.broken == Some(BrokenRule::AssumesRemovals),
        });
        let evidence = PlacementEvidence {
            is_retired: of.is_retired,
            withdrawal,
            ..PlacementEvidence::of(desired, line, Some(heard))
        };
        if self.is_outdated() { evidence.outdated() } else { evidence }
    }
}

impl Ledger {
    pub(super) fn new(broken: Option<BrokenRule>) -> Self {
        let nodes = (0..NODES).map(|at| (node_key(at), LedgerNode::default())).collect();
        Self { nodes, broken, ..Self::default() }
    }

    pub(super) const fn is_outdated(&self) -> bool {
        self.now - self.read_at > BEHIND_MAX
    }

    pub(super) fn ordered(&self) -> Vec<(DeviceKey, InstanceName, PlanName)> {
        let of_node = |(node, of): (&DeviceKey, &LedgerNode)| {
            let orders = of.document.orders.iter();
            let named = orders.map(|(name, order)| (node.clone(), name.clone(), order.plan.clone()));
            named.collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of_node).collect()
    }

    /// Publishes the document of a node that an order changes.
    fn publish(&mut self, effect: Effect, plan: PlanName) -> (DeviceKey, NodeDocument) {
        let (node, instance) = (effect.target().0.clone(), effect.target().1.clone());
        let of = self.nodes.get_mut(&node).unwrap();
        of.document.generation += 1;
        let generation = of.document.generation;
        match effect {
            Effect::Apply { content, document, .. } => {
                of.is_retired = false;
                of.withdrawn.remove(&instance);
                let before = of.document.orders.get(&instance).filter(|before| before.content == content);
                let since = before.map_or(generation, |before| before.since);
                let is_stop = document.contains("io.muster.stopped");
                of.document.orders.insert(instance, Order { content, plan, since, is_stop });
            }
            Effect::Remove { .. } => {
                if of.document.orders.remove(&instance).is_some() {
                    of.withdrawn.insert(instance, SimWithdrawal::new(generation, self.read_at));
                }
            }
        }
        (node, of.document.clone())
    }

    /// A person retires a device, or brings it back.
    fn retire(&mut self, node: &DeviceKey, is_retired: bool) -> NodeDocument {
        let of = self.nodes.get_mut(node).unwrap();
        of.document.generation += 1;
        let withdrawn = std::mem::take(&mut of.document.orders).into_keys();
        let withdrawal = SimWithdrawal::new(of.document.generation, self.read_at);
        of.withdrawn.extend(withdrawn.map(|name| (name, withdrawal)));
        of.is_retired = is_retired;
        if is_retired {
            of.vouched = of.document.generation;
        }
        of.document.clone()
    }
}

/// An instance that a device has.
#[derive(Debug, Clone)]
pub(super) struct SimInstance {
    pub(super) order: Order,
    pub(super) standing: Standing,
    pub(super) is_running: bool,
}

/// A device.
#[derive(Debug, Default)]
pub(super) struct SimDevice {
    /// Documents on their way; one may come late, and twice.
    inbox: Vec<NodeDocument>,
    document: NodeDocument,
    pub(super) present: BTreeMap<InstanceName, SimInstance>,
    /// Reports on their way, each with the generation that it is about.
    outbox: VecDeque<(InstanceName, u64, Standing)>,
    /// The second at which its link broke.
    cut_at: Option<i64>,
    /// The second since which its link is whole and it has something to receive, to do or to report.
    late_since: Option<i64>,
}

impl SimDevice {
    /// Takes a document, unless it has a newer one.
    fn receive(&mut self, at: usize, is_repeated: bool) {
        let document = if is_repeated { self.inbox[at].clone() } else { self.inbox.remove(at) };
        if document.generation > self.document.generation {
            self.document = document;
        }
    }

    /// The instances that differ from the document.
    fn due(&self, is_retrying: bool) -> Vec<InstanceName> {
        let removed = self.present.keys().filter(|name| !self.document.orders.contains_key(*name));
        let is_done = |name: &InstanceName, order: &Order| {
            let present = self.present.get(name).filter(|present| present.order == *order);
            present.is_some_and(|present| !is_retrying || present.standing != Standing::Failed)
        };
        let changed = self.document.orders.iter().filter(|(name, order)| !is_done(name, order));
        removed.chain(changed.map(|(name, _)| name)).cloned().collect()
    }

    /// Removes, starts or stops one instance, and reports it.
    fn work(&mut self, name: InstanceName, is_failing: bool) {
        let Some(order) = self.document.orders.get(&name).cloned() else {
            self.present.remove(&name);
            self.outbox.push_back((name, self.document.generation, Standing::Removed));
            return;
        };
        let before = self.present.get(&name).is_some_and(|before| before.is_running);
        // One that fails may leave the earlier content running.
        let (standing, is_running) = match (is_failing, order.is_stop) {
            (true, _) => (Standing::Failed, before),
            (false, true) => (Standing::Pending, false),
            (false, false) => (Standing::Installed, true),
        };
        self.outbox.push_back((name.clone(), order.since, standing));
        self.present.insert(name, SimInstance { order, standing, is_running });
    }
}

impl World {
    /// Carries out an order of a planner at the publisher.
    pub(super) fn publish(&mut self, effect: Effect) {
        let plan = plan_of(&self.hub.state, effect.target().1);
        let (node, document) = self.ledger.publish(effect, plan);
        self.devices.get_mut(&node).unwrap().inbox.push(document);
    }

    pub(super) fn retire(&mut self, node: &DeviceKey, is_retired: bool) {
        if self.ledger.nodes[node].is_retired != is_retired {
            let document = self.ledger.retire(node, is_retired);
            self.devices.get_mut(node).unwrap().inbox.push(document);
        }
    }

    /// One step of one device.
    pub(super) fn step_device(&mut self) {
        let node = node_key(self.pick(NODES));
        match self.pick(16) {
            0..=4 => self.receive(&node),
            5..=9 => self.work(&node),
            10..=13 => self.deliver(&node, 1),
            14 if self.pick(3) == 0 => self.cut(&node),
            14 => {
                let of = self.ledger.nodes.get_mut(&node).unwrap();
                of.is_silent = self.devices[&node].cut_at.is_some();
            }
            _ if self.devices[&node].cut_at.is_some() => self.reconnect(&node),
            _ if self.pick(6) == 0 => {
                let is_retired = self.ledger.nodes[&node].is_retired;
                self.retire(&node, !is_retired);
            }
            _ => {}
        }
    }

    pub(super) fn receive(&mut self, node: &DeviceKey) {
        let count = self.devices[node].inbox.len();
        if count > 0 && self.devices[node].cut_at.is_none() {
            let (at, is_repeated) = (self.pick(count), self.pick(4) == 0);
            self.devices.get_mut(node).unwrap().receive(at, is_repeated);
        }
    }

    /// One change of the device.
    pub(super) fn work(&mut self, node: &DeviceKey) {
        let due = self.devices[node].due(!self.has_faults);
        if due.is_empty() {
            return;
        }
        let name = due[self.pick(due.len())].clone();
        let order = self.devices[node].document.orders.get(&name);
        let is_failing = self.has_faults && order.is_some_and(|order| fails(node, order.content));
        self.devices.get_mut(node).unwrap().work(name, is_failing);
    }

    /// Stores reports in LEDGER. LEDGER may know that others are missing.
    fn deliver(&mut self, node: &DeviceKey, max: usize) {
        if self.devices[node].cut_at.is_some() {
            return;
        }
        let is_missing = self.pick(4) == 0;
        let device = self.devices.get_mut(node).unwrap();
        let of = self.ledger.nodes.get_mut(node).unwrap();
        let count = max.min(device.outbox.len());
        for (instance, generation, standing) in device.outbox.drain(..count) {
            of.reports.insert(instance, (generation, standing));
        }
        of.is_missing = !device.outbox.is_empty() && (of.is_missing || is_missing);
        of.hear(self.hub.second);
    }

    fn cut(&mut self, node: &DeviceKey) {
        self.devices.get_mut(node).unwrap().cut_at.get_or_insert(self.hub.second);
    }

    fn reconnect(&mut self, node: &DeviceKey) {
        let device = self.devices.get_mut(node).unwrap();
        (device.cut_at, device.late_since) = (None, None);
        let of = self.ledger.nodes.get_mut(node).unwrap();
        of.is_missing = !device.outbox.is_empty();
        of.hear(self.hub.second);
    }

    /// LEDGER learns of silence within the lease, and a device whose link is whole is not late for long.
    pub(super) fn keep_time(&mut self) {
        (self.ledger.read_at, self.ledger.now) = (self.hub.second, self.hub.second);
        for node in (0..NODES).map(node_key) {
            let device = self.devices.get_mut(&node).unwrap();
            if let Some(cut_at) = device.cut_at {
                self.ledger.nodes.get_mut(&node).unwrap().is_silent |= cut_at + LEASE <= self.hub.second;
                continue;
            }
            let is_idle = device.inbox.is_empty() && device.outbox.is_empty() && device.due(false).is_empty();
            let since = device.late_since.filter(|_| !is_idle).or((!is_idle).then_some(self.hub.second));
            device.late_since = since;
            if since.is_some_and(|since| since + LATE_MAX <= self.hub.second) {
                self.catch_up(&node);
            }
        }
    }

    /// A device receives, does and reports everything.
    fn catch_up(&mut self, node: &DeviceKey) {
        while !self.devices[node].inbox.is_empty() {
            self.devices.get_mut(node).unwrap().receive(0, false);
        }
        while {
            let before = self.devices[node].outbox.len();
            self.work(node);
            self.check();
            self.devices[node].outbox.len() > before
        } {}
        self.deliver(node, usize::MAX);
    }

    /// Every device is heard, and does all that it is ordered.
    pub(super) fn run_devices(&mut self) {
        for node in (0..NODES).map(node_key) {
            self.reconnect(&node);
            self.catch_up(&node);
        }
    }
}

/// Whether a content fails on a device while there are faults: about one of five does.
fn fails(node: &DeviceKey, content: Digest) -> bool {
    let text = format!("{node} {content}");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) % 5 == 0
}
