//! Drives the session of a partition over the bus: waits for events, hands them to [`SessionCore`] as inputs, and carries out its
//! effects in their order. It decides nothing itself.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_bus::{Bus, Delivery, LastReceived, PublishError, ReadError, Responder, Stored, Trace, Window};
use muster_contract::DeviceKey;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::stream;
use muster_domain::intake::Publication;
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::quarantine_handler::{QuarantineHandler, QuarantineTask};
use super::rejected_store::{RejectedStore, StoreAnswer};
use super::snapshot_saver::{CHECK_EVERY, SnapshotSaver};
use super::standby::{PartitionLease, TAKEN_AFTER_MIN};
use super::timers::staggered_interval;
use super::{Partition, SessionEnd};
use crate::desired::DownlinkUpdate;
use crate::heartbeat_reader::HeartbeatReader;
use crate::ledger_publisher::LedgerPublisher;
use crate::limits::{BATCH, RECEIPTS_IN_FLIGHT};
use crate::message;
use crate::ownership::{self, OwnerRecord};
use crate::reassert_reader::{AgedFact, ReassertReader};
use crate::report_reader::{ReceivedReports, ReportReader};
use crate::session::{
    Effect, EvaluatedMessage, FactAnswer, Input, OldFacts, STANDSTILL, SessionCore, SessionStart, TICK,
};

/// Batches of waiting heartbeats that are applied before a tick.
const HEARTBEAT_BATCHES_MAX: usize = 64;
/// Time between two turns of receipts.
const RECEIPTS_EVERY: Duration = Duration::from_millis(100);
/// How long the last receipts may take when the process stops.
const LAST_RECEIPTS: Duration = Duration::from_secs(3);
/// Time between two reads of the owner: a process that has nothing to publish would not learn otherwise that it lost the
/// partition.
const OWNER_CHECK_EVERY: Duration = Duration::from_secs(5);

/// Effects that are carried out before the next event is looked at: a message may hold 256 reports.
const EFFECTS_PER_TURN: usize = 4 * BATCH;

const _: () = assert!(STANDSTILL.as_millis() < TAKEN_AFTER_MIN.as_millis());

// A receipt is due at most a second after it is owed.
const _: () = assert!(LAST_RECEIPTS.as_secs() > muster_contract::limits::RECEIPT_INTERVAL.as_secs());

/// A session with its connections to the streams.
pub(super) struct SessionDriver<'a> {
    core: SessionCore<Delivery>,
    publisher: LedgerPublisher,
    receipts: Window<DeviceKey>,
    rejected: RejectedStore,
    heartbeats: BoxFuture<'static, (HeartbeatReader, Vec<Delivery>)>,
    presence_received: LastReceived,
    quarantine: QuarantineHandler,
    saver: SnapshotSaver,
    /// Reports that wait for room in LEDGER.
    held: Option<ReceivedReports>,
    /// Effects are due that the last turn did not carry out.
    has_more: bool,
    token_seq: u64,
    /// The error that ended the session.
    cause: Option<PublishError>,
    _responder: Responder,
    own: &'a mut Partition,
}

/// An event for which the session waits.
enum Event {
    Reopened,
    OldFacts(OldFacts),
    Stop,
    LeaseLost,
    Answer(Option<Answer>),
    Receipt(Option<(DeviceKey, Answer)>),
    Rejected(Option<StoreAnswer>),
    Tick,
    ReceiptTurn,
    Save,
    Downlink(DownlinkUpdate),
    Quarantine(Box<QuarantineTask>),
    Aged(Vec<AgedFact>),
    Heartbeats(Vec<Delivery>),
    Reports(ReceivedReports),
    /// The last turn ended before every effect was carried out.
    More,
}

/// A stream's answer to a message.
type Answer = Result<Stored, PublishError>;

