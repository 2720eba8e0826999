//! Drives a device's relay over the simulated bus, outbox and clock: hands events to the agent's own core as inputs, and
//! carries out its effects in their order. The agent may be killed before each of them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::LazyLock;
use std::time::Duration;

use muster_agent::outbox::{Batch, OutboxChange, ReadRequest};
use muster_agent::relay::budget::Budget;
use muster_agent::relay::core::{DeviceStatus, Effect, Input, OutgoingReport, RelayCore, Ticket};
use muster_bus::{Link, PublishErrorKind};
use muster_contract::Epoch;
use muster_contract::decode::to_bytes;
use muster_contract::limits::HEARTBEAT;
use tokio::sync::watch;
use tokio::time::Instant;

use super::agenda::{Millis, SECOND};
use super::device::{Chore, Upward};
use super::ingest::EndKind;
use super::law::{Lawful, must};
use super::rows::now;
use super::world::{Sabotage, World};

/// Time limit of an answer to a report.
pub(crate) const ANSWER_TIMEOUT: Millis = 10 * SECOND;
/// Bytes of a message's headers.
pub(crate) const HEADER_BYTES: usize = 300;
/// The beginning of every device's monotonic clock.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Rows that are read ahead: the read may happen at once, or as late as when they are used.
#[derive(Debug)]
enum RowsAhead {
    Requested(ReadRequest),
    Read(Batch),
}

/// A device's relay and its messages on the simulated bus.
#[derive(Debug)]
pub(crate) struct Relay {
    core: RelayCore,
    changes: watch::Receiver<OutboxChange>,
    /// Messages without an answer.
    window: VecDeque<Ticket>,
    ahead: Option<RowsAhead>,
    /// Times of the actions that will wake it.
    wakes_at: BTreeSet<Millis>,
}

impl Relay {
    pub(crate) fn new(core: RelayCore, changes: watch::Receiver<OutboxChange>) -> Self {
        Self { core, changes, window: VecDeque::new(), ahead: None, wakes_at: BTreeSet::new() }
    }

    /// A message is under way.
    pub(crate) fn await_answer(&mut self, ticket: Ticket) {
        self.window.push_back(ticket);
    }
}

/// The monotonic clock of devices.
fn instant(at: Millis) -> Instant {
    *BEGINNING + Duration::from_millis(at.unsigned_abs())
}

/// The first time of the simulation that is not before an instant.
fn moment_of(instant: Instant) -> Millis {
    Millis::try_from(instant.duration_since(*BEGINNING).as_nanos().div_ceil(1_000_000)).unwrap()
}

/// Corrupts a report so that only its epoch and number can be parsed.
fn spoilt(bytes: &[u8]) -> Vec<u8> {
    let mut report: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    report["observedAt"] = "one day".into();
    report.to_string().into()
}

impl World {
    /// A relay's core; it breaks a rule of order if the sabotage says so.
    pub(crate) fn relay_core(&mut self) -> RelayCore {
        let budget = Budget::new(self.profile.uplink_limit, instant(self.agenda.now()));
        let mut core = RelayCore::new(HEARTBEAT, budget, self.chance.fork());
        if let Sabotage::RelayBreaks(rule) = self.sabotage {
            core.break_rule(rule);
        }
        core
    }

    /// Hands an input to a device's relay.
    pub(crate) fn feed_relay(&mut self, device: usize, input: Input) {
        let now = instant(self.agenda.now());
        if let Some(agent) = &mut self.devices[device].agent {
            agent.relay.core.handle(input, now);
        }
    }

    /// Hands a device's connection to its relay, or that there is none; before that the messages under way may fail.
    pub(crate) fn relay_link_changed(&mut self, device: usize) {
        let is_first = self.chance.bool();
        let link = self.devices[device].connection.map_or(Link::Down, |since_count| Link::Up { since_count });
        let Some(agent) = &mut self.devices[device].agent else { return };
        let unanswered = std::mem::take(&mut agent.relay.window);
        for ticket in unanswered.into_iter().filter(|_| is_first) {
            self.feed_relay(device, Input::Answer(ticket, Err(PublishErrorKind::Transient)));
        }
        self.feed_relay(device, Input::Link(link));
        self.run_relay(device);
    }

