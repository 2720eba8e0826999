//! The numbers and reports of a device in memory. No IO: `bin/device.rs` sends them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::hub::Result;

/// The state of a device.
#[derive(Debug, Default)]
pub struct Device {
    /// Site and name, with a dot between them.
    pub name: String,
    /// Begins the message ids of this process.
    pub life: String,
    /// Above any that the hub knows.
    pub epoch: u64,
    /// The highest number of a report.
    pub head: u64,
    /// The generation of the newest desired state.
    pub generation: u64,
    /// Entries of the desired state by deployment.
    pub running: BTreeMap<String, Value>,
    /// Reports that no receipt covers, by number.
    pub outbox: BTreeMap<u64, Value>,
    /// Those of them that the bus has stored.
    pub sent: BTreeSet<u64>,
}

impl Device {
    /// Gives a report the next number.
    pub fn report(&mut self, mut report: Value) {
        self.head += 1;
        let now = Timestamp::now().to_string();
        let common =
            json!({ "apiVersion": "muster/v1", "epoch": self.epoch, "seq": self.head, "observedAt": now });
        common.as_object().into_iter().flatten().for_each(|(name, value)| report[name] = value.clone());
        self.outbox.insert(self.head, report);
    }

    fn status(&mut self, state: &str, entry: &Value) {
        let components = entry["profile"]["components"].as_array().into_iter().flatten();
        let components: Vec<Value> =
            components.map(|it| json!({ "name": it["name"], "state": state })).collect();
        self.report(
            json!({ "kind": "StatusReport", "deployment": entry["id"], "generation": self.generation,
            "digest": entry["digest"], "status": { "state": state }, "components": components }),
        );
    }

    /// Applies a newer document. Deployments that it no longer names are reported as removed.
    pub fn apply(&mut self, desired: &Value) {
        let Some(generation) = desired["generation"].as_u64().filter(|it| *it > self.generation) else {
            return;
        };
        let entries = desired["deployments"].as_array().into_iter().flatten();
        let wanted: BTreeMap<_, _> = entries.map(|it| (it["id"].to_string(), it.clone())).collect();
        let before = std::mem::replace(&mut self.running, wanted.clone());
        before
            .iter()
            .filter(|(id, _)| !wanted.contains_key(*id))
            .for_each(|(_, it)| self.status("removed", it));
        self.generation = generation;
        let changed =
            wanted.iter().filter(|(id, it)| before.get(*id).map(|old| &old["digest"]) != Some(&it["digest"]));
        changed.for_each(|(_, entry)| self.status("installed", entry));
    }

    /// Deletes the reports that a receipt covers, and sends those again that it misses.
    ///
    /// # Errors
    /// The hub knows more than this device has sent.
    pub fn receive(&mut self, receipt: &Value) -> Result<()> {
        let [epoch, through] = ["epoch", "through"].map(|name| receipt[name].as_u64().unwrap_or(0));
        if (epoch, through) > (self.epoch, self.head) {
            return Err("the hub knows more than this device has sent: another one has its name".into());
        }
        let missing: Vec<[u64; 2]> = serde_json::from_value(receipt["missing"].clone())?;
        let is_missing = |seq: u64| missing.iter().any(|[first, last]| (*first..=*last).contains(&seq));
        if epoch == self.epoch {
            self.outbox.retain(|seq, _| *seq > through || is_missing(*seq));
            self.sent.retain(|seq| *seq > through && self.outbox.contains_key(seq));
        }
        Ok(())
    }

    /// A heartbeat.
    pub fn beat(&self) -> Value {
        json!({ "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": self.epoch, "head": self.head,
            "unsent": self.outbox.len() - self.sent.len(), "generation": self.generation })
    }

    /// Reports to send: the newest of each deployment, then the rest by number.
    pub fn unsent(&self) -> Vec<(u64, Value)> {
        let numbers = self.outbox.values().map(|it| (it["deployment"].to_string(), it["seq"].as_u64()));
        let newest: BTreeMap<_, _> = numbers.collect();
        let is_newest = |seq: u64| newest.values().any(|newest| *newest == Some(seq));
        let mut unsent: Vec<u64> =
            self.outbox.keys().copied().filter(|seq| !self.sent.contains(seq)).collect();
        unsent.sort_by_key(|seq| (!is_newest(*seq), *seq));
        let document = |seq: u64| {
            let mut document = self.outbox[&seq].clone();
            document["head"] = self.head.into();
            if document["kind"] == "StatusReport" {
                document["current"] = is_newest(seq).into();
            }
            (seq, document)
        };
        unsent.into_iter().map(document).collect()
    }
}
