//! Fills LEDGER before the world begins: every device has reports of an earlier epoch in it and is stale after the last one.
//! Ingest and rollups may start from snapshots of a part of it.

use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::fact::Fact;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, State};
use muster_domain::intake::IntakeState;
use serde_json::{Value, json};

use super::agenda::{Millis, SECOND, moment};
use super::hub::StoredFact;
use super::law::Lawful;
use super::snapshots::Snapshot;
use super::world::World;

/// Time from one fact to the next.
const APART: Millis = SECOND;
/// The epoch of every device's earlier life: of the year before.
const EPOCH: u64 = 1_750_000_000;
/// States that the reports of a deployment name in turn.
const STATES: [State; 4] = [State::Pending, State::Installing, State::Installed, State::Failed];

impl World {
    /// Fills LEDGER, makes snapshots of parts of it for ingest and rollups, and backs the hub up.
    pub(crate) fn begin_with_history(&mut self) -> Lawful {
        let devices = self.devices.len() as u64;
        let each = self.profile.history.div_ceil(devices).max(2);
        let whole = Millis::try_from(each * devices).unwrap() * APART;
        for seq in 1..=each {
            for device in 0..self.devices.len() {
                let at = -whole + APART * Millis::try_from((seq - 1) * devices).unwrap() + device as Millis;
                self.remember_report(device, at, (seq, each))?;
            }
        }
        self.tally.history += self.hub.ledger.len() as u64;
        (0..self.owners.len()).for_each(|part| self.remember_snapshot(part));
        (0..self.rollups.len()).for_each(|rollup| self.fold_history(rollup));
        self.hub.back_up();
        Ok(())
    }

    /// Stores the fact of a report; after the last one also the liveness fact `stale` and the receipt.
    fn remember_report(&mut self, device: usize, at: Millis, (seq, each): (u64, u64)) -> Lawful {
        let time = moment(at).to_string();
        let common = json!({
            "apiVersion": "muster/v1", "epoch": EPOCH, "seq": seq, "head": seq, "observedAt": time, "receivedAt": time,
        });
        let key = self.devices[device].key.clone();
        if seq == 1 {
            let fact = json!({"kind": "DeviceFact", "properties": {}, "agentVersion": "0"});
            return self.remember_fact(LedgerSubject::Device(key), at, common, fact);
        }
        let deployment = format!("app{}", self.chance.usize(0..self.profile.deployments));
        let state = STATES[usize::try_from(seq).unwrap() % STATES.len()];
        let fact = json!({
            "kind": "StatusFact", "deployment": deployment, "generation": 1, "status": {"state": state},
            "digest": Digest::of_bytes(deployment.as_bytes()).to_string(), "current": seq == each,
            "components": [{"name": "main", "state": state}],
        });
        let deployment: DeploymentId = deployment.parse().unwrap();
        self.law.reported_earlier(device, (EPOCH, seq), deployment.clone(), state);
        self.remember_fact(LedgerSubject::Status(key.clone(), deployment), at, common, fact)?;
        if seq < each {
            return Ok(());
        }
        let fact = json!({"kind": "LivenessFact", "state": "stale", "lastHeardAt": time, "epoch": EPOCH, "head": seq});
        self.remember_fact(LedgerSubject::Liveness(key), at, json!({"apiVersion": "muster/v1"}), fact)?;
        let receipt = json!({
            "apiVersion": "muster/v1", "kind": "Receipt", "epoch": EPOCH, "through": seq, "missing": [],
        });
        let receipt: Receipt = decode::parse(receipt.to_string().as_bytes()).unwrap();
        self.hub.receipts[device] = Some(decode::to_bytes(&receipt).into());
        Ok(())
    }

    fn remember_fact(
        &mut self,
        subject: LedgerSubject,
        at: Millis,
        mut common: Value,
        fact: Value,
    ) -> Lawful {
        let (Value::Object(whole), Value::Object(fact)) = (&mut common, fact) else {
            unreachable!("objects")
        };
        whole.extend(fact);
        let fact = Fact::parse(&subject, common.to_string().as_bytes()).unwrap();
        self.hub.ledger.push(StoredFact::old(subject, fact, moment(at)));
        self.law.stored(self.hub.ledger.last().unwrap())
    }

    /// Gives an owner a snapshot of a part of the history, or none.
    fn remember_snapshot(&mut self, part: usize) {
        let position = self.chance.usize(0..=self.hub.ledger.len());
        if position == 0 || self.chance.bool() {
            return;
        }
        let mut intake = IntakeState::new(self.rules(), self.hub.ledger[position - 1].at);
        let later = self.hub.ledger.split_off(position);
        self.read_ledger(part, &mut intake, 0);
        self.hub.ledger.extend(later);
        self.owners[part].snapshot = Some(Snapshot::new(self.hub.origin, position as u64, intake.snapshot()));
    }
}
