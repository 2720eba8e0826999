//! Chooses a node for an instance. The choice depends on PLANS alone and is the same at each planner.
//!
//! A node is a candidate if no rule rejects it; each rejection is one sentence. Of the candidates the scheduler takes one without a
//! disruption, in the update domain with the fewest instances of the plan, then the one with the highest score, then the one with
//! the lowest hash of plan and node. The score is the free share of a node's scarcer resource, in thousandths.

mod place;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use muster_contract::desired::ProfileType;
use muster_contract::limits::PLANS_TEXT_BYTES_MAX;
use muster_contract::plans::{
    Candidate, CapabilityMatcher, Comparator, Coordinates, DisruptionState, ExplainAnswer, HookAnswers,
    InventoryState, Node, NodeState, Plan, PlanRevision, PlanSpec, RejectedNode, Resources,
};
use muster_contract::state::cut;
use muster_contract::{ComponentName, DeviceKey, Timestamp};

use self::place::{Place, Rank};
use super::content::fits;
use super::hook_memory::HookMemory;
use super::state::PlansState;
use super::usage::{Usage, normalised, storage};

/// Nodes that an explanation lists of each kind.
const LISTED_MAX: usize = 100;
/// Kinds of rejections that a refusal names.
const KINDS_NAMED_MAX: usize = 4;

/// Chooses nodes for several instances of one plan, one after another.
#[derive(Debug)]
pub(super) struct Scheduler {
    /// Instances of the plan, by update domain.
    domain_counts: BTreeMap<String, u64>,
    /// Candidates by update domain.
    candidates: BTreeMap<String, BTreeSet<Rank>>,
    /// The best candidate of each domain.
    best: BTreeSet<Place>,
    free: BTreeMap<DeviceKey, Resources>,
    /// The disruptions of candidates, in words.
    disruptions: BTreeMap<DeviceKey, String>,
    /// Rejected nodes by kind of reason.
    rejected: BTreeMap<&'static str, u64>,
    nodes: u64,
}

/// The plan that nodes are chosen for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The plan.
    pub(super) spec: &'a PlanSpec,
    /// The coordinates of its newest revision, if there is one.
    pub(super) coordinates: Option<&'a BTreeMap<ComponentName, Coordinates>>,
    /// The nodes that its hooks allow.
    pub(super) hooks: Hooks<'a>,
}

/// The nodes that the hooks of a plan allow.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hooks<'a> {
    /// All: the plan has no hooks, or no revision that they were asked about.
    All,
    /// Those of the answers for the newest revision; none before it has them.
    Answers(Option<&'a HookAnswers>),
}

impl<'a> Wanted<'a> {
    /// An instance of a plan.
    pub(super) fn of(plan: &'a Plan) -> Self {
        let newest = plan.revisions.last();
        let answers = |newest: &PlanRevision| {
            let of_newest = plan.hook_answers.as_deref().filter(|answers| answers.revision == newest.id);
            Hooks::Answers(of_newest)
        };
        let hooks = newest.filter(|_| !plan.spec.hooks.is_empty()).map_or(Hooks::All, answers);
        Self { spec: &plan.spec, coordinates: newest.map(|newest| &newest.coordinates), hooks }
    }

    /// The same, whatever its hooks have answered.
    pub(super) const fn without_hooks(self) -> Self {
        Self { hooks: Hooks::All, ..self }
    }
}

/// A rule that rejects a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejection {
    kind: &'static str,
    pub(super) sentence: String,
}

impl Rejection {
    /// Whether the node has no room, so that it may suit once others have left it.
    pub(super) fn is_of_capacity(&self) -> bool {
        [ROOM, PORT, VOLUME].contains(&self.kind)
    }
}

