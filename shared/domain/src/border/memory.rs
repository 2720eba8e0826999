//! What LEDGER has said of one device, as far as the border needs it: a fold over facts.
//!
//! The same fold runs over a fact when the border makes it, when the bus confirms it and when LEDGER is read again,
//! so a border rebuilt from LEDGER decides as the one before it. Nothing here depends on what was heard live.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::fact::{
    DeviceFact, Fact, Incident, IncidentKind, Liveness, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};

use super::content;
use super::sums::FACTS_PER_MINUTE;
use crate::account::{Cursor, Numbers};
use crate::deadline::Progress;
use crate::recent::Recent;

/// Deployments of one device whose newest report is remembered: many times what it may run at once. Of others a
/// late report is not marked as late.
pub const STANDINGS_KEPT: usize = 4 * muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX;
/// Refused payloads of one device that are recognised when they come again.
pub const REFUSALS_KEPT: usize = 8;
/// Pairs of epochs for which a clone is on record.
pub const CLONES_KEPT: usize = 8;
/// Numbers of which it is on record that they came with another content: as many as can be told of while the messages
/// themselves are on their way.
const FORKS_KEPT: usize = FACTS_PER_MINUTE as usize;
/// Messages of one device in quarantine that are said again while they leave it in doubt: the newest.
pub const OPEN_KEPT: usize = 256;

/// What tells a message in quarantine apart from others of its device: when it came, and its number if it has one.
type Identity = (Timestamp, Option<(Epoch, Seq)>);

/// What LEDGER has said of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) cursor: Cursor,
    pub(crate) told: Option<Told>,
    /// Numbers of the current epoch that are on record as a gap.
    pub(crate) gap: SeqRanges,
    /// The clock was off when it was last judged.
    pub(crate) clock_off: bool,
    /// The retirement for which it is on record that the device is alive.
    pub(crate) retired_alive: Option<Generation>,
    /// Messages of this device in quarantine.
    pub(crate) quarantined: u64,
    /// Those that nobody has decided about, and when LEDGER was told of them last.
    open: BTreeMap<Identity, Timestamp>,
    /// The newest heartbeat that LEDGER knows of.
    beat_at: Option<Timestamp>,
    refused: Recent<Digest, REFUSALS_KEPT>,
    clones: Recent<(Epoch, Epoch), CLONES_KEPT>,
    forks: Recent<(Epoch, Seq, Digest), FORKS_KEPT>,
    standings: BTreeMap<DeploymentId, Standing>,
    overdue: BTreeMap<DeploymentId, (Generation, Timestamp)>,
    /// The newest word of what the device is: its number, and when it was said last.
    nature: Option<((Epoch, Seq), Timestamp)>,
}

/// The liveness fact that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// When it was said.
    pub(crate) said_at: Timestamp,
    pub(crate) state: Liveness,
    pub(crate) epoch: Epoch,
    pub(crate) last_heard_at: Timestamp,
    /// When the device became fresh; of no meaning while it is stale.
    pub(crate) fresh_since: Timestamp,
    /// It said that numbers are missing.
    pub(crate) behind: bool,
    /// It said that the device keeps what it would report.
    pub(crate) storing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    at: (Epoch, Seq),
    progress: Progress,
    /// When LEDGER was told of it last.
    said_at: Timestamp,
}

/// What one fact changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Received {
        epoch: Epoch,
        seq: Seq,
        head: Seq,
        coalesced: SeqRanges,
        content: Digest,
        /// None for a word of what the device is.
        progress: Option<(DeploymentId, Progress)>,
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
    Overdue(DeploymentId, Generation, Timestamp),
    Incident(IncidentKind),
    /// A person has decided about a message in quarantine. One of an earlier release does not say which.
    Verdict(Option<Identity>),
}

impl Change {
    /// What a fact said at a moment changes; nothing where it is no fact of the border's making.
    pub(crate) fn of(fact: &Fact, deployment: Option<&DeploymentId>, said_at: Timestamp) -> Option<Self> {
        match fact {
            Fact::Desired(_) | Fact::Ownership(_) => None,
            Fact::Status(fact) => Some(Self::of_status(fact, said_at)),
            Fact::Device(fact) => Some(Self::of_device(fact, said_at)),
            Fact::Liveness(fact) => Some(Self::Liveness { fact: fact.clone(), said_at }),
            Fact::Deadline(fact) => Some(Self::Overdue(deployment?.clone(), fact.generation, said_at)),
            Fact::Incident(Incident { what, .. }) => Some(Self::Incident(what.clone())),
            Fact::Quarantine(fact) => Some(Self::of_quarantine(fact, said_at)),
            Fact::Verdict(fact) => {
                let identity = fact.received_at.map(|received_at| (received_at, fact.epoch.zip(fact.seq)));
                Some(Self::Verdict(identity))
            }
        }
    }

