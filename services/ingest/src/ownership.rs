//! Lets one process at a time write the facts of a partition. LEDGER itself enforces it.
//!
//! A partition has fences, which are subjects of LEDGER (`muster.owner.<partition>.<fence>`). A process that takes the partition
//! writes a record into each fence: into fence 0 by compare-and-set, which decides between two processes that try at once, then
//! into the others on condition that the record of fence 0 is still its own, and, if there are others, once more into fence 0.
//! Then it reads LEDGER beyond its last record. Every fact that it publishes names a fence and the sequence of its own record
//! there; LEDGER refuses the fact once another record is newer. So every fact of a former owner is either before the record, and
//! read, or refused, however late it arrives: from a process that stood still, from the queue of a connection, or from an earlier
//! session of the same process. It rests on no clock and on no duplicate window.
//!
//! One fence is enough if one server keeps LEDGER. A replicated stream works on one message at a time for each fence, and answers
//! others with a conflict; there a partition has as many fences as facts may be in flight, and uses them in turn. A conflict is
//! therefore no proof of another owner: the record of fence 0 is.
//!
//! The last record goes into fence 0 again because a replicated stream compares a message when it arrives, and stores it when
//! most servers have it. Between the two moments of one of the new owner's records, an older server still compares a fact of that
//! fence with the record before, and stores the fact behind the new record. But that fact arrived before the new record was
//! confirmed, and so before the next record was sent: every such fact of a fence is stored before the next record. The record
//! that closes the last fence is the second one in fence 0, and the new owner reads LEDGER up to it.
//!
//! | event | result |
//! |---|---|
//! | two processes take a partition at once | fence 0 accepts one of them; the other stands by |
//! | a process dies while it takes a partition | the next one takes all fences that the record of fence 0 names |
//! | the owner stands still, another process takes over | LEDGER refuses the former owner's facts in flight, and it stands by |
//! | the owner dies with facts in flight | the facts are before the next record, or refused |
//! | an answer of LEDGER is lost | the partition is taken again, and LEDGER shows what arrived |
//! | a record ages out of LEDGER | the next fact is refused, and the partition is taken again |
//!
//! The pinned client of a consumer is no substitute: a pin decides who receives messages, not who may write their facts.

use muster_bus::{Bus, Outgoing, PublishError, PublishErrorKind, ReadError};
use muster_contract::Timestamp;
use muster_contract::decode;
use muster_contract::fact::{Ownership, PulseFact};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::version::{ApiVersion, kind};

use crate::limits::FACTS_IN_FLIGHT;

/// Fences of a partition if LEDGER is replicated: none is used by two facts in flight.
const FENCES_REPLICATED: u16 = FACTS_IN_FLIGHT as u16;

/// The newest record in a partition's fence 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRecord {
    /// Its sequence in LEDGER.
    pub seq: u64,
    /// The process that wrote it.
    pub owner: String,
    /// The number of fences.
    pub fences: u16,
    /// When LEDGER stored it.
    pub stored_at: Timestamp,
}

/// The right to write the facts of a partition, until LEDGER has a newer record.
#[derive(Debug)]
pub struct FencingToken {
    fences: Vec<Fence>,
    next: usize,
}

/// One fence of a partition.
#[derive(Debug)]
struct Fence {
    /// Its subject; every fact names one.
    subject: String,
    /// The sequence of this process's record in it.
    seq: u64,
}

/// Why a partition was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// Another process was faster.
    #[error("another process has taken partition {0}")]
    Taken(u16),
    /// The record of the owner cannot be read.
    #[error("cannot read who owns partition {partition}")]
    Read {
        /// The partition.
        partition: u16,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// LEDGER does not store the record.
    #[error("cannot write the owner's record of partition {partition}")]
    Publish {
        /// The partition.
        partition: u16,
        /// Why.
        #[source]
        source: PublishError,
    },
}

impl FencingToken {
    /// Adds a fence and this process's record in it to a message: LEDGER stores the message only while the process owns the
    /// partition.
    pub fn stamp(&mut self, message: Outgoing) -> Outgoing {
        let Fence { subject, seq } = &self.fences[self.next];
        self.next = (self.next + 1) % self.fences.len();
        Outgoing {
            expected_last_subject_sequence: Some(*seq),
            expected_of_subject: Some(subject.clone()),
            ..message
        }
    }

    /// Whether LEDGER is, or was, replicated.
    pub(crate) const fn has_many_fences(&self) -> bool {
        self.fences.len() > 1
    }

    /// The sequence up to which LEDGER must be read: everything that former owners wrote is before it.
    pub fn position(&self) -> u64 {
        self.fences.iter().map(|fence| fence.seq).max().unwrap_or(0)
    }

