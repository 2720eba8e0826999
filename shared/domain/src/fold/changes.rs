//! Records the changes that each fact between two points causes to standings and to devices that run nothing, and lists those
//! that pass the filters of a query or of a subscription. Verdicts cover the query's sites alone; they follow from the counts at
//! the earlier point and the recorded changes.

use std::collections::BTreeMap;

use muster_contract::changes::{CHANGES_MAX, Change, Changed, ChangesAnswer, ChangesQuery, FactKind};
use muster_contract::evidence::EvidenceSource;
use muster_contract::fact::Fact;
use muster_contract::notify::{Stood, Subscription, TellOn};
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::{AsOf, Freshness};
use muster_contract::{DeploymentId, DeviceKey, SiteId};

use super::axes::RowCondition;
use super::change_log::{Side, StoodFor};
use super::delta::Delta;
use super::fleet::{Fleet, Position};
use super::standing::{CountClass, DeviceContext};
use super::status::message;
use super::tally::Group;

/// The changes between two points.
#[derive(Debug)]
pub struct ChangeRecord {
    from: AsOf,
    to: AsOf,
    /// The counts at the earlier point.
    before: BTreeMap<DeploymentId, BTreeMap<SiteId, Group>>,
    entries: Vec<ChangedRow>,
    devices: Vec<ChangedDevice>,
    /// Facts that changed more standings than the change log keeps.
    incomplete: Vec<u64>,
    /// There was no room for the changes of the next fact.
    is_cut: bool,
}

/// More changes than may be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {CHANGES_MAX} changes lie between the points: choose points closer together")]
pub struct TooManyChanges;

#[derive(Debug)]
struct ChangedRow {
    at: AsOf,
    fact: FactKind,
    key: DeviceKey,
    deployment: DeploymentId,
    from: Option<Side>,
    to: Option<Side>,
    message: String,
}

/// A device without standings whose freshness changed.
#[derive(Debug)]
struct ChangedDevice {
    at: AsOf,
    fact: FactKind,
    key: DeviceKey,
    from: Option<Freshness>,
    to: Freshness,
}

/// The changes of a record that are listed.
struct Selection<'a> {
    /// Whether an entry's device and deployment pass.
    entry: &'a dyn Fn(&ChangedRow) -> bool,
    /// Whether one side of an entry passes.
    side: &'a dyn Fn(&Side) -> bool,
    /// Whether a site's counts make up the verdicts.
    site: &'a dyn Fn(&SiteId) -> bool,
    standings: bool,
    verdicts: bool,
}

impl ChangeRecord {
    /// An empty record whose earlier point is the present state of a fold.
    pub fn begin(fleet: &Fleet) -> Self {
        let mut before: BTreeMap<DeploymentId, BTreeMap<SiteId, Group>> = BTreeMap::new();
        for (site, number) in &fleet.totals.site_numbers {
            for (deployment, group) in fleet.totals.site(*number).deployments.iter() {
                let id = fleet.totals.deployment(deployment).id.clone();
                before.entry(id).or_default().insert(site.clone(), *group);
            }
        }
        let as_of = fleet.as_of();
        let (entries, devices, incomplete) = (Vec::new(), Vec::new(), Vec::new());
        Self { from: as_of, to: as_of, before, entries, devices, incomplete, is_cut: false }
    }

    /// Applies the next fact to the fold and records what it changes.
    ///
    /// # Errors
    /// More changes than [`CHANGES_MAX`]: the record then ends before the fact.
    pub fn apply(
        &mut self,
        fleet: &mut Fleet,
        at: Position,
        subject: &LedgerSubject,
        fact: Fact,
    ) -> Result<(), TooManyChanges> {
        let before = fleet.as_of().ledger_seq;
        let (idle_before, devices_before) = (fleet.idle_devices(subject), fleet.devices.len());
        fleet.apply(at, subject, fact);
        let as_of = fleet.as_of();
        // One fact may change a row and change it back.
        let mut changed = BTreeMap::new();
        for (device, deployment, from, to) in fleet.change_log.changed_after(before) {
            changed.entry((device, deployment)).or_insert((from, to)).1 = to;
        }
        changed.retain(|_, (from, to)| match (from, to) {
            (Some(from), Some(to)) => !from.is_like(to),
            (from, to) => from.is_some() || to.is_some(),
        });
        let devices = fleet.changed_devices(subject, &idle_before, devices_before);
        if self.entries.len() + self.devices.len() + changed.len() + devices.len() > CHANGES_MAX {
            self.is_cut = true;
            return Err(TooManyChanges);
        }
        let fact = kind(subject);
        let entries = changed.into_iter().map(|((device, deployment), (from, to))| {
            let (key, message) = fleet.key_and_message(device, deployment);
            let (from, to, deployment) = (from.cloned(), to.cloned(), deployment.clone());
            ChangedRow { at: as_of, fact, key, deployment, from, to, message }
        });
        self.entries.extend(entries);
        let device = |(key, from, to)| ChangedDevice { at: as_of, fact, key, from, to };
        self.devices.extend(devices.into_iter().map(device));
        if !fleet.change_log.is_complete_after(before) {
            self.incomplete.push(as_of.ledger_seq);
        }
        self.to = as_of;
        Ok(())
    }