    /// Carries out every effect that is due, one after the other. The agent may be killed before each of them.
    pub(crate) fn run_relay(&mut self, device: usize) {
        let now_is = instant(self.agenda.now());
        let Some(agent) = &mut self.devices[device].agent else { return };
        if agent.relay.core.is_in_session() && agent.relay.changes.has_changed().is_ok_and(|changed| changed)
        {
            agent.relay.changes.mark_unchanged();
            agent.relay.core.handle(Input::OutboxChanged, now_is);
        }
        let before = self.tally.relay_effects;
        loop {
            let Some(agent) = &mut self.devices[device].agent else { return };
            let effect = agent.relay.core.next_effect(now_is);
            let has_acted = effect.is_some() || self.tally.relay_effects > before;
            let end_kind = if has_acted { self.agent_end() } else { None };
            // A killed agent carries out no effect; over a lost connection an effect has no result.
            if let Some(effect) = effect.filter(|_| end_kind != Some(EndKind::Crash)) {
                self.tally.relay_effects += 1;
                let done = self.carry_out_for(device, effect);
                self.hold(done);
            } else if end_kind.is_none() {
                break;
            }
            if let Some(end_kind) = end_kind {
                return self.end_agent_by(device, end_kind);
            }
        }
        self.wake_relay(device);
    }

    /// Schedules the relay for the deadline of its core.
    fn wake_relay(&mut self, device: usize) {
        let (now_is, life) = (self.agenda.now(), self.devices[device].life);
        let Some(agent) = &mut self.devices[device].agent else { return };
        let Some(at) = agent.relay.core.deadline().map(|at| moment_of(at).max(now_is)) else { return };
        if agent.relay.wakes_at.first().is_none_or(|before| *before > at) {
            agent.relay.wakes_at.insert(at);
            self.chore(device, life, at - now_is, Chore::Wake);
        }
    }

    /// Runs a relay at its deadline, or at one that the core has moved since.
    pub(crate) fn relay_woken(&mut self, device: usize) {
        let now_is = self.agenda.now();
        if let Some(agent) = &mut self.devices[device].agent {
            agent.relay.wakes_at.remove(&now_is);
        }
        self.run_relay(device);
    }

    fn carry_out_for(&mut self, device: usize, effect: Effect) -> Lawful {
        let (life, by_lot) = (self.devices[device].life, self.chance.bool());
        let Some(agent) = &mut self.devices[device].agent else { return Ok(()) };
        match effect {
            Effect::ReadStatus => {
                let status = self.status_of(device);
                if status.is_retired {
                    self.devices[device].beaten_over = self.devices[device].connection;
                }
                self.feed_relay(device, Input::Status(status));
            }
            Effect::FixEpoch => self.fix_epoch(device)?,
            Effect::SendHeartbeat(heartbeat) => {
                let bytes = heartbeat.to_short_bytes().unwrap_or_else(|| to_bytes(&heartbeat));
                self.devices[device].beaten_over = self.devices[device].connection;
                self.feed_relay(device, Input::Written(bytes.len() + HEADER_BYTES));
                self.up(device, Upward::Beat(bytes.into()));
            }
            Effect::ReadRows(ask) => {
                agent.relay.ahead = None;
                let batch = now(agent.outbox.read(ask)).unwrap();
                self.feed_relay(device, Input::Rows(batch));
            }
            Effect::ReadAhead(ask) => {
                let ahead = if by_lot {
                    RowsAhead::Read(now(agent.outbox.read(ask)).unwrap())
                } else {
                    RowsAhead::Requested(ask)
                };
                agent.relay.ahead = Some(ahead);
            }
            Effect::TakeReadAhead => {
                let batch = match agent.relay.ahead.take().unwrap() {
                    RowsAhead::Requested(ask) => now(agent.outbox.read(ask)).unwrap(),
                    RowsAhead::Read(batch) => batch,
                };
                self.feed_relay(device, Input::Rows(batch));
            }
            Effect::SendReport(report, ticket) => self.send_report(device, &report, ticket)?,
            Effect::SendBatch(batch, ticket) => self.send_batch(device, &batch, ticket)?,
            Effect::MarkSent(epoch, seqs) => {
                let delay = self.chance.i64(0..20);
                self.chore(device, life, delay, Chore::Mark(epoch, seqs));
            }
            Effect::MaintainOutbox => {
                let time = self.device_time(device);
                let Some(agent) = &self.devices[device].agent else { return Ok(()) };
                if now(agent.outbox.maintain(time)).is_ok() {
                    self.chore(device, life, 0, Chore::Wake);
                    self.check_kept(device)?;
                }
            }
            Effect::EndSession(_) => agent.relay.window.clear(),
            // Every report has an answer of its own here.
            Effect::BeginBatch(_) | Effect::EndBatch => {}
        }
        Ok(())
    }

