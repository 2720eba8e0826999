//! QUARANTINE as ingest sees it: what is under way to it, what it holds, and the law that no number counts as quarantined whose
//! payload it does not hold. Requests of people are no part of it.

use std::collections::BTreeMap;

use muster_contract::decode;
use muster_contract::fact::Fact;
use muster_contract::quarantine::RejectedReport;
use muster_contract::{DeviceKey, Epoch, Seq};
use muster_domain::intake::{NotStored, Rejection};
use muster_ingest::session::Input;

use super::agenda::{Millis, SECOND};
use super::hub::StoredFact;
use super::ingest::OwnerEvent;
use super::law::{Lawful, must};
use super::profile::Fault;
use super::world::{Event, World};

/// How long an answer is waited for.
const PATIENCE: Millis = 5 * SECOND;

/// The device and the number of a report, where each can be read.
type Sender = (Option<DeviceKey>, Option<(Epoch, Seq)>);

/// The rejected reports that the hub holds, by message id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quarantine {
    held: BTreeMap<String, Sender>,
    /// Reports of one device that it holds at most.
    share: usize,
    /// Until when it has no room for anything.
    pub(crate) full_until: Millis,
}

impl Quarantine {
    pub(crate) fn new(share: usize) -> Self {
        Self { share, ..Self::default() }
    }

    fn store(&mut self, now: Millis, rejection: &Rejection) -> Result<(), NotStored> {
        if self.held.contains_key(&rejection.id) {
            return Ok(());
        }
        let of_device = self.held.values().filter(|(key, _)| *key == rejection.device).count();
        if now < self.full_until || of_device >= self.share {
            return Err(NotStored::Full);
        }
        let report: RejectedReport =
            decode::parse(&rejection.payload).expect("ingest stores what can be read");
        self.held.insert(rejection.id.clone(), (rejection.device.clone(), report.epoch.zip(report.seq)));
        Ok(())
    }

    /// Numbers of a fact whose payload is not here.
    fn lacks(&self, said: &StoredFact) -> u64 {
        let Fact::Quarantine(fact) = &said.fact else { return 0 };
        let Some((epoch, seqs)) = fact.numbers() else { return 0 };
        let key = said.subject.device().cloned();
        let is_held = |seq: u64| {
            let number = Seq::new(seq).map(|seq| (epoch, seq));
            self.held.values().any(|(of, held)| *of == key && *held == number)
        };
        let numbers = seqs.iter().flat_map(|(from, to)| from..=to);
        numbers.filter(|seq| !is_held(*seq)).count() as u64
    }
}

impl World {
    /// A rejected report sets out for QUARANTINE.
    pub(crate) fn send_rejected(&mut self, part: usize, rejection: Rejection) {
        let delay = self.chance.i64(1..60);
        let from = self.owners[part].origin_of_facts();
        self.agenda.after(delay, Event::Rejected { part, from, rejection });
    }

    /// It reaches QUARANTINE, unless its sender has lost the connection: then perhaps, and unanswered.
    pub(crate) fn rejected_arrives(
        &mut self,
        part: usize,
        from: (u64, u64, u64),
        rejection: &Rejection,
    ) -> Lawful {
        let now = self.agenda.now();
        let here = self.owners[part].origin_of_facts() == from;
        let arrives = here
            || match &mut self.planned_end {
                Some(planned_end) => planned_end.delivers_next(),
                None => self.chance.bool(),
            };
        if !arrives {
            self.send_again_over_new_connection(part, from, rejection);
            return Ok(());
        }
        let stored = if now < self.hub.refuses_until.1 {
            Err(NotStored::Unavailable)
        } else {
            self.hub.quarantine.store(now, rejection)
        };
        self.tally.no_room += u64::from(stored == Err(NotStored::Full));
        if here && self.ends_now() {
            self.end_owner(part);
        }
        self.send_again_over_new_connection(part, from, rejection);
        if self.owners[part].origin_of_facts() == from {
            let lost = self.storm && self.has(Fault::IngestCut) && self.chance.u16(0..200) == 0;
            let (delay, answer) =
                if lost { (PATIENCE, Err(NotStored::Unavailable)) } else { (self.chance.i64(1..30), stored) };
            self.schedule_owner(part, delay, OwnerEvent::RejectionAnswered(rejection.ticket, answer));
        }
        Ok(())
    }

    /// A session that goes on over a new connection gets no answer from the old one: its driver stores the report again.
    fn send_again_over_new_connection(&mut self, part: usize, from: (u64, u64, u64), rejection: &Rejection) {
        let (life, term, link) = self.owners[part].origin_of_facts();
        if (life, term) == (from.0, from.1) && link != from.2 && self.owners[part].session.is_some() {
            self.send_rejected(part, rejection.clone());
        }
    }

    /// QUARANTINE has answered, or nobody did within the time.
    pub(crate) fn rejection_answered(&mut self, part: usize, ticket: u64, answer: Result<(), NotStored>) {
        self.feed(part, Input::RejectionAnswer(ticket, answer));
        self.act(part);
    }

    /// LEDGER says that numbers are quarantined: their payloads are there, or counted as not kept.
    pub(crate) fn check_payloads(&self, said: &StoredFact) -> Lawful {
        let Fact::Quarantine(fact) = &said.fact else { return Ok(()) };
        let lacks = self.hub.quarantine.lacks(said);
        must(lacks <= fact.not_kept, "a number is quarantined only if its payload is kept", || {
            format!("{lacks} payloads are gone: {said:?}")
        })
    }
}
