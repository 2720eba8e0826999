//! The fleet: every device with its rows, the counts over them, and the position up to which LEDGER was read.

use std::collections::BTreeSet;

use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Seq, SiteId, Timestamp};

use super::capture::Capture;
use super::change_log::{ChangeLog, Side};
use super::delta::Delta;
use super::device::Device;
use super::hearing::HearingState;
use super::index::DeviceIndex;
use super::max_timestamp::{MaxTimestamp, highest};
use super::silence_order::SilenceOrder;
use super::silence_starts::SilenceStarts;
use super::standing::{CountClass, DeviceContext, Row};
use super::totals::Totals;
use super::view_aggregate::ViewAggregates;

/// Devices for which the list gets room at once, at least; a large list grows by an eighth.
const DEVICES_AT_LEAST: usize = 64;

/// A fact's place in LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Its sequence.
    pub ledger_seq: u64,
    /// When the bus stored it.
    pub stored_at: Timestamp,
}

/// The outcome of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The fact is the newest of its kind and holds now.
    Applied,
    /// Something newer holds: the fact only counts in the account.
    Late,
    /// The fact is held already: it was re-asserted.
    Duplicate,
    /// It was read before, or its subject is of another kind than itself.
    Skipped,
}

/// The state of the fleet, as far as LEDGER was read.
#[derive(Debug)]
pub struct Fleet {
    pub(super) as_of: AsOf,
    /// The number of the report, or of the message in quarantine, that is being folded in; none where the fact has none.
    report: Option<(Epoch, Seq)>,
    pub(super) index: DeviceIndex,
    pub(super) devices: Vec<Device>,
    pub(super) totals: Totals,
    pub(super) view_aggregates: ViewAggregates,
    pub(super) change_log: ChangeLog,
    pub(super) changed: Vec<u32>,
    pub(super) capture: Capture,
    pub(super) hearing: HearingState,
    /// When the silent devices were last heard.
    pub(super) silence_starts: SilenceStarts,
    /// Stale and never heard devices, the longest silence first.
    pub(super) silence_order: SilenceOrder,
    /// The numbers of the devices that refuse their desired state.
    pub(super) refusing: BTreeSet<u32>,
}

/// Which rows a fact alters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// No row: the fact is about the device.
    Device,
    /// The row at this place.
    Row(usize),
    /// All of them.
    Rows,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            as_of: AsOf { ledger_seq: 0, at: Timestamp::UNIX_EPOCH },
            report: None,
            index: DeviceIndex::default(),
            devices: Vec::new(),
            totals: Totals::default(),
            view_aggregates: ViewAggregates::default(),
            change_log: ChangeLog::default(),
            changed: Vec::new(),
            capture: Capture::default(),
            hearing: HearingState::default(),
            silence_starts: SilenceStarts::default(),
            silence_order: SilenceOrder::default(),
            refusing: BTreeSet::new(),
        }
    }
}

impl Fleet {
    /// The fleet of a reader that never asks what changed since a position: it keeps no log of changes, and answers that everything
    /// may have changed.
    #[must_use]
    pub fn without_change_log(self) -> Self {
        let mut change_log = ChangeLog::of_size(0);
        change_log.reset(self.as_of.ledger_seq);
        Self { change_log, ..self }
    }

    /// Applies a fact. It never fails: a fact that makes no sense changes only the position.
    pub fn apply(&mut self, at: Position, subject: &LedgerSubject, fact: Fact) -> Outcome {
        // LEDGER keeps a pulse for a short time only, and a position is a message that stays.
        if at.ledger_seq <= self.as_of.ledger_seq || matches!(subject, LedgerSubject::Hub(_)) {
            return Outcome::Skipped;
        }
        self.pass(at);
        self.report = match &fact {
            Fact::Status(fact) => Some((fact.epoch, fact.seq)),
            Fact::Device(fact) => Some((fact.epoch, fact.seq)),
            Fact::Quarantine(fact) => fact.epoch.zip(fact.seq),
            _ => None,
        };
        let outcome = self.dispatch(at, subject, fact);
        self.report = None;
        self.recompute_last_changed();
        self.view_aggregates.recompute_times(&self.totals, &self.devices);
        outcome
    }

