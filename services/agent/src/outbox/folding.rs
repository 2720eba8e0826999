//! Making room: which row goes when a limit is passed, and which row says so. See "Make room" in [`crate::outbox`].

use muster_contract::SeqRanges;

use super::index::{Index, Tables};
use super::passage::{COVERED, QUEUED, Stage};
use super::rows::{bytes_of, declared, from_text};
use super::{Limits, RANGES_PER_ROW_MAX, REMOVALS_PER_APPEND_MAX, passage, rows};
use crate::db::{Connection, SqlResult, params};

/// How a row goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// The hub has it: nothing needs saying.
    Forget(u64),
    /// A later report of its deployment tells more: that one declares it.
    Fold(u64),
    /// There is no better choice: any later row declares it.
    Drop(u64),
}

/// Removes rows until the limits hold, or as many as one append may. `written` is the row just written: it stays, and no
/// relay has seen it. Nor has one seen any row after `frozen`.
pub(super) fn make_room(tables: &mut Tables<'_>, limits: Limits, frozen: u64, written: u64) -> SqlResult<()> {
    for _ in 0..REMOVALS_PER_APPEND_MAX {
        if within(tables.index, limits) {
            return Ok(());
        }
        let Some(removal) = choose(tables.index, written) else { return Ok(()) };
        let removed = remove(tables, removal, frozen, written)? || drop_lowest(tables, written)?;
        if !removed {
            return Ok(());
        }
    }
    Ok(())
}

fn within(index: &Index, limits: Limits) -> bool {
    index.count() <= limits.rows && index.bytes() <= limits.bytes
}

/// The row to go next, the lowest of the first sort that has any. None but the first is covered: those have gone before.
fn choose(index: &Index, written: u64) -> Option<Removal> {
    let covered = passage::lowest(index, |state| state == COVERED);
    [
        covered.map(Removal::Forget),
        index.lowest_passing().map(Removal::Fold),
        index.lowest_superseded().map(Removal::Drop),
        index.lowest().map(Removal::Drop),
    ]
    .into_iter()
    .flatten()
    .find(|removal| removal.seq() < written)
}

impl Removal {
    const fn seq(self) -> u64 {
        let (Self::Forget(seq) | Self::Fold(seq) | Self::Drop(seq)) = self;
        seq
    }
}

/// Removes a row and sees to its declaration; false where no row has room to declare it, and so it stays.
fn remove(tables: &mut Tables<'_>, removal: Removal, frozen: u64, written: u64) -> SqlResult<bool> {
    let (seq, same_deployment) = match removal {
        Removal::Forget(seq) => {
            rows::delete(tables, seq, seq)?;
            // It was the lowest that is covered: of those below it none is left.
            passage::change(tables, 1, seq, |run| match run.is.state {
                COVERED => Stage::default(),
                _ => run.is,
            })?;
            return Ok(true);
        }
        Removal::Fold(seq) => (seq, true),
        Removal::Drop(seq) => (seq, false),
    };
    let mut gone = ranges_of(tables.connection, seq)?;
    gone.insert(seq);
    let next = next_after(tables.index, seq, frozen, same_deployment);
    for declarer in next.into_iter().chain([written]) {
        if declare(tables, declarer, &gone)? {
            rows::delete(tables, seq, seq)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the lowest row of all where single numbers no longer fit anywhere. Every number below it is the hub's, or
/// declared by a row that is here, so one range says it all; false where not even that fits.
fn drop_lowest(tables: &mut Tables<'_>, written: u64) -> SqlResult<bool> {
    let Some(lowest) = tables.index.lowest().filter(|seq| *seq < written) else { return Ok(false) };
    let declared = declare(tables, written, &SeqRanges::span(1, lowest))?;
    if declared {
        rows::delete(tables, lowest, lowest)?;
    }
    Ok(declared)
}

/// The next newer row that no relay has seen, of the same deployment or of any.
fn next_after(index: &Index, seq: u64, frozen: u64, same_deployment: bool) -> Option<u64> {
    let unseen = seq.max(frozen);
    let is_queued = |later: &u64| passage::state(index, *later) == QUEUED;
    if same_deployment {
        index.after_in_line(seq, unseen).find(is_queued)
    } else {
        index.after(unseen).find(is_queued)
    }
}

/// Adds numbers to what a row declares; false where it has no room for them.
fn declare(tables: &mut Tables<'_>, declarer: u64, gone: &SeqRanges) -> SqlResult<bool> {
    let connection = tables.connection;
    let mut ranges = ranges_of(connection, declarer)?;
    ranges.extend(gone);
    if ranges.len() > RANGES_PER_ROW_MAX {
        return Ok(false);
    }
    let body: String = connection
        .prepare_cached("SELECT body FROM outbox WHERE seq = ?1")?
        .query_row([declarer], |row| row.get(0))?;
    let text = declared(&ranges)?;
    let bytes = bytes_of(&body, text.as_deref());
    connection
        .prepare_cached("UPDATE outbox SET coalesced = ?2, bytes = ?3 WHERE seq = ?1")?
        .execute(params![declarer, text, bytes])?;
    tables.index.resize(declarer, bytes);
    Ok(true)
}

fn ranges_of(connection: &Connection, seq: u64) -> SqlResult<SeqRanges> {
    let text: Option<String> = connection
        .prepare_cached("SELECT coalesced FROM outbox WHERE seq = ?1")?
        .query_row([seq], |row| row.get(0))?;
    text.as_deref().map_or_else(|| Ok(SeqRanges::new()), from_text)
}
