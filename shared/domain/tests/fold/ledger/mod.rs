//! Builds a ledger by hand: each call appends one fact, as ingest and the publisher would write it.

#![allow(dead_code)]

mod tried;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::desired::{
    Component, DesiredDeployment, DesiredState, Profile, ProfileType, Source, SourceKind,
};
use muster_contract::fact::{
    Account, DeadlineFact, DeadlineKind, DeviceFact, Fact, Hearing, HearingFact, Incident, IncidentKind,
    Liveness, LivenessFact, PulseFact, QuarantineFact, StatusFact,
};
use muster_contract::partition::partition_of;
use muster_contract::quarantine::{QuarantineDecision, QuarantineVerdict};
use muster_contract::query::Output;
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::{DeploymentView, SiteView};
use muster_contract::{DeviceKey, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use muster_domain::aggregate;
use muster_domain::fold::{Fleet, Outcome, Page, Position};
pub(crate) use tried::Tried;

/// Facts in LEDGER's order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) entries: Vec<Entry>,
}

/// One fact of LEDGER.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) subject: LedgerSubject,
    pub(crate) fact: Fact,
}

/// A status report as a test says it. `..Said::default()` is a first report: installed, current, for generation 1.
#[derive(Debug, Clone)]
pub(crate) struct Said<'a> {
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    /// The head; `seq` where 0.
    pub(crate) head: u64,
    pub(crate) generation: u64,
    pub(crate) components: &'a [(&'a str, State)],
    /// Errors of components: name, code, message.
    pub(crate) errors: &'a [(&'a str, &'a str, &'a str)],
    /// The error of the deployment as a whole: code, source, message.
    pub(crate) error: Option<(&'a str, &'a str, &'a str)>,
    pub(crate) current: bool,
    pub(crate) coalesced: &'a [(u64, u64)],
    pub(crate) reasserted: bool,
    /// The running retries.
    pub(crate) retries: &'a [Tried<'a>],
    /// The entry at whose time the first attempt began, where the hub says so.
    pub(crate) first_attempt_at: Option<u64>,
    pub(crate) evidence: muster_contract::evidence::EvidenceSource,
}

impl Default for Said<'_> {
    fn default() -> Self {
        Self {
            epoch: 1,
            seq: 1,
            head: 0,
            generation: 1,
            components: &[("main", State::Installed)],
            errors: &[],
            error: None,
            current: true,
            coalesced: &[],
            reasserted: false,
            retries: &[],
            first_attempt_at: None,
            evidence: Default::default(),
        }
    }
}

/// When the first fact of a ledger was stored; each next one a second later.
pub(crate) fn stored_at(ledger_seq: u64) -> Timestamp {
    let first: Timestamp = "2026-11-20T08:00:00Z".parse().unwrap();
    first + SignedDuration::from_secs(ledger_seq as i64)
}

pub(crate) fn key(text: &str) -> DeviceKey {
    text.parse().unwrap()
}

impl Ledger {
    pub(crate) fn desired(&mut self, device: &str, generation: u64, targets: &[(&str, u64)]) -> &mut Self {
        self.push_desired(device, generation, targets, &[], false)
    }

    pub(crate) fn labelled(
        &mut self,
        device: &str,
        generation: u64,
        targets: &[(&str, u64)],
        labels: &[(&str, &str)],
    ) -> &mut Self {
        self.push_desired(device, generation, targets, labels, false)
    }

    pub(crate) fn retired(&mut self, device: &str, generation: u64) -> &mut Self {
        self.push_desired(device, generation, &[], &[], true)
    }

    fn push_desired(
        &mut self,
        device: &str,
        generation: u64,
        targets: &[(&str, u64)],
        labels: &[(&str, &str)],
        retired: bool,
    ) -> &mut Self {
        let issued_at = self.next_at();
        let fact = DesiredState {
            api_version: Default::default(),
            kind: Default::default(),
            generation: Generation::new(generation).unwrap(),
            issued_at,
            retired,
            source: Source::new(SourceKind::Git, format!("c{generation}")),
            labels: labels.iter().map(|(of, is)| (of.parse().unwrap(), is.parse().unwrap())).collect(),
            retry: None,
            deployments: targets.iter().map(|(id, at)| deployment(id, *at)).collect(),
        };
        self.push(LedgerSubject::Desired(key(device)), Fact::Desired(fact))
    }

