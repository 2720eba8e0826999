//! One session of a partition: from opening the ways in to the first publication of unknown fate, or to the end.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use muster_bus::{Answering, Bus, Delivery, PublishError, ReadError, Trace};
use muster_contract::limits::PARTITIONS;
use muster_contract::subjects::stream;
use muster_contract::{DeviceKey, Timestamp};
use muster_service::aside::aside;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::facts::{self, Facts, arrival};
use super::hearing::{Heard, Hearing, TICK};
use super::quarantine::{Case, Desk};
use super::receipts::{self, Answer, Receipts};
use super::saving::{SAVE_EVERY, Saving};
use super::standby::{TAKEN_AFTER_MIN, Turn};
use super::{Ending, Partition};
use crate::desired::Task;
use crate::elders::{Elder, Elders};
use crate::intake::{Came, Intake};
use crate::ownership::{self, Record};
use crate::presence::{self, Presence};
use crate::room::OldFacts;

/// Heartbeats that may wait when time is looked at: they are taken in first.
const HEARTBEAT_BATCHES_MAX: usize = 64;
/// How long the last receipts may take when the process stops.
const LAST_RECEIPTS: Duration = Duration::from_secs(3);
/// Time between two looks at who owns the partition: one that has nothing to publish would not learn that it lost it.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A process that sent no receipts for this long reads who owns the partition before it sends the next ones: it may have
/// stood still, and DOWNLINK has no fence that refuses an old receipt in the place of the new owner's.
const STANDSTILL: Duration = Duration::from_secs(1);

const _: () = assert!(STANDSTILL.as_millis() < TAKEN_AFTER_MIN.as_millis());

// A receipt is owed for at most a second before it may go.
const _: () = assert!(LAST_RECEIPTS.as_secs() > muster_contract::limits::RECEIPT_INTERVAL.as_secs());

/// A session.
pub(super) struct Session<'a> {
    facts: Facts,
    receipts: Receipts,
    hearing: Hearing,
    desk: Desk,
    saving: Saving,
    /// Reports that have come, and wait for room in LEDGER.
    waiting: Option<Came>,
    /// Old facts that are handed in, and through which position they are re-asserted once so many publications arrived.
    old: OldEnd,
    claim_seq: u64,
    /// When this process was known to own the partition.
    owned_at: Timestamp,
    _answering: Answering,
    own: &'a mut Partition,
}

/// How far this session is with the old end of LEDGER.
struct OldEnd {
    taken_through: u64,
    /// Through which position everything is re-asserted once so many publications are in LEDGER.
    unconfirmed: VecDeque<(u64, u64)>,
}

/// What can happen.
enum Event {
    Reopened,
    OldFacts(OldFacts),
    Stop,
    Usurped,
    Confirmation(Option<facts::Answer>),
    Receipt(Option<Answer>),
    Tick,
    ReceiptTurn,
    Save,
    Task(Task),
    Case(Box<Case>),
    Elders(Vec<Elder>),
    Heartbeats(Vec<Delivery>),
    Reports(Came),
}

