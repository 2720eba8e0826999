//! Follows LEDGER: all of its messages, in order, from the first one it holds. It folds nothing and decides nothing.
//!
//! LEDGER may be another one after a restore; then reading begins anew. A planner has no snapshot: what it keeps of LEDGER is what
//! LEDGER itself keeps.

use std::future::Future;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Replay, Start};
use muster_contract::Timestamp;
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::fold::Position;
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Messages read at once, so that a decision never waits for the folding of many.
const BATCH_MAX: usize = 512;
/// Batches that wait for the planner.
const BATCHES_WAITING_MAX: usize = 4;
/// Time between two questions for LEDGER's end.
const END_ASKED_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an answer: the reader waits meanwhile.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Time without a message after which the server is asked whether anything is left: LEDGER discards pulses.
const SILENCE: Duration = Duration::from_secs(2);
/// Delay before LEDGER is opened again.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A message of LEDGER with its fact, if it is readable.
pub type LedgerFact = (Position, Option<(LedgerSubject, Fact)>);

/// News of LEDGER.
#[derive(Debug)]
pub enum LedgerEvent {
    /// The next messages, in order.
    Facts(Vec<LedgerFact>),
    /// LEDGER holds nothing more up to this sequence.
    Through(u64),
    /// LEDGER's end, its clock, and the moment before the question.
    End {
        /// Sequence of the last message.
        last_seq: u64,
        /// Time by the server's clock.
        at: Timestamp,
        /// Time of the question.
        asked_at: Instant,
    },
    /// It is read from its first message again.
    Restarted,
}

/// A source of LEDGER's messages; a trait so that tests can delay and lose them.
pub trait Ledger: Send + 'static {
    /// The next event. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = LedgerEvent> + Send;
}

/// LEDGER over a bus, read by a task of its own.
#[derive(Debug)]
pub struct BusLedger {
    events: mpsc::Receiver<LedgerEvent>,
    _reader: AbortOnDropHandle<()>,
}

impl BusLedger {
    /// Begins to read.
    pub fn open(bus: Bus) -> Self {
        let (out, events) = mpsc::channel(BATCHES_WAITING_MAX);
        let reader = Reader { bus, out, checked: Checked::default(), read_through: 0 };
        Self { events, _reader: AbortOnDropHandle::new(tokio::spawn(reader.run())) }
    }
}

impl Ledger for BusLedger {
    async fn next(&mut self) -> LedgerEvent {
        match self.events.recv().await {
            Some(event) => event,
            // The reader has ended, which only the end of the process brings about.
            None => std::future::pending().await,
        }
    }
}

struct Reader {
    bus: Bus,
    out: mpsc::Sender<LedgerEvent>,
    checked: Checked,
    read_through: u64,
}

impl Reader {
    /// Reads until nobody receives.
    async fn run(mut self) {
        while !self.out.is_closed() {
            match self.bus.replay(stream::LEDGER, &[], Start::First).await {
                Ok(mut replay) => {
                    let error = self.read(&mut replay).await;
                    tracing::warn!(error = chain(&error), "reading LEDGER from its first message again");
                    self.read_through = 0;
                    self.send(LedgerEvent::Restarted).await;
                }
                Err(error) => tracing::warn!(error = chain(&error), "cannot read LEDGER yet"),
            }
            sleep(OPEN_AGAIN_AFTER).await;
        }
    }

    /// Reads until it cannot go on from its position.
    async fn read(&mut self, replay: &mut Replay) -> ReadError {
        let mut ticks = interval(END_ASKED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_message = Instant::now();
        loop {
            tokio::select! {
                batch = replay.next_batch(BATCH_MAX) => match batch {
                    Ok(batch) => {
                        last_message = Instant::now();
                        let facts = block_in_place_if_large(batch.len(), || self.parse(&batch));
                        self.send(LedgerEvent::Facts(facts)).await;
                    }
                    Err(error) => return error,
                },
                _ = ticks.tick() => {
                    self.ask_for_end(replay, last_message).await;
                }
            }
        }
    }

    fn parse(&mut self, batch: &[Delivery]) -> Vec<LedgerFact> {
        let fact = |message: &Delivery| {
            let at = Position { ledger_seq: message.stream_seq, stored_at: message.stored_at };
            self.read_through = at.ledger_seq;
            // The rollup counts and logs messages that are no facts.
            (at, Fact::of_message(&message.subject, &message.payload, &mut self.checked).ok())
        };
        batch.iter().map(fact).collect()
    }

    /// Asks for LEDGER's end; after a silence, also whether the server has sent everything up to there.
    async fn ask_for_end(&mut self, replay: &Replay, last_message: Instant) {
        let asked_at = Instant::now();
        let Ok(Ok((ledger, at))) = timeout(END_WITHIN, self.bus.stream_now(stream::LEDGER)).await else {
            return;
        };
        let last_seq = ledger.last_seq;
        self.send(LedgerEvent::End { last_seq, at, asked_at }).await;
        let is_silent = asked_at.duration_since(last_message) >= SILENCE || ledger.messages == 0;
        // A message stored after the question was not asked about.
        if last_seq > self.read_through && is_silent && replay.is_open() && replay.is_drained().await {
            self.read_through = last_seq;
            self.send(LedgerEvent::Through(last_seq)).await;
        }
    }

    async fn send(&self, event: LedgerEvent) {
        // Without a receiver the planner is stopping.
        let _ = self.out.send(event).await;
    }
}
