//! The hub's own reception: a rollup compares each partition's pulse with LEDGER's time and says in LEDGER that it stopped or
//! resumed. The decision is the rollup's own; this module runs its checks. It has the laws that a pulse cannot be missing unsaid,
//! and that no silent device stays fresh, whatever becomes of ingest.

use muster_contract::Timestamp;
use muster_contract::fact::{Fact, Hearing, HearingFact, PulseFact};
use muster_contract::limits::LEASE;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_rollup::monitor::decide::{Heard, HearingDecision, PULSE_GRACE, decide};
use muster_rollup::progress::SeenPulse;

use super::agenda::{Millis, SECOND};
use super::hub::{Answer, StoredFact};
use super::law::{Lawful, must};
use super::world::{Event, World};

/// Time between two looks: a rollup has read by the second what LEDGER held at the first.
const LOOK_EVERY: Millis = 6 * SECOND;
/// How long a look and the fact that follows may take beyond the pulse's lease.
const SAID_WITHIN: Millis = 4 * LOOK_EVERY;

/// Beyond all leases: two ticks of ingest, steps of its clock that count as none, and facts on their way.
const SILENCE_GRACE: Millis = 20 * SECOND;

/// A partition's reception as LEDGER records it.
#[derive(Debug, Default)]
struct Listening {
    newest: Option<SeenPulse>,
    stopped_since: Option<Timestamp>,
}

/// A rollup's watch over the pulses of partitions.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    partitions: Vec<Listening>,
    /// LEDGER's end and the hub's time at the last look.
    looked: Option<(u64, u64, Timestamp)>,
    /// When LEDGER was first read to its end, and which it was.
    read_whole: Option<(u64, Timestamp)>,
    /// When something last kept it from its work.
    disturbed_at: Millis,
    /// When LEDGER was set back, or the hub's clock corrected.
    stepped_at: Millis,
}

impl Monitor {
    /// LEDGER holds another fact.
    pub(crate) fn stored(&mut self, said: &StoredFact) {
        let (LedgerSubject::Hub(partition) | LedgerSubject::Hearing(partition)) = said.subject else {
            return;
        };
        let at = usize::from(partition);
        if self.partitions.len() <= at {
            self.partitions.resize_with(at + 1, Listening::default);
        }
        match &said.fact {
            Fact::Pulse(pulse) => {
                self.partitions[at].newest = Some(SeenPulse { stored_at: said.at, pulse: pulse.clone() });
            }
            Fact::Hearing(fact) => {
                self.partitions[at].stopped_since = (fact.state == Hearing::Stopped).then_some(fact.since);
            }
            _ => {}
        }
    }

    /// LEDGER was set back to this.
    pub(crate) fn set_back(&mut self, ledger: &[StoredFact], now: Millis) {
        *self = Self { disturbed_at: now, stepped_at: now, ..Self::default() };
        ledger.iter().for_each(|said| self.stored(said));
    }

    /// The rollup cannot see, or write, what it should, up to a moment.
    pub(crate) fn is_disturbed(&mut self, until: Millis) {
        self.disturbed_at = self.disturbed_at.max(until);
    }

    /// The hub's clock was corrected.
    pub(crate) fn clock_stepped(&mut self, now: Millis) {
        self.is_disturbed(now);
        self.stepped_at = now;
    }

    /// Since when no pulse of a partition was current, by the last one in LEDGER.
    pub(crate) fn unproven_since(&self, part: usize) -> Option<Timestamp> {
        self.partitions.get(part)?.newest.as_ref()?.unproven_since()
    }
}

impl World {
    /// One look: it decides by what LEDGER held, and what time it was, at the one before.
    pub(crate) fn monitor(&mut self) -> Lawful {
        self.agenda.after(LOOK_EVERY, Event::Monitor);
        let (now, origin) = (self.agenda.now(), self.hub.origin);
        let looked = (origin, self.hub.ledger.len() as u64, self.hub.time(now));
        let before = self.monitor.looked.replace(looked);
        let (read_of, read) = self.rollups[0].read();
        let Some((of, end, time)) = before.filter(|(of, ..)| *of == origin) else { return Ok(()) };
        if read_of != of || read < end || now < self.hub.refuses_until.1 {
            self.monitor.is_disturbed(now);
            return Ok(());
        }
        let read_whole = *self.monitor.read_whole.get_or_insert((of, time));
        self.monitor
            .partitions
            .resize_with(self.monitor.partitions.len().max(self.owners.len()), Listening::default);
        for part in 0..self.owners.len() {
            let Listening { newest, stopped_since } = &self.monitor.partitions[part];
            let heard = Heard {
                newest: newest.clone(),
                // The simulated LEDGER forgets no pulse.
                owned_since: None,
                stopped_since: *stopped_since,
                read_whole_at: read_whole.1,
            };
            if let Some(wanted) = decide(&heard, time) {
                self.say(part, wanted)?;
            }
        }
        self.check_pulses()?;
        self.check_silent_devices()
    }

    /// A device is called fresh for no longer than: a lease, until the last pulse that is current; a lease and some time, until
    /// the next pulse; and as long as pulses may go on without a current one.
    fn check_silent_devices(&mut self) -> Lawful {
        let now = self.agenda.now();
        if now - self.monitor.disturbed_at <= SAID_WITHIN {
            return Ok(());
        }
        let late = 2 * LEASE + PULSE_GRACE + PulseFact::unproven_max(LEASE);
        let late = late.as_millis() as Millis + SAID_WITHIN + SILENCE_GRACE;
        for (at, device) in self.devices.iter().enumerate() {
            let Some(heard_at) = device.heard_at else { continue };
            if now - heard_at.max(self.monitor.stepped_at) > late {
                self.tally.checks += 1;
                self.law.silent_for_long(at, &device.key)?;
            }
        }
        Ok(())
    }

    fn say(&mut self, part: usize, HearingDecision { state, since }: HearingDecision) -> Lawful {
        let fact = HearingFact {
            api_version: ApiVersion::V1,
            kind: kind::HearingFact::HearingFact,
            state,
            since,
            reasserted: false,
        };
        let subject = LedgerSubject::Hearing(part as u16);
        let bytes = Fact::Hearing(fact).to_bytes();
        if matches!(self.hub.fact(self.agenda.now(), subject, &bytes, None), Answer::Stored(_)) {
            *self.tally.hearing.entry(format!("{state:?}")).or_default() += 1;
            self.stored_in_ledger()?;
        }
        Ok(())
    }

    /// A partition without a pulse for longer than its lease is said to be unheard.
    fn check_pulses(&mut self) -> Lawful {
        let (now, time) = (self.agenda.now(), self.hub.time(self.agenda.now()));
        let late = LEASE.as_millis() as Millis + PULSE_GRACE.as_millis() as Millis + SAID_WITHIN;
        for (part, listening) in self.monitor.partitions.iter().enumerate().take(self.owners.len()) {
            let Some(newest) = &listening.newest else { continue };
            let silence = time.duration_since(newest.stored_at).as_millis() as Millis;
            let is_said = listening.stopped_since.is_some();
            let steady = now - self.monitor.disturbed_at > SAID_WITHIN;
            self.tally.checks += 1;
            must(!steady || silence <= late || is_said, "a pulse that stopped is said in LEDGER", || {
                format!("partition {part}: {silence} ms without a pulse")
            })?;
        }
        Ok(())
    }
}