    pub(crate) fn status(&mut self, device: &str, id: &str, said: &Said<'_>) -> &mut Self {
        let at = self.next_at();
        let fact = status(id, said, at);
        self.push(LedgerSubject::Status(key(device), id.parse().unwrap()), Fact::Status(fact))
    }

    pub(crate) fn capabilities(&mut self, device: &str, epoch: u64, seq: u64) -> &mut Self {
        self.capabilities_of_agent(device, epoch, seq, "0.1.0")
    }

    pub(crate) fn capabilities_of_agent(
        &mut self,
        device: &str,
        epoch: u64,
        seq: u64,
        agent_version: &str,
    ) -> &mut Self {
        let at = self.next_at();
        let fact = DeviceFact {
            api_version: Default::default(),
            kind: Default::default(),
            epoch: epoch_of(epoch),
            seq: Seq::new(seq).unwrap(),
            head: Seq::new(seq).unwrap(),
            observed_at: at,
            properties: serde_json::from_str(r#"{"cpus":[{"cores":4}]}"#).unwrap(),
            labels: BTreeMap::from([("line".to_owned(), "a".to_owned())]),
            agent_version: agent_version.to_owned(),
            coalesced: SeqRanges::new(),
            received_at: at,
            reasserted: false,
        };
        self.push(LedgerSubject::Device(key(device)), Fact::Device(fact))
    }

    pub(crate) fn fresh(&mut self, device: &str, epoch: u64, head: u64) -> &mut Self {
        self.liveness(device, Liveness::Fresh, epoch, head, None)
    }

    pub(crate) fn stale(&mut self, device: &str, epoch: u64, head: u64) -> &mut Self {
        self.liveness(device, Liveness::Stale, epoch, head, None)
    }

    pub(crate) fn liveness(
        &mut self,
        device: &str,
        state: Liveness,
        epoch: u64,
        head: u64,
        account: Option<Account>,
    ) -> &mut Self {
        self.heard(device, state, epoch, head, account, None, true)
    }

    /// A heartbeat after everything before it in the ledger.
    pub(crate) fn beat(&mut self, device: &str, epoch: u64, head: u64) -> &mut Self {
        let beat_at = Some(self.next_at());
        self.heard(device, Liveness::Fresh, epoch, head, None, beat_at, true)
    }

    /// A heartbeat that says that the device cannot keep what it would report.
    pub(crate) fn not_storing(&mut self, device: &str, epoch: u64, head: u64) -> &mut Self {
        let beat_at = Some(self.next_at());
        self.heard(device, Liveness::Fresh, epoch, head, None, beat_at, false)
    }

    #[allow(clippy::too_many_arguments, reason = "they are the parts of one fact")]
    pub(crate) fn heard(
        &mut self,
        device: &str,
        state: Liveness,
        epoch: u64,
        head: u64,
        account: Option<Account>,
        beat_at: Option<Timestamp>,
        storing: bool,
    ) -> &mut Self {
        let fact = LivenessFact {
            api_version: Default::default(),
            kind: Default::default(),
            state,
            last_heard_at: self.next_at(),
            epoch: epoch_of(epoch),
            head,
            account,
            beat_at,
            storing,
        };
        self.push(LedgerSubject::Liveness(key(device)), Fact::Liveness(fact))
    }

    pub(crate) fn deadline(
        &mut self,
        device: &str,
        id: &str,
        generation: u64,
        deadline: DeadlineKind,
    ) -> &mut Self {
        let fact = DeadlineFact {
            api_version: Default::default(),
            kind: Default::default(),
            generation: Generation::new(generation).unwrap(),
            deadline,
            since: self.next_at(),
            limit_seconds: 1800,
        };
        self.push(LedgerSubject::Deadline(key(device), id.parse().unwrap()), Fact::Deadline(fact))
    }

    pub(crate) fn quarantine(&mut self, device: &str, number: Option<(u64, u64)>) -> &mut Self {
        self.quarantine_sum(device, number, SeqRanges::new())
    }

    /// A message in quarantine that stands for others of its epoch.
    pub(crate) fn quarantine_sum(
        &mut self,
        device: &str,
        number: Option<(u64, u64)>,
        other_seqs: SeqRanges,
    ) -> &mut Self {
        let fact = QuarantineFact {
            api_version: Default::default(),
            kind: Default::default(),
            reason: "StatusReport breaks a rule: status.state: is installed; it must be failed".to_owned(),
            epoch: number.map(|(epoch, _)| epoch_of(epoch)),
            seq: number.map(|(_, seq)| Seq::new(seq).unwrap()),
            subject: format!("muster.report.{}", device.replace('/', ".")),
            received_at: self.next_at(),
            payload_base64: QuarantineFact::encode_payload(b"{}"),
            bytes: 2,
            count_for_device: 1,
            reasserted: false,
            others: other_seqs.count(),
            other_seqs,
            not_kept: 0,
        };
        self.push(LedgerSubject::Quarantine(Some(key(device))), Fact::Quarantine(fact))
    }

    /// A person drops a message that went to quarantine at a moment.
    pub(crate) fn dropped(
        &mut self,
        device: &str,
        number: Option<(u64, u64)>,
        received_at: Timestamp,
    ) -> &mut Self {
        self.dropped_sum(device, number, SeqRanges::new(), received_at)
    }

    /// The same of one that stands for others.
    pub(crate) fn dropped_sum(
        &mut self,
        device: &str,
        number: Option<(u64, u64)>,
        other_seqs: SeqRanges,
        received_at: Timestamp,
    ) -> &mut Self {
        let fact = QuarantineVerdict {
            api_version: Default::default(),
            kind: Default::default(),
            of: 1,
            verdict: QuarantineDecision::Dropped,
            epoch: number.map(|(epoch, _)| epoch_of(epoch)),
            seq: number.map(|(_, seq)| Seq::new(seq).unwrap()),
            other_seqs,
            received_at: Some(received_at),
            reason: None,
            requested_by: None,
            at: self.next_at(),
        };
        self.push(LedgerSubject::Verdict(Some(key(device))), Fact::Verdict(fact))
    }

    pub(crate) fn incident(&mut self, device: &str, what: IncidentKind) -> &mut Self {
        let fact = Incident::new(self.next_at(), what);
        self.push(LedgerSubject::Incident(Some(key(device))), Fact::Incident(fact))
    }

    /// The rollup says that the hub does not listen to a device's partition, since a moment.
    pub(crate) fn stopped(&mut self, device: &str, since: Timestamp) -> &mut Self {
        self.hearing(partition_of(&key(device)), Hearing::Stopped, since)
    }

    /// The rollup says that the hub listens to a device's partition again.
    pub(crate) fn resumed(&mut self, device: &str) -> &mut Self {
        let since = self.next_at();
        self.hearing(partition_of(&key(device)), Hearing::Resumed, since)
    }

    pub(crate) fn hearing(&mut self, partition: u16, state: Hearing, since: Timestamp) -> &mut Self {
        let fact = HearingFact {
            api_version: Default::default(),
            kind: Default::default(),
            state,
            since,
            reasserted: false,
        };
        self.push(LedgerSubject::Hearing(partition), Fact::Hearing(fact))
    }

    /// The pulse of the owner of a device's partition.
    pub(crate) fn pulse(&mut self, device: &str, current: bool) -> &mut Self {
        let pulse = PulseFact {
            api_version: Default::default(),
            kind: Default::default(),
            owner: "ingest-1".to_owned(),
            at: self.next_at(),
            lease_seconds: 90,
            current,
            unproven_since: None,
        };
        self.push(LedgerSubject::Hub(partition_of(&key(device))), Fact::Pulse(pulse))
    }

    pub(crate) fn push(&mut self, subject: LedgerSubject, fact: Fact) -> &mut Self {
        self.entries.push(Entry { subject, fact });
        self
    }

    pub(crate) fn next_at(&self) -> Timestamp {
        stored_at(self.entries.len() as u64 + 1)
    }

    pub(crate) fn fold(&self) -> Fleet {
        let mut fleet = Fleet::default();
        self.fold_into(&mut fleet, 0);
        fleet
    }

    /// Folds the entries after one, and returns each fact's outcome.
    pub(crate) fn fold_into(&self, fleet: &mut Fleet, after: usize) -> Vec<Outcome> {
        let tail = self.entries.iter().enumerate().skip(after);
        tail.map(|(at, entry)| fleet.apply(position(at), &entry.subject, entry.fact.clone())).collect()
    }
}

/// The place of the entry at an index.
pub(crate) fn position(at: usize) -> Position {
    let ledger_seq = at as u64 + 1;
    Position { ledger_seq, stored_at: stored_at(ledger_seq) }
}

pub(crate) fn status(id: &str, said: &Said<'_>, received_at: Timestamp) -> StatusFact {
    let component = |(name, state): &(&str, State)| {
        let error = said.errors.iter().find(|(of, ..)| of == name);
        ComponentStatus {
            name: name.parse().unwrap(),
            state: *state,
            error: error.map(|(_, code, message)| StatusError::new(*code, *name, *message)),
        }
    };
    let error = said.error.map(|(code, source, message)| StatusError::new(code, source, message));
    let state = aggregate::overall(said.components.iter().map(|(_, state)| *state), error.as_ref());
    StatusFact {
        api_version: Default::default(),
        kind: Default::default(),
        epoch: epoch_of(said.epoch),
        seq: Seq::new(said.seq).unwrap(),
        head: Seq::new(if said.head == 0 { said.seq } else { said.head }).unwrap(),
        observed_at: received_at,
        deployment: id.parse().unwrap(),
        generation: Generation::new(said.generation).unwrap(),
        digest: Digest::of_bytes(&said.generation.to_be_bytes()),
        status: DeploymentStatus { state, error, reason: None },
        components: said.components.iter().map(component).collect(),
        retries: said.retries.iter().map(Tried::retry).collect(),
        first_attempt_at: said.first_attempt_at.map(stored_at),
        current: said.current,
        coalesced: SeqRanges::try_from(said.coalesced.to_vec()).unwrap(),
        received_at,
        origin: said.evidence.origin,
        fidelity: said.evidence.fidelity,
        late: false,
        reasserted: said.reasserted,
    }
}

fn deployment(id: &str, target_generation: u64) -> DesiredDeployment {
    let component = Component::new("main".parse().unwrap(), serde_json::Map::new());
    let mut entry = DesiredDeployment {
        id: id.parse().unwrap(),
        name: id.to_owned(),
        application_id: format!("com.example.{id}"),
        namespace: None,
        labels: Default::default(),
        target_generation: Generation::new(target_generation).unwrap(),
        digest: Digest::of_bytes(&[]),
        profile: Profile {
            profile_type: ProfileType::Simulated,
            components: vec![component],
            device_constraints: None,
        },
        parameters: BTreeMap::new(),
        stopped: false,
        restart: 0,
        source: None,
    };
    entry.digest = entry.content_digest();
    entry
}

fn epoch_of(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// Views by the text of their names.
pub(crate) trait Look {
    fn deployment(&self, id: &str) -> DeploymentView;
    fn has_deployment(&self, id: &str) -> bool;
    fn site(&self, id: &str) -> SiteView;
}

impl Look for Fleet {
    fn deployment(&self, id: &str) -> DeploymentView {
        self.deployment_view(&id.parse().unwrap()).unwrap_or_else(|| panic!("{id} has no view"))
    }

    fn has_deployment(&self, id: &str) -> bool {
        self.deployment_view(&id.parse().unwrap()).is_some()
    }

    fn site(&self, id: &str) -> SiteView {
        self.site_view(&id.parse().unwrap()).unwrap_or_else(|| panic!("{id} has no view"))
    }
}

/// Everything anybody can see of a fleet, as one text: two fleets are the same if and only if this is. Positions in
/// LEDGER are left out where `positions` is false, for fleets that read the same facts in another order.
pub(crate) fn seen(fleet: &Fleet, positions: bool) -> String {
    let mut views: Vec<serde_json::Value> = Vec::new();
    let page = Page { after: None, limit: usize::MAX };
    for view in fleet.deployments_answer(&Default::default(), &page).unwrap().deployments {
        views.push(serde_json::to_value(view).unwrap());
    }
    let page = Page { after: None, limit: usize::MAX };
    for line in fleet.devices_answer(&Default::default(), &page).unwrap().devices {
        views.extend(fleet.site_view(&line.key.site).map(|view| serde_json::to_value(view).unwrap()));
        let answer = fleet.device_answer(&line.key, Output::Detail).unwrap();
        views.push(serde_json::to_value(answer).unwrap());
    }
    views.push(serde_json::to_value(fleet.fleet_view()).unwrap());
    if !positions {
        views.iter_mut().for_each(without_positions);
    }
    views.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn without_positions(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(object) => {
            object.remove("asOf");
            object.remove("ledgerSeq");
            // By which desired state a target was first known.
            object.remove("changedAt");
            if object.get("leaving").is_some_and(serde_json::Value::is_boolean) {
                // A hub that reads the removal before the first report does not know of which application it was.
                object.remove("app");
            }
            object.values_mut().for_each(without_positions);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(without_positions),
        _ => {}
    }
}
