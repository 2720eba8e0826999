//! A device's workloads and their reconciliation. The plan, the records and the reports of them are the agent's own; this
//! module only simulates a runtime, whose starts and stops take time and may fail. Its rule of crash loops is shorter than the
//! agent's, so that loops begin and end within a world.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_agent::attempts::{Attempts, CrashLoopRule};
use muster_agent::outbox::{NewReport, RecordChange};
use muster_agent::record::DeploymentRecord;
use muster_agent::relay::core::Input;
use muster_agent::report::{Body, CapabilitiesBody};
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, Generation, State};
use muster_domain::plan::{Step, plan};

use super::agenda::{Millis, SECOND};
use super::device::Chore;
use super::world::{Sabotage, World};

/// When a device has a crash loop, and when a success has held.
const CRASH_LOOP: CrashLoopRule = CrashLoopRule { failures: 3, window: Duration::from_secs(90) };
const HELD_AFTER: Millis = CRASH_LOOP.window.as_millis() as Millis;

/// One deployment in an agent.
#[derive(Debug, Clone)]
pub(crate) struct DeploymentTask {
    /// Its record.
    pub(crate) record: DeploymentRecord,
    operation: Option<Operation>,
    retry_at: Option<Millis>,
    /// Since when each component with attempts has been ready.
    ready_since: BTreeMap<Option<ComponentName>, Millis>,
}

/// An operation on a deployment.
#[derive(Debug, Clone)]
struct Operation {
    id: u64,
    digest: Digest,
    generation: Generation,
    leaving: bool,
}

impl Operation {
    fn serves(&self, step: &Step, document: &DesiredState) -> bool {
        let wanted = document.deployments.iter().find(|entry| entry.id == *step.deployment());
        match wanted {
            None => self.leaving,
            Some(wanted) => {
                !self.leaving && self.digest == wanted.digest && self.generation >= wanted.target_generation
            }
        }
    }
}

impl DeploymentTask {
    /// A deployment without an operation.
    pub(crate) const fn new(record: DeploymentRecord) -> Self {
        Self { record, operation: None, retry_at: None, ready_since: BTreeMap::new() }
    }

    /// Records since when the components with attempts have been ready.
    fn track_readiness(&mut self, now: Millis) {
        let ready = self.record.on_trial();
        self.ready_since.retain(|of, _| ready.contains(of));
        ready.into_iter().for_each(|of| _ = self.ready_since.entry(of).or_insert(now));
    }

    /// Clears attempts whose success has held; true if that must be reported.
    fn confirm_successes(&mut self, now: Millis) -> bool {
        self.track_readiness(now);
        let held = self.ready_since.iter().filter(|(_, since)| now - **since >= HELD_AFTER);
        let held: Vec<_> = held.map(|(of, _)| of.clone()).collect();
        let mut is_changed = false;
        for of in held {
            is_changed |= self.record.attempts.confirm_success(of.as_ref());
            self.ready_since.remove(&of);
        }
        is_changed
    }
}

impl World {
    /// Reports successes that have held.
    fn confirm_successes(&mut self, device: usize) {
        let now = self.agenda.now();
        let Some(agent) = &mut self.devices[device].agent else { return };
        let held = agent.tasks.iter_mut().filter_map(|(id, task)| task.confirm_successes(now).then_some(id));
        let held: Vec<_> = held.cloned().collect();
        held.iter().for_each(|id| self.tell(device, id));
    }

    /// Begins every step of the plan.
    pub(crate) fn follow_plan(&mut self, device: usize) {
        self.confirm_successes(device);
        let now = self.agenda.now();
        let Some(agent) = &self.devices[device].agent else { return };
        let Some(document) = agent.accepted.as_ref().and_then(|accepted| accepted.document.clone()) else {
            return;
        };
        let actual: Vec<_> = agent
            .tasks
            .values()
            .map(|task| task.record.actual(task.retry_at.is_some_and(|at| at <= now)))
            .collect();
        for step in plan(&document.deployments, &actual) {
            let Some(agent) = &self.devices[device].agent else { return };
            let operation = agent.tasks.get(step.deployment()).and_then(|task| task.operation.clone());
            match operation {
                Some(operation) if !operation.serves(&step, &document) => {
                    self.end_operation(device, step.deployment(), operation.id);
                    return self.follow_plan(device);
                }
                Some(_) => {}
                None => self.begin_step(device, step, &document),
            }
        }
    }

