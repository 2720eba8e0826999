//! Drives ingest's session over the simulated hub. The core of the session is the real one ([`Session`]); this hands in deliveries and
//! answers of the hub, and carries out the effects one by one. The process may end between any two.

use std::ops::Range;

use muster_bus::{Link, Stored};
use muster_contract::Timestamp;
use muster_contract::decode;
use muster_contract::fact::Fact;
use muster_contract::limits::LEASE;
use muster_contract::report::Report;
use muster_contract::subjects::{self, LedgerSubject};
use muster_domain::intake::Publication;
use muster_ingest::limits::BATCH;
use muster_ingest::session::{Conditions, Effect, FactAnswer, Input, STALL};

use super::agenda::{Millis, SECOND};
use super::batches;
use super::hostile::rogue;
use super::hub::Answer;
use super::ingest::{EndKind, OwnerEvent};
use super::law::{Lawful, must};
use super::profile::Fault;
use super::session::{Message, Session};
use super::world::{Event, Sabotage, World};

/// The delay of the hub's answer whether reports wait.
const PROGRESS_DELAY: Range<Millis> = 1..4 * SECOND;
/// Time that a fact may take to LEDGER beyond the lease and two ticks before the law calls for it.
const GRACE: Millis = 3 * SECOND;
/// How long the owner waits for an answer.
const PATIENCE: Millis = 5 * SECOND;

impl World {
    /// Hands an input to a partition's session.
    pub(crate) fn feed(&mut self, part: usize, input: Input<Message>) {
        let time = self.hub.time(self.agenda.now());
        let owner = &mut self.owners[part];
        if let Some(session) = &mut owner.session {
            session.core.handle(&mut owner.intake, input, time);
        }
    }

    fn conditions(&self, part: usize) -> Conditions {
        let (owner, up) = (&self.owners[part], |since_count| Link::Up { since_count });
        let now = self.hub.time(self.agenda.now());
        Conditions {
            now,
            link: up(owner.link),
            ledger_seen_over: up(owner.seen_over),
            heartbeats_through: Some(now),
        }
    }

    /// Carries out every effect that is due, one after the other. The process may end before each of them.
    pub(crate) fn act(&mut self, part: usize) {
        let before = self.tally.effects;
        loop {
            let conditions = self.conditions(part);
            let owner = &mut self.owners[part];
            let Some(session) = &mut owner.session else { return };
            if session.core.is_lost() {
                return self.lose_session(part);
            }
            let effect = session.core.next_effect(&mut owner.intake, &conditions);
            let falls = (effect.is_some() || self.tally.effects > before) && self.strikes();
            // A process that died carries out no effect; over a lost connection an effect is in vain.
            let Some(effect) = effect.filter(|_| !falls || self.owner_end() == EndKind::Cut) else {
                if falls {
                    self.end_owner(part);
                }
                return;
            };
            self.tally.effects += 1;
            let done = self.carry_out(part, effect);
            self.hold(done);
            if falls {
                return self.end_owner(part);
            }
        }
    }

