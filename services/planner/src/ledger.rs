//! Follows LEDGER: reads all of its messages in order, from the first one that it holds, or after the last one of a checkpoint. It
//! folds nothing and decides nothing.
//!
//! A restore may replace LEDGER or its mirror; the reader then starts again at the first message. It goes on after a checkpoint only
//! if LEDGER still holds the checkpoint's last message: a LEDGER that was set back and has grown again has another one there.

use std::future::Future;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Replay, Start, StreamEnd, StreamState};
use muster_contract::Timestamp;
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_contract::subjects::stream;
use muster_domain::fold::Position;
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

pub use self::event::{LedgerEvent, LedgerFact};
use crate::checkpoint::{Checkpoints, LedgerMark};

pub(crate) mod event;

/// Messages of a batch, at most: a decision waits for one batch to be folded.
pub(crate) const BATCH_MAX: usize = 512;
/// Batches that wait for the planner.
pub(crate) const BATCHES_WAITING_MAX: usize = 4;
/// Time between two questions for a stream's end.
pub(crate) const END_ASKED_EVERY: Duration = Duration::from_secs(1);
/// Timeout of such a question. No message is read meanwhile.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(2);
/// Time without a message after which the server is asked whether anything is left: LEDGER discards pulses.
const SILENCE: Duration = Duration::from_secs(2);
/// Longest silence between LEDGER and its mirror in which the mirror's end counts as LEDGER's. The server contacts a mirror every
/// second.
const ORIGIN_HEARD_WITHIN: Duration = Duration::from_secs(3);
/// Delay before a reader opens its stream again.
pub(crate) const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A source of LEDGER's messages; a trait so that tests can delay and lose them.
pub trait Ledger: Send + 'static {
    /// The next event. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = LedgerEvent> + Send;
}

/// LEDGER over a bus, read by a task of its own.
#[derive(Debug)]
pub(crate) struct BusLedger {
    events: mpsc::Receiver<LedgerEvent>,
    _reader: AbortOnDropHandle<()>,
}

impl BusLedger {
    /// Begins to read after the last message of a checkpoint, if LEDGER holds that message. Otherwise the checkpoint is set aside, and
    /// the reader starts again at the first message.
    pub(crate) fn resume(bus: Bus, resume: Option<(Checkpoints, LedgerMark)>) -> Self {
        let (out, events) = mpsc::channel(BATCHES_WAITING_MAX);
        let checked = Checked::default();
        let reader = Reader { bus, out, checked, resume, created_at: Timestamp::MIN, read_through: 0 };
        Self { events, _reader: AbortOnDropHandle::new(tokio::spawn(reader.run())) }
    }
}

impl Ledger for BusLedger {
    async fn next(&mut self) -> LedgerEvent {
        match self.events.recv().await {
            Some(event) => event,
            // The reader ends only with the process.
            None => std::future::pending().await,
        }
    }
}

struct Reader {
    bus: Bus,
    out: mpsc::Sender<LedgerEvent>,
    checked: Checked,
    /// The checkpoint to go on after, until LEDGER has been opened.
    resume: Option<(Checkpoints, LedgerMark)>,
    /// Creation time of the stream that is read.
    created_at: Timestamp,
    read_through: u64,
}

/// LEDGER's end, derived from the stream that is read: LEDGER itself or a mirror.
#[derive(Debug, PartialEq, Eq)]
enum LedgerEnd {
    /// The last sequence of LEDGER, and the age of that knowledge.
    At(u64, Duration),
    /// The mirror has lost contact with LEDGER.
    Unknown,
    /// Another stream has replaced the one that was read.
    Replaced,
}

impl LedgerEnd {
    fn of(end: &StreamEnd, created_at: Timestamp, read_through: u64) -> Self {
        let last_seq = end.state.last_seq;
        if end.state.created_at != created_at || last_seq < read_through {
            return Self::Replaced;
        }
        match end.mirror {
            None => Self::At(last_seq, Duration::ZERO),
            Some(mirror) => match mirror.heard.filter(|heard| *heard <= ORIGIN_HEARD_WITHIN) {
                Some(heard) => Self::At(last_seq.saturating_add(mirror.lag), heard),
                None => Self::Unknown,
            },
        }
    }
}

