//! Queries and changes the delivery states of rows: in the table, by [`delivery_table`](super::delivery_table), and
//! in the index.

use super::delivery_table::{DeliveryState, LAST, QUEUED, SeqRun, pieces, replace_runs, runs, spliced};
use super::index::{Index, Tables};
#[cfg(test)]
use crate::db::Connection;
use crate::db::SqlResult;

/// Changes the delivery state of the numbers `from..=to`; `next` is called once per run of them.
pub(super) fn change(
    tables: &mut Tables<'_>,
    from: u64,
    to: u64,
    mut next: impl FnMut(&SeqRun<DeliveryState>) -> DeliveryState,
) -> SqlResult<()> {
    let Some((from, to)) = Some((from.max(1), to.min(LAST))).filter(|(from, to)| from <= to) else {
        return Ok(());
    };
    // Includes the neighbours: adjacent runs with the same value are merged.
    let around = (from - 1, (to + 1).min(LAST));
    let before = runs(tables.connection, around.0, around.1)?;
    let inner: Vec<_> =
        pieces(&before, from, to).into_iter().map(|run| SeqRun { value: next(&run), ..run }).collect();
    let states = inner.iter().map(|run| SeqRun { first: run.first, last: run.last, value: run.value.state });
    let after = spliced(&before, from, to, inner.iter().copied());
    replace_runs(tables.connection, &before, &after)?;
    let before = tables.index.states(around.0, around.1);
    tables.index.replace_states(&before, &spliced(&before, from, to, states));
    Ok(())
}

/// The delivery state of a row.
#[cfg(test)]
pub(super) fn of_row(connection: &Connection, seq: u64) -> SqlResult<DeliveryState> {
    Ok(runs(connection, seq, seq)?.first().map_or_else(DeliveryState::default, |run| run.value))
}

/// The delivery state of a report, one of those in [`delivery_table`](super::delivery_table).
pub(super) fn state(index: &Index, seq: u64) -> i64 {
    index.states(seq, seq).first().map_or(QUEUED, |run| run.value)
}

/// The runs of numbers in one of the wanted states, in order.
pub(super) fn spans(index: &Index, wanted: impl Fn(i64) -> bool) -> Vec<(u64, u64)> {
    let all = pieces(&index.states(1, LAST), 1, LAST);
    let wanted = all.into_iter().filter(|run| wanted(run.value));
    // Adjacent runs in two wanted states are merged.
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for run in wanted {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == run.first => *last = run.last,
            _ => spans.push((run.first, run.last)),
        }
    }
    spans
}

/// The lowest row in one of the wanted states.
pub(super) fn lowest(index: &Index, wanted: impl Fn(i64) -> bool) -> Option<u64> {
    spans(index, wanted).into_iter().find_map(|(first, last)| index.within(first..=last).next())
}

/// The number of rows in one of the wanted states.
pub(super) fn count(index: &Index, wanted: impl Fn(i64) -> bool) -> u64 {
    spans(index, wanted).into_iter().map(|(first, last)| index.count_within(first..=last)).sum()
}

/// Deletes all delivery states: nothing was ever sent.
pub(super) fn clear(tables: &mut Tables<'_>) -> SqlResult<()> {
    tables.index.clear_states();
    tables.connection.execute("DELETE FROM passage", []).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::outbox::delivery_table::{COVERED, SENT};
    use crate::outbox::tables::SCHEMA;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// After any changes each number has the last value it was given, and there are as few runs as possible.
        #[test]
        fn runs_hold_the_last_value_of_each_number(
            changes in prop::collection::vec((1..40_u64, 0..20_u64, 0..3_i64, 0..2_u64), 0..40),
        ) {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(SCHEMA).unwrap();
            let mut index = Index::default();
            let mut expected: BTreeMap<u64, DeliveryState> = BTreeMap::new();
            for (from, more, state, round) in changes {
                let delivery_state = DeliveryState { state, round, ..DeliveryState::default() };
                let mut tables = Tables { connection: &connection, index: &mut index };
                change(&mut tables, from, from + more, |_| delivery_state).unwrap();
                (from..=from + more).for_each(|seq| _ = expected.insert(seq, delivery_state));
                let all = runs(&connection, 1, 100).unwrap();
                for seq in 1..100 {
                    let said = all.iter().find(|run| run.first <= seq && seq <= run.last).map(|run| run.value);
                    prop_assert_eq!(said.unwrap_or_default(), expected.get(&seq).copied().unwrap_or_default());
                    prop_assert_eq!(of_row(&connection, seq).unwrap(), said.unwrap_or_default());
                    prop_assert_eq!(super::state(&index, seq), said.unwrap_or_default().state);
                }
                prop_assert!(all.windows(2).all(|two| two[0].last < two[1].first));
                let joined = |two: &[SeqRun<DeliveryState>]| two[0].last + 1 == two[1].first && two[0].value == two[1].value;
                prop_assert!(!all.windows(2).any(joined) && all.iter().all(|run| run.value != DeliveryState::default()));
                for wanted in [QUEUED, SENT, COVERED] {
                    let spans = spans(&index, |state| state == wanted);
                    for seq in 1..100 {
                        let within = spans.iter().any(|(first, last)| (*first..=*last).contains(&seq));
                        let state = expected.get(&seq).map_or(QUEUED, |delivery_state| delivery_state.state);
                        prop_assert_eq!(within, state == wanted, "{}", seq);
                    }
                }
            }
            prop_assert_eq!(Index::of(&connection).unwrap(), index, "after a restart");
        }
    }
}