    /// Skips a message without a readable fact.
    pub fn pass(&mut self, fleet: &mut Fleet, at: Position) {
        fleet.pass(at);
        self.to = fleet.as_of();
    }

    /// One page of the changes that pass the query's filters: at most `limit` after those that it skips.
    pub fn answer(&self, query: &ChangesQuery, limit: usize) -> ChangesAnswer {
        let all = self.selected(query);
        let of = all.len() as u64;
        let skip = usize::try_from(query.skip).unwrap_or(usize::MAX);
        let changes: Vec<Change> = all.into_iter().skip(skip).take(limit.max(1)).collect();
        let seen = query.skip.saturating_add(changes.len() as u64);
        let next = (seen < of).then_some(seen);
        let incomplete = !self.incomplete.is_empty();
        ChangesAnswer { from: self.from, to: self.to, of, changes, incomplete, next }
    }

    /// The earlier point.
    pub const fn from(&self) -> AsOf {
        self.from
    }

    /// The point up to which changes are recorded.
    pub const fn to(&self) -> AsOf {
        self.to
    }

    /// True if the record ends where it does because it is full.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Facts with changes that are not recorded, because one fact changed more standings than the change log keeps.
    pub fn incomplete(&self) -> &[u64] {
        &self.incomplete
    }

    /// The changes that pass a subscription's filters, after the first `skip` of them. Verdicts are listed if it is about
    /// one deployment as a whole; they alone if that is what it tells.
    pub fn passing(&self, subscription: &Subscription, skip: usize) -> Vec<Change> {
        let Subscription { id, site, device, .. } = subscription;
        let is_whole = subscription.is_of_a_deployment();
        let changes = self.listed(&Selection {
            entry: &|entry| {
                id.as_ref().is_none_or(|id| *id == entry.deployment)
                    && (site.is_empty() || site.contains(&entry.key.site))
                    && (device.is_empty() || device.iter().any(|path| path.0 == entry.key))
            },
            side: &|side| side.passes(subscription),
            site: &|_| true,
            standings: !is_whole || subscription.on != TellOn::Verdict,
            verdicts: is_whole,
        });
        changes.into_iter().skip(skip).collect()
    }

    fn selected(&self, query: &ChangesQuery) -> Vec<Change> {
        let mut changes = self.listed(&Selection {
            entry: &|entry| {
                query.site.pass(&entry.key.site) && query.id.as_ref().is_none_or(|id| *id == entry.deployment)
            },
            side: &|_| true,
            site: &|site| query.site.pass(site),
            standings: true,
            verdicts: true,
        });
        if query.id.is_none() {
            let devices = self.devices.iter().filter(|device| query.site.pass(&device.key.site));
            changes.extend(devices.map(ChangedDevice::change));
            // Devices come last among the changes of one fact.
            changes.sort_by_key(|change| change.ledger_seq);
        }
        changes
    }

    fn listed(&self, selection: &Selection<'_>) -> Vec<Change> {
        let mut groups: BTreeMap<&DeploymentId, Group> = BTreeMap::new();
        for (id, sites) in &self.before {
            let here = sites.iter().filter(|(site, _)| (selection.site)(site));
            here.for_each(|(_, group)| *groups.entry(id).or_default() += *group);
        }
        let mut changes = Vec::new();
        for entries_of_fact in self.entries.chunk_by(|one, next| one.at.ledger_seq == next.at.ledger_seq) {
            let mut verdicts = BTreeMap::new();
            for entry in entries_of_fact.iter().filter(|entry| (selection.entry)(entry)) {
                let group = groups.entry(&entry.deployment).or_default();
                verdicts.entry(&entry.deployment).or_insert((group.verdict(), entry));
                entry.apply_to(group);
                let standing = entry.standing(selection.side).filter(|_| selection.standings);
                changes.extend(standing.map(|standing| entry.change(standing)));
            }
            for (id, (from, entry)) in verdicts.into_iter().filter(|_| selection.verdicts) {
                let to = groups.get(id).copied().unwrap_or_default().verdict();
                if from != to {
                    changes.push(entry.change(Changed::Verdict { from, to }));
                }
            }
        }
        changes
    }
}

impl ChangedRow {
    fn change(&self, what: Changed) -> Change {
        let AsOf { ledger_seq, at } = self.at;
        Change { ledger_seq, at, fact: self.fact, deployment: Some(self.deployment.clone()), what }
    }

