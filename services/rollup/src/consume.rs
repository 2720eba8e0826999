//! Reads LEDGER in order, parses each message and applies it to the projection. A message that is not a
//! readable fact is counted, logged and skipped; it does not stop the consumer.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Delivery, IncidentReporter, ReadError, Replay, Start, StreamState};
use muster_contract::Timestamp;
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::fold::{Outcome, Position};
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use muster_service::health::Latch;
use muster_service::retry::{RetryPolicy, retry_transient};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::history::base::WINDOW_WHOLE;
use crate::history::tail::{self, BATCH_MAX, Read};
use crate::ledger::{ledger_state, replaced};
use crate::metrics::{FactOutcome, Metrics};
use crate::progress::{SeenHearing, SeenPulse};
use crate::projection::Projection;

/// How long nothing may come of a LEDGER that goes further before the server is asked whether anything is left.
const SILENCE: Duration = Duration::from_secs(2);
/// Delays before LEDGER is read again.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(100), max: Duration::from_secs(10) };

/// The reader of LEDGER.
#[derive(Debug)]
pub(crate) struct Consumer {
    bus: Bus,
    projection: Arc<Projection>,
    metrics: Metrics,
    incidents: IncidentReporter,
    checked: Checked,
}

impl Consumer {
    /// Creates a consumer that continues where the projection ends.
    pub(crate) fn new(
        bus: Bus,
        projection: Arc<Projection>,
        metrics: Metrics,
        incidents: IncidentReporter,
    ) -> Self {
        let (read_to, devices) =
            projection.read(|now| (now.fleet.as_of().ledger_seq, now.fleet.devices_known()));
        metrics.position(read_to, devices);
        Self { bus, projection, metrics, incidents, checked: Checked::default() }
    }

    /// Reads until `stop`. The latch is released when everything that LEDGER held at the start is read.
    pub(crate) async fn run(mut self, caught_up: Latch, stop: CancellationToken) {
        stop.run_until_cancelled(self.read(caught_up)).await;
    }

    async fn read(&mut self, caught_up: Latch) {
        let mut latch = Some(caught_up);
        loop {
            let Opened { mut replay, goal, at_end } = self.open().await;
            if at_end {
                self.projection.progress().advance(goal);
            }
            self.arrive(goal, at_end, &mut latch);
            let mut sent_through = None;
            loop {
                match timeout(SILENCE, replay.next_batch(BATCH_MAX)).await {
                    Ok(Ok(batch)) => {
                        sent_through = None;
                        let at_end = block_in_place_if_large(batch.len(), || self.fold(&batch));
                        self.arrive(goal, at_end, &mut latch);
                    }
                    // Only what cannot be gone on from comes here; the bus heals everything else.
                    Ok(Err(error)) => break self.give_up(&error).await,
                    Err(_) if !self.projection.progress().is_behind() => {}
                    // Everything sent before the request has arrived by now.
                    Err(_) => match sent_through.take() {
                        Some(through) => {
                            self.projection.progress().advance(through);
                            self.arrive(goal, true, &mut latch);
                        }
                        None => sent_through = self.sent_through(&replay).await,
                    },
                }
            }
        }
    }

    /// LEDGER's end, if the server has delivered everything up to it: LEDGER may have discarded the next
    /// message, as it does with pulses. None while that is unknown.
    async fn sent_through(&self, replay: &Replay) -> Option<u64> {
        // The end is read first: a message stored after that was not asked about.
        let ledger = self.bus.stream_state(stream::LEDGER).await.ok()?;
        (replay.is_open() && replay.is_drained().await).then_some(ledger.last_seq)
    }

    /// Parses and folds a batch. True where nothing came after it when it was sent.
    fn fold(&mut self, batch: &[Delivery]) -> bool {
        let pending = batch.last().map_or(0, |last| last.pending);
        let read: Vec<Read> = batch.iter().map(|message| self.parse(message)).collect();
        let (mut outcomes, mut pulses, mut hearing) = (Outcomes::default(), Vec::new(), Vec::new());
        let (devices, read_to) = self.projection.update(|now| {
            let fleet = &mut now.fleet;
            for (at, read) in read {
                // LEDGER keeps a pulse for a short time only: it ends no step of the timeline.
                if let Some((LedgerSubject::Hub(partition), Fact::Pulse(pulse))) = read {
                    pulses.push((partition, SeenPulse { stored_at: at.stored_at, pulse }));
                    continue;
                }
                now.timeline.advance(fleet, at.stored_at);
                match read {
                    Some((subject, fact)) => {
                        if let (LedgerSubject::Hearing(partition), Fact::Hearing(fact)) = (&subject, &fact) {
                            let seen = SeenHearing { ledger_seq: at.ledger_seq, fact: fact.clone() };
                            hearing.push((*partition, seen));
                        }
                        outcomes.add(fleet.apply(at, &subject, fact));
                    }
                    None => fleet.pass(at),
                }
            }
            (fleet.devices_known(), fleet.as_of().ledger_seq)
        });
        let progress = self.projection.progress();
        pulses.into_iter().for_each(|(partition, seen)| progress.pulse(partition, seen));
        hearing.into_iter().for_each(|(partition, seen)| progress.hearing(partition, seen));
        if let Some(last) = batch.last() {
            progress.advance(last.stream_seq);
        }
        outcomes.count(&self.metrics);
        self.metrics.position(read_to, devices);
        self.metrics.lag.set(pending as i64);
        pending == 0
    }

