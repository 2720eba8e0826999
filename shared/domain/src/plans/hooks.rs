//! Hooks before placement: which plans wait for them, the questions in their order, and what PLANS records of the answers. It asks
//! nobody.
//!
//! The answers are recorded in the plan before the scheduler uses them, in one message, so each planner places by the same answers.
//! A question changes nothing: a planner that dies between a question and the record asks again.

use std::collections::BTreeSet;

use muster_contract::decode::{self, Document as _};
use muster_contract::limits::{HOOK_CANDIDATES_MAX, PLAN_BYTES_MAX};
use muster_contract::plans::{
    AnsweredHook, HookAnswer, HookAnswers, HookRequest, Instance, OperationState, OperationType, Plan,
    PlanHook, PlanRevision, PlanSpec, PlanState, RevisionState,
};
use muster_contract::rollout::CheckResult;
use muster_contract::{DeviceKey, PlanName, Timestamp};

use super::content::content;
use super::deploy::SENTENCES_BYTES;
use super::document::PlansDocument;
use super::hook_memory::HookMemory;
use super::operations::{self, Author};
use super::revise::with_revision;
use super::schedule::{Wanted, candidates, is_placeable};
use super::state::PlansState;

/// The begin of a revision's message that names a hook.
const OF_HOOK: &str = "hook ";

/// The questions to the hooks of a plan about its newest revision, and the answers so far.
#[derive(Debug, Clone, PartialEq)]
pub struct HookRun {
    uid: String,
    spec: PlanSpec,
    request: HookRequest,
    /// Whether the revision has not begun: its coordinates may change.
    is_begin: bool,
    answered: Vec<AnsweredHook>,
    end: Option<HookEnd>,
}

/// The answer that ended a run before each hook had passed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HookEnd {
    is_failed: bool,
    hook: String,
    reason: String,
}

impl HookRun {
    /// The plan.
    pub const fn plan(&self) -> &PlanName {
        &self.spec.name
    }

    /// The next hook and its question; `None` once the run has ended.
    pub fn question(&self) -> Option<(&PlanHook, &HookRequest)> {
        let hook = self.spec.hooks.get(self.answered.len()).filter(|_| self.end.is_none())?;
        Some((hook, &self.request))
    }

    /// The hook that gave no usable answer, and the reason.
    pub fn inconclusive(&self) -> Option<(&str, &str)> {
        let end = self.end.as_ref().filter(|end| !end.is_failed)?;
        Some((&end.hook, &end.reason))
    }

    /// Applies the answer of the next hook. One with coordinates that the plan cannot use is inconclusive; a node that it names and
    /// was not asked about is not used.
    pub fn answer(&mut self, answer: HookAnswer) {
        let Some(hook) = self.question().map(|(hook, _)| hook.name()) else { return };
        let end = |is_failed, reason| Some(HookEnd { is_failed, hook: hook.clone(), reason });
        match answer.result {
            CheckResult::Fail => self.end = end(true, answer.reason),
            CheckResult::Inconclusive => self.end = end(false, answer.reason),
            CheckResult::Pass => match self.pass(&hook, answer) {
                Ok(answered) => self.answered.push(answered),
                Err(reason) => self.end = end(false, reason),
            },
        }
    }

    /// Leaves out the nodes that an answer does not name, and replaces coordinates before the revision has begun. Changes nothing if
    /// the answer is refused.
    fn pass(&mut self, hook: &str, mut answer: HookAnswer) -> Result<AnsweredHook, String> {
        if !self.is_begin {
            answer.coordinates.clear();
        }
        let mut coordinates = self.request.coordinates.clone();
        let replaced: Vec<_> = answer.coordinates.keys().cloned().collect();
        coordinates.extend(answer.coordinates);
        content(&self.spec, &coordinates, &[]).map_err(|error| format!("its coordinates: {error}"))?;
        let candidates = &self.request.candidates;
        let named: Option<BTreeSet<_>> = answer.nodes.map(|nodes| nodes.into_iter().collect());
        let is_kept = |node: &_| named.as_ref().is_none_or(|named| named.contains(node));
        let left_out: Vec<_> =
            candidates.iter().map(|one| &one.node).filter(|node| !is_kept(node)).cloned().collect();
        self.request.candidates.retain(|one| is_kept(&one.node));
        self.request.coordinates = coordinates;
        Ok(AnsweredHook { hook: hook.to_owned(), reason: answer.reason, left_out, replaced })
    }
}