    /// The change of the standing as far as its sides pass; none if that is no change.
    fn standing(&self, passes: &dyn Fn(&Side) -> bool) -> Option<Changed> {
        let passing = |side: &Option<Side>| side.as_ref().filter(|side| passes(side)).map(Side::stood_for);
        let (from, to) = (passing(&self.from), passing(&self.to));
        let target = |side: Option<StoodFor>| side.and_then(|(_, target)| target);
        let changed = target(to).filter(|now| Some(*now) != target(from));
        (from != to).then(|| Changed::Standing {
            key: self.key.clone(),
            from: from.map(|(stood, _)| stood),
            to: to.map(|(stood, _)| stood),
            target: changed,
            message: self.message.clone(),
        })
    }

    /// Replaces the earlier side by the later one in a deployment's counts.
    fn apply_to(&self, group: &mut Group) {
        for (delta, side) in [(Delta::Retract, &self.from), (Delta::Add, &self.to)] {
            side.iter().for_each(|side| group.shift(delta, class(side.stood_for().0)));
        }
    }
}

impl ChangedDevice {
    fn change(&self) -> Change {
        let AsOf { ledger_seq, at } = self.at;
        let what = Changed::Device { key: self.key.clone(), from: self.from, to: self.to };
        Change { ledger_seq, at, fact: self.fact, deployment: None, what }
    }
}

impl Fleet {
    /// The devices without a counted standing that a fact may change, each with its freshness; none if it is retired. A fact about
    /// the hub's hearing may change any device.
    fn idle_devices(&self, subject: &LedgerSubject) -> BTreeMap<u32, Option<Freshness>> {
        let numbers: Vec<u32> = match subject {
            LedgerSubject::Hearing(_) => (0..self.devices.len() as u32).collect(),
            subject => subject.device().and_then(|key| self.number_of(key)).into_iter().collect(),
        };
        let contexts = numbers.into_iter().map(|number| (number, self.context(number)));
        let is_idle = |(number, context): &(u32, DeviceContext)| {
            !self.devices[*number as usize].rows.iter().any(|row| row.is_counted(context))
        };
        let idle = contexts.filter(is_idle);
        idle.map(|(number, context)| (number, (!context.retired).then_some(context.freshness))).collect()
    }

    /// The devices without a counted standing whose freshness a fact changed, and those that are new with it.
    fn changed_devices(
        &self,
        subject: &LedgerSubject,
        before: &BTreeMap<u32, Option<Freshness>>,
        devices_before: usize,
    ) -> Vec<(DeviceKey, Option<Freshness>, Freshness)> {
        let changed = self.idle_devices(subject).into_iter().filter_map(|(number, to)| {
            let is_new = number as usize >= devices_before;
            let from = if is_new { None } else { *before.get(&number)? };
            to.filter(|to| from != Some(*to)).map(|to| (number, from, to))
        });
        changed.map(|(number, from, to)| (self.key_of(&self.devices[number as usize]), from, to)).collect()
    }

    /// A device's key, and the message on a deployment's standing there; empty if it has none.
    fn key_and_message(&self, number: u32, deployment: &DeploymentId) -> (DeviceKey, String) {
        let device = &self.devices[number as usize];
        let wanted = self.totals.deployment_numbers.get(deployment);
        let row = device.rows.iter().find(|row| Some(&row.deployment) == wanted);
        let words = row.and_then(|row| {
            let scan = RowCondition::of(row, row.count_class(&device.state.context()))?;
            Some(message(&device.state, row, scan))
        });
        (self.key_of(device), words.unwrap_or_default())
    }
}

/// The class by which a standing counts for a verdict.
const fn class(stood: Stood) -> CountClass {
    let Stood { standing, freshness, known, leaving, overdue } = stood;
    if leaving {
        return CountClass::Leaving;
    }
    let source = EvidenceSource::EVERY_CHANGE;
    CountClass::Target { standing, freshness, known, overdue, attempts: 0, missing: 0, source }
}

const fn kind(subject: &LedgerSubject) -> FactKind {
    match subject {
        LedgerSubject::Desired(_) => FactKind::Desired,
        LedgerSubject::Status(..) => FactKind::Status,
        LedgerSubject::Device(_) => FactKind::Device,
        LedgerSubject::Liveness(_) => FactKind::Liveness,
        LedgerSubject::Deadline(..) => FactKind::Deadline,
        LedgerSubject::Quarantine(_) => FactKind::Quarantine,
        LedgerSubject::Verdict(_) => FactKind::Verdict,
        LedgerSubject::Hearing(_) => FactKind::Hearing,
        LedgerSubject::Incident(_) | LedgerSubject::Owner { .. } | LedgerSubject::Hub(_) => FactKind::Other,
    }
}