impl Scheduler {
    /// A scheduler for instances of a plan.
    pub(super) fn new(state: &PlansState, wanted: Wanted<'_>, now: Timestamp) -> Self {
        let spec = wanted.spec;
        let mut scheduler = Self {
            domain_counts: domain_counts(state, spec),
            candidates: BTreeMap::new(),
            best: BTreeSet::new(),
            free: BTreeMap::new(),
            disruptions: BTreeMap::new(),
            rejected: BTreeMap::new(),
            nodes: 0,
        };
        let rules = Rules::new(state, wanted, now);
        for node in state.nodes.values().filter(|node| !node.deleted) {
            scheduler.nodes += 1;
            match rules.first(node) {
                Some(rejection) => *scheduler.rejected.entry(rejection.kind).or_insert(0) += 1,
                None => scheduler.insert(state, spec, node),
            }
        }
        for (domain, ranks) in &scheduler.candidates {
            let count = scheduler.domain_counts.get(domain).copied().unwrap_or(0);
            scheduler.best.extend(ranks.first().map(|rank| Place::new(rank.clone(), count, domain)));
        }
        scheduler
    }

    fn insert(&mut self, state: &PlansState, spec: &PlanSpec, node: &Node) {
        let free = state.free(node).unwrap_or_default();
        let disruption = node.disruptions.iter().find(|one| one.state != DisruptionState::Completed);
        let rank = Rank {
            has_disruption: disruption.is_some(),
            score: Reverse(free_share(node, free)),
            hash: hash(spec, &node.key),
            node: node.key.clone(),
        };
        let said = disruption.map(|one| format!("it has disruption {} from {}", one.id, one.start));
        self.disruptions.extend(said.map(|said| (node.key.clone(), said)));
        self.candidates.entry(node.update_domain.clone()).or_default().insert(rank);
        self.free.insert(node.key.clone(), free);
    }

    /// Takes the best node, with the reason.
    ///
    /// # Errors
    /// The reason why there is none, in one sentence.
    pub(super) fn place(&mut self) -> Result<(DeviceKey, String), String> {
        let Some(place) = self.best.pop_first() else { return Err(self.refusal()) };
        let mut reason = self.reason(&place);
        if !self.rejected.is_empty() {
            reason += &format!("; other nodes were rejected: {}", self.rejections());
        }
        let reason = cut(reason, PLANS_TEXT_BYTES_MAX);
        let Place { domain_count, rank, domain, .. } = place;
        *self.domain_counts.entry(domain.clone()).or_insert(0) += 1;
        if let Some(ranks) = self.candidates.get_mut(&domain) {
            ranks.remove(&rank);
            self.best.extend(ranks.first().map(|next| Place::new(next.clone(), domain_count + 1, &domain)));
        }
        // A node holds each payload once, so it is no candidate for another instance of the plan.
        *self.rejected.entry(PAYLOAD).or_insert(0) += 1;
        Ok((rank.node, reason))
    }

    fn refusal(&self) -> String {
        if self.nodes == 0 {
            return "no node is in the inventory: add nodes".to_owned();
        }
        format!("no node of {} has room: {}", self.nodes, self.rejections())
    }

    /// The most frequent reasons of the rejected nodes, with their numbers.
    fn rejections(&self) -> String {
        let mut kinds: Vec<_> = self.rejected.iter().collect();
        kinds.sort_by_key(|(kind, count)| (Reverse(**count), **kind));
        let kinds: Vec<_> =
            kinds.iter().take(KINDS_NAMED_MAX).map(|(kind, count)| format!("{count} {kind}")).collect();
        kinds.join(", ")
    }

    /// The place of a candidate among the others, in words.
    fn reason(&self, Place { domain_count, rank, domain, .. }: &Place) -> String {
        let Rank { score: Reverse(score), node, .. } = rank;
        let Resources { cores, memory } = self.free.get(node).copied().unwrap_or_default();
        let disruption = self.disruptions.get(node).map(|said| format!("; {said}")).unwrap_or_default();
        format!(
            "score {score} in update domain {domain}, which has {domain_count} instances of the plan; {cores} cores and \
             {memory} memory were free{disruption}"
        )
    }
}

const STATE: &str = "not allocated";
const CLUSTER: &str = "of another or an inactive cluster";
const DISRUPTION: &str = "with a disruption that evicts";
const CAPABILITY: &str = "without a capability";
const RUNTIME: &str = "without a runtime for it";
const ROOM: &str = "without enough cores or memory";
const PAYLOAD: &str = "with the payload already";
const PORT: &str = "with a port taken";
const VOLUME: &str = "without enough storage";
const HOOK: &str = "not allowed by a hook";

