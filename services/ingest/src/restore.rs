//! LEDGER read into borders: all of it at the start, its end whenever the fate of a publication is unknown. Always by a
//! consumer without a subject filter: what does not concern a border is left out here, not by the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::border::Border;
use muster_service::error::chain;
use tokio::time::timeout;

/// Facts read at once.
pub(crate) const BATCH: usize = 1000;
/// How long LEDGER may be silent while something is known to wait in it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How far LEDGER was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The position of the first fact read; 0 where there was none.
    pub first: u64,
    /// The position of the last fact read; of a pulse it is none, because LEDGER soon forgets that.
    pub position: u64,
    /// How many were read.
    pub facts: u64,
}

/// Reads LEDGER after a position into the borders of some partitions, once for all of them.
///
/// # Errors
/// LEDGER cannot be read.
pub async fn all(bus: &Bus, borders: &mut BTreeMap<u16, Border>, after: u64) -> Result<Restored, ReadError> {
    let owned: BTreeSet<u16> = borders.keys().copied().collect();
    let take = |subject: &LedgerSubject, fact: &Fact, at: Timestamp| match partition(subject) {
        Some(partition) => borders.get_mut(&partition).into_iter().for_each(|b| b.restore(subject, fact, at)),
        // Nobody's: whichever partition meets the same again shall recognise it.
        None => borders.values_mut().for_each(|border| border.restore(subject, fact, at)),
    };
    read(bus, Span { after, through: 0 }, |partition| owned.contains(&partition), take).await
}

/// Reads the end of LEDGER into the border of one partition. What follows `after` may have aged out, in a fleet that
/// says little: it was confirmed long ago, so the border has it, and what LEDGER still holds is read.
///
/// # Errors
/// LEDGER cannot be read, or is another one now.
pub async fn tail(bus: &Bus, own: u16, border: &mut Border, span: Span) -> Result<Restored, ReadError> {
    read(bus, span, |partition| partition == own, |subject, fact, at| border.restore(subject, fact, at)).await
}

/// What to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// From the position after this one.
    pub after: u64,
    /// At least up to this one, which is of a message that ingest published: a replica may be behind when it is asked
    /// how much there is.
    pub through: u64,
}

/// The partition of a fact; none where its sender has no valid name.
pub(crate) fn partition(subject: &LedgerSubject) -> Option<u16> {
    subject.device().map(partition_of)
}

/// Reads what waits in LEDGER after a position: the facts of some partitions and those of nobody. Where LEDGER has
/// forgotten what comes next, also in the middle, it begins again at the first fact held: the same fact twice changes
/// nothing.
async fn read(
    bus: &Bus,
    span: Span,
    wanted: impl Fn(u16) -> bool,
    mut take: impl FnMut(&LedgerSubject, &Fact, Timestamp),
) -> Result<Restored, ReadError> {
    match read_on(bus, span, &wanted, &mut take).await {
        Err(error @ ReadError::Trimmed { .. }) => {
            tracing::info!(error = chain(&error), "reading LEDGER from the first fact it holds");
            read_on(bus, Span { after: 0, ..span }, &wanted, &mut take).await
        }
        end => end,
    }
}

async fn read_on(
    bus: &Bus,
    Span { after, through }: Span,
    wanted: &impl Fn(u16) -> bool,
    take: &mut impl FnMut(&LedgerSubject, &Fact, Timestamp),
) -> Result<Restored, ReadError> {
    let mut replay = bus.replay(stream::LEDGER, &[], Start::After(after)).await?;
    let mut restored = Restored { first: 0, position: after, facts: 0 };
    let silence = |_| ReadError::TimedOut { what: stream::LEDGER.to_owned() };
    loop {
        let batch = match timeout(PATIENCE, replay.next_present(BATCH)).await.map_err(silence)?? {
            Some(batch) => batch,
            None if restored.position >= through => return Ok(restored),
            None => timeout(PATIENCE, replay.next_batch(BATCH)).await.map_err(silence)??,
        };
        for delivery in batch {
            restored.facts += 1;
            if restored.first == 0 {
                restored.first = delivery.stream_seq;
            }
            if is_pulse(&delivery) {
                continue;
            }
            restored.position = delivery.stream_seq;
            if let Some((subject, fact)) = read_fact(&delivery, wanted) {
                take(&subject, &fact, delivery.stored_at);
            }
        }
    }
}

/// Whether a message is a pulse. LEDGER keeps it for a short time only, so what is remembered of LEDGER is never its position.
pub(crate) fn is_pulse(delivery: &Delivery) -> bool {
    matches!(LedgerSubject::parse(&delivery.subject), Some(LedgerSubject::Hub(_)))
}

/// The fact that LEDGER holds, if it concerns one of the wanted partitions or nobody.
pub(crate) fn read_fact(delivery: &Delivery, wanted: impl Fn(u16) -> bool) -> Option<(LedgerSubject, Fact)> {
    let subject = LedgerSubject::parse(&delivery.subject)?;
    // Who owns a partition says nothing of a device.
    let concerns =
        !matches!(subject, LedgerSubject::Owner { .. } | LedgerSubject::Hub(_) | LedgerSubject::Hearing(_))
            && partition(&subject).is_none_or(wanted);
    concerns.then(|| parse(subject, delivery)).flatten()
}

/// What no version of ours would have let in says nothing of a device.
fn parse(subject: LedgerSubject, delivery: &Delivery) -> Option<(LedgerSubject, Fact)> {
    match Fact::parse(&subject, &delivery.payload) {
        Ok(fact) => Some((subject, fact)),
        Err(refusal) => {
            tracing::warn!(
                ledger.seq = delivery.stream_seq, %refusal,
                "LEDGER holds what is no fact; it is left alone"
            );
            None
        }
    }
}
