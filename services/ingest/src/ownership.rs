//! Who writes the facts of a partition: one process at a time, and LEDGER itself sees to it.
//!
//! A partition has lanes, which are subjects of LEDGER (`muster.owner.<partition>.<lane>`). Whoever takes the partition
//! writes a record into each of them: into lane 0 by compare-and-set, which decides between two who try at once, then
//! into the others on condition that lane 0 is still its own, and, where there are others, once more into lane 0. Then it
//! reads LEDGER beyond its last record. Every fact it
//! publishes names a lane and the sequence of its own record there; LEDGER refuses the fact once another record is newer.
//! So whatever a former owner wrote is either before the record, and read, or refused, however late it comes: from a
//! process that stood still, from the queue of a connection, from an earlier life of this very process. No clock and no
//! duplicate window has a part in it.
//!
//! A lane is enough where one server keeps LEDGER. A replicated stream works on one message at a time for each fence,
//! and answers others with a conflict; there the lanes are as many as facts may be under way, used in turn. A conflict
//! is therefore no proof that somebody else came: the record of lane 0 is.
//!
//! Why the last record goes into lane 0 again: a replicated stream compares when a message comes in, and stores it when
//! most servers have it. Between the two moments of a record of ours, an older server still compares a fact of that lane
//! with the record before, and the fact is stored behind ours. But it has come in before ours was confirmed, and so
//! before the next record was sent: whatever slips through at a lane is stored before the next record. Of the last lane
//! that is the closing one, up to which LEDGER is read.
//!
//! | what happens | what follows |
//! |---|---|
//! | two take a partition at once | lane 0 takes one of them; the other stands by |
//! | a process dies while it takes one | the next one takes all lanes that lane 0 names |
//! | the owner stands still, another takes over | what the owner had under way is refused, and it stands by |
//! | the owner dies with facts under way | they are before the next record, or refused |
//! | an answer of LEDGER is lost | the partition is taken anew, and LEDGER tells what arrived |
//! | a record ages out of LEDGER | the next fact is refused, and the partition is taken anew |
//!
//! Why not the pinned client of the consumer: a pin says who is given messages, not who may write what follows from them.

use muster_bus::{Bus, Outgoing, PublishError, PublishErrorKind, ReadError};
use muster_contract::Timestamp;
use muster_contract::decode;
use muster_contract::fact::Ownership;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::version::{ApiVersion, kind};

use crate::outlet::FACTS_IN_FLIGHT;

/// Lanes of a partition where LEDGER is replicated: none is used twice at once.
const LANES_REPLICATED: u16 = FACTS_IN_FLIGHT as u16;

const _: () = assert!(FACTS_IN_FLIGHT <= u16::MAX as usize);

/// The newest record of a partition's lane 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its sequence in LEDGER.
    pub seq: u64,
    /// Who wrote it.
    pub owner: String,
    /// The lanes there are.
    pub lanes: u16,
    /// When LEDGER stored it.
    pub stored_at: Timestamp,
}

/// A partition that this process has taken.
#[derive(Debug)]
pub struct Claim {
    partition: u16,
    /// The sequence of our record in each lane.
    lanes: Vec<u64>,
    next: usize,
}