/// The rules of a plan, with what is the same for all nodes.
struct Rules<'a> {
    state: &'a PlansState,
    spec: &'a PlanSpec,
    /// The types that the plan can run as, once it has a revision.
    fitting: Option<Vec<ProfileType>>,
    needed: Resources,
    storage: BTreeMap<String, u64>,
    hooks: Hooks<'a>,
    /// The nodes that the hooks have allowed.
    allowed: BTreeSet<&'a DeviceKey>,
    now: Timestamp,
}

impl<'a> Rules<'a> {
    fn new(state: &'a PlansState, wanted: Wanted<'a>, now: Timestamp) -> Self {
        let Wanted { spec, coordinates, hooks } = wanted;
        let allowed = match hooks {
            Hooks::Answers(Some(answers)) => answers.nodes.iter().collect(),
            Hooks::Answers(None) | Hooks::All => BTreeSet::new(),
        };
        let fitting = coordinates.map(|coordinates| {
            ProfileType::ALL.into_iter().filter(|runtime| fits(spec, coordinates, *runtime)).collect()
        });
        let (needed, storage) = (spec.resources(), storage(spec));
        Self { state, spec, fitting, needed, storage, hooks, allowed, now }
    }

    /// The first rule that rejects a node.
    fn first(&self, node: &Node) -> Option<Rejection> {
        self.all(node).next()
    }

    /// All rules that reject a node.
    fn all<'b>(&'b self, node: &'b Node) -> impl Iterator<Item = Rejection> + 'b {
        let usage = self.state.usage.get(&node.key);
        let of_node = [
            Self::node_state as fn(&Self, &Node, Option<&Usage>) -> Option<Rejection>,
            Self::cluster,
            Self::disruption,
            Self::room,
            Self::payload,
            Self::port,
            Self::volume,
            Self::capability,
            Self::runtime,
            Self::hook,
        ];
        of_node.into_iter().filter_map(move |rule| rule(self, node, usage))
    }

    fn node_state(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let is_allocated = node.state == NodeState::Allocated;
        (!is_allocated).then(|| rejection(STATE, "it is not allocated to a cluster".to_owned()))
    }

    fn cluster(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let of = node.cluster.as_ref();
        let cluster = of.and_then(|name| self.state.clusters.get(name));
        if cluster.is_some_and(|cluster| cluster.state == InventoryState::Inactive) {
            return Some(rejection(CLUSTER, "its cluster is inactive".to_owned()));
        }
        let wanted = self.spec.cluster.as_ref().filter(|wanted| of != Some(*wanted))?;
        Some(rejection(CLUSTER, format!("it is not of cluster {wanted}")))
    }

    fn disruption(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let evicts =
            node.disruptions.iter().find(|d| d.should_evict && d.state != DisruptionState::Completed)?;
        let when = if evicts.start > self.now { "at" } else { "since" };
        Some(rejection(DISRUPTION, format!("disruption {} evicts it {when} {}", evicts.id, evicts.start)))
    }

    fn room(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let (free, needed) = (self.state.free(node).unwrap_or_default(), self.needed);
        let lacks = free.minus(needed).is_none();
        lacks.then(|| {
            let sentence = format!(
                "{} cores and {} memory are needed, {} and {} are free",
                needed.cores, needed.memory, free.cores, free.memory
            );
            rejection(ROOM, sentence)
        })
    }

    fn payload(&self, _: &Node, usage: Option<&Usage>) -> Option<Rejection> {
        let payloads = &usage?.payloads;
        let mut names = self.spec.applications.iter().map(|application| &application.payload_name);
        let taken = names.find(|name| payloads.contains_key(*name))?;
        Some(rejection(PAYLOAD, format!("it has payload {taken}")))
    }

    fn port(&self, _: &Node, usage: Option<&Usage>) -> Option<Rejection> {
        let ports = &usage?.ports;
        let mut wanted = self.spec.applications.iter().flat_map(|application| &application.ports);
        let taken = wanted.find(|port| ports.contains_key(&normalised(port)))?;
        Some(rejection(PORT, format!("port {} {} is taken", taken.protocol, taken.port)))
    }

