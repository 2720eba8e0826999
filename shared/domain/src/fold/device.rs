//! One device as the fold knows it: what it was told, what it said of itself, whether it is heard, and its rows.

mod stored;

use std::collections::BTreeMap;

use muster_contract::fact::{
    DeviceFact, Incident, IncidentKind, Liveness, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::quarantine::{self, QuarantineVerdict};
use muster_contract::view::Freshness;
use muster_contract::{DeviceId, Epoch, Generation, Seq, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::doubt::{Identity, OpenMessages};
use super::holdings::Holdings;
use super::moment::Moment;
use super::narrow::{Count, Place};
use super::standing::{Doubt, Facet, Row};
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
    pub(super) about: About,
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
pub(super) struct About {
    /// Its name at its site.
    pub(super) name: DeviceId,
    /// Generation of the newest desired state.
    desired: Option<Generation>,
    /// That retires the device.
    retires: bool,
    pub(super) holdings: Holdings,
    /// The epoch of the liveness fact that holds.
    liveness: Option<Epoch>,
    /// The device is heard, by that fact.
    heard: bool,
    /// It cannot keep what it would report, by that fact.
    not_storing: bool,
    /// The newest heartbeat that any liveness fact knows of.
    beat_at: Option<Moment>,
    /// Something of it came at least once: a report, or a message that could not be let in.
    reported: bool,
    /// When the hub last heard it, as far as facts tell.
    heard_at: Option<Moment>,
    /// Its partition, where the hub does not listen to that.
    pub(super) unheard_in: Option<u8>,
    pub(super) nature: Option<Box<Nature>>,
    /// None for most devices, which is why it is a box.
    pub(super) troubles: Option<Box<Troubles>>,
    pub(super) sources: Sources,
}

/// Where LEDGER holds the facts that a device's properties come from; 0 where there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sources {
    pub(super) desired: Place,
    pub(super) liveness: Place,
    /// The fact that first spoke of the head, or of the epoch.
    pub(super) head: Source,
    /// The fact that last changed how many reports are missing.
    pub(super) gap: Source,
    /// The fact that last changed what is in doubt.
    #[serde(default)]
    pub(super) doubt: Place,
}

/// A fact that may be a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    /// Where LEDGER holds it.
    pub(super) place: Place,
    /// The number of the report; 0 where it is another fact.
    seq: Count,
}

impl Source {
    const NONE: Self = Self { place: Place::ZERO, seq: Count::ZERO };

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

/// What a person may want to look into.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Troubles {
    pub(super) incidents: u64,
    pub(super) last_incident: Option<Incident>,
    pub(super) unnumbered_quarantined: u64,
    #[serde(default, skip_serializing_if = "OpenMessages::is_empty")]
    open: OpenMessages,
    /// By how many seconds its clock was found wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) skew_seconds: Option<i64>,
    /// When its token ends, if that was said and no newer one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token_ends_at: Option<Timestamp>,
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
    pub(super) fn new(site: u32, name: DeviceId) -> Self {
        Self {
            site,
            about: About::new(name),
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
        desired: Place::ZERO,
        liveness: Place::ZERO,
        head: Source::NONE,
        gap: Source::NONE,
        doubt: Place::ZERO,
    };
}

impl About {
    const fn new(name: DeviceId) -> Self {
        Self {
            name,
            desired: None,
            retires: false,
            holdings: Holdings::new(),
            liveness: None,
            heard: false,
            not_storing: false,
            beat_at: None,
            reported: false,
            heard_at: None,
            unheard_in: None,
            nature: None,
            troubles: None,
            sources: Sources::NONE,
        }
    }

    /// The fact at this place, which has this number if it is a report, made it what it is after it.
    /// One of an older epoch is named by its place alone.
    pub(super) fn note(
        &mut self,
        before: &Facet,
        after: &Facet,
        ledger_seq: u64,
        report: Option<(Epoch, Seq)>,
    ) {
        let report = report.filter(|(epoch, _)| Some(*epoch) == after.epoch).map(|(_, seq)| seq);
        let seq = report.map_or(Count::ZERO, |seq| seq.get().into());
        let (sources, source) = (&mut self.sources, Source { place: ledger_seq.into(), seq });
        if (before.epoch, before.head) != (after.epoch, after.head) {
            sources.head = source;
        }
        if before.missing != after.missing {
            sources.gap = source;
        } else if before.epoch != after.epoch {
            sources.gap.seq = Count::ZERO;
        }
        if before.doubt != after.doubt {
            sources.doubt = source.place;
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
            doubt: self.doubt(),
            unheard_in: self.unheard_in,
            is_masked: self.is_masked(),
        }
    }

    fn doubt(&self) -> Doubt {
        Doubt { seq: self.holdings.in_doubt(), beyond: self.beyond() > 0, not_storing: self.not_storing }
    }

    /// How many messages in quarantine may be anything.
    pub(super) fn beyond(&self) -> u64 {
        self.troubles.as_ref().map_or(0, |troubles| troubles.open.beyond(&self.holdings, self.beat_at()))
    }

    /// Where LEDGER holds the newest of those; nothing where there is none.
    pub(super) fn place_beyond(&self) -> Option<u64> {
        self.troubles.as_ref()?.open.place_beyond(&self.holdings, self.beat_at())
    }

    /// Where LEDGER holds the message with a number of the current epoch; nothing where that is no longer known.
    pub(super) fn place_of(&self, seq: u64) -> Option<u64> {
        self.troubles.as_ref()?.open.place_of(self.holdings.epoch()?, seq)
    }