    fn dispatch(&mut self, at: Position, subject: &LedgerSubject, fact: Fact) -> Outcome {
        match (subject, fact) {
            (LedgerSubject::Status(key, deployment), Fact::Status(fact)) => {
                self.status(at, key, deployment, fact)
            }
            (LedgerSubject::Desired(key), Fact::Desired(fact)) => self.desired(at, key, &fact),
            (LedgerSubject::Device(key), Fact::Device(fact)) => self.device(key, fact),
            (LedgerSubject::Liveness(key), Fact::Liveness(fact)) => self.liveness(at, key, &fact),
            (LedgerSubject::Deadline(key, deployment), Fact::Deadline(fact)) => {
                self.deadline(at, key, deployment, fact)
            }
            (LedgerSubject::Incident(Some(key)), Fact::Incident(fact)) => self.incident(key, fact),
            (LedgerSubject::Quarantine(Some(key)), Fact::Quarantine(fact)) => self.quarantine(at, key, &fact),
            (LedgerSubject::Verdict(Some(key)), Fact::Verdict(fact)) => self.verdict(key, &fact),
            (LedgerSubject::Hearing(partition), Fact::Hearing(fact)) => {
                self.apply_hearing(at, *partition, &fact)
            }
            _ => Outcome::Skipped,
        }
    }

    /// Recomputes the maxima whose newest row has gone. A row that goes is mostly older than the others, or one
    /// of many of the same time. Only if rows go in the reverse order of their arrival does each of them cost a
    /// search of its site.
    fn recompute_last_changed(&mut self) {
        let stale = std::mem::take(&mut self.totals.last_changed.stale);
        for place in &stale {
            let (deployment, site) = *place;
            let devices = self.totals.site(site).members.iter().map(|number| &self.devices[number as usize]);
            let rows = devices.flat_map(|device| &device.rows).filter(|row| row.deployment == deployment);
            let max = highest(rows.map(|row| MaxTimestamp::of(row.changed_at())));
            self.totals.last_changed.set_max(*place, max);
        }
        stale.into_iter().for_each(|place| self.totals.last_changed.recompute_sums(place));
    }

    /// Skips a message of LEDGER without a readable fact.
    pub fn pass(&mut self, at: Position) {
        if at.ledger_seq > self.as_of.ledger_seq {
            self.as_of = AsOf { ledger_seq: at.ledger_seq, at: at.stored_at };
        }
    }

    /// Up to where LEDGER was read.
    pub const fn as_of(&self) -> AsOf {
        self.as_of
    }

    /// How many devices are known, retired ones too.
    pub fn devices_known(&self) -> usize {
        self.devices.len()
    }

    /// The LEDGER sequence of a device's newest desired state; none where there is none.
    pub fn desired_at(&self, key: &DeviceKey) -> Option<u64> {
        self.find(key).map(|device| device.state.sources.desired.get()).filter(|ledger_seq| *ledger_seq > 0)
    }

    /// The views that may have changed since the last call: also those that are gone now.
    pub fn drain_changed_views(&mut self) -> BTreeSet<ViewKey> {
        let mut changed = self.totals.drain_changed();
        changed.extend(self.view_aggregates.drain_changed().map(ViewKey::Defined));
        changed
    }

    /// The devices that changed since the last call, for an incremental snapshot.
    pub fn drain_changed_devices(&mut self) -> Vec<DeviceKey> {
        let numbers = std::mem::take(&mut self.changed);
        numbers
            .into_iter()
            .map(|number| {
                self.devices[number as usize].changed = false;
                self.key_of(&self.devices[number as usize])
            })
            .collect()
    }

    pub(super) fn find(&self, key: &DeviceKey) -> Option<&Device> {
        self.number_of(key).map(|number| &self.devices[number as usize])
    }

    pub(super) fn number_of(&self, key: &DeviceKey) -> Option<u32> {
        self.index.get(&self.devices, &self.totals, key)
    }

    pub(super) fn site_of(&self, device: &Device) -> &SiteId {
        &self.totals.site(device.site).id
    }

    pub(super) fn key_of(&self, device: &Device) -> DeviceKey {
        DeviceKey { site: self.site_of(device).clone(), device: device.state.name.clone() }
    }

