//! One session of a partition: from opening the ways in to the first publication of unknown fate, or to the end.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use muster_bus::{Delivery, Link, Outgoing, PublishError, Trace};
use muster_contract::report::Report;
use muster_contract::subjects::{Origin, origin, stream};
use muster_contract::{LabelError, Timestamp};
use muster_domain::border::Arrival;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::receipts::{self, Answer, Receipts};
use super::{Ending, Partition};
use crate::desired::Wish;
use crate::intake::{BATCH, Intake};
use crate::letter;
use crate::outlet::{FACTS_IN_FLIGHT, Outlet};
use crate::presence::{self, Presence};

/// Time between two looks at what has passed.
const TICK: Duration = Duration::from_secs(1);
/// A gap between two looks, or a step of the clock, after which the hub counts as having been deaf.
const STALL: Duration = Duration::from_secs(5);
/// How long nothing may come while the way is open before nothing is waiting.
const QUIET: Duration = Duration::from_secs(1);
/// Reports settled before the next acknowledgement, unless nothing else is under way.
const ACK_EVERY: usize = 128;
/// Heartbeats that may wait when time is looked at: they are taken in first.
const HEARTBEAT_BATCHES_MAX: usize = 64;
/// How long the last receipts may take when the process stops.
const LAST_RECEIPTS: Duration = Duration::from_secs(3);

const _: () = {
    assert!(STALL.as_secs() >= 2 * TICK.as_secs());
    assert!(ACK_EVERY < FACTS_IN_FLIGHT && FACTS_IN_FLIGHT <= BATCH);
    // A receipt is owed for at most a second before it may go.
    assert!(LAST_RECEIPTS.as_secs() > muster_contract::limits::RECEIPT_INTERVAL.as_secs());
};

/// A session.
pub(super) struct Session<'a> {
    own: &'a mut Partition,
    facts: Outlet,
    receipts: Receipts,
    /// Facts to be sent.
    letters: Vec<(Outgoing, &'static str)>,
    /// Reports taken in and not settled, oldest first.
    taken: VecDeque<Delivery>,
    /// The newest settled one whose acknowledgement is still to be sent, and how many it covers.
    settled: Option<(Delivery, usize)>,
    link: watch::Receiver<Link>,
    over: Link,
    looked_at: Timestamp,
    /// When a report came last, or the way was opened.
    came_at: Option<Instant>,
    /// Every report stored up to here has been taken in; up to now where nothing waits.
    taken_to: TakenTo,
    wishes_come: bool,
}

/// How far reports have been taken in.
#[derive(Debug, Clone, Copy)]
enum TakenTo {
    /// Nothing waits.
    Now,
    /// Up to a report stored at this moment.
    Report(Timestamp),
}

