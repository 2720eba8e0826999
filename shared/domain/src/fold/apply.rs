//! Applies each kind of fact to the fleet. One function handles one kind: it updates the device and the rows
//! concerned.

use std::cmp::Ordering;
use std::collections::HashMap;

use jiff::SignedDuration;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, DeviceFact, Incident, LivenessFact, QuarantineFact, StatusFact};
use muster_contract::quarantine::QuarantineVerdict;
use muster_contract::{DeploymentId, DeviceKey, Generation};

use super::app_spec::{self, AppSpec};
use super::fleet::{Fleet, Outcome, Position, Scope};
use super::report::Report;
use super::standing::{Deadline, Row};

/// How long a row that ended as removed refuses older reports. Facts stay in LEDGER for 30 days; a fleet rebuilt from
/// LEDGER would not know of the removal after that, so neither need this one.
const REMOVED_KEPT: SignedDuration = SignedDuration::from_hours(31 * 24);

impl Fleet {
    /// The newest report by (epoch, seq) holds. Late or not, each counts in the account of its epoch.
    pub(super) fn status(
        &mut self,
        at: Position,
        key: &DeviceKey,
        deployment: &DeploymentId,
        fact: StatusFact,
    ) -> Outcome {
        let number = self.name_device(key);
        let place = self.name_row(number, deployment);
        let before = self.context(number);
        let device = &mut self.devices[number as usize];
        device.state.apply_status(&fact);
        let row = &device.rows[place];
        let held = row.report.as_ref().map(|report| report.place());
        match Some((fact.epoch, fact.seq)).cmp(&held) {
            Ordering::Greater => {
                let mut report = Some(Report::of(fact, at.ledger_seq, &mut self.totals.component_sets));
                self.update_rows(number, before, Scope::Row(place), |row| {
                    std::mem::swap(&mut row.report, &mut report);
                });
                if let Some(older) = report {
                    self.totals.component_sets.release(&older.components);
                }
                Outcome::Applied
            }
            Ordering::Equal => {
                self.update_rows(number, before, Scope::Row(place), |row| {
                    if let Some(report) = &mut row.report {
                        report.again(&fact, at.ledger_seq);
                    }
                });
                Outcome::Duplicate
            }
            Ordering::Less => {
                self.update_rows(number, before, Scope::Device, |_| {});
                Outcome::Late
            }
        }
    }

    /// The newest desired state by generation holds. Targets are what it names, with the generation of each.
    pub(super) fn desired(&mut self, at: Position, key: &DeviceKey, fact: &DesiredState) -> Outcome {
        let number = self.name_device(key);
        let before = self.context(number);
        match Some(fact.generation).cmp(&self.devices[number as usize].state.desired()) {
            Ordering::Greater => {}
            Ordering::Equal => {
                self.devices[number as usize].state.sources.desired = at.ledger_seq.into();
                self.update_rows(number, before, Scope::Device, |_| {});
                return Outcome::Duplicate;
            }
            Ordering::Less => return Outcome::Late,
        }
        self.regroup(number, &fact.labels);
        let state = &mut self.devices[number as usize].state;
        state.desire(fact.generation, fact.retired);
        state.sources.desired = at.ledger_seq.into();
        let mut targets = HashMap::new();
        let places = self.name_rows(number, fact.deployments.iter().map(|entry| &entry.id));
        for (place, entry) in places.into_iter().zip(&fact.deployments) {
            let deployment = self.devices[number as usize].rows[place].deployment;
            let spec = self.totals.specs.intern(AppSpec::of(entry));
            targets.insert(deployment, (entry.target_generation, spec));
        }
        let mut released = Vec::new();
        // The publisher's clock may be ahead of LEDGER's.
        let said_at = fact.issued_at.min(at.stored_at);
        // A leaving row still belongs to its application. A target withdrawn before any report leaves no trace.
        let left = |row: &Row| match row.report {
            Some(_) if !fact.retired => row.spec,
            _ => app_spec::NONE,
        };
        self.update_rows(number, before, Scope::Rows, |row| {
            let (target, spec) = targets.get(&row.deployment).copied().unzip();
            row.set_target(target, said_at);
            let spec = spec.unwrap_or_else(|| left(row));
            if spec != row.spec || target.is_some() {
                released.push(std::mem::replace(&mut row.spec, spec));
            }
        });
        released.into_iter().for_each(|number| self.totals.specs.release(number));
        self.forget(at, number, fact.generation);
        Outcome::Applied
    }

    /// Drops what no later fact can need of a device.
    fn forget(&mut self, at: Position, number: u32, generation: Generation) {
        let aged = |report: &Report| at.stored_at.duration_since(report.received_at()) > REMOVED_KEPT;
        let context = self.context(number);
        self.drop_rows(number, |row| row.is_spent(generation, &context, aged));
    }

    pub(super) fn device(&mut self, key: &DeviceKey, fact: DeviceFact) -> Outcome {
        let number = self.name_device(key);
        let before = self.context(number);
        let newest = self.devices[number as usize].state.apply_capabilities(fact);
        self.update_rows(number, before, Scope::Device, |_| {});
        if newest { Outcome::Applied } else { Outcome::Late }
    }

    pub(super) fn liveness(&mut self, at: Position, key: &DeviceKey, fact: &LivenessFact) -> Outcome {
        let number = self.name_device(key);
        let before = self.context(number);
        let state = &mut self.devices[number as usize].state;
        let newest = state.apply_liveness(fact);
        if newest {
            state.sources.liveness = at.ledger_seq.into();
        }
        self.update_rows(number, before, Scope::Device, |_| {});
        if newest { Outcome::Applied } else { Outcome::Late }
    }

    /// Applies a deadline: the newest by generation, then by the time it counts from, holds. It may come before
    /// its desired state, because the two take different paths.
    pub(super) fn deadline(
        &mut self,
        at: Position,
        key: &DeviceKey,
        deployment: &DeploymentId,
        fact: DeadlineFact,
    ) -> Outcome {
        let number = self.name_device(key);
        let place = self.name_row(number, deployment);
        let before = self.context(number);
        let held = self.devices[number as usize].rows[place].deadline.as_ref();
        let age = |deadline: &DeadlineFact| (deadline.generation, deadline.since);
        if held.is_some_and(|held| age(&held.fact) > age(&fact)) {
            return Outcome::Late;
        }
        let mut fact = Some(Box::new(Deadline { fact, ledger_seq: at.ledger_seq }));
        self.update_rows(number, before, Scope::Row(place), |row| row.deadline = fact.take());
        Outcome::Applied
    }

    pub(super) fn incident(&mut self, key: &DeviceKey, fact: Incident) -> Outcome {
        let number = self.name_device(key);
        let before = self.context(number);
        self.devices[number as usize].state.apply_incident(fact);
        self.update_refusing(number);
        self.update_rows(number, before, Scope::Device, |_| {});
        Outcome::Applied
    }

    pub(super) fn quarantine(&mut self, at: Position, key: &DeviceKey, fact: &QuarantineFact) -> Outcome {
        let number = self.name_device(key);
        let before = self.context(number);
        self.devices[number as usize].state.apply_quarantine(fact, at.ledger_seq);
        self.update_rows(number, before, Scope::Device, |_| {});
        Outcome::Applied
    }

    pub(super) fn verdict(&mut self, key: &DeviceKey, fact: &QuarantineVerdict) -> Outcome {
        let number = self.name_device(key);
        let before = self.context(number);
        self.devices[number as usize].state.apply_verdict(fact);
        self.update_rows(number, before, Scope::Device, |_| {});
        Outcome::Applied
    }
}
