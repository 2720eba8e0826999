//! One device as the fold knows it: its desired state, its reports, its liveness and its rows.

mod stored;

use std::collections::BTreeMap;

use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::fact::{
    DeviceFact, Incident, IncidentKind, Liveness, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::quarantine::{self, QuarantineVerdict};
use muster_contract::view::Freshness;
use muster_contract::{DeviceId, Epoch, Generation, Seq, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::doubt::UnresolvedQuarantine;
use super::packed_offset::{PackedCounter, PackedOffset};
use super::packed_timestamp::PackedTimestamp;
use super::seq_account::SeqAccount;
use super::standing::{DeviceContext, Row, Uncertainty};
use crate::message_identity::MessageIdentity;
pub(super) use stored::StoredDevice;

/// Bytes that a large fleet has of each device and of each row, beside names: see the README on what a standing takes.
const DEVICE_BYTES: usize = 208;
const ROW_BYTES: usize = 104;

const _: () = assert!(size_of::<Device>() <= DEVICE_BYTES && size_of::<Row>() <= ROW_BYTES);

/// A device with its rows.
#[derive(Debug)]
pub(super) struct Device {
    /// The number of its site.
    pub(super) site: u32,
    pub(super) state: DeviceState,
    /// A list without room for more: a device has few rows and seldom gets another.
    pub(super) rows: Box<[Row]>,
    /// The groups that its labels put it into, by number, in the order of the labels.
    pub(super) groups: Box<[u32]>,
    /// Targets whose standing is not known.
    pub(super) unknown: u32,
    /// It changed since the last call of `take_changed`.
    pub(super) changed: bool,
    /// A copy that is under way has yet to take it.
    pub(super) due: bool,
}

/// Everything about a device but its rows.
#[derive(Debug)]
pub(super) struct DeviceState {
    /// Its name at its site.
    pub(super) name: DeviceId,
    /// Generation of the newest desired state.
    desired: Option<Generation>,
    /// That retires the device.
    retires: bool,
    pub(super) seq_account: SeqAccount,
    /// The epoch of the liveness fact that holds.
    liveness: Option<Epoch>,
    /// The device is heard, by that fact.
    heard: bool,
    /// By that fact, it cannot store reports, or it was heard in a newer epoch than the fact's.
    not_storing: bool,
    /// The newest heartbeat that any liveness fact knows of.
    beat_at: Option<PackedTimestamp>,
    /// At least one message of the device has come: a report, or a message that was quarantined.
    reported: bool,
    /// When the hub last heard the device, as far as facts say.
    heard_at: Option<PackedTimestamp>,
    /// The device's partition, where the hub does not hear it.
    pub(super) unheard_in: Option<u8>,
    pub(super) capabilities: Option<Box<ReportedCapabilities>>,
    /// None for most devices, hence boxed.
    pub(super) anomalies: Option<Box<Anomalies>>,
    pub(super) sources: Sources,
}

/// LEDGER sequences of the facts behind the device's properties; 0 where there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sources {
    pub(super) desired: PackedOffset,
    pub(super) liveness: PackedOffset,
    /// The fact that first spoke of the head, or of the epoch.
    pub(super) head: Source,
    /// The fact that last changed how many reports are missing.
    pub(super) gap: Source,
    /// The fact that last changed what is in doubt.
    #[serde(default)]
    pub(super) doubt: PackedOffset,
}

/// A fact that may be a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    /// The LEDGER sequence.
    pub(super) place: PackedOffset,
    /// The report's number; 0 for any other fact.
    seq: PackedCounter,
}

impl Source {
    const NONE: Self = Self { place: PackedOffset::ZERO, seq: PackedCounter::ZERO };

    pub(super) fn seq(self) -> Option<Seq> {
        Seq::new(self.seq.get())
    }
}

/// How the hub heard a device at some moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    reported: bool,
    at: Option<Timestamp>,
    pub(super) epoch: Option<Epoch>,
    pub(super) head: u64,
}

/// Incidents and unresolved quarantine of the device, for an operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Anomalies {
    pub(super) incidents: u64,
    pub(super) last_incident: Option<Incident>,
    pub(super) unnumbered_quarantined: u64,
    #[serde(default, skip_serializing_if = "UnresolvedQuarantine::is_empty")]
    open: UnresolvedQuarantine,
    /// By how many seconds its clock was found wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) skew_seconds: Option<i64>,
    /// When its token ends, if that was announced and no newer token was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token_ends_at: Option<Timestamp>,
    /// The refusal of its desired state that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<DesiredRefusal>,
}

