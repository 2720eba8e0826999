//! Reads PLANS in order, and appends to it for the last sequence that was read. It folds nothing and decides nothing.

use std::future::Future;

use muster_bus::{Bus, Delivery, Outgoing, PublishError, PublishErrorKind, ReadError, Start};
use muster_contract::Timestamp;
use muster_contract::subjects::{PlansSubject, stream};
use muster_domain::plans::PlansDocument;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::ledger::{BATCH_MAX, BATCHES_WAITING_MAX, END_ASKED_EVERY, END_WITHIN, OPEN_AGAIN_AFTER};

/// Appends that wait for their confirmation at once.
const APPENDS_AT_ONCE: usize = 128;

/// An event of PLANS.
#[derive(Debug)]
pub(crate) enum LogEvent {
    /// The next messages, each with its document if it is readable.
    Messages(Vec<(u64, Option<PlansDocument>)>),
    /// Everything that was stored when the reader opened PLANS is read.
    Read,
    /// PLANS' end at a moment.
    End {
        /// Sequence of the last message.
        last_seq: u64,
        /// Time of the question.
        asked_at: Instant,
    },
    /// The reader starts again at the first message.
    Restarted,
}

/// Why a document is not known to be appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// Another planner has appended something. Nothing was stored.
    #[error("another planner has changed PLANS at the same time")]
    Conflict,
    /// The append failed; the server may have stored the document.
    #[error("cannot append to PLANS")]
    Failed(#[source] PublishError),
}

impl From<PublishError> for AppendError {
    fn from(error: PublishError) -> Self {
        if error.kind == PublishErrorKind::Conflict { Self::Conflict } else { Self::Failed(error) }
    }
}

/// PLANS; a trait so that tests can script it.
pub(crate) trait PlansLog: Send + 'static {
    /// The next event. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = LogEvent> + Send;

    /// Appends documents after the message with sequence `last`, in order; returns how many are stored, and the error of the
    /// first that is not. Each expects the one before it, so none is stored after one that is not.
    fn append(
        &mut self,
        last: u64,
        documents: &[PlansDocument],
    ) -> impl Future<Output = (u64, Option<AppendError>)> + Send;
}

/// PLANS over a bus.
#[derive(Debug)]
pub(crate) struct BusLog {
    bus: Bus,
    events: mpsc::Receiver<LogEvent>,
    _reader: AbortOnDropHandle<()>,
}

impl BusLog {
    /// Begins to read.
    pub(crate) fn open(bus: Bus) -> Self {
        let (out, events) = mpsc::channel(BATCHES_WAITING_MAX);
        let reader = AbortOnDropHandle::new(tokio::spawn(read(bus.clone(), out)));
        Self { bus, events, _reader: reader }
    }
}

impl PlansLog for BusLog {
    async fn next(&mut self) -> LogEvent {
        match self.events.recv().await {
            Some(event) => event,
            // The reader ends only with the process.
            None => std::future::pending().await,
        }
    }

    async fn append(&mut self, last: u64, documents: &[PlansDocument]) -> (u64, Option<AppendError>) {
        let mut stored = 0;
        for chunk in documents.chunks(APPENDS_AT_ONCE) {
            let appends = chunk.iter().enumerate().map(|(at, document)| {
                let expected = last + stored + at as u64;
                self.bus.publish(message(document, expected))
            });
            for result in futures_util::future::join_all(appends).await {
                match result {
                    Ok(_) => stored += 1,
                    Err(error) => return (stored, Some(error.into())),
                }
            }
        }
        (stored, None)
    }
}

/// The message of a document.
fn message(document: &PlansDocument, expected_last_sequence: u64) -> Outgoing {
    Outgoing {
        expected_stream: Some(stream::PLANS),
        expected_last_sequence: Some(expected_last_sequence),
        ..Outgoing::new(document.subject().to_string(), document.to_bytes())
    }
}

/// Reads PLANS until the receiver is dropped.
async fn read(bus: Bus, out: mpsc::Sender<LogEvent>) {
    while !out.is_closed() {
        if let Err(error) = read_on(&bus, &out).await {
            tracing::warn!(error = chain(&error), "reading PLANS from its first message again");
            let _ = out.send(LogEvent::Restarted).await;
        }
        sleep(OPEN_AGAIN_AFTER).await;
    }
}

async fn read_on(bus: &Bus, out: &mpsc::Sender<LogEvent>) -> Result<(), ReadError> {
    // Read before the consumer is created: a stream created in between counts as replaced.
    let created_at = bus.stream_state(stream::PLANS).await?.created_at;
    let mut replay = bus.replay(stream::PLANS, &[], Start::First).await?;
    while let Some(batch) = replay.next_present(BATCH_MAX).await? {
        send(out, &batch).await;
    }
    let _ = out.send(LogEvent::Read).await;
    let mut ticks = interval(END_ASKED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !out.is_closed() {
        tokio::select! {
            batch = replay.next_batch(BATCH_MAX) => send(out, &batch?).await,
            _ = ticks.tick() => ask_for_end(bus, out, created_at, replay.position().unwrap_or(0)).await?,
        }
    }
    Ok(())
}

/// Asks for PLANS' end. PLANS keeps the newest message of each subject, so its last message can always be read. Fails if another
/// stream has replaced PLANS.
async fn ask_for_end(
    bus: &Bus,
    out: &mpsc::Sender<LogEvent>,
    created_at: Timestamp,
    position: u64,
) -> Result<(), ReadError> {
    let asked_at = Instant::now();
    let Ok(Ok(state)) = timeout(END_WITHIN, bus.stream_state(stream::PLANS)).await else {
        return Ok(());
    };
    let last_seq = state.last_seq;
    if state.created_at != created_at || last_seq < position {
        return Err(ReadError::StreamReset { stream: stream::PLANS.to_owned(), position, last_seq });
    }
    // Without a receiver the planner is stopping.
    let _ = out.send(LogEvent::End { last_seq, asked_at }).await;
    Ok(())
}

async fn send(out: &mpsc::Sender<LogEvent>, batch: &[Delivery]) {
    let messages = batch.iter().map(|message| (message.stream_seq, document(message))).collect();
    // Without a receiver the planner is stopping.
    let _ = out.send(LogEvent::Messages(messages)).await;
}

fn document(message: &Delivery) -> Option<PlansDocument> {
    let subject = PlansSubject::parse(&message.subject)?;
    let read = PlansDocument::parse(&subject, &message.payload);
    read.inspect_err(|refusal| {
        tracing::error!(subject = message.subject, seq = message.stream_seq, %refusal, "cannot read a document of PLANS");
    })
    .ok()
}
