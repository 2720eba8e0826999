//! The change that one fact makes to the state of its device. Facts that ingest does not publish change nothing.

use muster_contract::canonical::Digest;
use muster_contract::fact::{
    DeviceFact, Fact, Incident, IncidentKind, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};

use super::content;
use crate::deadline::Progress;
use crate::message_identity::MessageIdentity;

/// The change that one fact makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Received {
        epoch: Epoch,
        seq: Seq,
        head: Seq,
        coalesced: SeqRanges,
        content: Digest,
        /// `None` for a capabilities report.
        progress: Option<ReportedProgress>,
        published_at: Timestamp,
    },
    Quarantined {
        number: Option<(Epoch, Seq)>,
        /// That number, and the numbers of the other messages of its batch.
        numbers: Option<(Epoch, SeqRanges)>,
        received_at: Timestamp,
        payload: Option<Digest>,
        /// Digest of what its fact shows of the message with that number.
        content: Option<Digest>,
        count: u64,
        published_at: Timestamp,
    },
    Liveness {
        fact: LivenessFact,
        published_at: Timestamp,
    },
    Overdue {
        deployment: DeploymentId,
        generation: Generation,
        since: Timestamp,
        published_at: Timestamp,
    },
    Incident {
        what: IncidentKind,
        /// The time that the fact names.
        at: Timestamp,
        published_at: Timestamp,
    },
    /// The owner of the partition receives. It is about no device.
    Pulse,
    /// A person has decided about a message in quarantine. `None` for a verdict of an earlier release, which does not identify
    /// the message, and for an expiry, which decides nothing.
    Verdict(Option<MessageIdentity>),
}

/// The progress of a deployment that a status fact reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedProgress {
    pub(crate) deployment: DeploymentId,
    pub(crate) progress: Progress,
    /// The fact names the beginning of the first attempt.
    pub(crate) names_first_attempt: bool,
}

impl Change {
    /// The change that a fact published at `published_at` makes; `None` if the intake does not publish such facts.
    pub(crate) fn of(
        fact: &Fact,
        deployment: Option<&DeploymentId>,
        published_at: Timestamp,
    ) -> Option<Self> {
        match fact {
            Fact::Desired(_) | Fact::Ownership(_) | Fact::Hearing(_) => None,
            Fact::Pulse(_) => Some(Self::Pulse),
            Fact::Status(fact) => Some(Self::of_status(fact, published_at)),
            Fact::Device(fact) => Some(Self::of_device(fact, published_at)),
            Fact::Liveness(fact) => Some(Self::Liveness { fact: fact.clone(), published_at }),
            Fact::Deadline(fact) => Some(Self::Overdue {
                deployment: deployment?.clone(),
                generation: fact.generation,
                since: fact.since,
                published_at,
            }),
            Fact::Incident(Incident { what, at, .. }) => {
                let changes_state = !what.is_requested() || what.is_of_token();
                changes_state.then(|| Self::Incident { what: what.clone(), at: *at, published_at })
            }
            Fact::Quarantine(fact) => Some(Self::of_quarantine(fact, published_at)),
            Fact::Verdict(fact) => {
                let received_at = fact.received_at.filter(|_| fact.ends_doubt());
                let identity = received_at.map(|received_at| (received_at, fact.epoch.zip(fact.seq)));
                Some(Self::Verdict(identity))
            }
        }
    }

    fn of_status(fact: &StatusFact, published_at: Timestamp) -> Self {
        Self::Received {
            epoch: fact.epoch,
            seq: fact.seq,
            head: fact.head,
            coalesced: fact.coalesced.clone(),
            content: content::of_status_fact(fact),
            progress: Some(ReportedProgress {
                deployment: fact.deployment.clone(),
                progress: Progress::of(fact),
                names_first_attempt: fact.first_attempt_at.is_some(),
            }),
            published_at,
        }
    }

    fn of_device(fact: &DeviceFact, published_at: Timestamp) -> Self {
        Self::Received {
            epoch: fact.epoch,
            seq: fact.seq,
            head: fact.head,
            coalesced: fact.coalesced.clone(),
            content: content::of_device_fact(fact),
            progress: None,
            published_at,
        }
    }

    fn of_quarantine(fact: &QuarantineFact, published_at: Timestamp) -> Self {
        let (number, excerpt) = (fact.epoch.zip(fact.seq), fact.payload());
        let shown = excerpt.as_ref().filter(|_| number.is_some());
        Self::Quarantined {
            number,
            numbers: fact.numbers(),
            received_at: fact.received_at,
            content: shown.and_then(|excerpt| content::of_rejected(excerpt, fact.bytes)),
            payload: excerpt.map(|excerpt| Digest::of_bytes(&excerpt)),
            count: fact.count_for_device,
            published_at,
        }
    }
}