    fn carry_out(&mut self, part: usize, effect: Effect<Message>) -> Lawful {
        match effect {
            Effect::ReadDocuments(key) => {
                let unreadable = self.agenda.now() < self.hub.refuses_until.1 && self.chance.bool();
                let device = self.names.get(&key).copied().filter(|_| !unreadable);
                for (bytes, at) in device.iter().flat_map(|device| &self.hub.desired[*device]) {
                    self.owners[part].intake.apply_desired(&key, &decode::parse(bytes).unwrap(), *at);
                }
                self.feed(part, Input::DocumentsRead(key, !unreadable));
            }
            Effect::PollHeartbeats => self.take_heartbeats(part),
            Effect::StoreRejected(rejection) => self.send_rejected(part, rejection),
            Effect::BeginRun => self.with_session(part, |session| session.run_from = Some(session.sent + 1)),
            Effect::EndRun => self.with_session(part, |session| {
                let run = session.run_from.take().map(|from| (from, session.sent));
                session.runs.extend(run.filter(|(from, to)| from <= to));
            }),
            Effect::Publish(publication, _) => {
                self.check_silenced(&publication)?;
                self.publish(part, publication);
                let falls = self.chance.bool();
                match self.owners[part].end_kind.take_if(|_| falls) {
                    Some(EndKind::Cut) => self.cut_owner(part),
                    Some(EndKind::Crash) => self.kill_owner(part),
                    None => {}
                }
            }
            Effect::PollAnswers => self.take_answers(part),
            Effect::Settle(message) => {
                let position = message.delivery.position;
                self.law_of_settled(part, position, position - 1)?;
            }
            Effect::Acknowledge(newest) => {
                let delay = self.chance.i64(1..40);
                self.schedule_owner(
                    part,
                    delay,
                    OwnerEvent::Acknowledge(newest.delivery.position, self.hub.connection),
                );
            }
            Effect::Reasserted(_) => {}
            Effect::ReadOwner => self.feed(part, Input::OwnerRead(true)),
            Effect::SendReceipt(key, receipt) => {
                let stored = self.store_receipt(&key, &receipt)?;
                self.schedule_owner(part, 20, OwnerEvent::ReceiptAnswered(key, stored));
            }
            Effect::SaveSnapshot(position) => self.save_snapshot(part, position),
        }
        Ok(())
    }

    fn with_session(&mut self, part: usize, change: impl FnOnce(&mut Session)) {
        if let Some(session) = &mut self.owners[part].session {
            change(session);
        }
    }

    /// Reports that the hub delivers.
    pub(crate) fn take_reports(&mut self, part: usize) {
        self.owners[part].expecting = false;
        let Some(session) = &mut self.owners[part].session else { return };
        let waiting = self.hub.uplink.range(session.delivered + 1..);
        let mut waiting = waiting.filter(|(_, stored)| self.hub.partition(stored.device) == part);
        let batch: Vec<_> = waiting
            .by_ref()
            .take(BATCH)
            .map(|(position, stored)| {
                let key = if stored.invented { rogue(part) } else { self.devices[stored.device].key.clone() };
                let subject =
                    subjects::report(&key).replace("muster.report.", &format!("muster.report.{part}."));
                let headers = batches::headers(stored);
                let (payload, position, stored_at) = (stored.bytes.clone(), *position, stored.at);
                Message { subject, payload, position, stored_at, headers }
            })
            .collect();
        let more = waiting.next().is_some();
        let Some(last) = batch.last() else { return };
        let all_to = last.stored_at;
        session.delivered = last.position;
        self.feed(part, Input::Reports(batch, Some(all_to)));
        self.act(part);
        if more {
            self.expect_reports(part);
        }
    }

    /// Heartbeats that the hub delivers.
    pub(crate) fn take_heartbeats(&mut self, part: usize) {
        let parts = self.hub.floors.len();
        let Some(session) = &mut self.owners[part].session else { return };
        let beats = self.hub.presence.iter().enumerate().skip(part).step_by(parts);
        let mut new: Vec<_> = beats
            .filter_map(|(device, beat)| Some((device, beat.as_ref()?)))
            .filter(|(_, beat)| beat.position > session.beat)
            .map(|(device, beat)| Message {
                subject: subjects::presence(&self.devices[device].key)
                    .replace("muster.presence.", &format!("muster.presence.{part}.")),
                payload: beat.bytes.clone(),
                position: beat.position,
                stored_at: beat.at,
                headers: Vec::new(),
            })
            .collect();
        new.sort_by_key(|message| message.position);
        let Some(last) = new.last() else { return };
        session.beat = last.position;
        self.feed(part, Input::Heartbeats(new));
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, part: usize) -> Lawful {
        let (now, time) = (self.agenda.now(), self.hub.time(self.agenda.now()));
        let owner = &mut self.owners[part];
        let is_blind = owner.link != owner.seen_over;
        let Some(session) = &mut owner.session else { return Ok(()) };
        let (checked_at, over) = std::mem::replace(&mut session.checked_at, (time, owner.link));
        let since = time.duration_since(checked_at).as_millis() as Millis;
        let is_not_receiving =
            is_blind || over != owner.link || !(0..=STALL.as_millis() as Millis).contains(&since);
        if is_not_receiving {
            session.receiving_since = now;
        }
        let receiving_since = session.receiving_since;
        self.feed(part, Input::Tick);
        self.act(part);
        self.ask_progress(part);
        if is_not_receiving { Ok(()) } else { self.check_silence(part, receiving_since) }
    }

