//! Making room: which row goes when a limit is passed, and which row says so. See "Make room" in [`crate::outbox`].

use muster_contract::SeqRanges;

use super::passage::{COVERED, QUEUED, Stage};
use super::rows::{bytes_of, declared, from_text};
use super::{Limits, RANGES_PER_ROW_MAX, REMOVALS_PER_APPEND_MAX, passage};
use crate::db::{Connection, OptionalExtension, SqlResult, params};

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

type Sort = fn(u64) -> Removal;

/// Candidates, each the lowest number of its sort. None of them is covered: those have gone before.
const PASSING: &str = "SELECT seq FROM lookup INDEXED BY lookup_passing \
                       WHERE terminal = 0 AND seq NOT IN (SELECT seq FROM newest) ORDER BY seq LIMIT 1";
// Only the newest of each deployment can stand before the first that is found.
const SUPERSEDED: &str =
    "SELECT seq FROM lookup NOT INDEXED WHERE seq NOT IN (SELECT seq FROM newest) ORDER BY seq LIMIT 1";
const ANY: &str = "SELECT min(seq) FROM lookup";

/// Removes rows until the limits hold, or as many as one append may. `written` is the row just written: it stays, and no
/// relay has seen it. Nor has one seen any row after `frozen`.
pub(super) fn make_room(connection: &Connection, limits: Limits, frozen: u64, written: u64) -> SqlResult<()> {
    for _ in 0..REMOVALS_PER_APPEND_MAX {
        if within(connection, limits)? {
            return Ok(());
        }
        let Some(removal) = choose(connection, written)? else { return Ok(()) };
        let removed = remove(connection, removal, frozen, written)? || drop_lowest(connection, written)?;
        if !removed {
            return Ok(());
        }
    }
    Ok(())
}

fn within(connection: &Connection, limits: Limits) -> SqlResult<bool> {
    connection
        .prepare_cached("SELECT rows <= ?1 AND bytes <= ?2 FROM usage")?
        .query_row(params![limits.rows, limits.bytes], |row| row.get(0))
}

fn choose(connection: &Connection, written: u64) -> SqlResult<Option<Removal>> {
    if let Some(covered) = passage::lowest(connection, |state| state == COVERED)?.filter(|seq| *seq < written)
    {
        return Ok(Some(Removal::Forget(covered)));
    }
    let sorts: [(&str, Sort); 3] =
        [(PASSING, Removal::Fold), (SUPERSEDED, Removal::Drop), (ANY, Removal::Drop)];
    for (select, removal) in sorts {
        let lowest = connection.prepare_cached(select)?.query_row([], |row| row.get(0)).optional()?.flatten();
        if let Some(seq) = lowest.filter(|seq: &u64| *seq < written) {
            return Ok(Some(removal(seq)));
        }
    }
    Ok(None)
}

/// Removes a row and sees to its declaration; false where no row has room to declare it, and so it stays.
fn remove(connection: &Connection, removal: Removal, frozen: u64, written: u64) -> SqlResult<bool> {
    let (seq, same_deployment) = match removal {
        Removal::Forget(seq) => {
            delete(connection, seq)?;
            // It was the lowest that is covered: of those below it none is left.
            passage::change(connection, 1, seq, |run| match run.is.state {
                COVERED => Stage::default(),
                _ => run.is,
            })?;
            return Ok(true);
        }
        Removal::Fold(seq) => (seq, true),
        Removal::Drop(seq) => (seq, false),
    };
    let mut gone = ranges_of(connection, seq)?;
    gone.insert(seq);
    let next = next_after(connection, seq, frozen, same_deployment)?;
    for declarer in next.into_iter().chain([written]) {
        if declare(connection, declarer, &gone)? {
            delete(connection, seq)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the lowest row of all where single numbers no longer fit anywhere. Every number below it is the hub's, or
/// declared by a row that is here, so one range says it all; false where not even that fits.
fn drop_lowest(connection: &Connection, written: u64) -> SqlResult<bool> {
    let lowest: Option<u64> = connection.prepare_cached(ANY)?.query_row([], |row| row.get(0))?;
    let Some(lowest) = lowest.filter(|seq| *seq < written) else { return Ok(false) };
    let declared = declare(connection, written, &SeqRanges::span(1, lowest))?;
    if declared {
        delete(connection, lowest)?;
    }
    Ok(declared)
}

/// The next newer row that no relay has seen, of the same deployment or of any.
fn next_after(
    connection: &Connection,
    seq: u64,
    frozen: u64,
    same_deployment: bool,
) -> SqlResult<Option<u64>> {
    let select = if same_deployment {
        "SELECT seq FROM lookup INDEXED BY lookup_of WHERE seq > ?2 \
         AND deployment IS (SELECT deployment FROM lookup WHERE seq = ?1) ORDER BY seq"
    } else {
        "SELECT seq FROM lookup WHERE seq > ?1 AND seq > ?2 ORDER BY seq"
    };
    let mut select = connection.prepare_cached(select)?;
    let mut found = select.query(params![seq, seq.max(frozen)])?;
    while let Some(row) = found.next()? {
        let later: u64 = row.get(0)?;
        if passage::stage(connection, later)?.state == QUEUED {
            return Ok(Some(later));
        }
    }
    Ok(None)
}

/// Adds numbers to what a row declares; false where it has no room for them.
fn declare(connection: &Connection, declarer: u64, gone: &SeqRanges) -> SqlResult<bool> {
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
    Ok(true)
}

fn ranges_of(connection: &Connection, seq: u64) -> SqlResult<SeqRanges> {
    let text: Option<String> = connection
        .prepare_cached("SELECT coalesced FROM outbox WHERE seq = ?1")?
        .query_row([seq], |row| row.get(0))?;
    text.as_deref().map_or_else(|| Ok(SeqRanges::new()), from_text)
}

fn delete(connection: &Connection, seq: u64) -> SqlResult<()> {
    connection.prepare_cached("DELETE FROM outbox WHERE seq = ?1")?.execute([seq]).map(drop)
}