impl PlansState {
    /// The plans that may wait for answers of their hooks. Forgets the attempts of the others.
    pub fn awaiting_hooks(&mut self) -> BTreeSet<PlanName> {
        let with_hooks = self.plans.values().filter(|plan| !plan.spec.hooks.is_empty());
        let awaiting: BTreeSet<_> =
            with_hooks.filter(|plan| self.awaits_hooks(plan)).map(|plan| plan.spec.name.clone()).collect();
        self.hook_memory.retain(|plan, _| awaiting.contains(plan));
        awaiting
    }

    /// Whether the newest revision of a plan has not begun for lack of answers, or an instance has no node.
    fn awaits_hooks(&self, plan: &Plan) -> bool {
        let is_begin = plan.revisions.last().is_some_and(|newest| plan.awaits_hooks(newest));
        plan.state == PlanState::Active && is_begin || self.instances_of(&plan.spec.name).any(awaits_node)
    }

    /// The questions to the hooks of a plan; `None` if no step waits for them. Candidates that they have left out for this revision
    /// are asked about again once there are no others.
    pub fn hook_run(&mut self, name: &PlanName, now: Timestamp) -> Option<HookRun> {
        let plan = self.plan(name).filter(|plan| !plan.spec.hooks.is_empty() && self.awaits_hooks(plan))?;
        let (revision, wanted) = (plan.revisions.last()?, Wanted::of(plan));
        let (is_begin, none_at) = (plan.awaits_hooks(revision), Some((self.capacity_epoch, plan.version)));
        let known = self.hook_memory.get(name).filter(|memory| memory.revision == revision.id);
        let mut memory = known.cloned().unwrap_or_else(|| HookMemory::new(revision.id.clone()));
        if !is_begin && memory.none_at == none_at {
            return None;
        }
        let recorded = plan.hook_answers.iter().filter(|answers| answers.revision == revision.id);
        let recorded: BTreeSet<_> =
            recorded.flat_map(|answers| &answers.hooks).flat_map(|hook| &hook.left_out).collect();
        let is_left_out = |node: &DeviceKey| memory.left_out.contains(node) || recorded.contains(node);
        let (candidates, candidates_count) =
            candidates(self, wanted.without_hooks(), now, HOOK_CANDIDATES_MAX, is_left_out);
        memory.none_at = none_at.filter(|_| candidates.is_empty());
        let is_asked = is_begin || !candidates.is_empty() && !is_placeable(self, wanted, now);
        let request = HookRequest {
            plan: name.clone(),
            revision: revision.id.clone(),
            instances: revision.instances,
            coordinates: revision.coordinates.clone(),
            candidates,
            candidates_count,
        };
        let (uid, spec) = (plan.uid.clone(), plan.spec.clone());
        self.hook_memory.insert(name.clone(), memory);
        is_asked.then(|| HookRun { uid, spec, request, is_begin, answered: Vec::new(), end: None })
    }

    /// The plan with the answers of a run; `None` if they change nothing, or if no step of the plan waits for them any more. A run
    /// whose answers are refused is inconclusive afterwards.
    pub fn record_hooks(&mut self, run: &mut HookRun, now: Timestamp) -> Option<PlansDocument> {
        let document = self.recorded(run, now);
        let memory = self.hook_memory.get_mut(run.plan());
        if let Some(memory) = memory.filter(|memory| memory.revision == run.request.revision) {
            memory.inconclusive =
                run.inconclusive().map(|(hook, reason)| (hook.to_owned(), reason.to_owned()));
            if memory.inconclusive.is_none() {
                let failed = run.request.candidates.iter().filter(|_| run.end.is_some()).map(|one| &one.node);
                let left_out: Vec<_> =
                    failed.chain(run.answered.iter().flat_map(|hook| &hook.left_out)).cloned().collect();
                if left_out.iter().any(|node| memory.left_out.contains(node)) {
                    memory.left_out.clear();
                }
                memory.left_out.extend(left_out);
            }
        }
        document
    }