    /// The number of a device that a fact is about to change; a device is in the fleet from its first fact on.
    pub(super) fn name_device(&mut self, key: &DeviceKey) -> u32 {
        if let Some(number) = self.number_of(key) {
            self.copy_ahead(number);
            return number;
        }
        let number = self.devices.len() as u32;
        let site = self.totals.name_site(&key.site);
        self.totals.site_mut(site).members.insert(&self.devices, &key.device, number);
        self.index.insert(key, number);
        let mut device = Device::new(site, key.device.clone());
        device.state.unheard_in = self.unheard_in(site, &device);
        if self.devices.len() == self.devices.capacity() {
            // Doubled, the list could have room for as many devices again.
            self.devices.reserve_exact(DEVICES_AT_LEAST.max(self.devices.len() / 8));
        }
        self.devices.push(device);
        let context = self.context(number);
        self.silence_order.admit(key, &context);
        self.totals.apply_device(Delta::Add, site, &[], &context, 0);
        self.view_aggregates.admit(&self.totals, number, &self.devices[number as usize]);
        self.change_log.push_device(self.as_of, (site, number));
        number
    }

    /// The place of a deployment among a device's rows, which has one from now on.
    pub(super) fn name_row(&mut self, number: u32, deployment: &DeploymentId) -> usize {
        if let Some(place) = self.place_of(number, deployment) {
            return place;
        }
        let place = self.devices[number as usize].rows.len();
        self.push_rows(number, &[deployment]);
        place
    }