/// The device's own properties.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ReportedCapabilities {
    place: (Epoch, Seq),
    /// Kept as text: a parsed object takes several times the space, and it is only displayed.
    properties: Box<str>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) agent_version: Box<str>,
}

impl Device {
    pub(super) fn new(site: u32, name: DeviceId) -> Self {
        Self {
            site,
            state: DeviceState::new(name),
            rows: Box::default(),
            groups: Box::default(),
            unknown: 0,
            changed: false,
            due: false,
        }
    }

    /// Changes which rows it has.
    pub(super) fn change_rows(&mut self, change: impl FnOnce(&mut Vec<Row>)) {
        let mut rows = std::mem::take(&mut self.rows).into_vec();
        change(&mut rows);
        self.rows = rows.into_boxed_slice();
    }
}

impl Sources {
    const NONE: Self = Self {
        desired: PackedOffset::ZERO,
        liveness: PackedOffset::ZERO,
        head: Source::NONE,
        gap: Source::NONE,
        doubt: PackedOffset::ZERO,
    };
}

impl DeviceState {
    const fn new(name: DeviceId) -> Self {
        Self {
            name,
            desired: None,
            retires: false,
            seq_account: SeqAccount::new(),
            liveness: None,
            heard: false,
            not_storing: false,
            beat_at: None,
            reported: false,
            heard_at: None,
            unheard_in: None,
            capabilities: None,
            anomalies: None,
            sources: Sources::NONE,
        }
    }

    /// Records the fact with this LEDGER sequence, and number if it is a report, as the source of the
    /// properties that it changed. A report of an older epoch is recorded by its sequence alone.
    pub(super) fn note(
        &mut self,
        before: &DeviceContext,
        after: &DeviceContext,
        ledger_seq: u64,
        report: Option<(Epoch, Seq)>,
    ) {
        let report = report.filter(|(epoch, _)| Some(*epoch) == after.epoch).map(|(_, seq)| seq);
        let seq = report.map_or(PackedCounter::ZERO, |seq| seq.get().into());
        let (sources, source) = (&mut self.sources, Source { place: ledger_seq.into(), seq });
        if (before.epoch, before.head) != (after.epoch, after.head) {
            sources.head = source;
        }
        if before.missing != after.missing {
            sources.gap = source;
        } else if before.epoch != after.epoch {
            sources.gap.seq = PackedCounter::ZERO;
        }
        if before.doubt != after.doubt {
            sources.doubt = source.place;
        }
    }

    /// The inputs of row evaluation.
    pub(super) fn context(&self) -> DeviceContext {
        DeviceContext {
            retired: self.is_retired(),
            freshness: self.freshness(),
            epoch: self.seq_account.epoch(),
            head: self.seq_account.head(),
            missing: self.seq_account.missing(),
            doubt: self.doubt(),
            unheard_in: self.unheard_in,
            is_masked: self.is_masked(),
            heard_at: self.heard_at(),
        }
    }

    fn doubt(&self) -> Uncertainty {
        Uncertainty {
            seq: self.seq_account.in_doubt(),
            beyond: self.beyond() > 0,
            not_storing: self.not_storing,
        }
    }

    /// How many messages in quarantine may be anything.
    pub(super) fn beyond(&self) -> u64 {
        self.anomalies
            .as_ref()
            .map_or(0, |anomalies| anomalies.open.beyond(&self.seq_account, self.beat_at()))
    }

    /// The LEDGER sequence of the newest such message; none where there is none.
    pub(super) fn ledger_seq_beyond(&self) -> Option<u64> {
        self.anomalies.as_ref()?.open.ledger_seq_beyond(&self.seq_account, self.beat_at())
    }

    /// The LEDGER sequence of the message with a number of the current epoch; none where it is no longer known.
    pub(super) fn ledger_seq_of(&self, seq: u64) -> Option<u64> {
        self.anomalies.as_ref()?.open.ledger_seq_of(self.seq_account.epoch()?, seq)
    }

