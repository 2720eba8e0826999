//! The state of one device that the intake needs, by LEDGER: a fold over facts.
//!
//! The same fold runs over a fact when the intake publishes it, when the bus confirms it and when LEDGER is read again, so an
//! intake that is rebuilt from LEDGER decides as the one before it. Nothing here depends on what only this process received.
//!
//! Snapshots hold this state: a field whose serialised name differs from its name keeps the name of the snapshot format.

mod refusal;
mod token;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, Incident, IncidentKind, Liveness, LivenessFact, StatusFact};
use muster_contract::limits::{DESIRED_REFUSALS_PER_HOUR, EPOCH_RISES_PER_HOUR};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use serde::{Deserialize, Serialize};

use self::refusal::PublishedRefusal;
use self::token::PublishedToken;
use super::change::{Change, ReportedProgress};
use super::limits::{
    CLONES_KEPT, FORKS_KEPT, OVERDUE_KEPT, REJECTED_PAYLOADS_KEPT, STANDINGS_KEPT, UNRESOLVED_KEPT,
};
use crate::account::{Numbers, ReportAccount};
use crate::deadline::{Outage, Outages, Progress};
use crate::lease::elapsed;
use crate::message_identity::MessageIdentity;
use crate::recent::Recent;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The state of one device by LEDGER.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceLedgerState {
    #[serde(rename = "cursor")]
    pub(crate) account: ReportAccount,
    #[serde(rename = "told")]
    pub(crate) last_published: Option<PublishedLiveness>,
    /// Numbers of the current epoch that the newest gap incident names.
    pub(crate) gap: SeqRanges,
    /// The clock was wrong at the last check.
    pub(crate) clock_off: bool,
    /// The retirement that the newest incident of a retired but living device names.
    pub(crate) retired_alive: Option<Generation>,
    /// Messages of this device in quarantine.
    pub(crate) quarantined: u64,
    /// The messages without a decision.
    #[serde(rename = "open", with = "pairs")]
    unresolved: BTreeMap<MessageIdentity, UnresolvedMessage>,
    /// The newest heartbeat that a fact names.
    #[serde(rename = "beat_at")]
    heartbeat_at: Option<Timestamp>,
    #[serde(rename = "refused")]
    rejected_payloads: Recent<Digest, REJECTED_PAYLOADS_KEPT>,
    clones: Recent<(Epoch, Epoch), CLONES_KEPT>,
    forks: Recent<(Epoch, Seq, Digest), FORKS_KEPT>,
    standings: BTreeMap<DeploymentId, ReportedStanding>,
    overdue: BTreeMap<DeploymentId, PublishedDeadline>,
    /// The newest rises of its epoch, each with the time that its incident names.
    epoch_rises: Recent<(Epoch, Timestamp), EPOCH_RISES_PER_HOUR>,
    /// The number of the newest capabilities, and when they were last published.
    #[serde(rename = "nature")]
    capabilities: Option<((Epoch, Seq), Timestamp)>,
    /// The refusal of its desired state that stands.
    pub(crate) desired_refusal: Option<PublishedRefusal>,
    /// When the newest refusals were first published.
    desired_refusals: Recent<Timestamp, DESIRED_REFUSALS_PER_HOUR>,
    /// The newest incident about the end of its token.
    token: Option<PublishedToken>,
}

/// The newest liveness fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedLiveness {
    #[serde(rename = "said_at")]
    pub(crate) published_at: Timestamp,
    pub(crate) state: Liveness,
    pub(crate) epoch: Epoch,
    pub(crate) last_heard_at: Timestamp,
    /// When the device became fresh; without meaning while it is stale.
    pub(crate) fresh_since: Timestamp,
    /// When it was last heard before it last became stale.
    fresh_until: Option<Timestamp>,
    /// The times of silence before `fresh_since`.
    pub(crate) outages: Outages,
    /// The fact lists missing numbers.
    #[serde(rename = "behind")]
    pub(crate) has_missing: bool,
    /// By the fact, the device can store reports.
    pub(crate) storing: bool,
}

/// A message in quarantine without a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct UnresolvedMessage {
    /// When its fact was last published.
    #[serde(rename = "said_at")]
    published_at: Timestamp,
    /// Digest of what its fact shows of a message with a number.
    content: Option<Digest>,
}

/// The newest report of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedStanding {
    at: (Epoch, Seq),
    progress: Progress,
    /// When its fact was last published.
    #[serde(rename = "said_at")]
    published_at: Timestamp,
}

/// A deadline that passed. The latest one counts, by generation and then by the time that it counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct PublishedDeadline {
    generation: Generation,
    since: Timestamp,
    /// When its fact was last published.
    #[serde(rename = "said_at")]
    published_at: Timestamp,
}

