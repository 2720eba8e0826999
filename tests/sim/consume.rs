//! What ingest does with what comes: reports and heartbeats into the border, facts and receipts out of it, answers back,
//! acknowledgements last.

use std::ops::Range;

use muster_contract::Timestamp;
use muster_contract::decode;
use muster_contract::limits::LEASE;
use muster_contract::presence::Heartbeat;
use muster_contract::report::Report;
use muster_contract::subjects::{self, LedgerSubject, origin};
use muster_domain::border::{Arrival, Publication};

use super::agenda::{Millis, SECOND};
use super::hostile::rogue;
use super::hub::{Answer, Stored};
use super::ingest::{Doom, Duty, TURN};
use super::law::{Lawful, must};
use super::world::{Event, Sabotage, World};

/// Reports taken in at once.
const BATCH: usize = 64;
/// Reports settled before the next acknowledgement, unless nothing else is under way.
const ACK_EVERY: usize = 16;
/// A gap between two looks after which the hub counts as having been deaf.
const STALL: Millis = 5 * SECOND;
/// How long the hub takes to say whether something waits.
const SOUNDING: Range<Millis> = 1..4 * SECOND;
/// What a fact may take to LEDGER beyond the lease and a look before the law calls for it.
const GRACE: Millis = 3 * SECOND;

impl World {
    pub(crate) fn take_reports(&mut self, part: usize) {
        let (time, hasty) = (self.hub.time(self.agenda.now()), self.sabotage == Sabotage::AcksFirst);
        self.owners[part].expecting = false;
        let Some(session) = &mut self.owners[part].session else { return };
        let waiting = self.hub.uplink.range(session.delivered + 1..);
        let mut waiting = waiting.filter(|(_, stored)| self.hub.partition(stored.device) == part);
        let batch: Vec<_> = waiting.by_ref().take(BATCH).map(|(at, stored)| (*at, stored.clone())).collect();
        let more = waiting.next().is_some();
        if let Some((position, last)) = batch.last() {
            session.delivered = *position;
            session.taken_to = last.at;
        }
        for (position, stored) in batch {
            let key = if stored.invented { rogue(part) } else { self.devices[stored.device].key.clone() };
            let subject = subjects::report(&key);
            let subject = subject.replace("muster.report.", &format!("muster.report.{part}."));
            self.learn_documents(part, &stored);
            let owner = &mut self.owners[part];
            let outcome = owner.border.report(Arrival {
                origin: origin(&subject).unwrap(),
                parsed: Report::parse(&stored.bytes),
                payload: &stored.bytes,
                position,
                stored_at: stored.at,
                now: time,
            });
            *self.tally.outcomes.entry(format!("{outcome:?}")).or_default() += 1;
            if let Some(session) = &mut owner.session {
                session.taken.push_back(position);
            }
            if hasty {
                self.duty(part, 1, Duty::Acknowledge(position, self.hub.connection));
            }
            if self.strikes() {
                return self.fell(part);
            }
        }
        self.pass_on(part);
        if more {
            self.expect_reports(part);
        }
    }

    /// Before a report is refused for its deployment, its device's documents are read.
    fn learn_documents(&mut self, part: usize, stored: &Stored) {
        let (key, border) = (&self.devices[stored.device].key, &mut self.owners[part].border);
        let Ok(report) = Report::parse(&stored.bytes) else { return };
        if !stored.invented
            && self.sabotage != Sabotage::JudgesBeforeDocuments
            && border.needs_document(key, &report, stored.at)
        {
            for (bytes, at) in &self.hub.desired[stored.device] {
                border.desire(key, &decode::parse(bytes).unwrap(), *at);
            }
        }
    }

    pub(crate) fn take_heartbeats(&mut self, part: usize) {
        let time = self.hub.time(self.agenda.now());
        let owner = &mut self.owners[part];
        let Some(session) = &mut owner.session else { return };
        let pulses = self.hub.presence.iter().enumerate();
        let own = pulses.filter(|(device, _)| device % self.hub.floors.len() == part);
        let mut new: Vec<_> = own
            .filter_map(|(device, pulse)| Some((device, pulse.as_ref()?)))
            .filter(|(_, pulse)| pulse.position > session.pulse)
            .collect();
        new.sort_by_key(|(_, pulse)| pulse.position);
        let now = self.agenda.now();
        for (device, pulse) in new {
            session.pulse = pulse.position;
            let beat: Heartbeat = decode::parse(&pulse.bytes).unwrap();
            owner.border.heartbeat(&self.devices[device].key, &beat, pulse.at, time);
            if self.reaper.as_mut().is_some_and(|reaper| reaper.comes(now)) {
                return self.fell(part);
            }
        }
    }

