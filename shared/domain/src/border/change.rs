//! What one fact changes in the memory of its device. Facts that ingest does not make change nothing.

use muster_contract::canonical::Digest;
use muster_contract::fact::{
    DeviceFact, Fact, Incident, IncidentKind, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};

use super::content;
use super::memory::Identity;
use crate::deadline::Progress;

/// What one fact changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Received {
        epoch: Epoch,
        seq: Seq,
        head: Seq,
        coalesced: SeqRanges,
        content: Digest,
        /// With whether the fact says itself when the first attempt began. None for a word of what the device is.
        progress: Option<(DeploymentId, Progress, bool)>,
        said_at: Timestamp,
    },
    Quarantined {
        number: Option<(Epoch, Seq)>,
        /// That one, and those it stands for.
        numbers: Option<(Epoch, SeqRanges)>,
        received_at: Timestamp,
        payload: Option<Digest>,
        count: u64,
        said_at: Timestamp,
    },
    Liveness {
        fact: LivenessFact,
        said_at: Timestamp,
    },
    Overdue {
        deployment: DeploymentId,
        generation: Generation,
        since: Timestamp,
        said_at: Timestamp,
    },
    Incident(IncidentKind, Timestamp),
    /// The owner of the partition hears: about no device.
    Pulse,
    /// A person has decided about a message in quarantine. One of an earlier release does not say which.
    Verdict(Option<Identity>),
}

impl Change {
    /// What a fact said at a moment changes; nothing where it is no fact of the border's making.
    pub(crate) fn of(fact: &Fact, deployment: Option<&DeploymentId>, said_at: Timestamp) -> Option<Self> {
        match fact {
            Fact::Desired(_) | Fact::Ownership(_) | Fact::Hearing(_) => None,
            Fact::Pulse(_) => Some(Self::Pulse),
            Fact::Status(fact) => Some(Self::of_status(fact, said_at)),
            Fact::Device(fact) => Some(Self::of_device(fact, said_at)),
            Fact::Liveness(fact) => Some(Self::Liveness { fact: fact.clone(), said_at }),
            Fact::Deadline(fact) => Some(Self::Overdue {
                deployment: deployment?.clone(),
                generation: fact.generation,
                since: fact.since,
                said_at,
            }),
            Fact::Incident(Incident { what, at, .. }) => {
                (!what.is_requested()).then(|| Self::Incident(what.clone(), *at))
            }
            Fact::Quarantine(fact) => Some(Self::of_quarantine(fact, said_at)),
            Fact::Verdict(fact) => {
                let identity = fact.received_at.map(|received_at| (received_at, fact.epoch.zip(fact.seq)));
                Some(Self::Verdict(identity))
            }
        }
    }

    fn of_status(fact: &StatusFact, said_at: Timestamp) -> Self {
        Self::Received {
            epoch: fact.epoch,
            seq: fact.seq,
            head: fact.head,
            coalesced: fact.coalesced.clone(),
            content: content::of_status_fact(fact),
            progress: Some((fact.deployment.clone(), Progress::of(fact), fact.first_attempt_at.is_some())),
            said_at,
        }
    }

    fn of_device(fact: &DeviceFact, said_at: Timestamp) -> Self {
        Self::Received {
            epoch: fact.epoch,
            seq: fact.seq,
            head: fact.head,
            coalesced: fact.coalesced.clone(),
            content: content::of_device_fact(fact),
            progress: None,
            said_at,
        }
    }

    fn of_quarantine(fact: &QuarantineFact, said_at: Timestamp) -> Self {
        Self::Quarantined {
            number: fact.epoch.zip(fact.seq),
            numbers: fact.numbers(),
            received_at: fact.received_at,
            payload: fact.payload().map(|kept| Digest::of_bytes(&kept)),
            count: fact.count_for_device,
            said_at,
        }
    }
}