    fn begin_step(&mut self, device: usize, step: Step, document: &DesiredState) {
        let id = step.deployment().clone();
        let Some(agent) = &mut self.devices[device].agent else { return };
        let task = agent.tasks.get(&id).cloned();
        let wanted = document.deployments.iter().find(|entry| entry.id == id);
        let Some(entry) = wanted else {
            let Some(mut task) = task else { return };
            if task.record.leaving {
                task.record.retry();
                agent.tasks.insert(id.clone(), task);
            } else {
                task.record.start_removal(document.generation);
                agent.tasks.insert(id.clone(), task);
                self.tell(device, &id);
            }
            return self.work(device, &id);
        };
        let under_way = task.as_ref().is_some_and(|task| {
            task.record.entry.digest == entry.digest && task.record.generation >= entry.target_generation
        });
        match (step, task) {
            (Step::Confirm(_), Some(mut task)) => {
                task.record.generation = document.generation;
                task.record.entry = entry.clone();
                agent.tasks.insert(id.clone(), task);
                self.tell(device, &id);
            }
            (Step::Resume(_) | Step::Retry(_), Some(mut task)) if under_way => {
                task.record.generation = document.generation;
                task.record.retry();
                if self.sabotage == Sabotage::CountsEachAttemptAnew {
                    task.record.attempts = Attempts::default();
                }
                agent.tasks.insert(id.clone(), task);
                self.work(device, &id);
            }
            (_, task) => {
                let record = match task {
                    Some(task) => task.record.retarget(entry.clone(), document.generation),
                    None => DeploymentRecord::new(entry.clone(), document.generation),
                };
                agent.tasks.insert(id.clone(), DeploymentTask::new(record));
                self.tell(device, &id);
                self.work(device, &id);
            }
        }
    }

    fn work(&mut self, device: usize, id: &DeploymentId) {
        self.operations += 1;
        let (number, life) = (self.operations, self.devices[device].life);
        let Some(task) = self.task(device, id) else { return };
        task.retry_at = None;
        task.operation = Some(Operation {
            id: number,
            digest: task.record.entry.digest,
            generation: task.record.generation,
            leaving: task.record.leaving,
        });
        let delay = self.chance.i64(100..3 * SECOND);
        self.chore(device, life, delay, Chore::Work(id.clone(), number));
    }

    /// Takes an operation one step further.
    pub(crate) fn progress(&mut self, device: usize, id: &DeploymentId, number: u64) {
        let by_lot = self.profile.failures && self.chance.u8(0..6) == 0;
        let in_loop = self.agenda.now() < self.devices[device].fails_until;
        let (fails, life) = (self.storm && (by_lot || in_loop), self.devices[device].life);
        let (now, at) = (self.agenda.now(), self.device_time(device));
        let Some(task) = self.task(device, id) else { return };
        let Some(operation) = task.operation.clone().filter(|operation| operation.id == number) else {
            return;
        };
        let from = if operation.leaving { State::Removed } else { State::Installed };
        let next = task.record.components.iter().find(|component| component.state != from);
        let Some(next) = next.cloned() else { return self.end_operation(device, id, number) };
        let begins = !operation.leaving && next.state != State::Installing;
        let state = match (begins, fails) {
            (true, _) => State::Installing,
            (false, true) => State::Failed,
            (false, false) => from,
        };
        let error = (state == State::Failed)
            .then(|| StatusError::new("simulated", next.name.as_str(), "it was bad luck"));
        let is_changed = task.record.set_and_count(&next.name, state, error, CRASH_LOOP, at);
        task.track_readiness(now);
        let all = task.record.components.iter().all(|component| component.state == from);
        self.devices[device].run(id, &operation.digest, operation.leaving, all);
        if is_changed {
            self.tell(device, id);
        }
        if state == State::Installed {
            self.chore(device, life, HELD_AFTER, Chore::Plan);
        }
        if all || state == State::Failed {
            return self.end_operation(device, id, number);
        }
        let delay = self.chance.i64(100..5 * SECOND);
        self.chore(device, life, delay, Chore::Work(id.clone(), number));
    }

    fn end_operation(&mut self, device: usize, id: &DeploymentId, number: u64) {
        let (now, delay, life) =
            (self.agenda.now(), self.chance.i64(SECOND..20 * SECOND), self.devices[device].life);
        let Some(agent) = &mut self.devices[device].agent else { return };
        let Some(task) = agent.tasks.get_mut(id) else { return };
        if task.operation.as_ref().is_none_or(|operation| operation.id != number) {
            return;
        }
        task.operation = None;
        if task.record.is_removed() {
            agent.tasks.remove(id);
        } else if task.record.state() == State::Failed {
            task.retry_at = Some(now + delay);
        }
        self.chore(device, life, delay + 1, Chore::Plan);
        self.follow_plan(device);
    }