    /// The same for several deployments. The list of rows gets room for all new ones at once.
    pub(super) fn name_rows<'a>(
        &mut self,
        number: u32,
        deployments: impl Iterator<Item = &'a DeploymentId> + Clone,
    ) -> Vec<usize> {
        let mut new = Vec::new();
        for deployment in deployments.clone() {
            if self.place_of(number, deployment).is_none() && !new.contains(&deployment) {
                new.push(deployment);
            }
        }
        if !new.is_empty() {
            self.push_rows(number, &new);
        }
        deployments.filter_map(|deployment| self.place_of(number, deployment)).collect()
    }

    fn place_of(&self, number: u32, deployment: &DeploymentId) -> Option<usize> {
        let known = self.totals.deployment_numbers.get(deployment)?;
        self.devices[number as usize].rows.iter().position(|row| row.deployment == *known)
    }

    fn push_rows(&mut self, number: u32, deployments: &[&DeploymentId]) {
        let totals = &mut self.totals;
        self.devices[number as usize].change_rows(|rows| {
            rows.reserve_exact(deployments.len());
            rows.extend(deployments.iter().map(|deployment| Row::new(totals.name_deployment(deployment))));
        });
    }

    /// The inputs of row evaluation for a device.
    pub(super) fn context(&self, number: u32) -> DeviceContext {
        self.devices[number as usize].state.context()
    }

    /// Updates the counts for a device that was `before` and has changed since. `alter` changes each row in
    /// scope; the old contribution of every row that changes is retracted and its new one added.
    pub(super) fn update_rows(
        &mut self,
        number: u32,
        before: DeviceContext,
        scope: Scope,
        alter: impl FnMut(&mut Row),
    ) {
        self.mark_changed(number);
        self.recount_device(number, before, scope, alter);
    }

    /// The same where the device's record is unchanged.
    pub(super) fn recount_device(
        &mut self,
        number: u32,
        before: DeviceContext,
        scope: Scope,
        mut alter: impl FnMut(&mut Row),
    ) {
        let device = &mut self.devices[number as usize];
        let after = device.state.context();
        // A defined view may count anything about a device, so the old contribution is retracted and the new
        // one added.
        let seen = scope != Scope::Device || !before.is_same_for_rows(&after);
        if seen {
            self.view_aggregates.apply_delta(Delta::Retract, &self.totals, number, device, &before);
        }
        // One that is restored has it from its record.
        if self.as_of.ledger_seq > 0 {
            device.state.note(&before, &after, self.as_of.ledger_seq, self.report);
        }
        let unknown = device.unknown;
        let moves_heard = seen || before.heard_at != after.heard_at;
        if moves_heard {
            self.recount(number, [&before, &after], scope, &mut alter);
            self.exchange_heard(number, &before, &after);
            self.silence_starts.exchange(before.silent_since(), after.silent_since());
            let (device, totals) = (&self.devices[number as usize], &self.totals);
            let key =
                || DeviceKey { site: totals.site(device.site).id.clone(), device: device.state.name.clone() };
            self.silence_order.exchange(key, &before, &after);
        }
        let device = &self.devices[number as usize];
        let counted = |context: &DeviceContext, unknown| {
            let place = (context.retired, context.unheard_in, context.is_masked);
            (place, context.freshness, context.missing, context.is_complete(unknown))
        };
        if counted(&before, unknown) != counted(&after, device.unknown) {
            self.totals.apply_device(Delta::Retract, device.site, &device.groups, &before, unknown);
            self.totals.apply_device(Delta::Add, device.site, &device.groups, &after, device.unknown);
        }
        if seen {
            self.view_aggregates.apply_delta(Delta::Add, &self.totals, number, device, &after);
        } else if moves_heard {
            self.view_aggregates.exchange_heard(&self.totals, number, device, [&before, &after]);
        }
    }

    /// Alters the rows in scope, and recounts those whose class, or the time at which their device was heard, changed since
    /// `before`. No row is classified twice in the same context.
    fn recount(
        &mut self,
        number: u32,
        [before, after]: [&DeviceContext; 2],
        scope: Scope,
        alter: &mut impl FnMut(&mut Row),
    ) {
        let Device { site, state, rows, groups, unknown, .. } = &mut self.devices[number as usize];
        let same = before.is_same_for_rows(after);
        for (place, row) in rows.iter_mut().enumerate() {
            let in_scope = scope == Scope::Rows || scope == Scope::Row(place);
            if !in_scope && same {
                let counts = row.is_counted(after);
                self.totals.exchange_heard_with(
                    row.deployment,
                    (*site, groups),
                    (before, counts),
                    (after, counts),
                );
                continue;
            }
            let old = row.count_class(before);
            let mut new = if in_scope { old } else { row.count_class(after) };
            let stays = !in_scope && old == new && before.unheard_in == after.unheard_in;
            // A leaving row counts as before, but how much of it is known may change.
            let is_shown_alike = stays && old != CountClass::Leaving;
            let side_before = if is_shown_alike { None } else { Side::of(row, old, before, &self.totals) };
            if !stays {
                let contribution = self.totals.retract_row(*site, &state.name, row, old, before.unheard_in);
                if in_scope {
                    let changed_at = row.changed_at();
                    alter(row);
                    self.totals.replace_changed(
                        (row.deployment, *site),
                        groups,
                        changed_at,
                        row.changed_at(),
                    );
                    new = row.count_class(after);
                }
                self.totals.add_row(
                    &state.name,
                    (*site, groups),
                    row,
                    (new, after.unheard_in),
                    &contribution,
                );
                *unknown -= u32::from(old.is_unknown());
                *unknown += u32::from(new.is_unknown());
            }
            let counts = |class| class != CountClass::Nothing;
            self.totals.exchange_heard_with(
                row.deployment,
                (*site, groups),
                (before, counts(old)),
                (after, counts(new)),
            );
            if is_shown_alike {
                continue;
            }
            let deployment = &self.totals.deployment(row.deployment).id;
            let side_now = Side::of(row, new, after, &self.totals);
            self.change_log.push(self.as_of, (*site, number), deployment, side_before, side_now);
        }
    }

    /// Drops a device's rows that are not worth keeping. They count for nothing.
    pub(super) fn drop_rows(&mut self, number: u32, spent: impl Fn(&Row) -> bool) {
        let totals = &mut self.totals;
        let device = &mut self.devices[number as usize];
        let (site, groups) = (device.site, std::mem::take(&mut device.groups));
        device.change_rows(|rows| {
            for row in rows.extract_if(.., |row| spent(row)) {
                totals.replace_changed((row.deployment, site), &groups, row.changed_at(), None);
                totals.release_deployment(row.deployment);
                totals.specs.release(row.spec);
                if let Some(report) = row.report {
                    totals.component_sets.release(&report.components);
                }
            }
        });
        device.groups = groups;
    }

    fn mark_changed(&mut self, number: u32) {
        if !std::mem::replace(&mut self.devices[number as usize].changed, true) {
            self.changed.push(number);
        }
    }
}