    /// False where the device says that it cannot store its reports.
    pub(super) const fn is_storing(&self) -> bool {
        !self.not_storing
    }

    pub(super) const fn is_retired(&self) -> bool {
        self.retires
    }

    /// Generation of the newest desired state.
    pub(super) const fn desired(&self) -> Option<Generation> {
        self.desired
    }

    /// A newer desired state holds.
    pub(super) const fn desire(&mut self, generation: Generation, retires: bool) {
        (self.desired, self.retires) = (Some(generation), retires);
    }

    /// Only a liveness fact makes a device fresh; without one it is stale as soon as anything of it has come.
    /// While the hub does not hear its partition, its liveness facts are out of date.
    pub(super) const fn freshness(&self) -> Freshness {
        match (self.liveness_state(), self.reported) {
            (Some(Liveness::Fresh), _) if self.unheard_in.is_some() => Freshness::Stale,
            (Some(Liveness::Fresh), _) => Freshness::Fresh,
            (Some(Liveness::Stale), _) | (None, true) => Freshness::Stale,
            (None, false) => Freshness::Never,
        }
    }

    /// True where the device would be fresh if the hub heard its partition.
    pub(super) const fn is_masked(&self) -> bool {
        self.unheard_in.is_some() && matches!(self.liveness_state(), Some(Liveness::Fresh))
    }

    /// The state of the liveness fact that holds.
    const fn liveness_state(&self) -> Option<Liveness> {
        match self.liveness {
            Some(_) if self.heard => Some(Liveness::Fresh),
            Some(_) => Some(Liveness::Stale),
            None => None,
        }
    }

    /// Applies a status report: its number counts, if it is of the current epoch.
    pub(super) fn apply_status(&mut self, fact: &StatusFact) {
        self.report_came(fact.received_at);
        if self.seq_account.enter(fact.epoch) {
            self.seq_account.advertise(fact.head.get());
            self.seq_account.receive(fact.seq);
            self.seq_account.coalesce(&fact.coalesced);
        }
    }

    /// Applies a capabilities report. True where it is the newest.
    pub(super) fn apply_capabilities(&mut self, fact: DeviceFact) -> bool {
        self.report_came(fact.received_at);
        if self.seq_account.enter(fact.epoch) {
            self.seq_account.advertise(fact.head.get());
            self.seq_account.receive(fact.seq);
            self.seq_account.coalesce(&fact.coalesced);
        }
        let newest =
            self.capabilities.as_ref().is_none_or(|capabilities| capabilities.place < (fact.epoch, fact.seq));
        if newest {
            self.capabilities = Some(Box::new(ReportedCapabilities::of(fact)));
        }
        newest
    }

    /// Applies a liveness fact. True if no liveness fact of a newer epoch is held.
    pub(super) fn apply_liveness(&mut self, fact: &LivenessFact) -> bool {
        self.advance_heard(fact.last_heard_at);
        if self.seq_account.enter(fact.epoch) {
            self.seq_account.advertise(fact.head);
            if let Some(account) = &fact.account {
                self.seq_account.learn(fact.head, account);
            }
        }
        self.advance_heartbeat(fact.beat_at);
        let newest = self.liveness.is_none_or(|epoch| epoch <= fact.epoch);
        if newest {
            self.liveness = Some(fact.epoch);
            self.heard = fact.state == Liveness::Fresh;
            self.not_storing = !fact.storing;
        }
        newest
    }

    /// Applies a quarantine fact: one message, or one and those it stands for. It proves that something of the
    /// device came.
    pub(super) fn apply_quarantine(&mut self, fact: &QuarantineFact, ledger_seq: u64) {
        self.report_came(fact.received_at);
        let numbers = fact.numbers();
        let numbered = numbers.as_ref().map_or(0, |(_, numbers)| numbers.count());
        let anomalies = self.anomalies.get_or_insert_default();
        if anomalies.open.add(fact, ledger_seq) {
            let unnumbered = fact.others.saturating_add(1).saturating_sub(numbered);
            anomalies.unnumbered_quarantined = anomalies.unnumbered_quarantined.saturating_add(unnumbered);
        }
        if let Some((epoch, numbers)) = numbers {
            self.seq_account.quarantine(epoch, &numbers);
        }
    }