    /// Lets time pass, unless the hub could not hear.
    pub(crate) fn look(&mut self, part: usize) -> Lawful {
        let (now, time) = (self.agenda.now(), self.hub.time(self.agenda.now()));
        let owner = &mut self.owners[part];
        let Some(session) = &mut owner.session else { return Ok(()) };
        let since = time.duration_since(session.looked_at).as_millis() as Millis;
        let deaf = session.connection != self.hub.connection || !(0..=STALL).contains(&since);
        (session.looked_at, session.connection) = (time, self.hub.connection);
        if deaf {
            session.hearing_since = now;
            owner.border.hearing_again(time);
            // A connection that is another one begins its readers anew.
            session.pulse = 0;
            return Ok(());
        }
        let (taken_to, hearing_since) = (session.taken_to.min(time), session.hearing_since);
        owner.border.tick(time, taken_to);
        self.sound(part);
        self.check_silence(part, hearing_since)
    }

    /// Asks the hub whether reports wait, one question at a time.
    fn sound(&mut self, part: usize) {
        let asked_at = self.hub.time(self.agenda.now());
        let last = self.hub.uplink.iter().rev().find(|(_, stored)| self.hub.partition(stored.device) == part);
        let last = match self.sabotage {
            Sabotage::TakesQuietForEmpty => 0,
            _ => last.map_or(0, |(at, _)| *at),
        };
        let Some(session) = &mut self.owners[part].session else { return };
        if !std::mem::replace(&mut session.sounding, true) {
            let delay = self.chance.i64(SOUNDING);
            self.duty(part, delay, Duty::Sounded { asked_at, last });
        }
    }

    /// The hub has said up to which report there was one at a moment.
    pub(crate) fn sounded(&mut self, part: usize, asked_at: Timestamp, last: u64) {
        let Some(session) = &mut self.owners[part].session else { return };
        session.sounding = false;
        if last <= session.delivered {
            session.taken_to = asked_at;
        }
    }

    fn check_silence(&self, part: usize, hearing_since: Millis) -> Lawful {
        let now = self.agenda.now();
        let late = LEASE.as_millis() as Millis + 2 * self.profile.tick + GRACE;
        for (at, device) in self.devices.iter().enumerate().filter(|(at, _)| self.hub.partition(*at) == part)
        {
            if now - device.heard_at.unwrap_or_default().max(hearing_since) > late {
                self.law.silent(at)?;
            }
        }
        Ok(())
    }

    /// Sends what is due, and acknowledges what is settled.
    pub(crate) fn pass_on(&mut self, part: usize) {
        while let Some(publication) = self.owners[part].border.next_publication() {
            if self.strikes() {
                return self.fell(part);
            }
            self.publish(part, publication);
            let strikes = self.chance.bool();
            match self.owners[part].doom.take_if(|_| strikes) {
                Some(Doom::Cut) => return self.cut_owner(part),
                Some(Doom::Crash) => return self.kill_owner(part),
                None => {}
            }
        }
        if self.reaped() {
            return self.fell(part);
        }
        self.acknowledge(part);
    }

    fn publish(&mut self, part: usize, publication: Publication) {
        let (now, delay) = (self.agenda.now(), self.chance.i64(1..60));
        let owner = &mut self.owners[part];
        owner.arrives = owner.arrives.max(now + delay);
        let (at, life, term) = (owner.arrives, owner.life, owner.term);
        let ledger = self.hub.ledger.len() as u64;
        let Some(session) = &mut owner.session else { return };
        if session.wire.is_empty() {
            session.settled_to = ledger;
        }
        session.wire.push_back(None);
        session.sent += 1;
        let place = session.sent;
        let Publication { subject, payload, id, .. } = publication;
        self.agenda.at(at, Event::Fact { part, life, term, place, subject, payload, id });
    }

