//! Restores the state of partitions from LEDGER: from all of it at the start, and from its end whenever the outcome of a
//! publication is unknown. The consumer has no subject filter; facts of other partitions are filtered here, not by the server.

mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::fact::Fact;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::intake::IntakeState;
use muster_service::error::chain;
use tokio::time::timeout;

use self::worker::RestoreWorker;

/// Facts read at once.
pub(crate) const BATCH: usize = 1000;
/// How long LEDGER may be silent while it is known to hold further facts.
pub(crate) const FACT_WITHIN: Duration = Duration::from_secs(60);

/// The part of LEDGER that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The sequence of the first fact; 0 if there was none.
    pub first: u64,
    /// The sequence of the last fact that is no pulse, because LEDGER soon discards a pulse.
    pub position: u64,
    /// The number of facts.
    pub facts: u64,
}

/// Restores some partitions from LEDGER after a position, and reads it once for all of them.
///
/// # Errors
/// LEDGER cannot be read.
pub async fn all(
    bus: &Bus,
    intakes: BTreeMap<u16, IntakeState>,
    after: u64,
) -> Result<(BTreeMap<u16, IntakeState>, Restored), ReadError> {
    let workers = RestoreWorker::spawn_all(intakes);
    let restored = read(bus, Span { after, through: 0 }, &mut FactSink::Workers(&workers)).await?;
    let mut intakes = BTreeMap::new();
    for worker in workers {
        intakes.append(&mut worker.finish().await);
    }
    Ok((intakes, restored))
}

/// Restores one partition from the end of LEDGER. In a quiet fleet the facts after `span.after` may have aged out: they were
/// confirmed long ago, so the intake has them, and the facts that LEDGER still holds are read.
///
/// # Errors
/// LEDGER cannot be read, or is another one now.
pub(crate) async fn tail(
    bus: &Bus,
    own: u16,
    intake: &mut IntakeState,
    span: Span,
) -> Result<Restored, ReadError> {
    read(bus, span, &mut FactSink::Intake(own, intake)).await
}

/// Applies the facts that were read.
enum FactSink<'a> {
    /// This task, to the intake of one partition.
    Intake(u16, &'a mut IntakeState),
    /// Threads.
    Workers(&'a [RestoreWorker]),
}

impl FactSink<'_> {
    async fn apply(&mut self, batch: Vec<Delivery>) {
        match self {
            Self::Intake(own, intake) => {
                for delivery in &batch {
                    if let Some((subject, fact)) = read_fact(delivery, |partition| partition == *own) {
                        intake.restore(&subject, &fact, delivery.stored_at);
                    }
                }
            }
            Self::Workers(workers) => {
                let batch: Arc<[Delivery]> = batch.into();
                for worker in *workers {
                    worker.send(batch.clone()).await;
                }
            }
        }
    }
}

/// A part of LEDGER to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// The sequence after which it begins.
    pub(crate) after: u64,
    /// The sequence up to which it extends at least. It is of a message that ingest published, because a replica that lags names
    /// too low an end.
    pub(crate) through: u64,
}

/// The partition of a fact; `None` if its sender has no valid name.
pub(crate) fn partition(subject: &LedgerSubject) -> Option<u16> {
    subject.device().map(partition_of)
}

/// Reads the facts of some partitions, and those about senders without a valid name. If LEDGER has discarded the next facts, also
/// in the middle, it begins again at the first fact held: the same fact twice changes nothing.
async fn read(bus: &Bus, span: Span, sink: &mut FactSink<'_>) -> Result<Restored, ReadError> {
    match read_on(bus, span, sink).await {
        Err(error @ ReadError::Trimmed { .. }) => {
            tracing::info!(error = chain(&error), "reading LEDGER from the first fact it holds");
            read_on(bus, Span { after: 0, ..span }, sink).await
        }
        end => end,
    }
}

async fn read_on(
    bus: &Bus,
    Span { after, through }: Span,
    sink: &mut FactSink<'_>,
) -> Result<Restored, ReadError> {
    let mut replay = bus.replay(stream::LEDGER, &[], Start::After(after)).await?;
    let mut restored = Restored { first: 0, position: after, facts: 0 };
    let silence = |_| ReadError::TimedOut { what: stream::LEDGER.to_owned() };
    loop {
        let batch = match timeout(FACT_WITHIN, replay.next_present(BATCH)).await.map_err(silence)?? {
            Some(batch) => batch,
            None if restored.position >= through => return Ok(restored),
            None => timeout(FACT_WITHIN, replay.next_batch(BATCH)).await.map_err(silence)??,
        };
        restored.facts += batch.len() as u64;
        if restored.first == 0 {
            restored.first = batch.first().map_or(0, |first| first.stream_seq);
        }
        let last = batch.iter().rev().find(|delivery| !is_pulse(delivery));
        restored.position = last.map_or(restored.position, |last| last.stream_seq);
        sink.apply(batch).await;
    }
}

/// Whether a message is a pulse. LEDGER keeps it for a short time only, so its position must not be remembered.
pub(crate) fn is_pulse(delivery: &Delivery) -> bool {
    matches!(LedgerSubject::parse(&delivery.subject), Some(LedgerSubject::Hub(_)))
}

/// The fact of a message, if it concerns one of the wanted partitions or no partition.
pub(crate) fn read_fact(delivery: &Delivery, wanted: impl Fn(u16) -> bool) -> Option<(LedgerSubject, Fact)> {
    let subject = LedgerSubject::parse(&delivery.subject)?;
    // These facts are about no device.
    let concerns =
        !matches!(subject, LedgerSubject::Owner { .. } | LedgerSubject::Hub(_) | LedgerSubject::Hearing(_))
            && partition(&subject).is_none_or(wanted);
    concerns.then(|| parse(subject, delivery)).flatten()
}

/// The fact of a message; `None` if it cannot be parsed, because no ingest publishes such a message.
fn parse(subject: LedgerSubject, delivery: &Delivery) -> Option<(LedgerSubject, Fact)> {
    match Fact::parse(&subject, &delivery.payload) {
        Ok(fact) => Some((subject, fact)),
        Err(refusal) => {
            tracing::warn!(
                ledger.seq = delivery.stream_seq, %refusal,
                "ignored a message of LEDGER that is no fact"
            );
            None
        }
    }
}
