//! How far rows have come: queued, sent, covered. Kept for runs of numbers, because rows travel in order: a run that goes
//! on costs one small row of a table however many reports it holds, and the reports themselves are never written again.
//!
//! A number without a run is queued and was never sent. Whether a row has that number plays no part here.

use std::collections::HashSet;

use super::index::{Index, Tables};
use crate::db::{Connection, SqlError, SqlResult, SqlRow, corrupt, params};

/// It waits for the relay.
pub(super) const QUEUED: i64 = 0;
/// The bus holds it.
pub(super) const SENT: i64 = 1;
/// A receipt covers it.
pub(super) const COVERED: i64 = 2;

/// The highest number there can be.
const LAST: u64 = i64::MAX as u64;

/// How far a row has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Stage {
    /// [`QUEUED`], [`SENT`] or [`COVERED`].
    pub(super) state: i64,
    /// How often it was asked for again.
    pub(super) round: u64,
    /// When it was sent last, in milliseconds of the device's clock.
    pub(super) sent: Option<i64>,
    /// When a receipt covered it last, likewise.
    pub(super) covered: Option<i64>,
}

/// Numbers of which the same is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Run<T> {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) is: T,
}

impl<T: Copy> Run<T> {
    /// The part of it within `from..=to`.
    fn within(&self, from: u64, to: u64) -> Option<Self> {
        let (first, last) = (self.first.max(from), self.last.min(to));
        (first <= last).then_some(Self { first, last, is: self.is })
    }
}

/// Changes how far the numbers `from..=to` have come; `next` is asked once for each run of them.
pub(super) fn change(
    tables: &mut Tables<'_>,
    from: u64,
    to: u64,
    mut next: impl FnMut(&Run<Stage>) -> Stage,
) -> SqlResult<()> {
    let Some((from, to)) = Some((from.max(1), to.min(LAST))).filter(|(from, to)| from <= to) else {
        return Ok(());
    };
    // With the neighbours: what has come equally far shall be one run.
    let around = (from - 1, (to + 1).min(LAST));
    let before = runs(tables.connection, around.0, around.1)?;
    let inner: Vec<_> =
        pieces(&before, from, to).into_iter().map(|run| Run { is: next(&run), ..run }).collect();
    let states = inner.iter().map(|run| Run { first: run.first, last: run.last, is: run.is.state });
    let after = spliced(&before, from, to, inner.iter().copied());
    write(tables.connection, &before, &after)?;
    let before = tables.index.stretches(around.0, around.1);
    tables.index.stretch(&before, &spliced(&before, from, to, states));
    Ok(())
}

/// All numbers of `from..=to` in order, those without a run too.
fn pieces<T: Copy + Default>(runs: &[Run<T>], from: u64, to: u64) -> Vec<Run<T>> {
    let mut pieces = Vec::with_capacity(2 * runs.len() + 1);
    let mut at = from;
    for run in runs.iter().filter_map(|run| run.within(from, to)) {
        if at < run.first {
            pieces.push(Run { first: at, last: run.first - 1, is: T::default() });
        }
        pieces.push(run);
        at = run.last + 1;
    }
    if at <= to {
        pieces.push(Run { first: at, last: to, is: T::default() });
    }
    pieces
}

/// The runs with `inner` in place of what they said of `from..=to`.
fn spliced<T: Copy + Default + PartialEq>(
    runs: &[Run<T>],
    from: u64,
    to: u64,
    inner: impl Iterator<Item = Run<T>>,
) -> Vec<Run<T>> {
    let below = runs.iter().filter_map(|run| run.within(0, from - 1));
    let above = runs.iter().filter_map(|run| run.within(to.saturating_add(1), u64::MAX));
    joined(below.chain(inner).chain(above).filter(|run| run.is != T::default()))
}

/// Neighbours that are alike as one.
fn joined<T: PartialEq>(runs: impl Iterator<Item = Run<T>>) -> Vec<Run<T>> {
    let mut all: Vec<Run<T>> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.last + 1 == run.first && last.is == run.is => last.last = run.last,
            _ => all.push(run),
        }
    }
    all
}

/// The runs that `from..=to` touches, whole.
pub(super) fn runs(connection: &Connection, from: u64, to: u64) -> SqlResult<Vec<Run<Stage>>> {
    let select = "SELECT first, last, state, round, sent, covered FROM passage \
                  WHERE first BETWEEN ifnull((SELECT max(first) FROM passage WHERE first <= ?1), ?1) AND ?2 \
                  AND last >= ?1 ORDER BY first";
    connection.prepare_cached(select)?.query_map([from, to], run_of)?.collect()
}

/// The runs of what was covered by then.
pub(super) fn covered_by(connection: &Connection, limit: i64) -> SqlResult<Vec<Run<Stage>>> {
    let select = "SELECT first, last, state, round, sent, covered FROM passage \
                  WHERE state = ?1 AND covered <= ?2 ORDER BY first";
    connection.prepare_cached(select)?.query_map(params![COVERED, limit], run_of)?.collect()
}

fn run_of(row: &SqlRow<'_>) -> SqlResult<Run<Stage>> {
    let is = Stage { state: row.get(2)?, round: row.get(3)?, sent: row.get(4)?, covered: row.get(5)? };
    let (first, last): (u64, u64) = (row.get(0)?, row.get(1)?);
    // Nobody writes such a run.
    if first > last {
        return Err(corrupt("passage", &SqlError::IntegralValueOutOfRange(1, row.get(1)?)));
    }
    Ok(Run { first, last, is })
}