impl<'a> Session<'a> {
    pub(super) fn open(own: &'a mut Partition, turn: Turn) -> Self {
        let now = own.around.clock.now();
        own.border.hearing_again(now);
        own.border.pulse_as(own.number, &own.around.name);
        Self {
            waiting: None,
            old: OldEnd { taken_through: own.room.begin(), unconfirmed: VecDeque::new() },
            claim_seq: turn.claim.seq(),
            owned_at: now,
            facts: Facts::new(own, turn.claim),
            desk: turn.desk,
            saving: Saving::default(),
            _answering: turn.answering,
            receipts: Receipts::new(&own.around.bus, own.metrics.all.receipts.clone()),
            hearing: Hearing::new(own.around.bus.link(), now),
            own,
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) -> Ending {
        let (bus, number) = (self.own.around.bus.clone(), self.own.number);
        let mut reports = pin!(Intake::new(bus.clone(), number, self.own.chance.fork()).next());
        let (hears, chance) = (self.hearing.of_heartbeats(), self.own.chance.fork());
        let mut heartbeats = pin!(Presence::new(bus.clone(), number, hears, chance).next());
        let clock = self.own.around.clock.clone();
        let mut elders = pin!(Elders::new(bus.clone(), clock, number).next());
        let (room, mut reopened) = (self.own.room.clone(), self.own.room.reopened());
        let trimming = self.own.trim.clone().run(bus.clone(), number, self.own.metrics.clone());
        let _trimming = AbortOnDropHandle::new(tokio::spawn(trimming));
        let mut usurped = pin!(usurped(bus, number, self.claim_seq));
        let (mut tick, mut turn) = (in_turn(TICK, number), in_turn(receipts::TURN, number));
        let mut save = in_turn(SAVE_EVERY, number);
        loop {
            if !self.own.around.sees_ledger() {
                let mut around = self.own.around.clone();
                tokio::select! {
                    biased;
                    // What this process takes for held may be gone: it writes nothing more, and the next start reads LEDGER.
                    () = stop.cancelled() => return Ending::Stopped,
                    () = &mut usurped => return Ending::Usurped { read_after: self.facts.read_after() },
                    () = around.ledger_seen() => {}
                }
            }
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => Event::Stop,
                answer = self.facts.answer(), if !self.facts.is_empty() => Event::Confirmation(answer),
                answer = self.receipts.answer(), if !self.receipts.is_empty() => Event::Receipt(answer),
                () = &mut usurped => Event::Usurped,
                _ = tick.tick() => {
                    // What was heard before now counts before time does.
                    for _ in 0..HEARTBEAT_BATCHES_MAX {
                        let Some((way, batch)) = heartbeats.as_mut().now_or_never() else { break };
                        heartbeats.set(way.next());
                        self.take_heartbeats(&batch);
                    }
                    Event::Tick
                }
                _ = turn.tick() => Event::ReceiptTurn,
                _ = save.tick() => Event::Save,
                task = self.own.desired.next() => Event::Task(task),
                case = self.desk.next() => Event::Case(Box::new(case)),
                (way, batch) = &mut heartbeats => {
                    heartbeats.set(way.next());
                    Event::Heartbeats(batch)
                }
                (way, batch) = &mut elders => {
                    elders.set(way.next());
                    Event::Elders(batch)
                }
                old = room.next() => Event::OldFacts(old),
                Ok(_) = reopened.changed() => Event::Reopened,
                (way, came) = &mut reports, if self.waiting.is_none() => {
                    reports.set(way.next());
                    Event::Reports(came)
                }
            };
            let went_well = match event {
                Event::Stop => return self.finish().await,
                Event::Usurped => return Ending::Usurped { read_after: self.facts.read_after() },
                event => self.handle(event).await,
            };
            if let Err(cause) = went_well {
                return Ending::Lost { cause, read_after: self.facts.read_after() };
            }
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), PublishError> {
        match event {
            Event::Reopened => {
                if let Some(came) = self.waiting.take() {
                    return self.take_or_keep(came).await;
                }
            }
            Event::Stop | Event::Usurped | Event::Confirmation(None) | Event::Receipt(None) => {}
            Event::OldFacts(old) => self.reassert(&old),
            Event::Confirmation(Some(answer)) => self.facts.confirm(self.own, answer)?,
            Event::Receipt(Some(answer)) => self.receipts.note(&mut self.own.border, answer),
            Event::Tick => self.look(),
            Event::ReceiptTurn => self.send_receipts().await,
            Event::Save => self.saving.begin(self.own, self.facts.confirmed_to()),
            Event::Task(task) => task.apply(&mut self.own.border),
            Event::Case(case) => {
                if let Some(key) = case.device() {
                    self.own.learn_documents(&key).await;
                }
                let now = self.own.around.clock.now();
                self.desk.decide(&mut self.own.border, *case, now).await;
            }
            Event::Elders(batch) => {
                let now = self.own.around.clock.now();
                batch.iter().for_each(|(subject, fact)| _ = self.own.border.grow_old(subject, fact, now));
            }
            Event::Heartbeats(batch) => self.take_heartbeats(&batch),
            Event::Reports(came) => return self.take_or_keep(came).await,
        }
        let trace = Trace::begin(&mut self.own.chance);
        self.facts.write(self.own, trace);
        self.facts.pass_on(self.own).await?;
        self.confirm_old();
        self.desk.answer(&self.own.border).await;
        Ok(())
    }

    /// Re-asserts what holds of the old end of a LEDGER that fills up.
    fn reassert(&mut self, old: &OldFacts) {
        let (now, taken) = (self.own.around.clock.now(), self.old.taken_through);
        // What was handed to an earlier session leaves a hole, and is handed over again.
        if old.after > taken {
            return;
        }
        for (position, subject, fact) in old.facts.iter().filter(|(position, ..)| *position > taken) {
            self.own.border.reassert_early(subject, fact, *position, now);
        }
        self.old.taken_through = taken.max(old.through);
        self.old.unconfirmed.push_back((old.through, self.own.border.made()));
    }

    /// Says through which position everything is re-asserted and in LEDGER.
    fn confirm_old(&mut self) {
        let arrived = self.own.border.arrived();
        while let Some((through, _)) = self.old.unconfirmed.pop_front_if(|(_, made)| *made <= arrived) {
            self.own.room.confirm(through);
        }
    }

    /// Takes reports in, or keeps them while LEDGER has no room for their facts.
    async fn take_or_keep(&mut self, came: Came) -> Result<(), PublishError> {
        self.own.ready.take().into_iter().for_each(Latch::release);
        if came.reports.is_empty() || self.own.room.try_take_in(&came.reports) {
            return self.take_reports(came).await;
        }
        self.waiting = Some(came);
        Ok(())
    }

    async fn take_reports(&mut self, came: Came) -> Result<(), PublishError> {
        self.judge_all(came.reports).await;
        came.all_to.into_iter().for_each(|at| self.hearing.has_all_to(at));
        self.facts.pass_on(self.own).await
    }

    /// Judges the reports of a batch in their order. A report that the border would refuse for its deployment waits until the
    /// border knows every document of its device; the documents are read once a device and batch, after the batch has come.
    async fn judge_all(&mut self, reports: Vec<Delivery>) {
        let (mut waiting, mut learnt) = (VecDeque::from(reports), BTreeMap::new());
        loop {
            let Some(key) = aside(waiting.len(), || self.judge(&mut waiting, &learnt)) else { return };
            let is_known = self.own.learn_documents(&key).await;
            learnt.insert(key, is_known);
        }
    }

    /// Judges reports up to the first one of a device whose documents must be learnt.
    fn judge(
        &mut self,
        reports: &mut VecDeque<Delivery>,
        learnt: &BTreeMap<DeviceKey, bool>,
    ) -> Option<DeviceKey> {
        let now = self.own.around.clock.now();
        while let Some(delivery) = reports.pop_front() {
            let arrival = arrival(&delivery, now);
            let mut unreadable = false;
            if let (Ok(key), Ok(report)) = (&arrival.origin.device, &arrival.parsed)
                && self.own.border.needs_document(key, report, arrival.stored_at)
            {
                match learnt.get(key) {
                    Some(is_known) => unreadable = !is_known,
                    None => {
                        let key = key.clone();
                        drop(arrival);
                        reports.push_front(delivery);
                        return Some(key);
                    }
                }
            }
            self.own.border.documents_unreadable(unreadable);
            let outcome = self.own.border.report(arrival);
            self.own.border.documents_unreadable(false);
            self.own.metrics.report(outcome);
            self.facts.taken(self.own, delivery);
        }
        None
    }

    fn take_heartbeats(&mut self, batch: &[Delivery]) {
        let now = self.own.around.clock.now();
        for delivery in batch {
            match presence::read(delivery) {
                Some((key, Some(beat))) => {
                    self.own.metrics.all.heartbeats.inc();
                    self.own.border.heartbeat(&key, &beat, delivery.stored_at, now);
                }
                Some((key, None)) => {
                    self.own.metrics.all.heartbeats_refused.inc();
                    self.own.border.hear(&key, delivery.stored_at, now);
                }
                None => _ = self.own.metrics.all.heartbeats_refused.inc(),
            }
        }
    }

    /// Lets time pass, unless the hub could not hear.
    fn look(&mut self) {
        let now = self.own.around.clock.now();
        match self.hearing.look(now) {
            Heard::Nothing => {}
            Heard::Deaf => self.own.border.hearing_again(now),
            Heard::Well(taken_to) => {
                self.own.border.tick(now, taken_to);
                let devices = i64::try_from(self.own.border.devices()).unwrap_or(i64::MAX);
                self.own.metrics.devices.set(devices);
            }
        }
    }

    async fn send_receipts(&mut self) {
        let now = self.own.around.clock.now();
        if !self.hearing.is_up() {
            return;
        }
        // A clock that steps back proves nothing.
        let since = Duration::try_from(now.duration_since(self.owned_at));
        if !since.is_ok_and(|since| since < STANDSTILL) {
            let (bus, number) = (self.own.around.bus.clone(), self.own.number);
            if !matches!(newer_owner(&bus, number, self.claim_seq).await, Ok(None)) {
                return;
            }
        }
        self.owned_at = now;
        self.receipts.send(&mut self.own.border, now, &mut self.own.chance).await;
    }

    /// Finishes what was taken in: everything confirmed, acknowledged, and told to the devices.
    async fn finish(mut self) -> Ending {
        // What waits for a sum would come again to the next process, and everything behind it.
        self.own.border.sum_up();
        let trace = Trace::begin(&mut self.own.chance);
        self.facts.write(self.own, trace);
        if let Err(cause) = self.facts.pass_on(self.own).await {
            return self.unfinished(&cause);
        }
        while let Some(answer) = self.facts.answer().await {
            let went_well = match self.facts.confirm(self.own, answer) {
                Ok(()) => self.facts.pass_on(self.own).await,
                lost => lost,
            };
            if let Err(cause) = went_well {
                return self.unfinished(&cause);
            }
        }
        self.facts.acknowledge(self.own).await;
        self.saving.finish().await;
        self.saving.begin(self.own, self.facts.confirmed_to());
        if timeout(LAST_RECEIPTS, self.last_receipts()).await.is_err() {
            tracing::info!(
                partition = self.own.number,
                receipts = self.own.border.receipts_owed(),
                "stopping with receipts owed; devices keep their reports until the next one"
            );
        }
        self.saving.finish().await;
        // An answer to whatever is asked last means that the acknowledgement before it has arrived.
        let _ = self.own.around.bus.stream_state(stream::UPLINK).await;
        Ending::Stopped
    }

    fn unfinished(&self, cause: &PublishError) -> Ending {
        tracing::warn!(
            partition = self.own.number,
            error = chain(cause),
            "not everything was confirmed; what was not comes again to the next process"
        );
        Ending::Stopped
    }

    async fn last_receipts(&mut self) {
        while self.own.border.receipts_owed() > 0 || !self.receipts.is_empty() {
            self.send_receipts().await;
            while let Some(answer) = self.receipts.answer().await {
                self.receipts.note(&mut self.own.border, answer);
            }
            if self.own.border.receipts_owed() > 0 {
                sleep(receipts::TURN).await;
            }
        }
    }
}

/// A beat that no two partitions share: what all of them send at the same moment, facts would have to wait for.
fn in_turn(period: Duration, partition: u16) -> Interval {
    let mut beat = interval_at(Instant::now() + lag(period, partition), period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

fn lag(period: Duration, partition: u16) -> Duration {
    period * u32::from(partition % PARTITIONS) / u32::from(PARTITIONS)
}

/// Completes when the partition has another owner. What cannot be read now is read again.
async fn usurped(bus: Bus, partition: u16, claim_seq: u64) {
    loop {
        sleep(LOOK_EVERY).await;
        if matches!(newer_owner(&bus, partition, claim_seq).await, Ok(Some(_))) {
            return;
        }
    }
}

/// The record of whoever took the partition after us. A replica that is behind knows of an older record than ours.
async fn newer_owner(bus: &Bus, partition: u16, claim_seq: u64) -> Result<Option<Record>, ReadError> {
    Ok(ownership::record(bus, partition).await?.filter(|record| record.seq > claim_seq))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn partitions_that_begin_together_have_their_turns_one_after_the_other() {
        let lags: BTreeSet<_> = (0..PARTITIONS).map(|partition| lag(receipts::TURN, partition)).collect();
        assert_eq!(lags.len(), usize::from(PARTITIONS));
        assert!(
            lags.into_iter().all(|lag| lag < receipts::TURN),
            "none waits longer than a turn for its first"
        );
    }
}