/// The number of remembered entries of each kind.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct LedgerStateSize {
    pub(crate) standings: usize,
    pub(crate) overdue: usize,
    pub(crate) open_messages: usize,
    pub(crate) gap_pieces: usize,
}

impl ReportedStanding {
    fn is_open(&self) -> bool {
        self.progress.state != State::Removed
    }
}

impl DeviceLedgerState {
    /// Applies a change. Applying it again changes nothing.
    pub(crate) fn apply(&mut self, change: &Change) {
        let before = self.account.epoch();
        match change {
            Change::Received { epoch, seq, head, coalesced, content, progress, published_at } => {
                let numbers = Numbers { epoch: *epoch, seq: *seq, head: *head, coalesced };
                self.account.receive(numbers, *content);
                let at = (*epoch, *seq);
                match progress {
                    Some(reported) => self.update_standing(reported, at, *published_at),
                    None => self.capabilities = self.capabilities.max(Some((at, *published_at))),
                }
            }
            Change::Quarantined { number, numbers, received_at, payload, content, count, published_at } => {
                numbers.iter().for_each(|(epoch, seqs)| self.account.quarantine(*epoch, seqs));
                payload.iter().for_each(|payload| self.rejected_payloads.push(*payload));
                self.quarantined = self.quarantined.max(*count);
                let new = UnresolvedMessage { published_at: *published_at, content: *content };
                let known = self.unresolved.entry((*received_at, *number)).or_insert(new);
                known.published_at = known.published_at.max(*published_at);
                if self.unresolved.len() > UNRESOLVED_KEPT {
                    self.unresolved.pop_first();
                }
            }
            Change::Liveness { fact, published_at } => self.apply_liveness(fact, *published_at),
            Change::Overdue { deployment, generation, since, published_at } => {
                let new =
                    PublishedDeadline { generation: *generation, since: *since, published_at: *published_at };
                let known = self.overdue.entry(deployment.clone()).or_insert(new);
                *known = (*known).max(new);
                self.evict_overdue();
            }
            Change::Incident { what, at, published_at } => self.apply_incident(what, *at, *published_at),
            Change::Pulse => {}
            Change::Verdict(identity) => identity.iter().for_each(|of| _ = self.unresolved.remove(of)),
        }
        if self.account.epoch() != before {
            self.gap = SeqRanges::new();
        }
    }

    /// Whether a later report of this deployment was received.
    pub(crate) fn is_late(&self, deployment: &DeploymentId, at: (Epoch, Seq)) -> bool {
        self.standings.get(deployment).is_some_and(|standing| standing.at > at)
    }

    /// The progress of a deployment.
    pub(crate) fn progress(&self, deployment: &DeploymentId) -> Option<&Progress> {
        self.standings.get(deployment).map(|standing| &standing.progress)
    }