    fn volume(&self, node: &Node, usage: Option<&Usage>) -> Option<Rejection> {
        self.storage.iter().find_map(|(class, needed)| {
            let has: u64 = node
                .local_volumes
                .iter()
                .filter(|volume| volume.storage_class == *class)
                .map(|volume| volume.storage_capacity)
                .sum();
            let used = usage.and_then(|usage| usage.storage.get(class)).copied().unwrap_or(0);
            let free = has.saturating_sub(used);
            (free < *needed).then(|| {
                rejection(VOLUME, format!("{needed} GB of class {class} are needed, {free} are free"))
            })
        })
    }

    fn capability(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let matchers = &self.spec.matching_compute_capabilities;
        let broken = matchers.iter().find(|matcher| !self.matches(matcher, node))?;
        let names: Vec<_> = broken.capability_names.iter().map(ToString::to_string).collect();
        let sentence = format!(
            "its capabilities of type {} are not {} {}",
            broken.capability_type,
            broken.comparator,
            names.join(", ")
        );
        Some(rejection(CAPABILITY, cut(sentence, PLANS_TEXT_BYTES_MAX)))
    }

    fn runtime(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let (runtimes, fitting) = (&node.runtimes, self.fitting.as_ref()?);
        if runtimes.is_empty() || runtimes.iter().any(|runtime| fitting.contains(runtime)) {
            return None;
        }
        let words: Vec<_> = runtimes.iter().map(|runtime| runtime.as_str()).collect();
        Some(rejection(RUNTIME, format!("its agent runs {}, which the plan does not", words.join(", "))))
    }

    fn hook(&self, node: &Node, _: Option<&Usage>) -> Option<Rejection> {
        let Hooks::Answers(answers) = self.hooks else { return None };
        if self.allowed.contains(&node.key) {
            return None;
        }
        let mut hooks = answers.into_iter().flat_map(|answers| &answers.hooks);
        let sentence = match (answers, hooks.find(|hook| hook.left_out.contains(&node.key))) {
            (Some(_), Some(hook)) if hook.reason.is_empty() => format!("hook {} left it out", hook.hook),
            (Some(_), Some(hook)) => format!("hook {} left it out: {}", hook.hook, hook.reason),
            (Some(answers), None) => self.without_answer(answers, &node.key),
            (None, _) => "the hooks of the plan have not answered".to_owned(),
        };
        Some(rejection(HOOK, cut(sentence, PLANS_TEXT_BYTES_MAX)))
    }

    /// Why a node is not allowed that no recorded answer names.
    fn without_answer(&self, answers: &HookAnswers, node: &DeviceKey) -> String {
        let memory = self.state.hook_memory.get(&self.spec.name);
        match memory.filter(|memory| memory.revision == answers.revision) {
            Some(memory) if memory.left_out.contains(node) => {
                "the hooks left it out when they were last asked about it".to_owned()
            }
            Some(HookMemory { inconclusive: Some((hook, reason)), .. }) => {
                format!("hook {hook} is inconclusive: {reason}")
            }
            _ => "a hook has not answered about it yet".to_owned(),
        }
    }

    fn matches(&self, matcher: &CapabilityMatcher, node: &Node) -> bool {
        let known = |name| self.state.capabilities.get(name);
        let is_of_type = |capability: &&muster_contract::plans::Capability| {
            capability.capability_type == matcher.capability_type
                && matches!(capability.state, InventoryState::Pending | InventoryState::Active)
        };
        let mut held = node.capabilities.iter().filter_map(known).filter(is_of_type);
        let named = || matcher.capability_names.iter().filter_map(known).map(|capability| capability.score);
        match matcher.comparator {
            Comparator::In => held.any(|capability| matcher.capability_names.contains(&capability.name)),
            Comparator::NotIn => held.all(|capability| !matcher.capability_names.contains(&capability.name)),
            Comparator::Gte => {
                named().min().is_some_and(|lowest| held.any(|capability| capability.score >= lowest))
            }
            Comparator::Lte => {
                named().max().is_some_and(|highest| held.any(|capability| capability.score <= highest))
            }
        }
    }
}

const fn rejection(kind: &'static str, sentence: String) -> Rejection {
    Rejection { kind, sentence }
}