/// What can happen.
enum Event {
    Stop,
    Confirmation(Option<Result<&'static str, PublishError>>),
    Receipt(Option<Answer>),
    Tick,
    ReceiptTurn,
    Wish(Option<Wish>),
    Heartbeats(Vec<Delivery>),
    Reports(Vec<Delivery>),
}

impl<'a> Session<'a> {
    pub(super) fn open(own: &'a mut Partition) -> Self {
        let now = own.around.clock.now();
        own.border.hearing_again(now);
        let mut link = own.around.bus.link();
        let over = *link.borrow_and_update();
        Self {
            facts: Outlet::new(&own.around.bus, own.around.high_water.clone()),
            receipts: Receipts::new(&own.around.bus, own.metrics.all.receipts.clone()),
            letters: Vec::with_capacity(BATCH),
            taken: VecDeque::with_capacity(BATCH),
            settled: None,
            over,
            link,
            looked_at: now,
            came_at: None,
            taken_to: TakenTo::Report(Timestamp::MIN),
            wishes_come: true,
            own,
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) -> Ending {
        let (bus, number) = (self.own.around.bus.clone(), self.own.number);
        let mut reports = pin!(Intake::new(bus.clone(), number, self.own.chance.fork()).next());
        let mut heartbeats = pin!(Presence::new(bus, number, self.own.chance.fork()).next());
        let (mut tick, mut turn) = (interval(TICK), interval(receipts::TURN));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => Event::Stop,
                answer = self.facts.confirmation(), if !self.facts.is_empty() => Event::Confirmation(answer),
                answer = self.receipts.answer(), if !self.receipts.is_empty() => Event::Receipt(answer),
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
                wish = self.own.desired.recv(), if self.wishes_come => Event::Wish(wish),
                (way, batch) = &mut heartbeats => {
                    heartbeats.set(way.next());
                    Event::Heartbeats(batch)
                }
                (way, batch) = &mut reports => {
                    reports.set(way.next());
                    Event::Reports(batch)
                }
            };
            let went_well = match event {
                Event::Stop => return self.finish().await,
                event => self.handle(event).await,
            };
            if let Err(cause) = went_well {
                return Ending::Lost { cause, read_after: self.facts.read_after() };
            }
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), PublishError> {
        match event {
            Event::Stop | Event::Confirmation(None) | Event::Receipt(None) => {}
            Event::Confirmation(Some(answer)) => self.confirm(answer)?,
            Event::Receipt(Some(answer)) => self.receipts.note(&mut self.own.border, answer),
            Event::Tick => self.look(),
            Event::ReceiptTurn => self.send_receipts().await,
            Event::Wish(Some(wish)) => self.own.border.desire(&wish.key, &wish.state, wish.stored_at),
            Event::Wish(None) => self.wishes_come = false,
            Event::Heartbeats(batch) => self.take_heartbeats(&batch),
            Event::Reports(batch) => return self.take_reports(batch).await,
        }
        let trace = Trace::begin(&mut self.own.chance);
        self.write(trace);
        self.pass_on().await
    }

    /// Takes reports in. Each one's publications carry its trace.
    async fn take_reports(&mut self, batch: Vec<Delivery>) -> Result<(), PublishError> {
        self.came_at = Some(Instant::now());
        if let Some(last) = batch.last() {
            self.taken_to = match last.pending {
                0 => TakenTo::Now,
                _ => TakenTo::Report(last.stored_at),
            };
            self.own.metrics.lag.set(i64::try_from(last.pending).unwrap_or(i64::MAX));
        }
        // The first, empty batch says that the way is open.
        self.own.ready.take().into_iter().for_each(Latch::release);
        let now = self.own.around.clock.now();
        for delivery in batch {
            let outcome = self.own.border.report(arrival(&delivery, now));
            self.own.metrics.report(outcome);
            let trace =
                Trace::carried(&delivery.headers).unwrap_or_else(|| Trace::begin(&mut self.own.chance));
            self.write(trace);
            self.taken.push_back(delivery);
        }
        self.pass_on().await
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
        let link = *self.link.borrow_and_update();
        let since = Duration::try_from(now.duration_since(self.looked_at));
        let deaf = link != self.over || since.is_err() || since.is_ok_and(|since| since > STALL);
        (self.looked_at, self.over) = (now, link);
        if deaf {
            self.own.border.hearing_again(now);
        }
        if deaf || !link.is_up() {
            return;
        }
        if self.came_at.is_some_and(|at| at.elapsed() >= QUIET) {
            self.taken_to = TakenTo::Now;
        }
        let taken_to = match self.taken_to {
            TakenTo::Now => now,
            TakenTo::Report(stored_at) => stored_at,
        };
        self.own.border.tick(now, taken_to);
        self.own.metrics.devices.set(i64::try_from(self.own.border.devices()).unwrap_or(i64::MAX));
    }

    /// Writes the publications that are due.
    fn write(&mut self, trace: Trace) {
        while let Some(publication) = self.own.border.next_publication() {
            let kind = publication.kind;
            self.letters.push((letter::fact(publication, trace, &mut self.own.chance), kind));
        }
    }

    /// Sends what is written, takes what is confirmed, acknowledges what is settled.
    async fn pass_on(&mut self) -> Result<(), PublishError> {
        loop {
            for (letter, kind) in self.letters.drain(..) {
                self.facts.send(letter, kind).await;
            }
            while let Some(answer) = self.facts.try_confirmation() {
                self.confirm(answer)?;
            }
            if self.letters.is_empty() {
                break;
            }
        }
        self.own.metrics.unconfirmed.set(i64::try_from(self.facts.len()).unwrap_or(i64::MAX));
        self.acknowledge().await;
        Ok(())
    }

