//! What finds a row, and the counts: in memory, made from the file at each opening and whenever something was undone.
//! It says what the rows say and nothing else; the rules on them stand elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::passage::{self, Run};
use crate::db::{Connection, OptionalExtension, SqlResult, unreadable};

/// What stands for a deployment's name where a row is of none: the capabilities supersede each other likewise.
const CAPABILITIES: &str = "";

/// The tables, and what finds a row in them, for as long as a job of the database takes.
pub(super) struct Tables<'a> {
    pub(super) connection: &'a Connection,
    pub(super) index: &'a mut Index,
}

/// See the top of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Highest number ever given; 0 before the first.
    head: u64,
    bytes: u64,
    rows: BTreeMap<u64, Place>,
    lines: BTreeMap<Arc<str>, Line>,
    /// Rows of which something may come yet: they may be folded.
    passing: BTreeSet<u64>,
    /// How far numbers have come: last and state by first, neighbours of the same state as one.
    stretches: BTreeMap<u64, (u64, i64)>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    deployment: Arc<str>,
    bytes: u32,
}

/// The rows of one deployment. Which they are is found by looking through all: that is asked where room is made, where a
/// newest row goes before older ones, and by a new epoch; a set of them would take a quarter more memory for every row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Line {
    count: u64,
    newest: Option<u64>,
}

impl Index {
    /// What the file says.
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
        index.stretch(&[], &passage::all_stretches(connection)?);
        Ok(index)
    }

    /// Highest number ever given; 0 before the first.
    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    pub(super) const fn set_head(&mut self, head: u64) {
        self.head = head;
    }

    /// Bytes of all rows.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many rows there are.
    pub(super) fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    /// How many rows have one of these numbers.
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

    /// The rows that have one of these numbers, in order.
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
    pub(super) fn after_in_line(&self, of: u64, seq: u64) -> impl Iterator<Item = u64> + '_ {
        let name = self.rows.get(&of).map(|place| &place.deployment);
        // None of a line is above its newest: most that are asked for have nothing there, and are not looked for.
        let newest = name.and_then(|name| self.lines.get(name)).and_then(|line| line.newest);
        let (from, to) = (seq.saturating_add(1), newest.unwrap_or(u64::MAX));
        let later = (from <= to).then(|| self.rows.range(from..=to)).into_iter().flatten();
        later.filter(move |(_, place)| name == Some(&place.deployment)).map(|(seq, _)| *seq)
    }

    /// The rows of the capabilities.
    pub(super) fn capabilities(&self) -> Vec<u64> {
        let of_them = self.rows.iter().filter(|(_, place)| &*place.deployment == CAPABILITIES);
        of_them.map(|(seq, _)| *seq).collect()
    }

    /// The lowest row that a later one of its deployment supersedes and of which something more was to come.
    pub(super) fn lowest_passing(&self) -> Option<u64> {
        self.passing.iter().copied().find(|seq| !self.is_newest(*seq))
    }

    /// The lowest row that a later one of its deployment supersedes.
    pub(super) fn lowest_superseded(&self) -> Option<u64> {
        self.rows.keys().copied().find(|seq| !self.is_newest(*seq))
    }

    /// True where no later row of its deployment was ever written.
    pub(super) fn is_newest(&self, seq: u64) -> bool {
        let line = self.rows.get(&seq).and_then(|place| self.lines.get(&place.deployment));
        line.is_some_and(|line| line.newest == Some(seq))
    }

    /// The newest row of each deployment, in order.
    pub(super) fn newest(&self) -> Vec<u64> {
        let mut newest: Vec<u64> = self.lines.values().filter_map(|line| line.newest).collect();
        newest.sort_unstable();
        newest
    }

    /// True where the newest row of a deployment is here.
    pub(super) fn mentions(&self, deployment: &str) -> bool {
        self.lines.get(deployment).is_some_and(|line| line.newest.is_some())
    }

    /// A row was written.
    pub(super) fn insert(
        &mut self,
        seq: u64,
        deployment: Option<&str>,
        newest: bool,
        terminal: bool,
        bytes: u32,
    ) {
        let name = deployment.unwrap_or(CAPABILITIES);
        let deployment = match self.lines.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        };
        let line = self.lines.entry(Arc::clone(&deployment)).or_default();
        line.count += 1;
        if newest {
            line.newest = line.newest.max(Some(seq));
        }
        if !terminal {
            self.passing.insert(seq);
        }
        self.rows.insert(seq, Place { deployment, bytes });
        self.bytes += u64::from(bytes);
        self.head = self.head.max(seq);
    }

    /// A row has other bytes now.
    pub(super) fn resize(&mut self, seq: u64, bytes: u32) {
        if let Some(place) = self.rows.get_mut(&seq) {
            self.bytes = self.bytes + u64::from(bytes) - u64::from(place.bytes);
            place.bytes = bytes;
        }
    }

    /// A row is gone. Gives those of its deployment that were superseded by it alone: they stay superseded.
    pub(super) fn remove(&mut self, seq: u64) -> Vec<u64> {
        let Some(place) = self.rows.remove(&seq) else { return Vec::new() };
        self.bytes -= u64::from(place.bytes);
        self.passing.remove(&seq);
        let Some(line) = self.lines.get_mut(&place.deployment) else { return Vec::new() };
        line.count -= 1;
        if line.count == 0 {
            self.lines.remove(&place.deployment);
            return Vec::new();
        }
        if line.newest != Some(seq) {
            return Vec::new();
        }
        line.newest = None;
        let older = self.rows.range(..seq).filter(|(_, other)| other.deployment == place.deployment);
        older.map(|(seq, _)| *seq).collect()
    }

    /// How far the numbers that `from..=to` touches have come: whole runs, without those that are queued.
    pub(super) fn stretches(&self, from: u64, to: u64) -> Vec<Run<i64>> {
        let run = |(first, (last, is)): (&u64, &(u64, i64))| Run { first: *first, last: *last, is: *is };
        let below = self.stretches.range(..from).next_back().map(run).filter(|run| run.last >= from);
        below.into_iter().chain(self.stretches.range(from..=to).map(run)).collect()
    }

    /// Numbers have come further.
    pub(super) fn stretch(&mut self, before: &[Run<i64>], after: &[Run<i64>]) {
        before.iter().for_each(|run| _ = self.stretches.remove(&run.first));
        self.stretches.extend(after.iter().map(|run| (run.first, (run.last, run.is))));
    }

    /// Nothing was ever sent.
    pub(super) fn clear_stretches(&mut self) {
        self.stretches.clear();
    }
}