/// Placements of a plan by update domain.
fn domain_counts(state: &PlansState, spec: &PlanSpec) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for placement in state.instances_of(&spec.name).flat_map(|instance| &instance.placements) {
        if let Some(node) = state.nodes.get(&placement.node) {
            *counts.entry(node.update_domain.clone()).or_insert(0) += 1;
        }
    }
    counts
}

/// The free part of the scarcer resource, in thousandths.
fn free_share(node: &Node, free: Resources) -> u64 {
    let share = |free: u64, total: u64| free.saturating_mul(1000) / total.max(1);
    let usable = node.usable();
    share(free.cores, usable.cores).min(share(free.memory, usable.memory))
}

/// A hash of plan and node (FNV-1a), the same on each machine.
fn hash(spec: &PlanSpec, node: &DeviceKey) -> u64 {
    let text = [spec.name.as_str(), "/", node.site.as_str(), "/", node.device.as_str()];
    let bytes = text.iter().flat_map(|part| part.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The first `max` candidates, the best first, and the number of all. Those that are later are taken if there are no others.
pub(super) fn candidates(
    state: &PlansState,
    wanted: Wanted<'_>,
    now: Timestamp,
    max: usize,
    is_later: impl Fn(&DeviceKey) -> bool,
) -> (Vec<Candidate>, u64) {
    let counts = domain_counts(state, wanted.spec);
    let mut scheduler = Scheduler::new(state, wanted, now);
    let domains = std::mem::take(&mut scheduler.candidates).into_iter();
    let mut ranked: Vec<_> = domains
        .flat_map(|(domain, ranks)| {
            let count = counts.get(&domain).copied().unwrap_or(0);
            ranks.into_iter().map(move |rank| Place::new(rank, count, &domain))
        })
        .collect();
    ranked.sort();
    let all = ranked.len() as u64;
    if ranked.iter().any(|place| !is_later(&place.rank.node)) {
        ranked.retain(|place| !is_later(&place.rank.node));
    }
    let candidate = |place: Place| {
        let reason = cut(scheduler.reason(&place), PLANS_TEXT_BYTES_MAX);
        let Place { domain_count: domain_instances, rank: Rank { score: Reverse(score), node, .. }, .. } =
            place;
        let free = scheduler.free.get(&node).copied().unwrap_or_default();
        Candidate { reason, node, score, domain_instances, free }
    };
    (ranked.into_iter().take(max).map(candidate).collect(), all)
}

/// Why a node cannot run an instance of a plan with the content of a revision (none: the newest), if a rule rejects it.
pub(super) fn rejection_of(
    state: &PlansState,
    plan: &Plan,
    revision: Option<&PlanRevision>,
    node: &Node,
    now: Timestamp,
) -> Option<Rejection> {
    let newest = Wanted::of(plan);
    let coordinates = revision.map(|revision| &revision.coordinates).or(newest.coordinates);
    Rules::new(state, Wanted { coordinates, ..newest }, now).first(node)
}

/// Whether an instance of a plan would find a node.
pub(super) fn is_placeable(state: &PlansState, wanted: Wanted<'_>, now: Timestamp) -> bool {
    !Scheduler::new(state, wanted, now).best.is_empty()
}

impl PlansState {
    /// The node that another instance of a plan would get, and why the others are rejected.
    pub(super) fn explain(&self, plan: &Plan, now: Timestamp) -> ExplainAnswer {
        let (spec, rules) = (&plan.spec, Rules::new(self, Wanted::of(plan), now));
        let (mut rejected, mut rejected_count) = (Vec::new(), 0);
        for node in self.nodes.values().filter(|node| !node.deleted) {
            let reasons: Vec<_> = rules.all(node).map(|rejection| rejection.sentence).collect();
            if reasons.is_empty() {
                continue;
            }
            rejected_count += 1;
            if rejected.len() < LISTED_MAX {
                rejected.push(RejectedNode { node: node.key.clone(), reasons });
            }
        }
        let (candidates, candidates_count) = candidates(self, Wanted::of(plan), now, LISTED_MAX, |_| false);
        ExplainAnswer {
            plan: spec.name.clone(),
            at: now,
            candidates,
            candidates_count,
            rejected,
            rejected_count,
        }
    }
}