/// Why a partition was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Somebody else was faster.
    #[error("another process has taken partition {0}")]
    Taken(u16),
    /// LEDGER does not say who owns it.
    #[error("cannot tell who owns a partition")]
    Read(#[from] ReadError),
    /// LEDGER does not store the record.
    #[error("cannot take a partition")]
    Publish(#[source] PublishError),
}

impl Claim {
    /// Names a lane and our record in it: LEDGER takes the letter only while the partition is ours.
    pub fn stamp(&mut self, letter: Outgoing) -> Outgoing {
        let lane = self.next;
        self.next = (lane + 1) % self.lanes.len();
        Outgoing {
            expected_last_subject_sequence: Some(self.lanes[lane]),
            expected_of_subject: Some(subject(self.partition, lane as u16)),
            ..letter
        }
    }

    /// True where LEDGER is, or was, replicated.
    pub const fn is_of_many_lanes(&self) -> bool {
        self.lanes.len() > 1
    }

    /// LEDGER must be read up to here: what others wrote is before it.
    pub fn position(&self) -> u64 {
        self.lanes.iter().copied().max().unwrap_or(0)
    }

    /// The record in lane 0.
    pub fn seq(&self) -> u64 {
        self.lanes.first().copied().unwrap_or(0)
    }
}

/// Who took a partition last; nobody where no record is left.
///
/// # Errors
/// LEDGER cannot be read.
pub async fn record(bus: &Bus, partition: u16) -> Result<Option<Record>, ReadError> {
    let last = bus.last(stream::LEDGER, &subject(partition, 0)).await?;
    Ok(last.map(|delivery| {
        let said = decode::parse::<Ownership>(&delivery.payload).ok();
        let (owner, lanes) = said.map_or_else(Default::default, |said| (said.owner, said.lanes));
        Record { seq: delivery.stream_seq, owner, lanes: lanes.max(1), stored_at: delivery.stored_at }
    }))
}

/// Takes a partition from whoever wrote the record `before`.
///
/// # Errors
/// Somebody else was faster, or LEDGER does not answer; then lane 0 may be ours or not.
pub async fn claim(
    bus: &Bus,
    partition: u16,
    name: &str,
    before: Option<&Record>,
    now: Timestamp,
) -> Result<Claim, ClaimError> {
    let replicas = bus.stream_state(stream::LEDGER).await?.replicas;
    let wanted = if replicas > 1 { LANES_REPLICATED } else { 1 };
    let count = before.map_or(0, |before| before.lanes).max(wanted);
    let words = decode::to_bytes(&Ownership {
        api_version: ApiVersion::V1,
        kind: kind::Ownership::Ownership,
        owner: name.to_owned(),
        claimed_at: now,
        lanes: count,
    });
    let letter = |lane, expected, of| Outgoing {
        expected_stream: Some(stream::LEDGER),
        expected_last_subject_sequence: Some(expected),
        expected_of_subject: of,
        ..Outgoing::new(subject(partition, lane), words.clone())
    };
    let failed = |error: PublishError| match error.kind {
        PublishErrorKind::Conflict => ClaimError::Taken(partition),
        _ => ClaimError::Publish(error),
    };
    let first = letter(0, before.map_or(0, |before| before.seq), None);
    let seq = bus.publish(first).await.map_err(failed)?.sequence;
    let mut lanes = vec![seq];
    for lane in 1..count {
        let next = letter(lane, seq, Some(subject(partition, 0)));
        lanes.push(bus.publish(next).await.map_err(failed)?.sequence);
    }
    if count > 1 {
        lanes[0] = bus.publish(letter(0, seq, None)).await.map_err(failed)?.sequence;
    }
    Ok(Claim { partition, lanes, next: 0 })
}

fn subject(partition: u16, lane: u16) -> String {
    LedgerSubject::Owner { partition, lane }.to_string()
}

/// A name unlike any other process's, for a person to find it by.
pub fn name_of_this_process(chance: &mut fastrand::Rng) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "unknown" } else { host.trim() };
    format!("{host}/{}/{:08x}", std::process::id(), chance.u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_under_way_names_a_lane_of_its_own_and_our_record_in_it() {
        let mut claim = Claim { partition: 3, lanes: vec![10, 11, 14], next: 0 };
        let stamped = std::iter::repeat_with(|| claim.stamp(Outgoing::new("a", "")));
        let found: Vec<_> = stamped
            .take(4)
            .map(|letter| {
                (letter.expected_of_subject.unwrap(), letter.expected_last_subject_sequence.unwrap())
            })
            .collect();
        let lane = |lane, seq| (format!("muster.owner.3.{lane}"), seq);
        assert_eq!(found, [lane(0, 10), lane(1, 11), lane(2, 14), lane(0, 10)]);
        assert_eq!((claim.seq(), claim.position()), (10, 14));
    }
}
