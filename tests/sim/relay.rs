//! How a device sends: the corridor of the agent's relay, in its order. What to send next is decided by the relay's own
//! core; this reads the outbox for it, puts rows on the link and brings the answers back.

use std::time::Duration;

use muster_agent::relay::sending::Next;
use muster_bus::PublishErrorKind;
use muster_contract::Epoch;
use muster_contract::decode::to_bytes;
use muster_contract::presence::Heartbeat;
use muster_contract::version::ApiVersion;

use super::agenda::{Millis, SECOND};
use super::device::{Chore, Ticket, Upward};
use super::rows::now;
use super::world::{Sabotage, World};

/// How long acknowledged rows wait to be noted.
const NOTE: Millis = 100;
/// How long an answer to a report is waited for.
const PATIENCE: Millis = 10 * SECOND;

/// A report of which only the numbers can be read.
fn spoilt(bytes: &[u8]) -> Vec<u8> {
    let mut report: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    report["observedAt"] = "one day".into();
    report.to_string().into()
}

impl World {
    /// Begins to send, once an epoch may be fixed.
    pub(crate) fn begin_attempt(&mut self, device: usize) {
        let (time, now_is, life) = (self.device_time(device), self.agenda.now(), self.devices[device].life);
        let Some(connection) = self.devices[device].connection else { return };
        let Some(agent) = &mut self.devices[device].agent else { return };
        let fixed = now(agent.outbox.summary()).unwrap().epoch.is_some();
        if agent.attempt.is_some() || (!fixed && !agent.greeted) {
            return;
        }
        let Ok(epoch) = now(agent.outbox.fix_epoch(time)) else {
            return self.chore(device, life, SECOND, Chore::Retry);
        };
        if agent.over.replace(connection) != Some(connection) {
            agent.sending.reconnected();
        }
        agent.sending.begin(epoch);
        agent.attempts += 1;
        let attempt = agent.attempts;
        agent.attempt = Some((attempt, epoch));
        agent.begun_at = now_is;
        self.devices[device].count.0 = Some(epoch.get());
        self.law.epoch_fixed(device, epoch.get());
        self.beat(device, attempt);
        self.chore(device, life, 0, Chore::Tidy(attempt));
        self.fill(device);
    }

    /// The attempt has failed; another one follows after a delay.
    fn fail(&mut self, device: usize) {
        let (now_is, life) = (self.agenda.now(), self.devices[device].life);
        let Some(agent) = &mut self.devices[device].agent else { return };
        agent.attempt = None;
        if now_is - agent.begun_at >= 10 * SECOND {
            agent.delays.reset();
        }
        let delay = agent.delays.next(&mut self.chance).as_millis() as Millis;
        self.chore(device, life, delay, Chore::Retry);
    }

    /// There may be more to send.
    pub(crate) fn sends(&mut self, device: usize) {
        if let Some(agent) = &mut self.devices[device].agent {
            agent.sending.news();
        }
        self.fill(device);
    }

    /// Sends as much as fits.
    pub(crate) fn fill(&mut self, device: usize) {
        loop {
            let Some(agent) = &mut self.devices[device].agent else { return };
            let Some((attempt, epoch)) = agent.attempt else { return };
            let Some(ask) = agent.sending.ask() else { return };
            let batch = now(agent.outbox.read(ask)).unwrap();
            let head = batch.head;
            let Some(rows) = agent.sending.offer(batch) else { return self.fail(device) };
            if rows.is_empty() {
                return;
            }
            for row in rows {
                let Some(letter) = row.letter(epoch, head) else { continue };
                self.send_report(device, (attempt, epoch), row.seq, row.message_id, letter.bytes);
            }
        }
    }

    fn send_report(
        &mut self,
        device: usize,
        (attempt, epoch): (u64, Epoch),
        seq: u64,
        id: String,
        mut bytes: Vec<u8>,
    ) {
        let life = self.devices[device].life;
        let mut number = Some((epoch.get(), seq));
        if std::mem::take(&mut self.devices[device].spoil) {
            if self.chance.bool() {
                bytes.truncate(bytes.len() / 3);
                number = None;
            } else {
                // Nobody can read what it says, but everybody its number: the hub will account for it.
                bytes = spoilt(&bytes);
                self.devices[device].hidden = true;
            }
        }
        self.tally.sent += 1;
        let ticket = Ticket { attempt, seq, at: self.agenda.now() };
        self.up(device, Upward::Report { bytes: bytes.into(), id, number, answer_to: ticket });
        self.chore(device, life, PATIENCE, Chore::Impatience(ticket));
    }

    pub(crate) fn beat(&mut self, device: usize, attempt: u64) {
        let (life, jitter) = (self.devices[device].life, self.chance.i64(-3 * SECOND..=3 * SECOND));
        let Some(agent) = &self.devices[device].agent else { return };
        let Some((current, epoch)) = agent.attempt else { return };
        if current != attempt {
            return;
        }
        let summary = now(agent.outbox.summary()).unwrap();
        let document = agent.accepted.as_ref().and_then(|accepted| accepted.document.as_ref());
        let heartbeat = Heartbeat {
            api_version: ApiVersion::V1,
            kind: Default::default(),
            epoch,
            head: summary.head,
            unsent: summary.unsent.min(summary.head),
            oldest_unsent_at: summary.oldest_unsent_at,
            generation: document.map_or(0, |document| document.generation.get()),
            agent_version: String::new(),
            storing: !self.devices[device].full || agent.waiting.is_empty(),
        };
        if !document.is_some_and(|document| document.retired) {
            self.up(device, Upward::Beat(to_bytes(&heartbeat).into()));
        }
        self.chore(device, life, 30 * SECOND + jitter, Chore::Beat(attempt));
    }

    /// Notes in the outbox what the hub holds.
    pub(crate) fn note(&mut self, device: usize) {
        let (time, life, clumsy) =
            (self.device_time(device), self.devices[device].life, self.sabotage == Sabotage::ForgetsOnAnswer);
        let Some(agent) = &mut self.devices[device].agent else { return };
        agent.note_due = false;
        let Some((epoch, seqs)) = agent.sending.acknowledged() else { return };
        if now(agent.outbox.mark_sent(epoch, seqs.clone(), time)).is_ok() {
            agent.sending.noted(&seqs);
        } else {
            self.chore(device, life, SECOND, Chore::Note);
        }
        if clumsy {
            super::sabotage::forget(self, device, &seqs);
        }
    }

    /// An answer to a report.
    pub(crate) fn answered(&mut self, device: usize, ticket: Ticket, answer: Result<(), PublishErrorKind>) {
        let Ticket { attempt, seq, at } = ticket;
        let after = Duration::from_millis((self.agenda.now() - at).unsigned_abs());
        let life = self.devices[device].life;
        let Some(agent) = &mut self.devices[device].agent else { return };
        if agent.attempt.is_none_or(|(current, _)| current != attempt) {
            return;
        }
        match agent.sending.answered(seq, answer, after) {
            Next::Continue => {}
            Next::Pause => {
                let pause = self.chance.i64(1..=SECOND);
                self.chore(device, life, pause, Chore::Resume(attempt));
            }
            Next::Restart => {
                self.note(device);
                return self.fail(device);
            }
        }
        let Some(agent) = &mut self.devices[device].agent else { return };
        if agent.sending.should_note() {
            self.note(device);
        } else if agent.sending.acknowledged().is_some() && !std::mem::replace(&mut agent.note_due, true) {
            self.chore(device, life, NOTE, Chore::Note);
        }
        self.fill(device);
    }
}
