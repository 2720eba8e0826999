//! What was done to each deployment as a whole, out of the desired states of all devices in LEDGER's order. The newest
//! actions of a deployment are kept, and of each device what it shall run and since which action.
//!
//! It begins wherever LEDGER does. A device that shall run something since before that was there all along: whatever looked
//! like a removal from everywhere meanwhile was none. How a deployment fares is not its concern.

use std::collections::{HashMap, VecDeque};

use jiff::SignedDuration;
use muster_contract::actions::{ACTIONS_MAX, Action, ActionKind};
use muster_contract::desired::{DesiredState, Source};
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, DeviceKey, Generation};

use crate::fold::Position;

/// Stands for an action that came before everything that was read.
const OLDER: u64 = 0;
/// A document that LEDGER stored so long after it was issued was said again, so that LEDGER does not forget it. Where that is
/// the first of a device that was read, what it says was so before.
const SAID_AGAIN_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Every deployment's actions, as far as they were read.
#[derive(Debug, Default)]
pub struct Chronicle {
    numbers: HashMap<DeploymentId, u32>,
    lives: Vec<Life>,
    devices: HashMap<DeviceKey, Told>,
    /// The first fact that was taken in.
    begin: Option<AsOf>,
}

/// What a device was told last.
#[derive(Debug)]
struct Told {
    generation: Generation,
    runs: Box<[Run]>,
}

/// A deployment on a device.
#[derive(Debug)]
struct Run {
    deployment: u32,
    /// Where LEDGER holds the action that the device is at.
    action: u64,
}

/// A deployment.
#[derive(Debug, Default)]
struct Life {
    /// Devices that shall run it.
    targets: u64,
    actions: VecDeque<Action>,
    /// There were older actions, which are not kept.
    is_cut: bool,
    /// It was somewhere before everything that was read, or may have been.
    is_older: bool,
}

impl Chronicle {
    /// Takes in what a device shall run from here on. What is not newer than what it was told already changes nothing.
    pub fn apply(&mut self, at: Position, key: &DeviceKey, state: &DesiredState) {
        self.begin.get_or_insert(AsOf { ledger_seq: at.ledger_seq, at: at.stored_at });
        let held = self.devices.get(key);
        if held.is_some_and(|told| told.generation >= state.generation) {
            return;
        }
        let is_first = held.is_none();
        let is_old = is_first && at.stored_at.duration_since(state.issued_at) > SAID_AGAIN_AFTER;
        let before = self.devices.remove(key).map(|told| told.runs).unwrap_or_default();
        let mut runs = Vec::with_capacity(state.deployments.len());
        for entry in &state.deployments {
            let deployment = self.number(&entry.id);
            let held = before.iter().find(|run| run.deployment == deployment).map(|run| run.action);
            let life = &mut self.lives[deployment as usize];
            let is_new = entry.target_generation == state.generation && !is_old;
            let action =
                if is_new { life.publish(at, state.source_of(entry), held) } else { held.unwrap_or(OLDER) };
            if is_first && !is_new {
                life.was_there();
            }
            // What the device was told before was not read, so neither is whether it had this.
            life.is_older |= is_old || is_first && state.generation > Generation::FIRST;
            life.targets += u64::from(held.is_none());
            runs.push(Run { deployment, action });
        }
        let stays = |run: &&Run| runs.iter().all(|now| now.deployment != run.deployment);
        for gone in before.iter().filter(stays) {
            self.lives[gone.deployment as usize].leave(at);
        }
        self.devices.insert(key.clone(), Told { generation: state.generation, runs: runs.into() });
    }

    /// What was done to a deployment up to a fact, the oldest first, and since when all of it is told, where that is not
    /// from the beginning.
    pub fn actions(&self, id: &DeploymentId, up_to: u64) -> (Vec<Action>, Option<AsOf>) {
        let Some(number) = self.numbers.get(id) else { return (Vec::new(), None) };
        let life = &self.lives[*number as usize];
        let since = match life.actions.front().filter(|_| life.is_cut) {
            Some(first) => Some(place(first)),
            None => self.begin.filter(|_| life.is_older),
        };
        let told = life.actions.iter().filter(|action| action.ledger_seq <= up_to);
        (told.cloned().collect(), since)
    }

    /// Whether any device was ever told of a deployment, as far as was read.
    pub fn knows(&self, id: &DeploymentId) -> bool {
        self.numbers.contains_key(id)
    }

    fn number(&mut self, id: &DeploymentId) -> u32 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let number = self.lives.len() as u32;
        self.numbers.insert(id.clone(), number);
        self.lives.push(Life::default());
        number
    }
}

/// Where an action is.
pub const fn place(action: &Action) -> AsOf {
    AsOf { ledger_seq: action.ledger_seq, at: action.at }
}

impl Life {
    /// A device that is at one action is told of a revision. It is an action of its own where no other device was told of it
    /// before, or where this one goes back to it from a later one.
    fn publish(&mut self, at: Position, source: Source, held: Option<u64>) -> u64 {
        let begun = self.actions.iter().rposition(|action| action.action == ActionKind::Removed);
        let since_then = self.actions.range(begun.map_or(0, |removed| removed + 1)..);
        let known = since_then.rev().find(|action| action.source.as_ref() == Some(&source));
        if let Some(known) = known
            && held.is_none_or(|held| held <= known.ledger_seq)
        {
            return known.ledger_seq;
        }
        let action = if self.targets == 0 { ActionKind::Published } else { ActionKind::Changed };
        self.push(at, action, Some(source));
        at.ledger_seq
    }

    /// One device less shall run it.
    fn leave(&mut self, at: Position) {
        self.targets -= 1;
        if self.targets == 0 {
            self.push(at, ActionKind::Removed, None);
        }
    }

    /// It was somewhere since before everything that was read.
    fn was_there(&mut self) {
        self.actions.retain(|action| action.action != ActionKind::Removed);
        self.actions.iter_mut().for_each(|action| action.action = ActionKind::Changed);
    }

    fn push(&mut self, at: Position, action: ActionKind, source: Option<Source>) {
        if self.actions.len() == ACTIONS_MAX {
            self.actions.pop_front();
            self.is_cut = true;
        }
        self.actions.push_back(Action { action, at: at.stored_at, ledger_seq: at.ledger_seq, source });
    }
}

#[cfg(test)]
mod tests;
