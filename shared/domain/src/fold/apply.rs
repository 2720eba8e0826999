//! What each kind of fact does to the fleet. One function a kind: what it changes of the device, which rows it alters.

use std::cmp::Ordering;
use std::collections::HashMap;

use jiff::SignedDuration;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, DeviceFact, Incident, LivenessFact, QuarantineFact, StatusFact};
use muster_contract::quarantine::QuarantineVerdict;
use muster_contract::{DeploymentId, DeviceKey, Generation};

use super::blueprint::{self, Blueprint};
use super::fleet::{Fleet, Outcome, Position, Scope};
use super::report::Report;
use super::standing::Deadline;

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
        let before = self.facet(number);
        let device = &mut self.devices[number as usize];
        device.about.take_status(&fact);
        let row = &device.rows[place];
        let held = row.report.as_ref().map(|report| report.place());
        match Some((fact.epoch, fact.seq)).cmp(&held) {
            Ordering::Greater => {
                let mut report = Some(Report::of(fact, at.ledger_seq, &mut self.totals.casts));
                self.settle(number, before, Scope::Row(place), |row| {
                    std::mem::swap(&mut row.report, &mut report);
                });
                if let Some(older) = report {
                    self.totals.casts.release(&older.components);
                }
                Outcome::Taken
            }
            Ordering::Equal => {
                self.settle(number, before, Scope::Row(place), |row| {
                    if let Some(report) = &mut row.report {
                        report.again(&fact, at.ledger_seq);
                    }
                });
                Outcome::Again
            }
            Ordering::Less => {
                self.settle(number, before, Scope::Device, |_| {});
                Outcome::Late
            }
        }
    }

    /// The newest desired state by generation holds. Targets are what it names, with the generation of each.
    pub(super) fn desired(&mut self, at: Position, key: &DeviceKey, fact: &DesiredState) -> Outcome {
        let number = self.name_device(key);
        let before = self.facet(number);
        match Some(fact.generation).cmp(&self.devices[number as usize].about.desired()) {
            Ordering::Greater => {}
            Ordering::Equal => {
                self.devices[number as usize].about.sources.desired = at.ledger_seq.into();
                self.settle(number, before, Scope::Device, |_| {});
                return Outcome::Again;
            }
            Ordering::Less => return Outcome::Late,
        }
        self.regroup(number, &fact.labels);
        let about = &mut self.devices[number as usize].about;
        about.desire(fact.generation, fact.retired);
        about.sources.desired = at.ledger_seq.into();
        let mut targets = HashMap::new();
        for entry in &fact.deployments {
            let place = self.name_row(number, &entry.id);
            let deployment = self.devices[number as usize].rows[place].deployment;
            let print = self.totals.blueprints.take(Blueprint::of(entry));
            targets.insert(deployment, (entry.target_generation, print));
        }
        let mut released = Vec::new();
        // The publisher's clock may be ahead of LEDGER's.
        let said_at = fact.issued_at.min(at.stored_at);
        // What leaves is still of its application.
        let left = |held: u32| if fact.retired { blueprint::NONE } else { held };
        self.settle(number, before, Scope::Rows, |row| {
            let (target, print) = targets.get(&row.deployment).copied().unzip();
            row.aim(target, said_at);
            let print = print.unwrap_or_else(|| left(row.blueprint));
            if print != row.blueprint || target.is_some() {
                released.push(std::mem::replace(&mut row.blueprint, print));
            }
        });
        released.into_iter().for_each(|number| self.totals.blueprints.release(number));
        self.forget(at, number, fact.generation);
        Outcome::Taken
    }

    /// Drops what no later fact can need of a device.
    fn forget(&mut self, at: Position, number: u32, generation: Generation) {
        let aged = |report: &Report| at.stored_at.duration_since(report.received_at()) > REMOVED_KEPT;
        let facet = self.facet(number);
        self.drop_rows(number, |row| row.is_spent(generation, &facet, aged));
    }

    pub(super) fn device(&mut self, key: &DeviceKey, fact: DeviceFact) -> Outcome {
        let number = self.name_device(key);
        let before = self.facet(number);
        let newest = self.devices[number as usize].about.take_device(fact);
        self.settle(number, before, Scope::Device, |_| {});
        if newest { Outcome::Taken } else { Outcome::Late }
    }

    pub(super) fn liveness(&mut self, at: Position, key: &DeviceKey, fact: &LivenessFact) -> Outcome {
        let number = self.name_device(key);
        let before = self.facet(number);
        let about = &mut self.devices[number as usize].about;
        let newest = about.take_liveness(fact);
        if newest {
            about.sources.liveness = at.ledger_seq.into();
        }
        self.settle(number, before, Scope::Device, |_| {});
        if newest { Outcome::Taken } else { Outcome::Late }
    }

    /// The newest deadline by generation, then by the time it counts from, holds; also before its desired state is
    /// here, because the two come by different ways.
    pub(super) fn deadline(
        &mut self,
        at: Position,
        key: &DeviceKey,
        deployment: &DeploymentId,
        fact: DeadlineFact,
    ) -> Outcome {
        let number = self.name_device(key);
        let place = self.name_row(number, deployment);
        let before = self.facet(number);
        let held = self.devices[number as usize].rows[place].deadline.as_ref();
        let age = |deadline: &DeadlineFact| (deadline.generation, deadline.since);
        if held.is_some_and(|held| age(&held.fact) > age(&fact)) {
            return Outcome::Late;
        }
        let mut fact = Some(Box::new(Deadline { fact, ledger_seq: at.ledger_seq }));
        self.settle(number, before, Scope::Row(place), |row| row.deadline = fact.take());
        Outcome::Taken
    }

    pub(super) fn incident(&mut self, key: &DeviceKey, fact: Incident) -> Outcome {
        let number = self.name_device(key);
        let before = self.facet(number);
        self.devices[number as usize].about.take_incident(fact);
        self.settle(number, before, Scope::Device, |_| {});
        Outcome::Taken
    }

    pub(super) fn quarantine(&mut self, at: Position, key: &DeviceKey, fact: &QuarantineFact) -> Outcome {
        let number = self.name_device(key);
        let before = self.facet(number);
        self.devices[number as usize].about.take_quarantine(fact, at.ledger_seq);
        self.settle(number, before, Scope::Device, |_| {});
        Outcome::Taken
    }

    pub(super) fn verdict(&mut self, key: &DeviceKey, fact: &QuarantineVerdict) -> Outcome {
        let number = self.name_device(key);
        let before = self.facet(number);
        self.devices[number as usize].about.take_verdict(fact);
        self.settle(number, before, Scope::Device, |_| {});
        Outcome::Taken
    }
}
