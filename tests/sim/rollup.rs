//! Rollups: each reads LEDGER into a fold, keeps a snapshot, dies and goes on from it. The fold and its records are the
//! real ones; the snapshot follows the service's rules (`snapshot`, `store`).

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::subjects::ViewKey;
use muster_contract::view::AsOf;
use muster_domain::fold::{DeviceRecord, Fleet, HearingState, Position};

use super::agenda::SECOND;
use super::hub::{Hub, StoredFact};
use super::law::{Lawful, must};
use super::tallies::Recount;
use super::world::{Event, Sabotage, World};

/// Facts folded at once.
const BATCH: usize = 500;

/// A snapshot on a rollup's disk.
#[derive(Debug, Default)]
struct Snapshot {
    origin: u64,
    records: BTreeMap<String, String>,
    at: Option<(AsOf, Digest)>,
    hearing: HearingState,
}

/// A rollup.
#[derive(Debug, Default)]
pub(crate) struct Rollup {
    /// Its fold.
    pub(crate) fleet: Fleet,
    origin: u64,
    /// How far it has read: pulses and records of owners leave the views where they are.
    read: u64,
    snapshot: Snapshot,
    /// Devices whose record the snapshot does not hold as it is.
    due: BTreeSet<DeviceKey>,
    expecting: bool,
    /// A naive count of the facts that it has folded.
    recount: Recount,
    changed: BTreeSet<ViewKey>,
}

fn apply(fleet: &mut Fleet, at: usize, said: &StoredFact) {
    let position = Position { ledger_seq: at as u64 + 1, stored_at: said.at };
    fleet.apply(position, &said.subject, said.fact.clone());
}

/// The fold of all of LEDGER by somebody who reads it for the first time.
pub(crate) fn rebuilt(hub: &Hub) -> Fleet {
    let mut fleet = Fleet::default();
    hub.ledger.iter().enumerate().for_each(|(at, said)| apply(&mut fleet, at, said));
    fleet
}

/// The digests of every view of a fleet.
pub(crate) fn digests(fleet: &Fleet, views: &BTreeSet<ViewKey>) -> Vec<(ViewKey, Option<Digest>)> {
    let digest = |key: &ViewKey| fleet.digest_of(key);
    views.iter().map(|key| (key.clone(), digest(key))).collect()
}

impl Rollup {
    /// Which LEDGER it reads, and how far it has read.
    pub(crate) const fn read(&self) -> (u64, u64) {
        (self.origin, self.read)
    }

    /// Makes everything since the last one part of the snapshot.
    fn save(&mut self, sloppy: bool) {
        if self.snapshot.origin != self.origin {
            self.due.clear();
            self.snapshot = Snapshot { origin: self.origin, ..Snapshot::default() };
            self.due.extend(self.fleet.records().map(|record| record.key().clone()));
        }
        self.due.extend(self.fleet.drain_changed_devices());
        if sloppy {
            self.due.pop_first();
        }
        for key in std::mem::take(&mut self.due) {
            let record = serde_json::to_string(&self.fleet.record(&key).unwrap()).unwrap();
            self.snapshot.records.insert(key.to_string(), record);
        }
        self.snapshot.hearing = self.fleet.hearing_state().clone();
        self.snapshot.at = Some((self.fleet.as_of(), self.fleet.fleet_view().tally.digest));
    }

    /// A new process goes on from the snapshot.
    fn restart(&mut self, trusting: bool) -> Lawful {
        self.due.clear();
        self.origin = self.snapshot.origin;
        let Some((as_of, digest)) = self.snapshot.at else {
            (self.fleet, self.read) = (Fleet::default(), 0);
            return Ok(());
        };
        self.read = as_of.ledger_seq;
        let parse = |text: &String| serde_json::from_str::<DeviceRecord>(text).unwrap();
        self.fleet =
            Fleet::restore(as_of, self.snapshot.hearing.clone(), self.snapshot.records.values().map(parse));
        let same = trusting || self.fleet.fleet_view().tally.digest == digest;
        must(same, "a snapshot gives the view that was true", || format!("as of {as_of:?}"))
    }
}