    /// The sequence of the record in fence 0.
    pub fn seq(&self) -> u64 {
        self.fences.first().map_or(0, |fence| fence.seq)
    }

    /// The right by this process's records in the fences of a partition.
    fn of(partition: u16, records: Vec<u64>) -> Self {
        let fence = |(fence, seq)| Fence { subject: subject(partition, fence), seq };
        Self { fences: (0..).zip(records).map(fence).collect(), next: 0 }
    }
}

/// The newest owner's record of a partition; `None` if LEDGER holds none.
///
/// # Errors
/// LEDGER cannot be read.
pub async fn record(bus: &Bus, partition: u16) -> Result<Option<OwnerRecord>, ReadError> {
    let last = bus.last(stream::LEDGER, &subject(partition, 0)).await?;
    Ok(last.map(|delivery| {
        let ownership = decode::parse::<Ownership>(&delivery.payload).ok();
        let (owner, fences) = ownership.map_or_else(Default::default, |known| (known.owner, known.fences));
        OwnerRecord { seq: delivery.stream_seq, owner, fences: fences.max(1), stored_at: delivery.stored_at }
    }))
}

/// Since when no pulse of a partition was current, by the last one in LEDGER; `None` if that one is current, or LEDGER has none:
/// then the rollup has recorded that the hub does not hear the partition.
///
/// # Errors
/// LEDGER cannot be read.
pub(crate) async fn unproven_since(bus: &Bus, partition: u16) -> Result<Option<Timestamp>, ReadError> {
    let last = bus.last(stream::LEDGER, &LedgerSubject::Hub(partition).to_string()).await?;
    Ok(last.and_then(|delivery| {
        decode::parse::<PulseFact>(&delivery.payload).ok()?.unproven_since(delivery.stored_at)
    }))
}

/// Takes a partition from the process that wrote the record `before`.
///
/// # Errors
/// Another process was faster, or LEDGER does not answer; then fence 0 may have this process's record or not.
pub async fn acquire(
    bus: &Bus,
    partition: u16,
    name: &str,
    before: Option<&OwnerRecord>,
    now: Timestamp,
) -> Result<FencingToken, AcquireError> {
    let state = bus.stream_state(stream::LEDGER).await;
    let state = state.map_err(|source| AcquireError::Read { partition, source })?;
    let wanted = if state.replicas > 1 { FENCES_REPLICATED } else { 1 };
    let count = before.map_or(0, |before| before.fences).max(wanted);
    let payload = decode::to_bytes(&Ownership {
        api_version: ApiVersion::V1,
        kind: kind::Ownership::Ownership,
        owner: name.to_owned(),
        claimed_at: now,
        fences: count,
    });
    let message = |fence, expected, of| Outgoing {
        expected_stream: Some(stream::LEDGER),
        expected_last_subject_sequence: Some(expected),
        expected_of_subject: of,
        ..Outgoing::new(subject(partition, fence), payload.clone())
    };
    let failed = |source: PublishError| match source.kind {
        PublishErrorKind::Conflict => AcquireError::Taken(partition),
        _ => AcquireError::Publish { partition, source },
    };
    let first = message(0, before.map_or(0, |before| before.seq), None);
    let seq = bus.publish(first).await.map_err(failed)?.sequence;
    let mut fences = vec![seq];
    for fence in 1..count {
        let next = message(fence, seq, Some(subject(partition, 0)));
        fences.push(bus.publish(next).await.map_err(failed)?.sequence);
    }
    if count > 1 {
        fences[0] = bus.publish(message(0, seq, None)).await.map_err(failed)?.sequence;
    }
    Ok(FencingToken::of(partition, fences))
}

fn subject(partition: u16, fence: u16) -> String {
    LedgerSubject::Owner { partition, fence }.to_string()
}

/// A unique name for this process, by which a person finds it: `<host>/<process id>/<random>`.
pub(crate) fn process_name(rng: &mut fastrand::Rng) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "unknown" } else { host.trim() };
    format!("{host}/{}/{:08x}", std::process::id(), rng.u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_in_flight_names_its_own_fence_and_the_owners_record_in_it() {
        let mut token = FencingToken::of(3, vec![10, 11, 14]);
        let stamped = std::iter::repeat_with(|| token.stamp(Outgoing::new("a", "")));
        let found: Vec<_> = stamped
            .take(4)
            .map(|message| {
                (message.expected_of_subject.unwrap(), message.expected_last_subject_sequence.unwrap())
            })
            .collect();
        let fence = |fence, seq| (format!("muster.owner.3.{fence}"), seq);
        assert_eq!(found, [fence(0, 10), fence(1, 11), fence(2, 14), fence(0, 10)]);
        assert_eq!((token.seq(), token.position()), (10, 14));
    }
}