    fn recorded(&self, run: &mut HookRun, now: Timestamp) -> Option<PlansDocument> {
        let plan = self.plan(run.plan()).filter(|plan| plan.uid == run.uid && self.awaits_hooks(plan))?;
        let revision = plan.revisions.last().filter(|newest| newest.id == run.request.revision)?;
        // Another planner may have recorded answers meanwhile.
        let is_begin = Some(plan.awaits_hooks(revision)).filter(|is_begin| *is_begin == run.is_begin)?;
        let end = match &run.end {
            Some(end) if end.is_failed && is_begin => {
                let message = format!("hook {} refuses it: {}", end.hook, end.reason);
                return Some(with_revision(plan, &revision.id, RevisionState::Failed, &message, now));
            }
            Some(end) if !end.is_failed => end.clone(),
            _ => match self.with_answers(plan, revision, run, now) {
                Ok(next) => return next.map(PlansDocument::Plan),
                Err(end) => run.end.insert(end).clone(),
            },
        };
        // The first message about a hook is kept: reasons that differ each time, and hooks in turn, do not fill PLANS.
        let is_new = is_begin && !revision.message.starts_with(OF_HOOK);
        let message = format!("{OF_HOOK}{} is inconclusive: {}", end.hook, end.reason);
        is_new.then(|| with_revision(plan, &revision.id, RevisionState::Pending, &message, now))
    }

    /// The plan with the answers of a run; `None` if it has answers that allow the same nodes: others would place nothing anew. A
    /// hook that fails once its revision has begun leaves out each candidate.
    fn with_answers(
        &self,
        plan: &Plan,
        revision: &PlanRevision,
        run: &HookRun,
        now: Timestamp,
    ) -> Result<Option<Plan>, HookEnd> {
        let mut nodes: Vec<_> = run.request.candidates.iter().map(|one| one.node.clone()).collect();
        let (allowed, mut hooks) = (nodes.len(), run.answered.clone());
        if let Some(HookEnd { hook, reason, .. }) = run.end.clone() {
            let left_out = std::mem::take(&mut nodes);
            hooks.push(AnsweredHook { hook, reason, left_out, replaced: Vec::new() });
        }
        let before = plan.hook_answers.as_deref().filter(|before| before.revision == revision.id);
        if before.is_some_and(|before| before.nodes == nodes) {
            return Ok(None);
        }
        let mut next = plan.clone();
        if plan.awaits_hooks(revision) {
            for one in next.revisions.iter_mut().filter(|one| one.id == revision.id) {
                one.coordinates.clone_from(&run.request.coordinates);
                one.message.clear();
            }
        }
        next.version += 1;
        let asked = allowed + run.answered.iter().map(|hook| hook.left_out.len()).sum::<usize>();
        let sentence = format!("hooks of revision {} allow {} of {asked} nodes", revision.id, nodes.len());
        next.change = operations::change(now, sentence, &Author::default());
        let answers = HookAnswers { revision: revision.id.clone(), at: now, nodes, hooks };
        next.hook_answers = Some(Box::new(answers));
        self.drop_ended_revisions(&mut next);
        let bytes = decode::to_bytes(&next).len();
        let rule = match next.check() {
            Ok(()) if bytes <= PLAN_BYTES_MAX - SENTENCES_BYTES => return Ok(Some(next)),
            Ok(()) => format!("makes the plan {bytes} bytes long"),
            Err(broken) => broken.to_string(),
        };
        let hook = run.answered.last().map(|last| last.hook.clone()).unwrap_or_default();
        Err(HookEnd { is_failed: false, hook, reason: format!("its answer is refused: {rule}") })
    }
}

/// Whether an operation of an instance waits for a node.
fn awaits_node(instance: &Instance) -> bool {
    let placed = instance.placements.len();
    instance.operations.iter().any(|operation| {
        let is_prepared = matches!(operation.state, OperationState::Pending | OperationState::Preparing);
        is_prepared
            && match operation.operation_type {
                OperationType::Create => placed == 0,
                OperationType::Relocate => placed == 1,
                _ => false,
            }
    })
}
