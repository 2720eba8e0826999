//! The in-memory index and counts of the outbox, rebuilt from the file at each start and after a rollback. It mirrors the
//! tables and holds no rule.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use muster_contract::Epoch;
use muster_contract::receipt::{Receipt, RefusedNumbers};

use super::delivery_table::{SeqRun, all_states};
use crate::db::{Connection, OptionalExtension, SqlResult, corrupt, unreadable};

/// The key of rows without a deployment: the capabilities supersede each other in the same way.
const CAPABILITIES: &str = "";

/// The tables with their index, during one job of the database.
pub(super) struct Tables<'a> {
    pub(super) connection: &'a Connection,
    pub(super) index: &'a mut Index,
}

/// The index of the rows, of the deployments and of the delivery states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Highest number assigned; 0 before the first.
    head: u64,
    bytes: u64,
    rows: BTreeMap<u64, IndexedRow>,
    deployments: BTreeMap<Arc<str>, DeploymentRows>,
    /// Rows with a state that is not final: they may be folded.
    foldable: BTreeSet<u64>,
    /// The reports that the last receipt refused, with its epoch: they are asked for every second, and a receipt is large.
    refused: Option<(Epoch, Vec<RefusedNumbers>)>,
    /// Delivery states: last number and state by first number, adjacent runs of one state merged.
    states: BTreeMap<u64, (u64, i64)>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexedRow {
    deployment: Arc<str>,
    bytes: u32,
}

/// The rows of one deployment. To list them, all rows are scanned: that is needed for an eviction, for the removal of
/// a newest row before older ones, and for a new epoch. A set per deployment would need a quarter more memory per
/// row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct DeploymentRows {
    count: u64,
    newest: Option<u64>,
}

impl Index {
    /// Builds the index from the tables.
    pub(super) fn of(connection: &Connection) -> SqlResult<Self> {
        Self::read(connection).map_err(|error| unreadable("outbox", error))
    }