    /// Whether a report of this number adds no row: its deployment has a standing that is not `removed`, or one of the same or a
    /// later report.
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
        let within = move |standing: &ReportedStanding| elapsed(standing.published_at, now) <= window;
        self.standings.iter().filter(move |(_, standing)| within(standing)).map(|(id, _)| id)
    }

    /// Whether the epoch may rise now.
    pub(crate) fn may_raise_epoch(&self, at: Timestamp) -> bool {
        self.epoch_rises.iter().filter(|(_, risen_at)| elapsed(*risen_at, at) < HOUR).count()
            < EPOCH_RISES_PER_HOUR
    }

    /// Whether a deadline of this generation that counts from `since`, or a later one, was published.
    pub(crate) fn is_overdue(
        &self,
        deployment: &DeploymentId,
        generation: Generation,
        since: Timestamp,
    ) -> bool {
        let known = self.overdue.get(deployment);
        known.is_some_and(|known| (known.generation, known.since) >= (generation, since))
    }

    /// When the first attempt began, for a status fact whose state is not a lasting end and after which no report was received.
    pub(crate) fn first_attempt_at(&self, fact: &StatusFact) -> Option<Timestamp> {
        let progress = Progress::of(fact);
        // A success on trial does not end the attempt, nor does a failure that is retried.
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

    /// Whether these bytes are in quarantine already.
    pub(crate) fn has_rejected(&self, payload: &Digest) -> bool {
        self.rejected_payloads.contains(payload)
    }

    /// Digests of what facts show of the reports of this number that wait in quarantine.
    pub(crate) fn contents_in_quarantine(&self, epoch: Epoch, seq: Seq) -> impl Iterator<Item = Digest> {
        let is_of = move |((_, number), _): &(&MessageIdentity, _)| *number == Some((epoch, seq));
        let known = self.account.is_quarantined(epoch, seq).then_some(&self.unresolved);
        known.into_iter().flatten().filter(is_of).filter_map(|(_, message)| message.content)
    }

    /// Whether a clone incident of this pair of epochs was published.
    pub(crate) fn has_clone(&self, known: Epoch, epoch: Epoch) -> bool {
        self.clones.contains(&(known, epoch))
    }

    /// Whether a fork incident of this number with this other content was published.
    pub(crate) fn has_fork(&self, epoch: Epoch, seq: Seq, other: Digest) -> bool {
        self.forks.contains(&(epoch, seq, other))
    }

    /// Whether a fork incident of this number was published.
    pub(crate) fn has_fork_of(&self, epoch: Epoch, seq: Seq) -> bool {
        self.forks.find(|(of, number, _)| (*of, *number) == (epoch, seq)).is_some()
    }

    /// Whether a clone incident of `known` with any older epoch was published.
    pub(crate) fn has_clone_of(&self, known: Epoch) -> bool {
        self.clones.find(|(of, _)| *of == known).is_some()
    }

    /// Forgets the deadlines of deployments that are no targets any more.
    pub(crate) fn retain_overdue(&mut self, wanted: impl Fn(&DeploymentId) -> bool) {
        self.overdue.retain(|deployment, _| wanted(deployment));
    }

    /// When the content of a fact was last published; `None` if the fact no longer holds.
    pub(crate) fn published_since(
        &self,
        fact: &Fact,
        deployment: Option<&DeploymentId>,
    ) -> Option<Timestamp> {
        match fact {
            Fact::Status(fact) => {
                let standing = self.standings.get(&fact.deployment)?;
                (standing.at == (fact.epoch, fact.seq)).then_some(standing.published_at)
            }
            Fact::Device(fact) => self
                .capabilities
                .filter(|(at, _)| *at == (fact.epoch, fact.seq))
                .map(|(_, published_at)| published_at),
            Fact::Deadline(fact) => {
                let known = self.overdue.get(deployment?)?;
                ((known.generation, known.since) == (fact.generation, fact.since))
                    .then_some(known.published_at)
            }
            Fact::Quarantine(fact) => {
                let identity = (fact.received_at, fact.epoch.zip(fact.seq));
                let known = self.unresolved.get(&identity).filter(|_| self.may_supersede(&identity))?;
                Some(known.published_at)
            }
            Fact::Incident(Incident { what: IncidentKind::DesiredRefused(refusal), .. }) => {
                self.desired_refusal.as_ref()?.published_since(refusal)
            }
            _ => None,
        }
    }

    /// Whether a heartbeat stored at this time shows which numbers some message in quarantine can have.
    pub(crate) fn is_resolved_by(&self, heartbeat_at: Timestamp) -> bool {
        self.unresolved.keys().any(|identity| identity.0 < heartbeat_at && self.has_unknown_number(identity))
    }

    /// Whether a message in quarantine may supersede the device's state.
    fn may_supersede(&self, identity: &MessageIdentity) -> bool {
        let of_epoch = identity.1.filter(|(epoch, seq)| {
            Some(*epoch) == self.account.epoch() && self.account.is_quarantined(*epoch, *seq)
        });
        of_epoch.is_some_and(|(_, seq)| seq.get() <= self.account.head()) || self.has_unknown_number(identity)
    }

    /// Whether no fact limits the numbers that a message in quarantine can have.
    fn has_unknown_number(&self, (received_at, number): &MessageIdentity) -> bool {
        let current = self.account.epoch();
        let beyond = number.is_none_or(|(epoch, seq)| match Some(epoch).cmp(&current) {
            Ordering::Less => false,
            Ordering::Equal => seq.get() > self.account.head() && self.account.is_quarantined(epoch, seq),
            Ordering::Greater => true,
        });
        beyond && self.heartbeat_at.is_none_or(|heartbeat_at| *received_at >= heartbeat_at)
    }

    /// The size of what is remembered.
    #[cfg(test)]
    pub(crate) fn size(&self) -> LedgerStateSize {
        LedgerStateSize {
            standings: self.standings.len(),
            overdue: self.overdue.len(),
            open_messages: self.unresolved.len(),
            gap_pieces: self.gap.len(),
        }
    }

    /// Applies the standing that a report names. If its fact does not name the beginning of the first attempt, the standing
    /// before it does.
    fn update_standing(&mut self, reported: &ReportedProgress, at: (Epoch, Seq), published_at: Timestamp) {
        let ReportedProgress { deployment, progress, names_first_attempt } = reported;
        let mut new = ReportedStanding { at, progress: *progress, published_at };
        let Some(standing) = self.standings.get_mut(deployment) else {
            self.standings.insert(deployment.clone(), new);
            self.evict_standings();
            return;
        };
        if standing.at >= new.at {
            if standing.at == new.at {
                standing.published_at = standing.published_at.max(new.published_at);
            }
            return;
        }
        let named = new.progress.first_attempt_at;
        new.progress = new.progress.after(&standing.progress, new.progress.changed_at);
        if *names_first_attempt {
            new.progress.first_attempt_at = named;
        }
        *standing = new;
    }

    /// Evicts one standing if there are too many: a removed one first, then the one with the oldest report.
    fn evict_standings(&mut self) {
        if self.standings.len() <= STANDINGS_KEPT {
            return;
        }
        let age = |(_, standing): &(&DeploymentId, &ReportedStanding)| (standing.is_open(), standing.at);
        let oldest = self.standings.iter().min_by_key(age).map(|(id, _)| id.clone());
        oldest.iter().for_each(|id| _ = self.standings.remove(id));
    }

    /// Evicts the oldest deadline if there are too many.
    fn evict_overdue(&mut self) {
        if self.overdue.len() <= OVERDUE_KEPT {
            return;
        }
        let oldest =
            self.overdue.iter().min_by_key(|(_, known)| known.published_at).map(|(id, _)| id.clone());
        oldest.iter().for_each(|id| _ = self.overdue.remove(id));
    }

    fn apply_liveness(&mut self, fact: &LivenessFact, published_at: Timestamp) {
        self.account.learn(fact.epoch, fact.head, fact.account.as_ref());
        let last = self.last_published;
        let since = last.filter(|last| last.state == Liveness::Fresh).map(|last| last.fresh_since);
        let fresh_until = if fact.state == Liveness::Stale && since.is_some() {
            Some(fact.last_heard_at)
        } else {
            last.and_then(|last| last.fresh_until)
        };
        let mut outages = last.map(|last| last.outages).unwrap_or_default();
        if fact.state == Liveness::Fresh && since.is_none() {
            outages = outages
                .and(Outage { until: fresh_until.unwrap_or(Timestamp::MIN), since: fact.last_heard_at });
        }
        self.last_published = Some(PublishedLiveness {
            fresh_until,
            outages,
            published_at,
            state: fact.state,
            epoch: fact.epoch,
            last_heard_at: fact.last_heard_at,
            fresh_since: since.unwrap_or(fact.last_heard_at),
            has_missing: fact.account.as_ref().is_some_and(|account| !account.missing.is_empty()),
            storing: fact.storing,
        });
        self.heartbeat_at = self.heartbeat_at.max(fact.beat_at);
    }

    fn apply_incident(&mut self, what: &IncidentKind, at: Timestamp, published_at: Timestamp) {
        match what {
            IncidentKind::Amnesia { epoch, .. } => {
                self.account.learn(*epoch, 0, None);
                if self.epoch_rises.find(|(known, _)| known == epoch).is_none() {
                    self.epoch_rises.push((*epoch, at));
                }
            }
            IncidentKind::Clone { known_epoch, epoch, .. } => self.clones.push((*known_epoch, *epoch)),
            IncidentKind::SequenceFork { epoch, seq, other, .. } => self.forks.push((*epoch, *seq, *other)),
            IncidentKind::ClockSkew { .. } => self.clock_off = true,
            IncidentKind::Gap { epoch, missing } if self.account.epoch() == Some(*epoch) => {
                self.gap = missing.clone();
            }
            IncidentKind::Gap { .. } => {}
            IncidentKind::GapClosed { .. } => self.gap = SeqRanges::new(),
            IncidentKind::RetiredButAlive { generation } => {
                self.retired_alive = self.retired_alive.max(Some(*generation));
            }
            IncidentKind::DesiredRefused(refusal) => self.apply_refusal(refusal, at, published_at),
            IncidentKind::DesiredAccepted { .. } => self.desired_refusal = None,
            IncidentKind::TokenEnding { ends_at, .. } => self.apply_token(*ends_at, false, published_at),
            IncidentKind::TokenRenewed { ends_at } => self.apply_token(*ends_at, true, published_at),
            // The fact of its report has the same.
            IncidentKind::ProfileUnsupported { .. } => {}
            // Services request these; they say nothing about a device's account.
            IncidentKind::ForeignDocument { .. }
            | IncidentKind::ForeignView { .. }
            | IncidentKind::LedgerReplaced { .. }
            | IncidentKind::ConnectionsExceeded { .. }
            | IncidentKind::LedgerNearlyFull { .. }
            | IncidentKind::QuarantineFull { .. } => {}
        }
    }
}

/// Serialises a map whose keys are no strings as a list of pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