    fn of_status(fact: &StatusFact, said_at: Timestamp) -> Self {
        let progress =
            Progress { generation: fact.generation, state: fact.status.state, changed_at: fact.received_at };
        Self::Received {
            epoch: fact.epoch,
            seq: fact.seq,
            head: fact.head,
            coalesced: fact.coalesced.clone(),
            content: content::of_status_fact(fact),
            progress: Some((fact.deployment.clone(), progress)),
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

impl Memory {
    /// Takes a change in. Applying one again changes nothing.
    pub(crate) fn apply(&mut self, change: &Change) {
        let before = self.cursor.epoch();
        match change {
            Change::Received { epoch, seq, head, coalesced, content, progress, said_at } => {
                let numbers = Numbers { epoch: *epoch, seq: *seq, head: *head, coalesced };
                self.cursor.receive(numbers, *content);
                let at = (*epoch, *seq);
                match progress {
                    Some((deployment, progress)) => {
                        let standing = Standing { at, progress: *progress, said_at: *said_at };
                        self.advance(deployment, standing);
                    }
                    None => self.nature = self.nature.max(Some((at, *said_at))),
                }
            }
            Change::Quarantined { number, numbers, received_at, payload, count, said_at } => {
                numbers.iter().for_each(|(epoch, seqs)| self.cursor.quarantine(*epoch, seqs));
                payload.iter().for_each(|payload| self.refused.push(*payload));
                self.quarantined = self.quarantined.max(*count);
                let told = self.open.entry((*received_at, *number)).or_insert(*said_at);
                *told = (*told).max(*said_at);
                if self.open.len() > OPEN_KEPT {
                    self.open.pop_first();
                }
            }
            Change::Liveness { fact, said_at } => self.liveness(fact, *said_at),
            Change::Overdue(deployment, generation, said_at) => {
                let told = self.overdue.entry(deployment.clone()).or_insert((*generation, *said_at));
                *told = (*told).max((*generation, *said_at));
            }
            Change::Incident(what) => self.incident(what),
            Change::Verdict(identity) => identity.iter().for_each(|of| _ = self.open.remove(of)),
        }
        if self.cursor.epoch() != before {
            self.gap = SeqRanges::new();
        }
    }

    /// True where a later report of this deployment is in already.
    pub(crate) fn is_late(&self, deployment: &DeploymentId, at: (Epoch, Seq)) -> bool {
        self.standings.get(deployment).is_some_and(|standing| standing.at > at)
    }

    /// How far a deployment has come.
    pub(crate) fn progress(&self, deployment: &DeploymentId) -> Option<&Progress> {
        self.standings.get(deployment).map(|standing| &standing.progress)
    }

    /// True where a deadline of this generation or a later one is on record.
    pub(crate) fn is_overdue(&self, deployment: &DeploymentId, generation: Generation) -> bool {
        self.overdue.get(deployment).is_some_and(|(told, _)| *told >= generation)
    }

    /// True where these bytes are in quarantine already.
    pub(crate) fn has_refused(&self, payload: &Digest) -> bool {
        self.refused.contains(payload)
    }

    /// True where it is on record that `epoch` spoke after `known`.
    pub(crate) fn has_clone(&self, known: Epoch, epoch: Epoch) -> bool {
        self.clones.contains(&(known, epoch))
    }

    /// True where it is on record that a number came with this other content.
    pub(crate) fn has_fork(&self, epoch: Epoch, seq: Seq, other: Digest) -> bool {
        self.forks.contains(&(epoch, seq, other))
    }

    /// True where it is on record that any older epoch spoke after `known`.
    pub(crate) fn has_clone_of(&self, known: Epoch) -> bool {
        self.clones.find(|(of, _)| *of == known).is_some()
    }

    /// Forgets deadlines of deployments that are no longer wanted.
    pub(crate) fn keep_overdue(&mut self, wanted: impl Fn(&DeploymentId) -> bool) {
        self.overdue.retain(|deployment, _| wanted(deployment));
    }

    /// When LEDGER was told last of what a fact says, where that still holds.
    pub(crate) fn holds_since(&self, fact: &Fact, deployment: Option<&DeploymentId>) -> Option<Timestamp> {
        match fact {
            Fact::Status(fact) => {
                let standing = self.standings.get(&fact.deployment)?;
                (standing.at == (fact.epoch, fact.seq)).then_some(standing.said_at)
            }
            Fact::Device(fact) => {
                self.nature.filter(|(at, _)| *at == (fact.epoch, fact.seq)).map(|(_, said_at)| said_at)
            }
            Fact::Deadline(fact) => {
                let (generation, said_at) = self.overdue.get(deployment?)?;
                (*generation == fact.generation).then_some(*said_at)
            }
            Fact::Quarantine(fact) => {
                let identity = (fact.received_at, fact.epoch.zip(fact.seq));
                self.open.get(&identity).filter(|_| self.is_news(&identity)).copied()
            }
            _ => None,
        }
    }

    /// True where a heartbeat stored at this moment says of some message in quarantine which numbers it can be.
    pub(crate) fn is_settled_by(&self, beat_at: Timestamp) -> bool {
        self.open.keys().any(|identity| identity.0 < beat_at && self.is_unread(identity))
    }

    /// Whether a message in quarantine may be news of the device.
    fn is_news(&self, identity: &Identity) -> bool {
        let of_epoch = identity.1.filter(|(epoch, seq)| {
            Some(*epoch) == self.cursor.epoch() && self.cursor.is_quarantined(*epoch, *seq)
        });
        of_epoch.is_some_and(|(_, seq)| seq.get() <= self.cursor.head()) || self.is_unread(identity)
    }

    /// Whether nothing tells which of the device's numbers a message in quarantine can be.
    fn is_unread(&self, (received_at, number): &Identity) -> bool {
        let current = self.cursor.epoch();
        let beyond = number.is_none_or(|(epoch, seq)| match Some(epoch).cmp(&current) {
            Ordering::Less => false,
            Ordering::Equal => seq.get() > self.cursor.head() && self.cursor.is_quarantined(epoch, seq),
            Ordering::Greater => true,
        });
        beyond && self.beat_at.is_none_or(|beat_at| *received_at >= beat_at)
    }

    fn advance(&mut self, deployment: &DeploymentId, mut new: Standing) {
        let Some(standing) = self.standings.get_mut(deployment) else {
            self.standings.insert(deployment.clone(), new);
            self.bound_standings();
            return;
        };
        if standing.at >= new.at {
            if standing.at == new.at {
                standing.said_at = standing.said_at.max(new.said_at);
            }
            return;
        }
        let same =
            |old: &Progress| (old.generation, old.state) == (new.progress.generation, new.progress.state);
        if same(&standing.progress) {
            new.progress.changed_at = standing.progress.changed_at;
        }
        *standing = new;
    }

    /// The deployment that has been silent for longest makes room.
    fn bound_standings(&mut self) {
        if self.standings.len() <= STANDINGS_KEPT {
            return;
        }
        let oldest = self.standings.iter().min_by_key(|(_, standing)| standing.at).map(|(id, _)| id.clone());
        oldest.iter().for_each(|id| _ = self.standings.remove(id));
    }

    fn liveness(&mut self, fact: &LivenessFact, said_at: Timestamp) {
        self.cursor.learn(fact.epoch, fact.head, fact.account.as_ref());
        let since = self.told.filter(|told| told.state == Liveness::Fresh).map(|told| told.fresh_since);
        self.told = Some(Told {
            said_at,
            state: fact.state,
            epoch: fact.epoch,
            last_heard_at: fact.last_heard_at,
            fresh_since: since.unwrap_or(fact.last_heard_at),
            behind: fact.account.as_ref().is_some_and(|account| !account.missing.is_empty()),
            storing: fact.storing,
        });
        self.beat_at = self.beat_at.max(fact.beat_at);
    }

    fn incident(&mut self, what: &IncidentKind) {
        match what {
            IncidentKind::Amnesia { epoch, .. } => self.cursor.learn(*epoch, 0, None),
            IncidentKind::Clone { known_epoch, epoch, .. } => self.clones.push((*known_epoch, *epoch)),
            IncidentKind::SequenceFork { epoch, seq, other, .. } => self.forks.push((*epoch, *seq, *other)),
            IncidentKind::ClockSkew { .. } => self.clock_off = true,
            IncidentKind::Gap { epoch, missing } if self.cursor.epoch() == Some(*epoch) => {
                self.gap = missing.clone();
            }
            IncidentKind::Gap { .. } => {}
            IncidentKind::GapClosed { .. } => self.gap = SeqRanges::new(),
            // Neither says anything of reports.
            IncidentKind::ConnectionsExceeded { .. } | IncidentKind::LedgerNearlyFull { .. } => {}
            IncidentKind::RetiredButAlive { generation } => {
                self.retired_alive = self.retired_alive.max(Some(*generation));
            }
        }
    }
}