/// How far a row has come.
#[cfg(test)]
pub(super) fn stage(connection: &Connection, seq: u64) -> SqlResult<Stage> {
    Ok(runs(connection, seq, seq)?.first().map_or_else(Stage::default, |run| run.is))
}

/// [`QUEUED`], [`SENT`] or [`COVERED`].
pub(super) fn state(index: &Index, seq: u64) -> i64 {
    index.stretches(seq, seq).first().map_or(QUEUED, |run| run.is)
}

/// Every number in runs of the same state, in order, but only the states that are wanted.
pub(super) fn spans(index: &Index, wanted: impl Fn(i64) -> bool) -> Vec<(u64, u64)> {
    let all = pieces(&index.stretches(1, LAST), 1, LAST);
    let wanted = all.into_iter().filter(|run| wanted(run.is));
    // Neighbours of two states that are both wanted are one.
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for run in wanted {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == run.first => *last = run.last,
            _ => spans.push((run.first, run.last)),
        }
    }
    spans
}

/// The lowest row in one of these states.
pub(super) fn lowest(index: &Index, wanted: impl Fn(i64) -> bool) -> Option<u64> {
    spans(index, wanted).into_iter().find_map(|(first, last)| index.within(first..=last).next())
}

/// How many rows are in one of these states.
pub(super) fn count(index: &Index, wanted: impl Fn(i64) -> bool) -> u64 {
    spans(index, wanted).into_iter().map(|(first, last)| index.count_within(first..=last)).sum()
}

/// Nothing was ever sent.
pub(super) fn clear(tables: &mut Tables<'_>) -> SqlResult<()> {
    tables.index.clear_stretches();
    tables.connection.execute("DELETE FROM passage", []).map(drop)
}

/// What the file says of how far numbers have come, neighbours of the same state as one.
pub(super) fn all_stretches(connection: &Connection) -> SqlResult<Vec<Run<i64>>> {
    let select =
        "SELECT first, last, state, round, sent, covered FROM passage WHERE state > 0 ORDER BY first";
    let runs: Vec<_> = connection.prepare_cached(select)?.query_map([], run_of)?.collect::<SqlResult<_>>()?;
    Ok(joined(runs.iter().map(|run| Run { first: run.first, last: run.last, is: run.is.state })))
}

fn write(connection: &Connection, before: &[Run<Stage>], after: &[Run<Stage>]) -> SqlResult<()> {
    let (gone, new) = difference(before, after);
    let mut delete = connection.prepare_cached("DELETE FROM passage WHERE first = ?1")?;
    for run in gone {
        delete.execute([run.first])?;
    }
    let put = "INSERT INTO passage VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET last = excluded.last, \
               state = excluded.state, round = excluded.round, sent = excluded.sent, covered = excluded.covered";
    let mut put = connection.prepare_cached(put)?;
    for Run { first, last, is } in new {
        put.execute(params![first, last, is.state, is.round, is.sent, is.covered])?;
    }
    Ok(())
}

/// What must be taken out, and what must be written: a run that begins where another began takes its place.
fn difference<T: Copy + Eq + std::hash::Hash>(
    before: &[Run<T>],
    after: &[Run<T>],
) -> (Vec<Run<T>>, Vec<Run<T>>) {
    let known: HashSet<_> = before.iter().collect();
    let begins: HashSet<_> = after.iter().map(|run| run.first).collect();
    let gone = before.iter().filter(|run| !begins.contains(&run.first)).copied().collect();
    (gone, after.iter().filter(|run| !known.contains(run)).copied().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::outbox::tables::SCHEMA;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Whatever is changed in whatever order: each number is what it was last changed to, and runs are as few as can be.
        #[test]
        fn runs_say_of_each_number_what_was_last_said_of_it(
            changes in prop::collection::vec((1..40_u64, 0..20_u64, 0..3_i64, 0..2_u64), 0..40),
        ) {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(SCHEMA).unwrap();
            let mut index = Index::default();
            let mut expected: BTreeMap<u64, Stage> = BTreeMap::new();
            for (from, more, state, round) in changes {
                let stage = Stage { state, round, ..Stage::default() };
                let mut tables = Tables { connection: &connection, index: &mut index };
                change(&mut tables, from, from + more, |_| stage).unwrap();
                (from..=from + more).for_each(|seq| _ = expected.insert(seq, stage));
                let all = runs(&connection, 1, 100).unwrap();
                for seq in 1..100 {
                    let said = all.iter().find(|run| run.first <= seq && seq <= run.last).map(|run| run.is);
                    prop_assert_eq!(said.unwrap_or_default(), expected.get(&seq).copied().unwrap_or_default());
                    prop_assert_eq!(stage_of(&connection, seq), said.unwrap_or_default());
                    prop_assert_eq!(super::state(&index, seq), said.unwrap_or_default().state);
                }
                prop_assert!(all.windows(2).all(|two| two[0].last < two[1].first));
                let joined = |two: &[Run<Stage>]| two[0].last + 1 == two[1].first && two[0].is == two[1].is;
                prop_assert!(!all.windows(2).any(joined) && all.iter().all(|run| run.is != Stage::default()));
                for wanted in [QUEUED, SENT, COVERED] {
                    let spans = spans(&index, |state| state == wanted);
                    for seq in 1..100 {
                        let within = spans.iter().any(|(first, last)| (*first..=*last).contains(&seq));
                        let state = expected.get(&seq).map_or(QUEUED, |stage| stage.state);
                        prop_assert_eq!(within, state == wanted, "{}", seq);
                    }
                }
            }
            prop_assert_eq!(Index::of(&connection).unwrap(), index, "as after a start");
        }
    }

    fn stage_of(connection: &Connection, seq: u64) -> Stage {
        stage(connection, seq).unwrap()
    }
}