    fn read(connection: &Connection) -> SqlResult<Self> {
        let mut index = Self::default();
        let select = "SELECT seq, deployment, newest, terminal, bytes FROM outbox ORDER BY seq";
        let mut statement = connection.prepare_cached(select)?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let deployment = row.get_ref(1)?.as_str_or_null()?;
            index.insert(row.get(0)?, deployment, row.get(2)?, row.get(3)?, row.get(4)?);
        }
        let head = "SELECT CAST(value AS INTEGER) FROM memory WHERE name = 'head'";
        let head: Option<u64> =
            connection.prepare_cached(head)?.query_row([], |row| row.get(0)).optional()?;
        index.head = index.head.max(head.unwrap_or_default());
        let receipt = "SELECT value FROM memory WHERE name = 'receipt'";
        let receipt: Option<String> =
            connection.prepare_cached(receipt)?.query_row([], |row| row.get(0)).optional()?;
        if let Some(text) = receipt {
            index.set_refused(&serde_json::from_str(&text).map_err(|error| corrupt("memory", &error))?);
        }
        index.replace_states(&[], &all_states(connection)?);
        Ok(index)
    }

    /// Highest number assigned; 0 before the first.
    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    pub(super) const fn set_head(&mut self, head: u64) {
        self.head = head;
    }

    /// The reports of an epoch that the last receipt refused.
    pub(super) fn refused(&self, epoch: Option<Epoch>) -> &[RefusedNumbers] {
        let of_epoch = self.refused.as_ref().filter(|(of, _)| Some(*of) == epoch);
        of_epoch.map_or(&[], |(_, refused)| refused)
    }

    /// Keeps the refusals of a receipt.
    pub(super) fn set_refused(&mut self, receipt: &Receipt) {
        self.refused = Some((receipt.epoch, receipt.refused.clone()));
    }

    /// Bytes of all rows.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of rows.
    pub(super) fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The number of rows within a range of numbers.
    pub(super) fn count_within(&self, numbers: RangeInclusive<u64>) -> u64 {
        self.rows.range(numbers).count() as u64
    }

    /// The lowest row of all.
    pub(super) fn lowest(&self) -> Option<u64> {
        self.rows.first_key_value().map(|(seq, _)| *seq)
    }

    /// The highest row of all.
    pub(super) fn highest(&self) -> Option<u64> {
        self.rows.last_key_value().map(|(seq, _)| *seq)
    }

    /// The rows within a range of numbers, in order.
    pub(super) fn within(&self, numbers: RangeInclusive<u64>) -> impl Iterator<Item = u64> + '_ {
        self.rows.range(numbers).map(|(seq, _)| *seq)
    }

    /// The highest row below a number.
    pub(super) fn before(&self, seq: u64) -> Option<u64> {
        self.rows.range(..seq).next_back().map(|(seq, _)| *seq)
    }

    /// The rows above a number, in order.
    pub(super) fn after(&self, seq: u64) -> impl Iterator<Item = u64> + '_ {
        self.rows.range(seq.saturating_add(1)..).map(|(seq, _)| *seq)
    }

    /// The rows above a number that are of the same deployment as another row, in order.
    pub(super) fn after_of_deployment(&self, of: u64, seq: u64) -> impl Iterator<Item = u64> + '_ {
        let name = self.rows.get(&of).map(|row| &row.deployment);
        // No row of a deployment is above its newest: mostly there is none to return, and no row is scanned.
        let newest = name.and_then(|name| self.deployments.get(name)).and_then(|group| group.newest);
        let (from, to) = (seq.saturating_add(1), newest.unwrap_or(u64::MAX));
        let later = (from <= to).then(|| self.rows.range(from..=to)).into_iter().flatten();
        later.filter(move |(_, row)| name == Some(&row.deployment)).map(|(seq, _)| *seq)
    }

    /// The rows of the capabilities.
    pub(super) fn capabilities(&self) -> Vec<u64> {
        let of_them = self.rows.iter().filter(|(_, row)| &*row.deployment == CAPABILITIES);
        of_them.map(|(seq, _)| *seq).collect()
    }

    /// The lowest superseded row with a state that is not final.
    pub(super) fn lowest_foldable(&self) -> Option<u64> {
        self.foldable.iter().copied().find(|seq| !self.is_newest(*seq))
    }

    /// The lowest superseded row.
    pub(super) fn lowest_superseded(&self) -> Option<u64> {
        self.rows.keys().copied().find(|seq| !self.is_newest(*seq))
    }

    /// Whether no later row of its deployment was ever written.
    pub(super) fn is_newest(&self, seq: u64) -> bool {
        let group = self.rows.get(&seq).and_then(|row| self.deployments.get(&row.deployment));
        group.is_some_and(|group| group.newest == Some(seq))
    }

    /// The newest row of each deployment, in order.
    pub(super) fn newest(&self) -> Vec<u64> {
        let mut newest: Vec<u64> = self.deployments.values().filter_map(|group| group.newest).collect();
        newest.sort_unstable();
        newest
    }

    /// Whether the newest row of a deployment is stored.
    pub(super) fn has_newest(&self, deployment: &str) -> bool {
        self.deployments.get(deployment).is_some_and(|group| group.newest.is_some())
    }

    /// Adds a row.
    pub(super) fn insert(
        &mut self,
        seq: u64,
        deployment: Option<&str>,
        newest: bool,
        terminal: bool,
        bytes: u32,
    ) {
        let name = deployment.unwrap_or(CAPABILITIES);
        let deployment = match self.deployments.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        };
        let group = self.deployments.entry(Arc::clone(&deployment)).or_default();
        group.count += 1;
        if newest {
            group.newest = group.newest.max(Some(seq));
        }
        if !terminal {
            self.foldable.insert(seq);
        }
        self.rows.insert(seq, IndexedRow { deployment, bytes });
        self.bytes += u64::from(bytes);
        self.head = self.head.max(seq);
    }

    /// Changes the bytes of a row.
    pub(super) fn resize(&mut self, seq: u64, bytes: u32) {
        if let Some(row) = self.rows.get_mut(&seq) {
            self.bytes = self.bytes + u64::from(bytes) - u64::from(row.bytes);
            row.bytes = bytes;
        }
    }

    /// Removes a row. Returns the rows of its deployment that only this row superseded: they stay superseded.
    pub(super) fn remove(&mut self, seq: u64) -> Vec<u64> {
        let Some(row) = self.rows.remove(&seq) else { return Vec::new() };
        self.bytes -= u64::from(row.bytes);
        self.foldable.remove(&seq);
        let Some(group) = self.deployments.get_mut(&row.deployment) else { return Vec::new() };
        group.count -= 1;
        if group.count == 0 {
            self.deployments.remove(&row.deployment);
            return Vec::new();
        }
        if group.newest != Some(seq) {
            return Vec::new();
        }
        group.newest = None;
        let older = self.rows.range(..seq).filter(|(_, other)| other.deployment == row.deployment);
        older.map(|(seq, _)| *seq).collect()
    }

    /// The runs of delivery states that `from..=to` touches, whole, without queued ones.
    pub(super) fn states(&self, from: u64, to: u64) -> Vec<SeqRun<i64>> {
        let run = |(first, (last, value)): (&u64, &(u64, i64))| SeqRun {
            first: *first,
            last: *last,
            value: *value,
        };
        let below = self.states.range(..from).next_back().map(run).filter(|run| run.last >= from);
        below.into_iter().chain(self.states.range(from..=to).map(run)).collect()
    }

    /// Replaces runs of delivery states.
    pub(super) fn replace_states(&mut self, before: &[SeqRun<i64>], after: &[SeqRun<i64>]) {
        before.iter().for_each(|run| _ = self.states.remove(&run.first));
        self.states.extend(after.iter().map(|run| (run.first, (run.last, run.value))));
    }

    /// Removes all delivery states: nothing was ever sent.
    pub(super) fn clear_states(&mut self) {
        self.states.clear();
    }
}