    /// Asks the hub whether reports wait, one request at a time.
    fn ask_progress(&mut self, part: usize) {
        let asked_at = self.hub.time(self.agenda.now());
        let last = self.hub.uplink.iter().rev().find(|(_, stored)| self.hub.partition(stored.device) == part);
        let last = match self.sabotage {
            Sabotage::TakesQuietForEmpty => 0,
            _ => last.map_or(0, |(at, _)| *at),
        };
        let Some(session) = &mut self.owners[part].session else { return };
        if !std::mem::replace(&mut session.is_asking, true) {
            let delay = self.chance.i64(PROGRESS_DELAY);
            self.schedule_owner(part, delay, OwnerEvent::Progress { asked_at, last });
        }
    }

    /// Applies the hub's answer up to which position there were reports at a time.
    pub(crate) fn apply_progress(&mut self, part: usize, asked_at: Timestamp, last: u64) {
        let Some(session) = &mut self.owners[part].session else { return };
        session.is_asking = false;
        if last <= session.delivered {
            self.feed(part, Input::Reports(Vec::new(), Some(asked_at)));
            self.act(part);
        }
    }

    fn check_silence(&mut self, part: usize, receiving_since: Millis) -> Lawful {
        let now = self.agenda.now();
        let late = LEASE.as_millis() as Millis + 2 * self.profile.tick + GRACE;
        for (at, device) in self.devices.iter().enumerate().filter(|(at, _)| self.hub.partition(*at) == part)
        {
            self.tally.checks += 1;
            if now - device.heard_at.unwrap_or_default().max(receiving_since) > late {
                self.law.silent(at)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, part: usize, publication: Publication) {
        let (now, delay) = (self.agenda.now(), self.chance.i64(1..60));
        let owner = &mut self.owners[part];
        owner.arrives = owner.arrives.max(now + delay);
        let (at, from) = (owner.arrives, owner.origin_of_facts());
        let Some(session) = &mut owner.session else { return };
        session.answers.push_back(None);
        session.sent += 1;
        let place = session.sent;
        let Publication { subject, payload, id, .. } = publication;
        self.agenda.at(at, Event::Fact { part, from, place, subject, payload, id });
    }

    /// A fact reaches LEDGER, unless its sender has lost the connection: then perhaps, and unanswered, until the partition
    /// is taken anew.
    pub(crate) fn fact_arrives(
        &mut self,
        part: usize,
        (from, place): ((u64, u64, u64), u64),
        subject: LedgerSubject,
        payload: &[u8],
        id: Option<String>,
    ) -> Lawful {
        let now = self.agenda.now();
        let here = self.owners[part].origin_of_facts() == from;
        let lost = !here
            && match &mut self.planned_end {
                Some(planned_end) => !planned_end.delivers_next(),
                // A connection that breaks keeps the order: behind a fact that is lost nothing arrives.
                None => self.owners[part].lost_from == Some(from) || self.chance.bool(),
            };
        if lost {
            self.owners[part].lost_from = Some(from);
        }
        // A process that took the partition since then has written a newer record than the fact names.
        let fenced = self.owners[part].fenced_from > (from.0, from.1);
        if lost || fenced {
            return Ok(());
        }
        let answer = self.hub.fact(now, subject, payload, id);
        if matches!(answer, Answer::Stored(_)) {
            self.stored_in_ledger()?;
        }
        if here && self.ends_now() {
            self.end_owner(part);
            return Ok(());
        }
        // A snapshot between the fact and its answer must not contain the fact.
        if here && self.chance.u8(0..6) == 0 {
            self.feed(part, Input::SnapshotDue);
            self.act(part);
        }
        if here {
            let lost = self.storm && self.has(Fault::IngestCut) && self.chance.u16(0..500) == 0;
            let delay = if lost { PATIENCE } else { self.chance.i64(1..30) };
            self.schedule_owner(part, delay, OwnerEvent::Answered(place, (!lost).then_some(answer)));
        }
        Ok(())
    }

    /// LEDGER holds another fact.
    pub(crate) fn stored_in_ledger(&mut self) -> Lawful {
        let said = self.hub.ledger.last().unwrap();
        self.tally.checks += 1;
        let retries = if let Fact::Status(fact) = &said.fact { &fact.retries[..] } else { &[] };
        self.tally.retried += u64::from(!retries.is_empty());
        self.tally.crash_loops += u64::from(retries.iter().any(|retry| retry.crash_loop));
        self.tally.deadlines += u64::from(matches!(said.fact, Fact::Deadline(_)));
        self.monitor.stored(said);
        self.law.stored(said)?;
        self.check_payloads(said)?;
        // Partitions that are not simulated write beside these, and their owner is the same process.
        if self.chance.bool() {
            self.high_water.reached(self.hub.ledger.len() as u64);
        }
        self.ledger_grew();
        Ok(())
    }

    /// An answer to a fact came, or none within its time.
    pub(crate) fn answered_by_ledger(&mut self, part: usize, place: u64, answer: Option<Answer>) {
        let Some(session) = &mut self.owners[part].session else { return };
        let Some(index) = place.checked_sub(session.answered + 1) else { return };
        let known = &mut session.answers[usize::try_from(index).unwrap()];
        known.get_or_insert(match answer {
            Some(Answer::Stored(sequence)) => FactAnswer::Stored(Stored { sequence, duplicate: false }),
            _ => FactAnswer::Unknown,
        });
        self.take_answers(part);
        self.act(part);
    }

    /// Hands in the answers that are here, in the order of sending.
    pub(crate) fn take_answers(&mut self, part: usize) {
        while let Some(answer) = self.owners[part].session.as_mut().and_then(Session::next_answer) {
            self.feed(part, Input::FactAnswer(answer));
        }
    }

    pub(crate) fn acknowledge_at_hub(&mut self, part: usize, position: u64) -> Lawful {
        let from = self.hub.floors[part];
        self.law_of_settled(part, position, from)?;
        self.hub.acknowledge(part, position);
        if self.ends_now() {
            self.end_owner(part);
        }
        must(position <= self.hub.uplink_last(), "what is acknowledged was stored", || position.to_string())
    }

    /// LEDGER holds a fact of every report after a position and through another. Rejected reports are left out: if QUARANTINE had
    /// no room for one, no fact and no receipt has its number and its device keeps it; other laws check that.
    fn law_of_settled(&mut self, part: usize, position: u64, after: u64) -> Lawful {
        for (_, stored) in self.hub.uplink.range(after + 1..(position + 1).max(after + 1)) {
            if stored.invented || self.hub.partition(stored.device) != part {
                continue;
            }
            for (number, report) in stored.numbers.iter().zip(batches::singles(stored)) {
                if Report::parse(&report).is_ok() {
                    self.tally.checks += 1;
                    self.law.acknowledged(stored.device, *number)?;
                }
            }
        }
        Ok(())
    }
}