impl Reader {
    /// Reads until the receiver is dropped.
    async fn run(mut self) {
        while !self.out.is_closed() {
            match self.open().await {
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

    async fn open(&mut self) -> Result<Replay, ReadError> {
        // Read before the consumer is created: a stream created in between counts as replaced.
        let ledger = self.bus.stream_state(stream::LEDGER).await?;
        self.created_at = ledger.created_at;
        let resumed = match &self.resume {
            Some((_, mark)) => self.open_after(*mark, &ledger).await?,
            None => None,
        };
        let replay = match (self.resume.take(), resumed) {
            (Some((_, mark)), Some(replay)) => {
                self.read_through = mark.position;
                tracing::info!(ledger.seq = mark.position, "reading LEDGER after the checkpoint");
                replay
            }
            (resume, _) => {
                let replay = self.bus.replay(stream::LEDGER, &[], Start::First).await;
                if let Some((checkpoints, mark)) = resume {
                    let position = mark.position;
                    let reason = format!(
                        "LEDGER is another one, was restored from a backup, or no longer holds message {position}"
                    );
                    checkpoints.set_aside(mark, &reason);
                    self.send(LedgerEvent::Restarted).await;
                }
                replay?
            }
        };
        self.send(LedgerEvent::Opened { created_at: self.created_at }).await;
        Ok(replay)
    }

    /// A reader after the last message of a checkpoint; `None` if LEDGER does not hold that message.
    async fn open_after(&self, mark: LedgerMark, ledger: &StreamState) -> Result<Option<Replay>, ReadError> {
        let LedgerMark { ledger_created_at, position, stored_at } = mark;
        if ledger.created_at != ledger_created_at || ledger.last_seq < position || position < ledger.first_seq
        {
            return Ok(None);
        }
        let mut replay = self.bus.replay(stream::LEDGER, &[], Start::After(position - 1)).await?;
        let first = replay.next_batch(1).await?;
        let is_it = |message: &Delivery| message.stream_seq == position && message.stored_at == stored_at;
        Ok(first.first().is_some_and(is_it).then_some(replay))
    }

    /// Reads until LEDGER cannot be read on from the reader's position.
    async fn read(&mut self, replay: &mut Replay) -> ReadError {
        let mut ticks = interval(END_ASKED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last_message, mut sent_through) = (Instant::now(), None);
        loop {
            let batch = tokio::select! {
                batch = replay.next_batch(BATCH_MAX) => Some(batch),
                _ = ticks.tick() => match sent_through {
                    // Everything that the server had sent before its answer has arrived by now, so it is read first.
                    Some(_) => timeout(Duration::ZERO, replay.next_batch(BATCH_MAX)).await.ok(),
                    None => None,
                },
            };
            match (batch, sent_through.take()) {
                (Some(Ok(batch)), _) => {
                    last_message = Instant::now();
                    let facts = block_in_place_if_large(batch.len(), || self.parse(&batch));
                    self.send(LedgerEvent::Facts(facts)).await;
                    continue;
                }
                (Some(Err(error)), _) => return error,
                (None, Some(through)) => {
                    self.read_through = through;
                    self.send(LedgerEvent::Through(through)).await;
                }
                (None, None) => {}
            }
            match self.ask_for_end(replay, last_message).await {
                Ok(through) => sent_through = through,
                Err(error) => return error,
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

    /// Asks for LEDGER's end; after a silence, returns it if the server has sent everything up to it. Fails if another stream has
    /// replaced LEDGER.
    async fn ask_for_end(
        &mut self,
        replay: &Replay,
        last_message: Instant,
    ) -> Result<Option<u64>, ReadError> {
        let asked_at = Instant::now();
        let Ok(Ok(end)) = timeout(END_WITHIN, self.bus.stream_end(stream::LEDGER)).await else {
            return Ok(None);
        };
        let last_seq = end.state.last_seq;
        match LedgerEnd::of(&end, self.created_at, self.read_through) {
            LedgerEnd::At(last_seq, ago) => {
                let asked_at = asked_at.checked_sub(ago).unwrap_or(asked_at);
                self.send(LedgerEvent::End { last_seq, at: end.at, asked_at }).await;
            }
            LedgerEnd::Unknown => {}
            LedgerEnd::Replaced => {
                let (stream, position) = (stream::LEDGER.to_owned(), self.read_through);
                return Err(ReadError::StreamReset { stream, position, last_seq });
            }
        }
        let is_silent = asked_at.duration_since(last_message) >= SILENCE || end.state.messages == 0;
        // `last_seq` was read before this question, so a message stored in between is not skipped.
        let is_sent =
            last_seq > self.read_through && is_silent && replay.is_open() && replay.is_drained().await;
        Ok(is_sent.then_some(last_seq))
    }

    async fn send(&self, event: LedgerEvent) {
        // Without a receiver the planner is stopping.
        let _ = self.out.send(event).await;
    }
}

#[cfg(test)]
mod tests {
    use muster_bus::{MirrorProgress, StreamState};

    use super::*;

    fn end(last_seq: u64, mirror: Option<(u64, Option<u64>)>) -> StreamEnd {
        let at = Timestamp::UNIX_EPOCH;
        let state = StreamState {
            first_seq: 1,
            last_seq,
            first_at: at,
            messages: last_seq,
            bytes: 0,
            bytes_max: None,
            created_at: at,
            replicas: 1,
        };
        let heard = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        let mirror = mirror.map(|(lag, seconds)| MirrorProgress { lag, heard: heard(seconds) });
        StreamEnd { state, at, mirror }
    }

    #[test]
    fn a_mirror_ends_where_ledger_ends_while_it_hears_of_ledger() {
        let of = |mirror| LedgerEnd::of(&end(7, mirror), Timestamp::UNIX_EPOCH, 7);
        assert_eq!(of(None), LedgerEnd::At(7, Duration::ZERO));
        assert_eq!(of(Some((0, Some(1)))), LedgerEnd::At(7, Duration::from_secs(1)));
        assert_eq!(of(Some((5, Some(0)))), LedgerEnd::At(12, Duration::ZERO), "the mirror lacks messages");
        assert_eq!(of(Some((0, Some(4)))), LedgerEnd::Unknown, "it is cut off");
        assert_eq!(of(Some((0, None))), LedgerEnd::Unknown, "it has never heard of LEDGER");
    }

    #[test]
    fn another_stream_has_no_end_of_the_one_that_was_read() {
        let later = Timestamp::UNIX_EPOCH + Duration::from_secs(1);
        assert_eq!(LedgerEnd::of(&end(9, None), later, 7), LedgerEnd::Replaced, "it was created later");
        let shorter = LedgerEnd::of(&end(6, None), Timestamp::UNIX_EPOCH, 7);
        assert_eq!(shorter, LedgerEnd::Replaced, "it ends before what was read");
    }
}
