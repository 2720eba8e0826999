//! A device's workloads and the corridor that brings them to what is desired. The plan, the standings and what is told
//! of them are the agent's own; here is only what a runtime would do: start and stop things, which takes time and may
//! fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_agent::outbox::{Body, CapabilitiesBody, Effect, Entry};
use muster_agent::standing::Standing;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::state::StatusError;
use muster_contract::{DeploymentId, Generation, State};
use muster_domain::plan::{Step, plan};

use super::agenda::{Millis, SECOND};
use super::device::Chore;
use super::world::World;

/// One deployment's place in an agent.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    /// How far it came.
    pub(crate) standing: Standing,
    operation: Option<Operation>,
    retry_at: Option<Millis>,
}

/// What is being done about a deployment.
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

impl Slot {
    /// A deployment that nothing is being done about.
    pub(crate) const fn new(standing: Standing) -> Self {
        Self { standing, operation: None, retry_at: None }
    }
}

impl World {
    /// Begins whatever the plan asks for.
    pub(crate) fn follow_plan(&mut self, device: usize) {
        let now = self.agenda.now();
        let Some(agent) = &self.devices[device].agent else { return };
        let Some(document) = agent.accepted.as_ref().and_then(|accepted| accepted.document.clone()) else {
            return;
        };
        let actual: Vec<_> = agent
            .slots
            .values()
            .map(|slot| slot.standing.actual(slot.retry_at.is_some_and(|at| at <= now)))
            .collect();
        for step in plan(&document.deployments, &actual) {
            let Some(agent) = &self.devices[device].agent else { return };
            let operation = agent.slots.get(step.deployment()).and_then(|slot| slot.operation.clone());
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
        let slot = agent.slots.get(&id).cloned();
        let wanted = document.deployments.iter().find(|entry| entry.id == id);
        let Some(entry) = wanted else {
            let Some(mut slot) = slot else { return };
            if slot.standing.leaving {
                slot.standing.retry();
                agent.slots.insert(id.clone(), slot);
            } else {
                slot.standing.leave(document.generation);
                agent.slots.insert(id.clone(), slot);
                self.tell(device, &id);
            }
            return self.work(device, &id);
        };
        let under_way = slot.as_ref().is_some_and(|slot| {
            slot.standing.entry.digest == entry.digest && slot.standing.generation >= entry.target_generation
        });
        match (step, slot) {
            (Step::Confirm(_), Some(mut slot)) => {
                slot.standing.generation = document.generation;
                slot.standing.entry = entry.clone();
                agent.slots.insert(id.clone(), slot);
                self.tell(device, &id);
            }
            (Step::Resume(_) | Step::Retry(_), Some(mut slot)) if under_way => {
                slot.standing.generation = document.generation;
                slot.standing.retry();
                agent.slots.insert(id.clone(), slot);
                self.work(device, &id);
            }
            (_, slot) => {
                let standing = match slot {
                    Some(slot) => slot.standing.towards(entry.clone(), document.generation),
                    None => Standing::new(entry.clone(), document.generation),
                };
                agent.slots.insert(id.clone(), Slot::new(standing));
                self.tell(device, &id);
                self.work(device, &id);
            }
        }
    }

    fn work(&mut self, device: usize, id: &DeploymentId) {
        self.operations += 1;
        let (number, life) = (self.operations, self.devices[device].life);
        let Some(slot) = self.slot(device, id) else { return };
        slot.retry_at = None;
        slot.operation = Some(Operation {
            id: number,
            digest: slot.standing.entry.digest,
            generation: slot.standing.generation,
            leaving: slot.standing.leaving,
        });
        let delay = self.chance.i64(100..3 * SECOND);
        self.chore(device, life, delay, Chore::Work(id.clone(), number));
    }

    /// An operation goes one step on.
    pub(crate) fn progress(&mut self, device: usize, id: &DeploymentId, number: u64) {
        let (fails, life) =
            (self.storm && self.profile.failures && self.chance.u8(0..6) == 0, self.devices[device].life);
        let Some(slot) = self.slot(device, id) else { return };
        let Some(operation) = slot.operation.clone().filter(|operation| operation.id == number) else {
            return;
        };
        let from = if operation.leaving { State::Removed } else { State::Installed };
        let next = slot.standing.components.iter().find(|component| component.state != from);
        let Some(next) = next.cloned() else { return self.end_operation(device, id, number) };
        let begins = !operation.leaving && next.state != State::Installing;
        let state = match (begins, fails) {
            (true, _) => State::Installing,
            (false, true) => State::Failed,
            (false, false) => from,
        };
        let error = (state == State::Failed)
            .then(|| StatusError::new("simulated", next.name.as_str(), "it was bad luck"));
        let news = slot.standing.set(&next.name, state, error);
        let all = slot.standing.components.iter().all(|component| component.state == from);
        self.devices[device].run(id, &operation.digest, operation.leaving, all);
        if news {
            self.tell(device, id);
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
        let Some(slot) = agent.slots.get_mut(id) else { return };
        if slot.operation.as_ref().is_none_or(|operation| operation.id != number) {
            return;
        }
        slot.operation = None;
        if slot.standing.is_gone() {
            agent.slots.remove(id);
        } else if slot.standing.state() == State::Failed {
            slot.retry_at = Some(now + delay);
        }
        self.chore(device, life, delay + 1, Chore::Plan);
        self.follow_plan(device);
    }

    /// A workload ends by itself. An agent that lives hears of it.
    pub(crate) fn workload_exits(&mut self, device: usize) {
        let (now, delay) = (self.agenda.now(), self.chance.i64(SECOND..20 * SECOND));
        let Some(id) = self.devices[device].running.keys().next().cloned() else { return };
        self.devices[device].running.remove(&id);
        let Some(slot) = self.slot(device, &id) else { return };
        let Some(first) = slot.standing.components.first().map(|component| component.name.clone()) else {
            return;
        };
        let error = StatusError::new("ended", first.as_str(), "it ended by itself");
        if slot.standing.component(&first) == Some(State::Installed)
            && slot.standing.set(&first, State::Failed, Some(error))
        {
            slot.retry_at = Some(now + delay);
            self.tell(device, &id);
            let life = self.devices[device].life;
            self.chore(device, life, delay + 1, Chore::Plan);
        }
    }

    /// After a start of the agent: what does not run any more is pending, what failed is tried again.
    pub(crate) fn adopt(&mut self, device: usize) {
        let now = self.agenda.now();
        let running = self.devices[device].running.clone();
        let Some(agent) = &mut self.devices[device].agent else { return };
        let mut lost = Vec::new();
        for (id, slot) in &mut agent.slots {
            slot.retry_at = Some(now);
            let runs = running.get(id) == Some(&slot.standing.entry.digest);
            if slot.standing.state() == State::Installed && !runs && slot.standing.interrupt("it was gone") {
                lost.push(id.clone());
            }
        }
        let known = agent.slots.clone();
        lost.iter().for_each(|id| self.tell(device, id));
        self.devices[device].running.retain(|id, _| known.contains_key(id));
    }

    fn slot(&mut self, device: usize, id: &DeploymentId) -> Option<&mut Slot> {
        self.devices[device].agent.as_mut()?.slots.get_mut(id)
    }

    fn tell(&mut self, device: usize, id: &DeploymentId) {
        let now = self.device_time(device);
        let Some(slot) = self.slot(device, id) else { return };
        let standing = &slot.standing;
        let body = Body::Status(standing.body(now));
        let effect = match standing.is_gone() {
            true => Effect::Forget(id.clone()),
            false => Effect::Keep(Box::new(standing.clone())),
        };
        self.observe(device, Entry { body, effect });
    }

    /// Tells what the device is, if that is not what was told last.
    pub(crate) fn tell_device(&mut self, device: usize, told: Option<&CapabilitiesBody>) {
        let found = CapabilitiesBody {
            observed_at: self.device_time(device),
            properties: Default::default(),
            labels: BTreeMap::new(),
            agent_version: format!("{}", self.devices[device].version),
        };
        if told.is_none_or(|told| told.agent_version != found.agent_version) {
            self.observe(device, Entry { body: Body::Capabilities(found), effect: Effect::None });
        }
    }

    fn observe(&mut self, device: usize, entry: Entry) {
        if let Some(agent) = &mut self.devices[device].agent {
            agent.waiting.push_back(entry);
        }
        self.keep(device);
    }

    /// Keeps what was told, in order; what cannot be kept waits.
    pub(crate) fn keep(&mut self, device: usize) {
        let life = self.devices[device].life;
        loop {
            let Some(agent) = &mut self.devices[device].agent else { return };
            let Some(entry) = agent.waiting.front().cloned() else { break };
            let kept = super::rows::now(agent.outbox.append(Arc::new(vec![entry.clone()])));
            if kept.is_err() {
                return self.chore(device, life, SECOND, Chore::Keep);
            }
            agent.waiting.pop_front();
            let told = self.has_told(device, &entry.body);
            self.hold(told);
        }
        self.sends(device);
    }
}
