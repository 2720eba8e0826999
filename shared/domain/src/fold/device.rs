//! One device as the fold knows it: what it was told, what it said of itself, whether it is heard, and its rows.

use std::collections::BTreeMap;

use muster_contract::fact::{
    DeviceFact, Incident, IncidentKind, Liveness, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, Epoch, Generation, Seq, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::holdings::Holdings;
use super::standing::{Facet, Row};

/// A device with its rows.
#[derive(Debug)]
pub(super) struct Device {
    /// The number of its site.
    pub(super) site: u32,
    pub(super) about: About,
    pub(super) rows: Vec<Row>,
    /// It changed since the last call of `take_changed`.
    pub(super) changed: bool,
    /// A copy that is under way has yet to take it.
    pub(super) due: bool,
}

/// Everything about a device but its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct About {
    pub(super) key: DeviceKey,
    /// Generation of the newest desired state, and whether that retires the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) desired: Option<(Generation, bool)>,
    pub(super) holdings: Holdings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    liveness: Option<(Epoch, Liveness)>,
    /// It has reported at least once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reported: bool,
    /// When the hub last heard it, as far as facts tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) heard_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nature: Option<Box<Nature>>,
    /// None for most devices, which is why it is a box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) troubles: Option<Box<Troubles>>,
    pub(super) sources: Sources,
}

/// Where LEDGER holds the facts that a device's properties come from; 0 where there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sources {
    pub(super) desired: u64,
    pub(super) liveness: u64,
    /// The fact that first spoke of the head, or of the epoch.
    pub(super) head: u64,
    /// The fact that last changed how many reports are missing.
    pub(super) gap: u64,
}

/// How the hub heard a device at some moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    reported: bool,
    at: Option<Timestamp>,
    pub(super) epoch: Option<Epoch>,
    pub(super) head: u64,
}

/// What a person may want to look into.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Troubles {
    pub(super) incidents: u64,
    pub(super) last_incident: Option<Incident>,
    pub(super) unnumbered_quarantined: u64,
    /// By how many seconds its clock was found wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) skew_seconds: Option<i64>,
}

/// What a device says it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Nature {
    place: (Epoch, Seq),
    /// Kept as text: a parsed object takes several times the space, and it is only ever shown.
    properties: Box<str>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) agent_version: Box<str>,
}

impl Device {
    pub(super) const fn new(site: u32, key: DeviceKey) -> Self {
        Self { site, about: About::new(key), rows: Vec::new(), changed: false, due: false }
    }
}

impl About {
    const fn new(key: DeviceKey) -> Self {
        Self {
            key,
            desired: None,
            holdings: Holdings::new(),
            liveness: None,
            reported: false,
            heard_at: None,
            nature: None,
            troubles: None,
            sources: Sources { desired: 0, liveness: 0, head: 0, gap: 0 },
        }
    }

    /// What its standings take from it.
    pub(super) fn facet(&self) -> Facet {
        Facet {
            retired: self.is_retired(),
            freshness: self.freshness(),
            epoch: self.holdings.epoch(),
            head: self.holdings.head(),
            missing: self.holdings.missing(),
        }
    }

    pub(super) const fn is_retired(&self) -> bool {
        matches!(self.desired, Some((_, true)))
    }

    /// Only liveness facts can say that a device is fresh; without one it is stale as soon as it has reported.
    pub(super) const fn freshness(&self) -> Freshness {
        match (self.liveness, self.reported) {
            (Some((_, Liveness::Fresh)), _) => Freshness::Fresh,
            (Some((_, Liveness::Stale)), _) | (None, true) => Freshness::Stale,
            (None, false) => Freshness::Never,
        }
    }

    /// A status report came in: its number counts, if it is of the current epoch.
    pub(super) fn take_status(&mut self, fact: &StatusFact) {
        self.report_came(fact.received_at);
        if self.holdings.enter(fact.epoch) {
            self.holdings.advertise(fact.head.get());
            self.holdings.receive(fact.seq);
            self.holdings.coalesce(&fact.coalesced);
        }
    }

    /// A capabilities report came in. True where it is the newest.
    pub(super) fn take_device(&mut self, fact: DeviceFact) -> bool {
        self.report_came(fact.received_at);
        if self.holdings.enter(fact.epoch) {
            self.holdings.advertise(fact.head.get());
            self.holdings.receive(fact.seq);
            self.holdings.coalesce(&fact.coalesced);
        }
        let newest = self.nature.as_ref().is_none_or(|nature| nature.place < (fact.epoch, fact.seq));
        if newest {
            self.nature = Some(Box::new(Nature::of(fact)));
        }
        newest
    }

    /// Hub time passed. True where no liveness fact of a newer epoch is held.
    pub(super) fn take_liveness(&mut self, fact: &LivenessFact) -> bool {
        self.hear(fact.last_heard_at);
        if self.holdings.enter(fact.epoch) {
            self.holdings.advertise(fact.head);
            if let Some(account) = &fact.account {
                self.holdings.learn(fact.head, account);
            }
        }
        let newest = self.liveness.is_none_or(|(epoch, _)| epoch <= fact.epoch);
        if newest {
            self.liveness = Some((fact.epoch, fact.state));
        }
        newest
    }

    /// A message could not be let in.
    pub(super) fn take_quarantine(&mut self, fact: &QuarantineFact) {
        match fact.epoch.zip(fact.seq) {
            Some((epoch, seq)) => self.holdings.quarantine(epoch, seq),
            None => self.troubles.get_or_insert_default().unnumbered_quarantined += 1,
        }
    }

    /// Something happened that a person should know.
    pub(super) fn take_incident(&mut self, incident: Incident) {
        let troubles = self.troubles.get_or_insert_default();
        troubles.incidents += 1;
        if let IncidentKind::ClockSkew { seconds } = incident.what {
            troubles.skew_seconds = Some(seconds);
        }
        troubles.last_incident = Some(incident);
    }

    /// How it is heard.
    pub(super) const fn heard(&self) -> Heard {
        Heard {
            reported: self.reported,
            at: self.heard_at,
            epoch: self.holdings.epoch(),
            head: self.holdings.head(),
        }
    }

    /// Puts back how it was heard; its numbers are its holdings' affair.
    pub(super) const fn put_back(&mut self, then: Heard) {
        self.reported = then.reported;
        self.heard_at = then.at;
    }

    fn report_came(&mut self, received_at: Timestamp) {
        self.reported = true;
        self.hear(received_at);
    }

    fn hear(&mut self, at: Timestamp) {
        self.heard_at = self.heard_at.max(Some(at));
    }
}

impl Nature {
    fn of(fact: DeviceFact) -> Self {
        Self {
            place: (fact.epoch, fact.seq),
            properties: Value::Object(fact.properties).to_string().into(),
            labels: fact.labels,
            agent_version: fact.agent_version.into(),
        }
    }

    /// Margo's DeviceCapabilities.
    pub(super) fn properties(&self) -> Map<String, Value> {
        serde_json::from_str(&self.properties).unwrap_or_default()
    }
}