    /// A fact reaches LEDGER, unless its sender has lost the connection: then perhaps, and unanswered, until the partition
    /// is taken anew.
    #[allow(clippy::too_many_arguments, reason = "they are the parts of one event")]
    pub(crate) fn fact_arrives(
        &mut self,
        part: usize,
        life: u64,
        term: u64,
        place: u64,
        subject: LedgerSubject,
        payload: &[u8],
        id: Option<String>,
    ) -> Lawful {
        let now = self.agenda.now();
        let here = (self.owners[part].life, self.owners[part].term) == (life, term);
        let lost = !here
            && match &mut self.reaper {
                Some(reaper) => !reaper.lets_arrive(),
                None => self.chance.bool(),
            };
        let fenced = !here && self.owners[part].session.is_some();
        if lost || fenced {
            return Ok(());
        }
        let answer = self.hub.fact(now, subject, payload, id);
        if matches!(answer, Answer::Stored(_)) {
            let said = self.hub.ledger.last().unwrap();
            self.law.stored(said)?;
            self.ledger_grew();
        }
        if here && self.reaped() {
            self.fell(part);
            return Ok(());
        }
        if here {
            let lost =
                self.storm && self.has(super::profile::Fault::IngestCut) && self.chance.u16(0..2_000) == 0;
            let delay = if lost { 5 * SECOND } else { self.chance.i64(1..30) };
            self.duty(part, delay, Duty::Answered(place, (!lost).then_some(answer)));
        }
        Ok(())
    }

    /// Confirmations count in the order of sending.
    pub(crate) fn confirmed(&mut self, part: usize, place: u64, answer: Option<Answer>) {
        let Some(session) = &mut self.owners[part].session else { return };
        let index = (place - session.answered - 1) as usize;
        session.wire[index] = Some(answer);
        while let Some(Some(answer)) =
            self.owners[part].session.as_ref().and_then(|it| it.wire.front().copied())
        {
            let Some(Answer::Stored(position)) = answer else { return self.cut_owner(part) };
            let owner = &mut self.owners[part];
            let Some(session) = &mut owner.session else { return };
            session.wire.pop_front();
            session.answered += 1;
            session.settled_to = session.settled_to.max(position);
            owner.border.confirm();
            if self.strikes() {
                return self.fell(part);
            }
        }
        self.pass_on(part);
    }

    /// Acknowledges the newest settled report, which covers all before it.
    fn acknowledge(&mut self, part: usize) {
        let delay = self.chance.i64(1..40);
        let owner = &mut self.owners[part];
        let Some(session) = &mut owner.session else { return };
        for _ in 0..owner.border.settled() {
            let Some(position) = session.taken.pop_front() else { break };
            let covered = session.settled.take().map_or(0, |(_, covered)| covered);
            session.settled = Some((position, covered + 1));
        }
        let idle = session.wire.is_empty();
        if let Some((position, _)) = session.settled.take_if(|(_, covered)| idle || *covered >= ACK_EVERY) {
            self.duty(part, delay, Duty::Acknowledge(position, self.hub.connection));
            if self.reaped() {
                self.fell(part);
            }
        }
    }

    pub(crate) fn acknowledge_at_hub(&mut self, part: usize, position: u64) -> Lawful {
        let from = self.hub.floors[part];
        for (_, stored) in self.hub.uplink.range(from + 1..(position + 1).max(from + 1)) {
            if let Some(number) =
                stored.number.filter(|_| !stored.invented && self.hub.partition(stored.device) == part)
            {
                self.law.acknowledged(stored.device, number)?;
            }
        }
        self.hub.acknowledge(part, position);
        if self.reaped() {
            self.fell(part);
        }
        must(position <= self.hub.uplink_last(), "what is acknowledged was stored", || position.to_string())
    }

    pub(crate) fn send_receipts(&mut self, part: usize) -> Lawful {
        let now = self.agenda.now();
        let time = self.hub.time(now);
        for (key, receipt) in self.owners[part].border.take_receipts(time, TURN.1) {
            let Some(device) = self.names.get(&key).copied() else {
                // A hostile device reads none.
                self.duty(part, 20, Duty::ReceiptAnswered(key, true));
                continue;
            };
            self.law.receipt(device, &receipt)?;
            let stored = now >= self.hub.refuses_until.1;
            if stored {
                self.hub.receipts[device] = Some(decode::to_bytes(&receipt).into());
                self.push_receipt(device);
            }
            self.duty(part, 20, Duty::ReceiptAnswered(key, stored));
            if self.reaped() {
                self.fell(part);
                return Ok(());
            }
        }
        Ok(())
    }
}