    fn confirm(&mut self, answer: Result<&'static str, PublishError>) -> Result<(), PublishError> {
        let kind = match answer {
            Ok(kind) => kind,
            Err(error) if error.is_of_the_message() => return self.set_aside(error),
            Err(error) => return Err(error),
        };
        self.own.border.confirm();
        self.own.metrics.all.fact(kind, 1);
        self.own.retry.reset();
        Ok(())
    }

    /// LEDGER will never take the oldest publication: something else is said in its place, and nobody waits.
    fn set_aside(&mut self, error: PublishError) -> Result<(), PublishError> {
        self.own.metrics.all.unstorable.inc();
        tracing::error!(
            partition = self.own.number,
            error = chain(&error),
            "LEDGER refuses a fact for good; the report behind it goes to quarantine"
        );
        let (now, border) = (self.own.around.clock.now(), &mut self.own.border);
        let cause = border.cause_of_oldest().and_then(|at| self.taken.get(at));
        let words = error.cause.to_string();
        border.unstorable(&words, cause.map(|delivery| arrival(delivery, now))).map_err(|_| error)?;
        let trace = Trace::begin(&mut self.own.chance);
        self.write(&trace);
        Ok(())
    }

    /// Acknowledges the newest settled report, which covers all before it.
    async fn acknowledge(&mut self) {
        for _ in 0..self.own.border.settled() {
            let Some(delivery) = self.taken.pop_front() else { break };
            let covered = self.settled.take().map_or(0, |(_, covered)| covered);
            self.settled = Some((delivery, covered + 1));
        }
        let due = |covered: usize, idle: bool| idle || covered >= ACK_EVERY;
        let idle = self.facts.is_empty();
        if let Some((newest, _)) = self.settled.take_if(|(_, covered)| due(*covered, idle)) {
            newest.ack_all().await;
        }
    }

    async fn send_receipts(&mut self) {
        if self.over.is_up() {
            let now = self.own.around.clock.now();
            self.receipts.send(&mut self.own.border, now, &mut self.own.chance).await;
        }
    }

    /// Finishes what was taken in: everything confirmed, acknowledged, and told to the devices.
    async fn finish(mut self) -> Ending {
        while let Some(answer) = self.facts.confirmation().await {
            let went_well = match self.confirm(answer) {
                Ok(()) => self.pass_on().await,
                lost => lost,
            };
            if let Err(cause) = went_well {
                tracing::warn!(
                    partition = self.own.number,
                    error = chain(&cause),
                    "not everything was confirmed; what was not comes again to the next process"
                );
                return Ending::Stopped;
            }
        }
        self.acknowledge().await;
        if timeout(LAST_RECEIPTS, self.last_receipts()).await.is_err() {
            tracing::info!(
                partition = self.own.number,
                receipts = self.own.border.receipts_owed(),
                "stopping with receipts owed; devices keep their reports until the next one"
            );
        }
        // An answer to whatever is asked last means that the acknowledgement before it has arrived.
        let _ = self.own.around.bus.stream_state(stream::UPLINK).await;
        Ending::Stopped
    }

    async fn last_receipts(&mut self) {
        while self.own.border.receipts_owed() > 0 || !self.receipts.is_empty() {
            self.send_receipts().await;
            while let Some(answer) = self.receipts.answer().await {
                self.receipts.note(&mut self.own.border, answer);
            }
            if self.own.border.receipts_owed() > 0 {
                tokio::time::sleep(receipts::TURN).await;
            }
        }
    }
}

fn arrival(delivery: &Delivery, now: Timestamp) -> Arrival<'_> {
    Arrival {
        origin: origin(&delivery.subject).unwrap_or_else(|| strange(&delivery.subject)),
        parsed: Report::parse(&delivery.payload),
        payload: &delivery.payload,
        position: delivery.stream_seq,
        stored_at: delivery.stored_at,
        now,
    }
}

/// A subject that UPLINK cannot have by the contract: it names nobody.
fn strange(subject: &str) -> Origin {
    Origin {
        device: Err(LabelError { what: "subject of a report", text: subject.to_owned() }),
        subject: subject.to_owned(),
    }
}
