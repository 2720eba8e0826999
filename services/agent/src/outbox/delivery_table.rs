//! The table of delivery states: queued, sent, covered. States are stored for runs of numbers, because rows are sent
//! in order: a run that grows costs one small row of the table however many reports it has, and the reports
//! themselves are never rewritten.
//!
//! A number without a run is queued and was never sent. A run may contain numbers without a row.

use std::collections::HashSet;

use crate::db::{Connection, SqlError, SqlResult, SqlRow, corrupt, params};

/// The row waits for the relay.
pub(super) const QUEUED: i64 = 0;
/// UPLINK holds the row.
pub(super) const SENT: i64 = 1;
/// A receipt covers the row.
pub(super) const COVERED: i64 = 2;

/// The highest possible number.
pub(super) const LAST: u64 = i64::MAX as u64;

/// The delivery state of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct DeliveryState {
    /// [`QUEUED`], [`SENT`] or [`COVERED`].
    pub(super) state: i64,
    /// How often it was requeued.
    pub(super) round: u64,
    /// When it was last sent, in milliseconds of the device's clock.
    pub(super) sent: Option<i64>,
    /// When a receipt last covered it, in milliseconds of the device's clock.
    pub(super) covered: Option<i64>,
}

/// Consecutive numbers with one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SeqRun<T> {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) value: T,
}

impl<T: Copy> SeqRun<T> {
    /// The part within `from..=to`.
    fn within(&self, from: u64, to: u64) -> Option<Self> {
        let (first, last) = (self.first.max(from), self.last.min(to));
        (first <= last).then_some(Self { first, last, value: self.value })
    }
}

/// All numbers of `from..=to` in order, also those without a run.
pub(super) fn pieces<T: Copy + Default>(runs: &[SeqRun<T>], from: u64, to: u64) -> Vec<SeqRun<T>> {
    let mut pieces = Vec::with_capacity(2 * runs.len() + 1);
    let mut at = from;
    for run in runs.iter().filter_map(|run| run.within(from, to)) {
        if at < run.first {
            pieces.push(SeqRun { first: at, last: run.first - 1, value: T::default() });
        }
        pieces.push(run);
        at = run.last + 1;
    }
    if at <= to {
        pieces.push(SeqRun { first: at, last: to, value: T::default() });
    }
    pieces
}

/// The runs, with `inner` in place of `from..=to`.
pub(super) fn spliced<T: Copy + Default + PartialEq>(
    runs: &[SeqRun<T>],
    from: u64,
    to: u64,
    inner: impl Iterator<Item = SeqRun<T>>,
) -> Vec<SeqRun<T>> {
    let below = runs.iter().filter_map(|run| run.within(0, from - 1));
    let above = runs.iter().filter_map(|run| run.within(to.saturating_add(1), u64::MAX));
    joined(below.chain(inner).chain(above).filter(|run| run.value != T::default()))
}

/// Merges adjacent runs with the same value.
fn joined<T: PartialEq>(runs: impl Iterator<Item = SeqRun<T>>) -> Vec<SeqRun<T>> {
    let mut all: Vec<SeqRun<T>> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.last + 1 == run.first && last.value == run.value => last.last = run.last,
            _ => all.push(run),
        }
    }
    all
}

/// The runs that `from..=to` touches, whole.
pub(super) fn runs(connection: &Connection, from: u64, to: u64) -> SqlResult<Vec<SeqRun<DeliveryState>>> {
    let select = "SELECT first, last, state, round, sent, covered FROM passage \
                  WHERE first BETWEEN ifnull((SELECT max(first) FROM passage WHERE first <= ?1), ?1) AND ?2 \
                  AND last >= ?1 ORDER BY first";
    connection.prepare_cached(select)?.query_map([from, to], run_of)?.collect()
}

/// The runs that were covered by then.
pub(super) fn covered_by(connection: &Connection, limit: i64) -> SqlResult<Vec<SeqRun<DeliveryState>>> {
    let select = "SELECT first, last, state, round, sent, covered FROM passage \
                  WHERE state = ?1 AND covered <= ?2 ORDER BY first";
    connection.prepare_cached(select)?.query_map(params![COVERED, limit], run_of)?.collect()
}

fn run_of(row: &SqlRow<'_>) -> SqlResult<SeqRun<DeliveryState>> {
    let value =
        DeliveryState { state: row.get(2)?, round: row.get(3)?, sent: row.get(4)?, covered: row.get(5)? };
    let (first, last): (u64, u64) = (row.get(0)?, row.get(1)?);
    // This program never writes such a run.
    if first > last {
        return Err(corrupt("passage", &SqlError::IntegralValueOutOfRange(1, row.get(1)?)));
    }
    Ok(SeqRun { first, last, value })
}

/// All runs of states in the table, adjacent runs of one state merged.
pub(super) fn all_states(connection: &Connection) -> SqlResult<Vec<SeqRun<i64>>> {
    let select =
        "SELECT first, last, state, round, sent, covered FROM passage WHERE state > 0 ORDER BY first";
    let runs: Vec<_> = connection.prepare_cached(select)?.query_map([], run_of)?.collect::<SqlResult<_>>()?;
    Ok(joined(runs.iter().map(|run| SeqRun { first: run.first, last: run.last, value: run.value.state })))
}

/// Replaces runs in the table.
pub(super) fn replace_runs(
    connection: &Connection,
    before: &[SeqRun<DeliveryState>],
    after: &[SeqRun<DeliveryState>],
) -> SqlResult<()> {
    let (gone, new) = difference(before, after);
    let mut delete = connection.prepare_cached("DELETE FROM passage WHERE first = ?1")?;
    for run in gone {
        delete.execute([run.first])?;
    }
    let put = "INSERT INTO passage VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET last = excluded.last, \
               state = excluded.state, round = excluded.round, sent = excluded.sent, covered = excluded.covered";
    let mut put = connection.prepare_cached(put)?;
    for SeqRun { first, last, value } in new {
        put.execute(params![first, last, value.state, value.round, value.sent, value.covered])?;
    }
    Ok(())
}

/// The runs to delete and the runs to write: a run that begins where another began overwrites it.
fn difference<T: Copy + Eq + std::hash::Hash>(
    before: &[SeqRun<T>],
    after: &[SeqRun<T>],
) -> (Vec<SeqRun<T>>, Vec<SeqRun<T>>) {
    let known: HashSet<_> = before.iter().collect();
    let begins: HashSet<_> = after.iter().map(|run| run.first).collect();
    let gone = before.iter().filter(|run| !begins.contains(&run.first)).copied().collect();
    (gone, after.iter().filter(|run| !known.contains(run)).copied().collect())
}