    fn parse(&mut self, message: &Delivery) -> Read {
        let at = Position { ledger_seq: message.stream_seq, stored_at: message.stored_at };
        let reason = match tail::fact(message, &mut self.checked) {
            Ok(fact) => return (at, Some(fact)),
            Err(reason) => reason,
        };
        tracing::warn!(
            ledger.seq = at.ledger_seq,
            ledger.subject = message.subject,
            reason,
            "ignored a message of LEDGER that is no fact"
        );
        self.metrics.fact(FactOutcome::Unreadable, 1);
        (at, None)
    }

    fn arrive(&self, goal: u64, at_end: bool, latch: &mut Option<Latch>) {
        let (caught_up, read_to) = self.projection.read(|now| (now.caught_up, now.fleet.as_of().ledger_seq));
        if caught_up {
            return;
        }
        if read_to >= goal || at_end {
            tracing::info!(ledger.seq = read_to, "caught up with LEDGER");
            self.projection.set_caught_up();
            if let Some(latch) = latch.take() {
                latch.release();
            }
        }
    }

    /// Begins to read after the projection.
    async fn open(&mut self) -> Opened {
        loop {
            let open = |_| self.try_open();
            match retry_transient(RETRY, "cannot read LEDGER yet", ReadError::is_transient, open).await {
                Ok(opened) => return opened,
                Err(error) => self.give_up(&error).await,
            }
        }
    }

    async fn try_open(&self) -> Result<Opened, ReadError> {
        let ledger = self.bus.stream_state(stream::LEDGER).await?;
        let (as_of, origin) = self.projection.read(|now| (now.fleet.as_of(), now.origin));
        let (read_to, last_seq) = (as_of.ledger_seq, ledger.last_seq);
        let reset =
            || ReadError::StreamReset { stream: stream::LEDGER.to_owned(), position: read_to, last_seq };
        if ledger.created_at != origin.created_at || last_seq < read_to {
            return Err(reset());
        }
        if read_to < ledger.first_seq {
            self.restart_timeline(&ledger);
            if read_to > 0 && read_to + 1 < ledger.first_seq {
                // The known state still holds wherever nothing newer comes, and the numbers in the hole count
                // as missing.
                tracing::warn!(
                    ledger.seq = read_to,
                    ledger.first_seq = ledger.first_seq,
                    "LEDGER no longer holds the facts after the snapshot; continuing with the facts that it holds"
                );
            }
            let replay = self.bus.replay(stream::LEDGER, &[], Start::First).await?;
            return Ok(Opened { at_end: replay.waiting() == 0, replay, goal: last_seq });
        }
        // The last message is read again: if it differs, LEDGER was set back to a backup and has grown past
        // this position since, and the projection is partly of a past that no longer exists.
        let mut replay = self.bus.replay(stream::LEDGER, &[], Start::After(read_to - 1)).await?;
        let again = replay.next_batch(1).await?;
        match again.first() {
            Some(known) if known.stream_seq == read_to && known.stored_at == as_of.at => {
                Ok(Opened { at_end: known.pending == 0, replay, goal: last_seq })
            }
            _ => Err(reset()),
        }
    }

    /// Leaves the timeline to what LEDGER's window holds whole, if LEDGER has forgotten facts.
    fn restart_timeline(&self, ledger: &StreamState) {
        if ledger.first_seq <= 1 {
            return;
        }
        let whole = ledger.first_at.checked_add(WINDOW_WHOLE).unwrap_or(Timestamp::MAX);
        self.projection.update_marks(|now| {
            now.timeline.restart_at(if now.caught_up { Timestamp::UNIX_EPOCH } else { whole });
        });
    }

    /// Handles a reader that cannot continue. A LEDGER created anew is read from its start; the next open skips
    /// a hole.
    async fn give_up(&mut self, error: &ReadError) {
        tracing::warn!(error = chain(error), "cannot continue reading LEDGER at its position");
        if !matches!(error, ReadError::Trimmed { .. }) {
            self.start_over().await;
        }
    }

    async fn start_over(&mut self) {
        let ledger = ledger_state(&self.bus).await;
        let (created_at, known_seq) =
            self.projection.read(|now| (now.origin.created_at, now.fleet.as_of().ledger_seq));
        self.incidents.report(None, replaced(created_at, known_seq, &ledger));
        self.projection.start_over(ledger.created_at);
        self.metrics.position(0, 0);
    }
}

/// The LEDGER that is read from now on.
struct Opened {
    replay: Replay,
    /// The end of LEDGER.
    goal: u64,
    /// Nothing waited up to there.
    at_end: bool,
}

/// Facts of a batch by what they did.
#[derive(Default)]
struct Outcomes([u64; 4]);

impl Outcomes {
    const ALL: [Outcome; 4] = [Outcome::Applied, Outcome::Late, Outcome::Duplicate, Outcome::Skipped];

    const fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }

    fn count(&self, metrics: &Metrics) {
        for outcome in Self::ALL {
            metrics.fact(outcome.into(), self.0[outcome as usize]);
        }
    }
}