    /// False where it says that it cannot keep what it would report.
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

    /// Only liveness facts can say that a device is fresh; without one it is stale as soon as anything of it has come. While the
    /// hub does not listen to its partition, what they say is out of date.
    pub(super) const fn freshness(&self) -> Freshness {
        match (self.liveness_state(), self.reported) {
            (Some(Liveness::Fresh), _) if self.unheard_in.is_some() => Freshness::Stale,
            (Some(Liveness::Fresh), _) => Freshness::Fresh,
            (Some(Liveness::Stale), _) | (None, true) => Freshness::Stale,
            (None, false) => Freshness::Never,
        }
    }

    /// It would be fresh if the hub listened to its partition.
    pub(super) const fn is_masked(&self) -> bool {
        self.unheard_in.is_some() && matches!(self.liveness_state(), Some(Liveness::Fresh))
    }

    /// What the liveness fact that holds says.
    const fn liveness_state(&self) -> Option<Liveness> {
        match self.liveness {
            Some(_) if self.heard => Some(Liveness::Fresh),
            Some(_) => Some(Liveness::Stale),
            None => None,
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
        self.beat(fact.beat_at);
        let newest = self.liveness.is_none_or(|epoch| epoch <= fact.epoch);
        if newest {
            self.liveness = Some(fact.epoch);
            self.heard = fact.state == Liveness::Fresh;
            self.not_storing = !fact.storing;
        }
        newest
    }

    /// Messages could not be let in: one, or one and those it stands for. That something came is known all the same.
    pub(super) fn take_quarantine(&mut self, fact: &QuarantineFact, ledger_seq: u64) {
        self.report_came(fact.received_at);
        let numbers = fact.numbers();
        let numbered = numbers.as_ref().map_or(0, |(_, numbers)| numbers.count());
        let troubles = self.troubles.get_or_insert_default();
        if troubles.open.add(fact, ledger_seq) {
            let unnumbered = fact.others.saturating_add(1).saturating_sub(numbered);
            troubles.unnumbered_quarantined = troubles.unnumbered_quarantined.saturating_add(unnumbered);
        }
        if let Some((epoch, numbers)) = numbers {
            self.holdings.quarantine(epoch, &numbers);
        }
    }

    /// A person has looked at a message that could not be let in. One that was let in is a fact of its own.
    pub(super) fn take_verdict(&mut self, fact: &QuarantineVerdict) {
        if let Some((troubles, received_at)) = self.troubles.as_mut().zip(fact.received_at) {
            troubles.open.settle(received_at, fact.epoch.zip(fact.seq));
        }
        let dropped = fact.numbers().filter(|_| fact.verdict == quarantine::Verdict::Dropped);
        if let Some((epoch, numbers)) = dropped {
            self.holdings.drop_quarantined(epoch, &numbers);
        }
    }

    /// Something happened that a person should know.
    pub(super) fn take_incident(&mut self, incident: Incident) {
        let troubles = self.troubles.get_or_insert_default();
        troubles.incidents += 1;
        match incident.what {
            IncidentKind::ClockSkew { seconds } => troubles.skew_seconds = Some(seconds),
            IncidentKind::TokenEnding { ends_at, .. } => troubles.token_ends_at = Some(ends_at),
            IncidentKind::TokenRenewed { .. } => troubles.token_ends_at = None,
            _ => {}
        }
        troubles.last_incident = Some(incident);
    }

    /// How it is heard.
    pub(super) fn as_heard(&self) -> Heard {
        Heard {
            reported: self.reported,
            at: self.heard_at(),
            epoch: self.holdings.epoch(),
            head: self.holdings.head(),
        }
    }

    /// Messages of it went to quarantine that may be news, others were settled, and it beat.
    pub(super) fn doubt_again(
        &mut self,
        messages: OpenMessages,
        settled: &[Identity],
        beat_at: Option<Timestamp>,
    ) {
        self.beat(beat_at);
        if !messages.is_empty() {
            self.troubles.get_or_insert_default().open.join(messages);
        }
        if let Some(troubles) = &mut self.troubles {
            settled.iter().for_each(|(received_at, number)| troubles.open.settle(*received_at, *number));
        }
    }

    /// Puts back how it was heard; its numbers are its holdings' affair.
    pub(super) fn put_back(&mut self, then: Heard) {
        self.reported = then.reported;
        self.heard_at = then.at.map(Moment::from);
    }

    /// When the hub last heard it, as far as facts tell.
    pub(super) fn heard_at(&self) -> Option<Timestamp> {
        self.heard_at.map(Moment::get)
    }

    /// The same where it is not heard now. While it is, heartbeats come that are no facts, and a fact's time says less.
    pub(super) fn silent_since(&self) -> Option<Timestamp> {
        self.heard_at().filter(|_| self.freshness() != Freshness::Fresh)
    }

    fn beat_at(&self) -> Option<Timestamp> {
        self.beat_at.map(Moment::get)
    }

    fn report_came(&mut self, received_at: Timestamp) {
        self.reported = true;
        self.hear(received_at);
    }

    fn hear(&mut self, at: Timestamp) {
        if self.heard_at() < Some(at) {
            self.heard_at = Some(at.into());
        }
    }

    fn beat(&mut self, at: Option<Timestamp>) {
        if self.beat_at() < at {
            self.beat_at = at.map(Moment::from);
        }
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
