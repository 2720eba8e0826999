//! What LEDGER has said of one device, as far as the border needs it: a fold over facts.
//!
//! The same fold runs over a fact when the border makes it, when the bus confirms it and when LEDGER is read again,
//! so a border rebuilt from LEDGER decides as the one before it. Nothing here depends on what was heard live.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, IncidentKind, Liveness, LivenessFact, StatusFact};
use muster_contract::limits::EPOCH_RISES_PER_HOUR;
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::sums::FACTS_PER_MINUTE;
use crate::account::{Cursor, Numbers};
use crate::deadline::{Outage, Outages, Progress};
use crate::lease::elapsed;
use crate::recent::Recent;

/// Deployments of one device whose newest report is remembered: many times what it may run at once. Of others a
/// late report is not marked as late.
pub const STANDINGS_KEPT: usize = 4 * muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX;
/// Deployments of one device for which a passed deadline is on record.
pub const OVERDUE_KEPT: usize = STANDINGS_KEPT;
/// Refused payloads of one device that are recognised when they come again.
pub const REFUSALS_KEPT: usize = 8;
/// Pairs of epochs for which a clone is on record.
pub const CLONES_KEPT: usize = 8;
/// Numbers of which it is on record that they came with another content: as many as can be told of while the messages
/// themselves are on their way.
const FORKS_KEPT: usize = FACTS_PER_MINUTE as usize;
/// Messages of one device in quarantine that are said again while they leave it in doubt: the newest.
pub const OPEN_KEPT: usize = 256;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// What tells a message in quarantine apart from others of its device: when it came, and its number if it has one.
pub(super) type Identity = (Timestamp, Option<(Epoch, Seq)>);

/// What LEDGER has said of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(with = "super::snapshot::pairs")]
    open: BTreeMap<Identity, Timestamp>,
    /// The newest heartbeat that LEDGER knows of.
    beat_at: Option<Timestamp>,
    refused: Recent<Digest, REFUSALS_KEPT>,
    clones: Recent<(Epoch, Epoch), CLONES_KEPT>,
    forks: Recent<(Epoch, Seq, Digest), FORKS_KEPT>,
    standings: BTreeMap<DeploymentId, Standing>,
    overdue: BTreeMap<DeploymentId, OnRecord>,
    /// The newest rises of its epoch, each with the moment that its incident names.
    epoch_rises: Recent<(Epoch, Timestamp), EPOCH_RISES_PER_HOUR>,
    /// The newest word of what the device is: its number, and when it was said last.
    nature: Option<((Epoch, Seq), Timestamp)>,
}

/// The liveness fact that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// When it was said.
    pub(crate) said_at: Timestamp,
    pub(crate) state: Liveness,
    pub(crate) epoch: Epoch,
    pub(crate) last_heard_at: Timestamp,
    /// When the device became fresh; of no meaning while it is stale.
    pub(crate) fresh_since: Timestamp,
    /// Up to when it was heard before it last fell silent.
    fresh_until: Option<Timestamp>,
    /// When it was not heard before.
    pub(crate) outages: Outages,
    /// It said that numbers are missing.
    pub(crate) behind: bool,
    /// It said that the device keeps what it would report.
    pub(crate) storing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Standing {
    at: (Epoch, Seq),
    progress: Progress,
    /// When LEDGER was told of it last.
    said_at: Timestamp,
}

/// A deadline that passed. The later one counts, by generation and then by what it counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct OnRecord {
    generation: Generation,
    since: Timestamp,
    /// When LEDGER was told of it last.
    said_at: Timestamp,
}

/// How many things of each kind are remembered.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct MemorySize {
    pub(crate) standings: usize,
    pub(crate) overdue: usize,
    pub(crate) open_messages: usize,
    pub(crate) gap_pieces: usize,
}