impl World {
    /// Folds a part of the history, saves a snapshot of it, and restarts the rollup from there.
    pub(crate) fn fold_history(&mut self, at: usize) {
        let to = self.chance.usize(0..=self.hub.ledger.len());
        let rollup = &mut self.rollups[at];
        rollup.origin = self.hub.origin;
        for (place, said) in self.hub.ledger.iter().enumerate().take(to) {
            apply(&mut rollup.fleet, place, said);
        }
        rollup.save(false);
        self.tally.snapshot_folds += 1;
        let restarted = self.crash_rollup(at);
        self.hold(restarted);
    }

    /// LEDGER has more than the rollups have read.
    pub(crate) fn ledger_grew(&mut self) {
        for at in 0..self.rollups.len() {
            if !std::mem::replace(&mut self.rollups[at].expecting, true) {
                let at_once = self.chance.bool();
                let delay = self.chance.i64(if at_once { 1..=50 } else { 10..=5 * SECOND });
                self.agenda.after(delay, Event::Fold(at));
            }
        }
    }

    /// A rollup reads on.
    pub(crate) fn fold(&mut self, at: usize) -> Lawful {
        let rollup = &mut self.rollups[at];
        rollup.expecting = false;
        let end = self.hub.ledger.len();
        if rollup.origin != self.hub.origin {
            rollup.origin = self.hub.origin;
            (rollup.fleet, rollup.read, rollup.recount) = (Fleet::default(), 0, Recount::default());
        }
        let from = (rollup.read as usize).min(end);
        let to = end.min(from + BATCH);
        for place in from..to {
            let said = &self.hub.ledger[place];
            apply(&mut rollup.fleet, place, said);
            let affected = rollup.recount.apply(said);
            self.tally.view_checks += rollup.recount.check(&rollup.fleet, &affected)?;
        }
        rollup.read = to as u64;
        rollup.changed.extend(rollup.fleet.drain_changed_views());
        if to < end {
            rollup.expecting = true;
            self.agenda.after(10, Event::Fold(at));
            return Ok(());
        }
        let changed = std::mem::take(&mut self.rollups[at].changed);
        self.views.extend(changed.iter().cloned());
        let rollup = &mut self.rollups[at];
        self.tally.view_checks += rollup.recount.check_all(&rollup.fleet)?;
        // A look at every device of a large fleet is dear, and every fact of it is looked at by somebody soon.
        if self.devices.len() > 30 && self.chance.usize(0..self.devices.len()) > 10 {
            return Ok(());
        }
        self.tally.folds += 1;
        self.law.fold(&self.rollups[at].fleet, changed.into_iter())?;
        if self.chance.u8(0..40) == 0 { self.compare() } else { Ok(()) }
    }

    /// A rollup makes a snapshot.
    pub(crate) fn snapshot(&mut self, at: usize) {
        let sloppy = self.sabotage == Sabotage::SnapshotsLoosely;
        self.rollups[at].save(sloppy);
    }

    /// A rollup dies and goes on from its snapshot.
    pub(crate) fn crash_rollup(&mut self, at: usize) -> Lawful {
        let rollup = &mut self.rollups[at];
        rollup.restart(self.sabotage == Sabotage::SnapshotsLoosely)?;
        (rollup.expecting, rollup.recount) = (false, Recount::default());
        if rollup.origin == self.hub.origin {
            self.hub.ledger.iter().take(rollup.read as usize).for_each(|said| _ = rollup.recount.apply(said));
            self.tally.view_checks += rollup.recount.check_all(&rollup.fleet)?;
        }
        self.ledger_grew();
        Ok(())
    }

    /// Rollups that have read equally far give the same views.
    pub(crate) fn compare(&self) -> Lawful {
        let rebuilt = rebuilt(&self.hub);
        let expected = digests(&rebuilt, &self.views);
        for rollup in &self.rollups {
            if rollup.origin == self.hub.origin && rollup.fleet.as_of() == rebuilt.as_of() {
                let same = digests(&rollup.fleet, &self.views) == expected;
                must(same, "fold(LEDGER) = fold(snapshot, tail)", || format!("as of {:?}", rebuilt.as_of()))?;
            }
        }
        Ok(())
    }
}