    /// Applies an operator's decision on a quarantined message. An accepted message is a fact of its own; an expired
    /// one stays in doubt, because nobody has decided about it.
    pub(super) fn apply_verdict(&mut self, fact: &QuarantineVerdict) {
        if !fact.ends_doubt() {
            return;
        }
        if let Some((anomalies, received_at)) = self.anomalies.as_mut().zip(fact.received_at) {
            anomalies.open.resolve(received_at, fact.epoch.zip(fact.seq));
        }
        let dropped = fact.numbers().filter(|_| fact.verdict == quarantine::QuarantineDecision::Dropped);
        if let Some((epoch, numbers)) = dropped {
            self.seq_account.drop_quarantined(epoch, &numbers);
        }
    }

    /// Applies an incident. One that repeats what is known changes nothing.
    pub(super) fn apply_incident(&mut self, incident: Incident) {
        let anomalies = self.anomalies.get_or_insert_default();
        if anomalies.is_known(&incident.what) {
            return;
        }
        anomalies.incidents += 1;
        match &incident.what {
            IncidentKind::ClockSkew { seconds } => anomalies.skew_seconds = Some(*seconds),
            IncidentKind::TokenEnding { ends_at, .. } => anomalies.token_ends_at = Some(*ends_at),
            IncidentKind::TokenRenewed { .. } => anomalies.token_ends_at = None,
            IncidentKind::DesiredRefused(refusal) => anomalies.refused = Some(refusal.clone()),
            IncidentKind::DesiredAccepted { .. } => anomalies.refused = None,
            _ => {}
        }
        anomalies.last_incident = Some(incident);
    }

    /// The refusal of its desired state that stands.
    pub(super) fn refusal(&self) -> Option<&DesiredRefusal> {
        self.anomalies.as_ref()?.refused.as_ref()
    }

    /// How the device is heard now.
    pub(super) fn as_heard(&self) -> Heard {
        Heard {
            reported: self.reported,
            at: self.heard_at(),
            epoch: self.seq_account.epoch(),
            head: self.seq_account.head(),
        }
    }

    /// Messages of it went to quarantine that may be news, others were settled, and it beat.
    pub(super) fn doubt_again(
        &mut self,
        messages: UnresolvedQuarantine,
        settled: &[MessageIdentity],
        beat_at: Option<Timestamp>,
    ) {
        self.advance_heartbeat(beat_at);
        if !messages.is_empty() {
            self.anomalies.get_or_insert_default().open.join(messages);
        }
        if let Some(anomalies) = &mut self.anomalies {
            settled.iter().for_each(|(received_at, number)| anomalies.open.resolve(*received_at, *number));
        }
    }

    /// Restores how the device was heard, except for its numbers, which are in the account.
    pub(super) fn restore_heard(&mut self, then: Heard) {
        self.reported = then.reported;
        self.heard_at = then.at.map(PackedTimestamp::from);
    }

    /// When the hub last heard the device, as far as facts say.
    pub(super) fn heard_at(&self) -> Option<Timestamp> {
        self.heard_at.map(PackedTimestamp::get)
    }

    fn beat_at(&self) -> Option<Timestamp> {
        self.beat_at.map(PackedTimestamp::get)
    }

    fn report_came(&mut self, received_at: Timestamp) {
        self.reported = true;
        self.advance_heard(received_at);
    }

    fn advance_heard(&mut self, at: Timestamp) {
        if self.heard_at() < Some(at) {
            self.heard_at = Some(at.into());
        }
    }

    fn advance_heartbeat(&mut self, at: Option<Timestamp>) {
        if self.beat_at() < at {
            self.beat_at = at.map(PackedTimestamp::from);
        }
    }
}

impl Anomalies {
    /// Whether an incident re-asserts the refusal that stands, or repeats what is known of the token: the renewer and ingest both
    /// report it.
    fn is_known(&self, what: &IncidentKind) -> bool {
        match what {
            IncidentKind::DesiredRefused(new) => {
                self.refused.as_ref().is_some_and(|known| known.is_same(new) && known.since == new.since)
            }
            IncidentKind::TokenEnding { ends_at, .. } => self.token_ends_at == Some(*ends_at),
            IncidentKind::TokenRenewed { .. } => self.token_ends_at.is_none(),
            _ => false,
        }
    }
}

impl ReportedCapabilities {
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