impl Standing {
    fn is_open(&self) -> bool {
        self.progress.state != State::Removed
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
                    Some((deployment, progress, says_first)) => {
                        let standing = Standing { at, progress: *progress, said_at: *said_at };
                        self.advance(deployment, standing, *says_first);
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
            Change::Overdue { deployment, generation, since, said_at } => {
                let new = OnRecord { generation: *generation, since: *since, said_at: *said_at };
                let told = self.overdue.entry(deployment.clone()).or_insert(new);
                *told = (*told).max(new);
                self.bound_overdue();
            }
            Change::Incident(what, at) => self.incident(what, *at),
            Change::Pulse => {}
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

    /// True where a report of this number opens no row that its deployment does not have: the deployment has a standing that
    /// is not `removed`, or one with the same or a later report.
    pub(crate) fn has_standing(&self, deployment: &DeploymentId, at: (Epoch, Seq)) -> bool {
        self.standings.get(deployment).is_some_and(|standing| standing.is_open() || standing.at >= at)
    }

    /// Deployments with a standing that is not `removed`.
    pub(crate) fn open_standings(&self) -> impl Iterator<Item = &DeploymentId> {
        self.standings.iter().filter(|(_, standing)| standing.is_open()).map(|(id, _)| id)
    }

    /// Deployments with a report within LEDGER's window that ends at `now`, `removed` or not.
    pub(crate) fn reported_within(
        &self,
        window: Duration,
        now: Timestamp,
    ) -> impl Iterator<Item = &DeploymentId> {
        let within = move |standing: &Standing| elapsed(standing.said_at, now) <= window;
        self.standings.iter().filter(move |(_, standing)| within(standing)).map(|(id, _)| id)
    }

    /// True where the epoch may rise at a moment.
    pub(crate) fn may_rise(&self, at: Timestamp) -> bool {
        self.epoch_rises.iter().filter(|(_, risen_at)| elapsed(*risen_at, at) < HOUR).count()
            < EPOCH_RISES_PER_HOUR
    }

    /// True where a deadline of this generation that counts from this moment is on record, or a later one.
    pub(crate) fn is_overdue(
        &self,
        deployment: &DeploymentId,
        generation: Generation,
        since: Timestamp,
    ) -> bool {
        let told = self.overdue.get(deployment);
        told.is_some_and(|told| (told.generation, told.since) >= (generation, since))
    }

    /// When the first attempt began at what a status fact is about, where it is not at an end that has held and no later report
    /// is in.
    pub(crate) fn first_attempt_at(&self, fact: &StatusFact) -> Option<Timestamp> {
        let progress = Progress::of(fact);
        // A success on trial ends what is late no more than a failure that is tried again.
        if progress.is_at_end() && progress.retried_since.is_none() {
            return None;
        }
        let at = (fact.epoch, fact.seq);
        match self.standings.get(&fact.deployment) {
            Some(known) if known.at > at => None,
            Some(known) if known.at == at => Some(known.progress.first_attempt_at),
            Some(known) => Some(progress.after(&known.progress, fact.received_at).first_attempt_at),
            None => Some(progress.first_attempt_at),
        }
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
                let told = self.overdue.get(deployment?)?;
                ((told.generation, told.since) == (fact.generation, fact.since)).then_some(told.said_at)
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

    /// How much is remembered.
    #[cfg(test)]
    pub(crate) fn size(&self) -> MemorySize {
        MemorySize {
            standings: self.standings.len(),
            overdue: self.overdue.len(),
            open_messages: self.open.len(),
            gap_pieces: self.gap.len(),
        }
    }

    /// Takes a report's standing in. Where its fact does not say itself when the first attempt began, the standing before it
    /// does.
    fn advance(&mut self, deployment: &DeploymentId, mut new: Standing, says_first: bool) {
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
        let said = new.progress.first_attempt_at;
        new.progress = new.progress.after(&standing.progress, new.progress.changed_at);
        if says_first {
            new.progress.first_attempt_at = said;
        }
        *standing = new;
    }

    /// Evicts one standing where there are too many: a removed one first, then the one with the oldest report.
    fn bound_standings(&mut self) {
        if self.standings.len() <= STANDINGS_KEPT {
            return;
        }
        let age = |(_, standing): &(&DeploymentId, &Standing)| (standing.is_open(), standing.at);
        let oldest = self.standings.iter().min_by_key(age).map(|(id, _)| id.clone());
        oldest.iter().for_each(|id| _ = self.standings.remove(id));
    }

    /// Evicts the oldest deadline where there are too many.
    fn bound_overdue(&mut self) {
        if self.overdue.len() <= OVERDUE_KEPT {
            return;
        }
        let oldest = self.overdue.iter().min_by_key(|(_, told)| told.said_at).map(|(id, _)| id.clone());
        oldest.iter().for_each(|id| _ = self.overdue.remove(id));
    }

    fn liveness(&mut self, fact: &LivenessFact, said_at: Timestamp) {
        self.cursor.learn(fact.epoch, fact.head, fact.account.as_ref());
        let since = self.told.filter(|told| told.state == Liveness::Fresh).map(|told| told.fresh_since);
        let fresh_until = match (fact.state, since, self.told) {
            (Liveness::Stale, Some(_), _) => Some(fact.last_heard_at),
            (_, _, told) => told.and_then(|told| told.fresh_until),
        };
        let mut outages = self.told.map(|told| told.outages).unwrap_or_default();
        if fact.state == Liveness::Fresh && since.is_none() {
            outages = outages
                .and(Outage { until: fresh_until.unwrap_or(Timestamp::MIN), since: fact.last_heard_at });
        }
        self.told = Some(Told {
            fresh_until,
            outages,
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

    fn incident(&mut self, what: &IncidentKind, at: Timestamp) {
        match what {
            IncidentKind::Amnesia { epoch, .. } => {
                self.cursor.learn(*epoch, 0, None);
                if self.epoch_rises.find(|(known, _)| known == epoch).is_none() {
                    self.epoch_rises.push((*epoch, at));
                }
            }
            IncidentKind::Clone { known_epoch, epoch, .. } => self.clones.push((*known_epoch, *epoch)),
            IncidentKind::SequenceFork { epoch, seq, other, .. } => self.forks.push((*epoch, *seq, *other)),
            IncidentKind::ClockSkew { .. } => self.clock_off = true,
            IncidentKind::Gap { epoch, missing } if self.cursor.epoch() == Some(*epoch) => {
                self.gap = missing.clone();
            }
            IncidentKind::Gap { .. } => {}
            IncidentKind::GapClosed { .. } => self.gap = SeqRanges::new(),
            // Neither says anything of reports.
            IncidentKind::RetiredButAlive { generation } => {
                self.retired_alive = self.retired_alive.max(Some(*generation));
            }
            // Services request these; nothing of a device's account follows from them.
            IncidentKind::ForeignDocument { .. }
            | IncidentKind::ForeignView { .. }
            | IncidentKind::LedgerReplaced { .. }
            | IncidentKind::ConnectionsExceeded { .. }
            | IncidentKind::TokenEnding { .. }
            | IncidentKind::TokenRenewed { .. }
            | IncidentKind::LedgerNearlyFull { .. } => {}
        }
    }
}