    fn status_of(&self, device: usize) -> DeviceStatus {
        let agent = self.devices[device].agent.as_ref().unwrap();
        let document = agent.accepted.as_ref().and_then(|accepted| accepted.document.as_ref());
        DeviceStatus {
            summary: now(agent.outbox.summary()).unwrap(),
            generation: document.map_or(0, |document| document.generation.get()),
            is_retired: document.is_some_and(|document| document.retired),
            is_storing: !self.devices[device].full || agent.waiting.is_empty(),
            refused: agent.refused.clone(),
            token: None,
        }
    }

    fn fix_epoch(&mut self, device: usize) -> Lawful {
        let time = self.device_time(device);
        let Some(agent) = &self.devices[device].agent else { return Ok(()) };
        let is_new = now(agent.outbox.summary()).unwrap().epoch.is_none();
        let Ok(epoch) = now(agent.outbox.fix_epoch(time)) else {
            self.feed_relay(device, Input::StorageFailed);
            return Ok(());
        };
        self.devices[device].count.0 = Some(epoch.get());
        self.feed_relay(device, Input::EpochFixed(epoch));
        self.law.epoch_fixed(device, epoch.get(), is_new)
    }

    fn send_report(&mut self, device: usize, report: &OutgoingReport, ticket: Ticket) -> Lawful {
        let (life, connection) = (self.devices[device].life, self.devices[device].connection);
        let (epoch, seq) = (report.epoch.get(), report.row.seq);
        self.tally.checks += 3;
        self.law.sends_report(device)?;
        let law = "a report goes under the epoch of its number";
        must(self.devices[device].count.0 == Some(epoch), law, || format!("device {device} {epoch} {seq}"))?;
        must(self.devices[device].beaten_over == connection, "a connection begins with a heartbeat", || {
            format!("device {device} {epoch} {seq}")
        })?;
        let mut bytes = report.row.serialize(report.epoch, report.head).unwrap();
        self.feed_relay(device, Input::Written(bytes.len() + HEADER_BYTES));
        let mut number = Some((epoch, seq));
        if std::mem::take(&mut self.devices[device].spoil) {
            if self.chance.bool() {
                bytes.truncate(bytes.len() / 3);
                number = None;
            } else {
                // The number stays readable: the hub accounts for it.
                bytes = spoilt(&bytes);
                self.devices[device].hidden = true;
            }
        }
        self.tally.sent += 1;
        if let Some(agent) = &mut self.devices[device].agent {
            agent.relay.await_answer(ticket);
        }
        let answer_to = Some((vec![(epoch, seq)], ticket));
        let numbers = number.into_iter().collect();
        self.up(device, Upward::Report { bytes: bytes.into(), numbers, reports: None, answer_to });
        self.chore(device, life, ANSWER_TIMEOUT, Chore::AnswerTimeout(ticket));
        Ok(())
    }

    /// Marks rows as sent in the outbox.
    pub(crate) fn mark_sent(&mut self, device: usize, epoch: Epoch, seqs: &[u64]) -> Lawful {
        let (time, forgets) = (self.device_time(device), self.sabotage == Sabotage::ForgetsOnAnswer);
        let Some(agent) = &self.devices[device].agent else { return Ok(()) };
        self.tally.checks += 1;
        self.law.marked(device, epoch.get(), seqs)?;
        let is_stored = now(agent.outbox.mark_sent(epoch, seqs.to_vec(), time)).is_ok();
        self.feed_relay(device, Input::Marked(is_stored));
        if forgets {
            super::sabotage::forget(self, device, seqs);
        }
        self.run_relay(device);
        Ok(())
    }

    /// An answer to a report came, or none within its time.
    pub(crate) fn answered(&mut self, device: usize, ticket: Ticket, answer: Result<(), PublishErrorKind>) {
        let Some(agent) = &mut self.devices[device].agent else { return };
        let waits = |other: &Ticket| *other == ticket;
        let Some(at) = agent.relay.window.iter().position(waits) else { return };
        agent.relay.window.remove(at);
        self.feed_relay(device, Input::Answer(ticket, answer));
        self.run_relay(device);
    }
}