    /// A workload exits. A running agent learns of it.
    pub(crate) fn workload_exits(&mut self, device: usize) {
        let (now, at) = (self.agenda.now(), self.device_time(device));
        let delay = self.chance.i64(SECOND..20 * SECOND);
        let Some(id) = self.devices[device].running.keys().next().cloned() else { return };
        self.devices[device].running.remove(&id);
        let Some(task) = self.task(device, &id) else { return };
        let Some(first) = task.record.components.first().map(|component| component.name.clone()) else {
            return;
        };
        let error = StatusError::new("ended", first.as_str(), "it ended by itself");
        if task.record.component(&first) == Some(State::Installed)
            && task.record.set_and_count(&first, State::Failed, Some(error), CRASH_LOOP, at)
        {
            task.track_readiness(now);
            task.retry_at = Some(now + delay);
            self.tell(device, &id);
            let life = self.devices[device].life;
            self.chore(device, life, delay + 1, Chore::Plan);
        }
    }

    /// After a start of the agent: components that no longer run are pending, failures are retried.
    pub(crate) fn adopt(&mut self, device: usize) {
        let (now, at) = (self.agenda.now(), self.device_time(device));
        let running = self.devices[device].running.clone();
        let Some(agent) = &mut self.devices[device].agent else { return };
        let mut lost = Vec::new();
        for (id, task) in &mut agent.tasks {
            task.retry_at = Some(now);
            task.record.attempts.resume(CRASH_LOOP, at);
            let runs = running.get(id) == Some(&task.record.entry.digest);
            if task.record.state() == State::Installed && !runs && task.record.interrupt("it was gone") {
                lost.push(id.clone());
            }
        }
        agent.tasks.values_mut().for_each(|task| task.track_readiness(now));
        let known = agent.tasks.clone();
        let life = self.devices[device].life;
        self.chore(device, life, HELD_AFTER, Chore::Plan);
        lost.iter().for_each(|id| self.tell(device, id));
        self.devices[device].running.retain(|id, _| known.contains_key(id));
    }

    fn task(&mut self, device: usize, id: &DeploymentId) -> Option<&mut DeploymentTask> {
        self.devices[device].agent.as_mut()?.tasks.get_mut(id)
    }

    fn tell(&mut self, device: usize, id: &DeploymentId) {
        let now = self.device_time(device);
        let Some(task) = self.task(device, id) else { return };
        let record = &task.record;
        let body = Body::Status(record.body(now));
        let change = if record.is_removed() {
            RecordChange::Remove(id.clone())
        } else {
            RecordChange::Store(Box::new(record.clone()))
        };
        self.observe(device, NewReport { body, change });
    }

    /// Reports the capabilities, unless they are those reported last.
    pub(crate) fn tell_device(&mut self, device: usize, told: Option<&CapabilitiesBody>) {
        let found = CapabilitiesBody {
            observed_at: self.device_time(device),
            properties: Default::default(),
            labels: BTreeMap::new(),
            agent_version: format!("{}", self.devices[device].version),
        };
        if told.is_none_or(|told| told.agent_version != found.agent_version) {
            self.observe(device, NewReport { body: Body::Capabilities(found), change: RecordChange::None });
        }
    }

    pub(crate) fn observe(&mut self, device: usize, entry: NewReport) {
        if let Some(agent) = &mut self.devices[device].agent {
            agent.waiting.push_back(entry);
        }
        self.keep(device);
    }

    /// Stores the waiting reports, in order.
    pub(crate) fn keep(&mut self, device: usize) {
        let life = self.devices[device].life;
        loop {
            let Some(agent) = &mut self.devices[device].agent else { return };
            let Some(entry) = agent.waiting.front().cloned() else { break };
            let kept = super::rows::now(agent.outbox.append(Arc::new(vec![entry.clone()])));
            let is_kept = kept.is_ok();
            if is_kept {
                agent.waiting.pop_front();
            }
            if std::mem::replace(&mut agent.is_storing, is_kept) != is_kept {
                self.feed_relay(device, Input::StateChanged);
            }
            if !is_kept {
                self.run_relay(device);
                return self.chore(device, life, SECOND, Chore::Keep);
            }
            let told = self.has_told(device, &entry.body);
            self.hold(told);
        }
        self.run_relay(device);
    }
}
