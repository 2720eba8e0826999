//! Derives the actions on each deployment as a whole from the desired states of all devices, in LEDGER's order.
//! It keeps the newest actions of a deployment, and the target of each device with the action that set it.
//!
//! The chronicle begins where LEDGER does. A device whose target is older than that had it all along, so an
//! apparent removal in between was none. The chronicle does not judge how a deployment fares.

use std::collections::{HashMap, VecDeque};

use jiff::SignedDuration;
use muster_contract::actions::{ACTIONS_MAX, Action, ActionKind};
use muster_contract::desired::{DesiredState, Source};
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, DeviceKey, Generation};

use crate::fold::Position;

/// Stands for an action before everything that was read.
const OLDER: u64 = 0;
/// A document that LEDGER stored this long after it was issued is a re-assertion, so that LEDGER does not
/// discard it. If it is the first one read of a device, its content held before.
const SAID_AGAIN_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Every deployment's actions, as far as they were read.
#[derive(Debug, Default)]
pub struct Chronicle {
    numbers: HashMap<DeploymentId, u32>,
    lives: Vec<DeploymentHistory>,
    devices: HashMap<DeviceKey, DeviceTarget>,
    /// The first fact that was applied.
    begin: Option<AsOf>,
}

/// A device's last known target.
#[derive(Debug)]
struct DeviceTarget {
    generation: Generation,
    runs: Box<[Run]>,
}

/// A deployment on a device.
#[derive(Debug)]
struct Run {
    deployment: u32,
    /// The LEDGER sequence of the action that the device is at.
    action: u64,
}

/// A deployment.
#[derive(Debug, Default)]
struct DeploymentHistory {
    /// Devices that target it.
    targets: u64,
    actions: VecDeque<Action>,
    /// There were older actions, which are not kept.
    is_cut: bool,
    /// It was somewhere before everything that was read, or may have been.
    is_older: bool,
}

impl Chronicle {
    /// Applies a device's desired state. A state that is not newer than the known one changes nothing.
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
            // The device's earlier documents were not read, so neither is whether it had this.
            life.is_older |= is_old || is_first && state.generation > Generation::FIRST;
            life.targets += u64::from(held.is_none());
            runs.push(Run { deployment, action });
        }
        let stays = |run: &&Run| runs.iter().all(|now| now.deployment != run.deployment);
        for gone in before.iter().filter(stays) {
            self.lives[gone.deployment as usize].remove_target(at);
        }
        self.devices.insert(key.clone(), DeviceTarget { generation: state.generation, runs: runs.into() });
    }

    /// The actions on a deployment up to a fact, the oldest first, and since when the list is complete, unless
    /// it is from the beginning.
    pub fn actions(&self, id: &DeploymentId, up_to: u64) -> (Vec<Action>, Option<AsOf>) {
        let Some(number) = self.numbers.get(id) else { return (Vec::new(), None) };
        let life = &self.lives[*number as usize];
        let since = match life.actions.front().filter(|_| life.is_cut) {
            Some(first) => Some(as_of(first)),
            None => self.begin.filter(|_| life.is_older),
        };
        let told = life.actions.iter().filter(|action| action.ledger_seq <= up_to);
        (told.cloned().collect(), since)
    }

    /// Whether any device ever had a desired state with a deployment, as far as was read.
    pub fn knows(&self, id: &DeploymentId) -> bool {
        self.numbers.contains_key(id)
    }

    fn number(&mut self, id: &DeploymentId) -> u32 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let number = self.lives.len() as u32;
        self.numbers.insert(id.clone(), number);
        self.lives.push(DeploymentHistory::default());
        number
    }
}

/// The position of an action.
pub const fn as_of(action: &Action) -> AsOf {
    AsOf { ledger_seq: action.ledger_seq, at: action.at }
}

impl DeploymentHistory {
    /// Records that a device at one action gets a revision. This is a new action if no other device got the
    /// revision before, or if the device goes back to it from a later one.
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

    /// Records that one device no longer targets the deployment.
    fn remove_target(&mut self, at: Position) {
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