impl<'a> SessionDriver<'a> {
    pub(super) fn open(own: &'a mut Partition, lease: PartitionLease) -> Self {
        let PartitionLease { token, quarantine, responder, unproven_since } = lease;
        let (bus, presence_received) = (own.context.bus.clone(), LastReceived::default());
        let start = SessionStart {
            now: own.context.clock.now(),
            link: *bus.link().borrow(),
            high_water: own.context.high_water.clone(),
            read_through: own.read_after,
            reasserted_through: own.room.acquire(),
        };
        let core = SessionCore::new(&mut own.intake, start, own.metrics.clone(), own.rng.fork());
        own.intake.publish_pulses_as(own.number, &own.context.name, unproven_since);
        let presence = HeartbeatReader::new(bus.clone(), own.number, presence_received.clone());
        let token_seq = token.seq();
        Self {
            core,
            held: None,
            has_more: false,
            token_seq,
            publisher: LedgerPublisher::new(&bus, token),
            receipts: bus.window(RECEIPTS_IN_FLIGHT),
            rejected: RejectedStore::new(&bus, own.context.quarantine_alarm.clone()),
            heartbeats: presence.next().boxed(),
            presence_received,
            quarantine,
            saver: SnapshotSaver::new(token_seq),
            cause: None,
            _responder: responder,
            own,
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) -> SessionEnd {
        let (bus, number) = (self.own.context.bus.clone(), self.own.number);
        let mut reports = ReportReader::new(bus.clone(), number).next().boxed();
        let mut aged =
            ReassertReader::new(bus.clone(), self.own.context.clock.clone(), number).next().boxed();
        let (room, mut reopened) = (self.own.room.clone(), self.own.room.reopened());
        let trimming = self.own.trim.clone().run(bus.clone(), number, self.own.metrics.clone());
        let _trimming = AbortOnDropHandle::new(tokio::spawn(trimming));
        let mut lease_lost = lease_lost(bus, number, self.token_seq).boxed();
        let (mut tick, mut turn) =
            (staggered_interval(TICK, number), staggered_interval(RECEIPTS_EVERY, number));
        let mut save = staggered_interval(CHECK_EVERY, number);
        loop {
            if !self.sees_ledger() {
                let mut context = self.own.context.clone();
                tokio::select! {
                    biased;
                    // LEDGER may lack confirmed facts: this process writes nothing more, and the next start reads LEDGER.
                    () = stop.cancelled() => return SessionEnd::Stopped,
                    () = &mut lease_lost => return SessionEnd::LeaseLost { read_after: self.core.read_after() },
                    () = context.ledger_seen() => {}
                }
            }
            self.act().await;
            if let Some(cause) = self.cause.take() {
                return SessionEnd::Lost { cause, read_after: self.core.read_after() };
            }
            if !self.sees_ledger() {
                continue;
            }
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => Event::Stop,
                answer = self.publisher.answer(), if !self.publisher.is_empty() => Event::Answer(answer),
                answer = self.rejected.answer(), if !self.rejected.is_empty() => Event::Rejected(answer),
                answer = self.receipts.next(), if !self.receipts.is_empty() => Event::Receipt(answer),
                () = &mut lease_lost => Event::LeaseLost,
                _ = tick.tick() => Event::Tick,
                _ = turn.tick() => Event::ReceiptTurn,
                _ = save.tick() => Event::Save,
                update = self.own.desired.next() => Event::Downlink(update),
                task = self.quarantine.next(self.own.context.clock.as_ref()) => Event::Quarantine(Box::new(task)),
                (reader, batch) = &mut self.heartbeats => {
                    self.heartbeats = reader.next().boxed();
                    Event::Heartbeats(batch)
                }
                (reader, batch) = &mut aged => {
                    aged = reader.next().boxed();
                    Event::Aged(batch)
                }
                old = room.next() => Event::OldFacts(old),
                Ok(_) = reopened.changed() => Event::Reopened,
                () = std::future::ready(()), if self.has_more => Event::More,
                (reader, batch) = &mut reports, if self.held.is_none() && self.core.is_ready_for_reports() => {
                    reports = reader.next().boxed();
                    Event::Reports(batch)
                }
            };
            match event {
                Event::Stop => return self.finish().await,
                Event::LeaseLost => return SessionEnd::LeaseLost { read_after: self.core.read_after() },
                event => self.handle(event).await,
            }
        }
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Stop
            | Event::LeaseLost
            | Event::More
            | Event::Answer(None)
            | Event::Receipt(None)
            | Event::Rejected(None) => {}
            Event::Rejected(Some(answer)) => self.rejection_answered(answer),
            Event::Answer(Some(answer)) => {
                self.fact_answered(answer);
                self.poll_answers();
            }
            Event::Receipt(Some((key, answer))) => self.receipt_answered(key, &answer),
            Event::Tick => self.feed(Input::Tick),
            Event::ReceiptTurn => self.feed(Input::ReceiptsDue),
            Event::Save => self.feed(Input::SnapshotDue),
            Event::Aged(batch) => self.feed(Input::Aged(batch)),
            Event::OldFacts(old) => self.feed(Input::OldFacts(old)),
            Event::Heartbeats(batch) => self.feed(Input::Heartbeats(batch)),
            Event::Downlink(update) => update.apply(&mut self.own.intake),
            Event::Quarantine(task) => {
                if let Some(key) = task.device() {
                    self.own.load_documents(&key).await;
                }
                let now = self.own.context.clock.now();
                self.quarantine.handle(&mut self.own.intake, *task, now).await;
            }
            Event::Reopened => {
                if let Some(batch) = self.held.take() {
                    self.feed_or_hold(batch);
                }
            }
            Event::Reports(batch) => self.feed_or_hold(batch),
        }
    }

    /// Hands reports to the session, or holds them while LEDGER has no room for their facts.
    fn feed_or_hold(&mut self, batch: ReceivedReports) {
        self.own.ready.take().into_iter().for_each(Latch::release);
        if batch.reports.is_empty() || self.own.room.try_admit(&batch.reports) {
            self.feed(Input::Reports(batch.reports, batch.complete_through));
        } else {
            self.held = Some(batch);
        }
    }

    fn feed(&mut self, input: Input<Delivery>) {
        let now = self.own.context.clock.now();
        self.core.handle(&mut self.own.intake, input, now);
    }

    fn sees_ledger(&self) -> bool {
        self.own.context.sees_ledger()
    }

    /// Carries out the effects that are due, one after the other: all of them, unless they are so many that leases, heartbeats and
    /// receipts would wait.
    async fn act(&mut self) {
        self.has_more = true;
        for _ in 0..EFFECTS_PER_TURN {
            let conditions = self.own.context.conditions(self.presence_received.age());
            let (core, intake) = (&mut self.core, &mut self.own.intake);
            let effect =
                block_in_place_if_large(core.reports_to_evaluate(), || core.next_effect(intake, &conditions));
            let Some(effect) = effect else {
                self.has_more = false;
                break;
            };
            self.carry_out(effect).await;
        }
        let unconfirmed = self.core.facts_unconfirmed();
        self.own.metrics.unconfirmed.set(i64::try_from(unconfirmed).unwrap_or(i64::MAX));
        self.quarantine.answer_decisions(&mut self.own.intake);
    }

    async fn carry_out(&mut self, effect: Effect<Delivery>) {
        match effect {
            Effect::ReadDocuments(key) => {
                let are_known = self.own.load_documents(&key).await;
                self.feed(Input::DocumentsRead(key, are_known));
            }
            Effect::PollHeartbeats => self.poll_heartbeats(),
            Effect::StoreRejected(rejection) => {
                self.rejected.send(&rejection, &mut self.own.rng).await;
            }
            Effect::BeginRun => self.publisher.start_run().await,
            Effect::Publish(publication, trace) => self.publish(publication, trace).await,
            Effect::EndRun => self.publisher.end_run().await,
            Effect::PollAnswers => self.poll_answers(),
            Effect::Settle(message) => self.record_settled(&message),
            Effect::Acknowledge(newest) => {
                self.record_settled(&newest);
                newest.delivery.ack_all().await;
                self.own.trim.acknowledged(&newest.delivery);
            }
            Effect::Reasserted(through) => self.own.room.confirm(through),
            Effect::ReadOwner => {
                let newer = newer_owner(&self.own.context.bus, self.own.number, self.token_seq).await;
                self.feed(Input::OwnerRead(matches!(newer, Ok(None))));
            }
            Effect::SendReceipt(key, receipt) => self.send_receipt(key, &receipt).await,
            Effect::SaveSnapshot(position) => self.saver.save_if_due(self.own, position),
        }
    }

    fn rejection_answered(&mut self, (ticket, stored): StoreAnswer) {
        self.feed(Input::RejectionAnswer(ticket, stored));
    }

    fn poll_heartbeats(&mut self) {
        for _ in 0..HEARTBEAT_BATCHES_MAX {
            let Some((reader, batch)) = (&mut self.heartbeats).now_or_never() else { break };
            self.heartbeats = reader.next().boxed();
            self.feed(Input::Heartbeats(batch));
        }
    }

    async fn publish(&mut self, publication: Publication, trace: Option<Trace>) {
        self.own.incident_log.log(self.own.number, &publication, self.own.context.clock.as_ref());
        self.publisher.send(message::fact(publication, trace)).await;
    }

    fn poll_answers(&mut self) {
        // Answers after a fact with an unknown outcome change nothing.
        while self.cause.is_none()
            && let Some(answer) = self.publisher.try_answer()
        {
            self.fact_answered(answer);
        }
    }

    fn fact_answered(&mut self, answer: Answer) {
        let (answer, error) = match answer {
            Ok(stored) => {
                self.own.retry.reset();
                (FactAnswer::Stored(stored), None)
            }
            Err(error) if error.is_of_the_message() => {
                tracing::error!(
                    partition = self.own.number,
                    error = chain(&error),
                    "LEDGER will never store a fact; quarantining its report instead"
                );
                (FactAnswer::Unstorable(error.cause.to_string()), Some(error))
            }
            Err(error) => (FactAnswer::Unknown, Some(error)),
        };
        self.feed(Input::FactAnswer(answer));
        if self.core.is_lost() {
            self.cause = self.cause.take().or(error);
        }
    }

    fn record_settled(&self, message: &EvaluatedMessage<Delivery>) {
        self.own.trim.record_settled(message);
        self.own.room.record_settled(&message.delivery);
    }

    async fn send_receipt(&mut self, key: DeviceKey, receipt: &Receipt) {
        let message = message::receipt(&key, receipt);
        self.receipts.send(message, key).await;
    }

    fn receipt_answered(&mut self, key: DeviceKey, answer: &Answer) {
        match answer {
            Ok(_) => _ = self.own.metrics.all.receipts.inc(),
            Err(error) => tracing::debug!(
                device.site = %key.site, device.id = %key.device, %error,
                "cannot write a receipt; sending it again"
            ),
        }
        self.feed(Input::ReceiptAnswer(key, answer.is_ok()));
    }

    /// Carries out every effect that is due.
    async fn act_on_all(&mut self) {
        self.act().await;
        while self.has_more {
            self.act().await;
        }
    }

    /// Settles the received reports: everything is confirmed, acknowledged, and covered by receipts.
    async fn finish(mut self) -> SessionEnd {
        // Otherwise the next process would receive the messages that wait for QUARANTINE or in a batch, and everything behind
        // them, again.
        while let Some(answer) = self.rejected.answer().await {
            self.rejection_answered(answer);
            self.act_on_all().await;
        }
        self.feed(Input::Stop);
        self.act_on_all().await;
        while self.cause.is_none()
            && let Some(answer) = self.publisher.answer().await
        {
            self.fact_answered(answer);
            self.act_on_all().await;
        }
        if let Some(cause) = self.cause.take() {
            tracing::warn!(
                partition = self.own.number,
                error = chain(&cause),
                "stopping with unconfirmed facts; the next process receives their reports again"
            );
            return SessionEnd::Stopped;
        }
        self.saver.finish().await;
        self.feed(Input::SnapshotDue);
        self.act_on_all().await;
        if timeout(LAST_RECEIPTS, self.last_receipts()).await.is_err() {
            tracing::info!(
                partition = self.own.number,
                receipts = self.own.intake.receipts_owed(),
                "stopping with receipts owed; devices keep their reports until the next receipt"
            );
        }
        self.saver.finish().await;
        // The answer to this last request proves that the acknowledgement before it has arrived.
        let _ = self.own.context.bus.stream_state(stream::UPLINK).await;
        SessionEnd::Stopped
    }

    async fn last_receipts(&mut self) {
        while self.own.intake.receipts_owed() > 0 || self.core.receipts_unconfirmed() > 0 {
            self.feed(Input::ReceiptsDue);
            self.act_on_all().await;
            while let Some((key, answer)) = self.receipts.next().await {
                self.receipt_answered(key, &answer);
            }
            if self.own.intake.receipts_owed() > 0 || self.core.receipts_unconfirmed() > 0 {
                sleep(RECEIPTS_EVERY).await;
            }
        }
    }
}

/// Completes when another process owns the partition. A read that fails is repeated.
async fn lease_lost(bus: Bus, partition: u16, token_seq: u64) {
    loop {
        sleep(OWNER_CHECK_EVERY).await;
        if matches!(newer_owner(&bus, partition, token_seq).await, Ok(Some(_))) {
            return;
        }
    }
}

/// The record of a process that took the partition after this one. A replica that lags has an older record than this process's.
async fn newer_owner(bus: &Bus, partition: u16, token_seq: u64) -> Result<Option<OwnerRecord>, ReadError> {
    Ok(ownership::record(bus, partition).await?.filter(|record| record.seq > token_seq))
}
