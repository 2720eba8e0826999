//! Evicts rows when a limit is exceeded, and decides which row declares an evicted number ("Evict" in [`crate::outbox`]).

use muster_contract::SeqRanges;
use muster_contract::limits::{OUTBOX_BYTES_DEFAULT, OUTBOX_ROWS_DEFAULT};

use super::delivery_table::{COVERED, DeliveryState, QUEUED};
use super::index::{Index, Tables};
use super::rows::{RANGES_PER_ROW_MAX, bytes_of, declared, from_text};
use super::{delivery, rows};
use crate::db::{Connection, SqlResult, params};

/// Rows evicted in one transaction at most; the following transactions evict the rest.
pub(crate) const EVICTIONS_PER_COMMIT_MAX: usize = 1_024;

/// The limits of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rows: OUTBOX_ROWS_DEFAULT as u64, bytes: OUTBOX_BYTES_DEFAULT as u64 }
    }
}

/// The eviction of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eviction {
    /// The hub holds it: nothing to declare.
    Covered(u64),
    /// A later report of its deployment supersedes it and declares it.
    Fold(u64),
    /// There is no better choice: any later row declares it.
    Drop(u64),
}

/// Evicts rows until the limits hold, or as many as one commit may. `written` is the row just written: it stays, and
/// was never read for sending, like every row after `max_exposed`.
pub(super) fn evict(
    tables: &mut Tables<'_>,
    limits: Limits,
    max_exposed: u64,
    written: u64,
) -> SqlResult<()> {
    for _ in 0..EVICTIONS_PER_COMMIT_MAX {
        if within(tables.index, limits) {
            return Ok(());
        }
        let Some(removal) = choose(tables.index, written) else { return Ok(()) };
        let removed = remove(tables, removal, max_exposed, written)? || drop_lowest(tables, written)?;
        if !removed {
            return Ok(());
        }
    }
    Ok(())
}

fn within(index: &Index, limits: Limits) -> bool {
    index.count() <= limits.rows && index.bytes() <= limits.bytes
}

/// The next row to evict: the lowest of the first kind that has any.
fn choose(index: &Index, written: u64) -> Option<Eviction> {
    let covered = delivery::lowest(index, |state| state == COVERED);
    [
        covered.map(Eviction::Covered),
        index.lowest_foldable().map(Eviction::Fold),
        index.lowest_superseded().map(Eviction::Drop),
        index.lowest().map(Eviction::Drop),
    ]
    .into_iter()
    .flatten()
    .find(|removal| removal.seq() < written)
}

impl Eviction {
    const fn seq(self) -> u64 {
        let (Self::Covered(seq) | Self::Fold(seq) | Self::Drop(seq)) = self;
        seq
    }
}

/// Evicts a row and declares its number; false if no row has room for the declaration, so the row stays.
fn remove(tables: &mut Tables<'_>, removal: Eviction, max_exposed: u64, written: u64) -> SqlResult<bool> {
    let (seq, same_deployment) = match removal {
        Eviction::Covered(seq) => {
            rows::delete(tables, seq, seq)?;
            // It was the lowest covered row: no covered row is left below it.
            delivery::change(tables, 1, seq, |run| match run.value.state {
                COVERED => DeliveryState::default(),
                _ => run.value,
            })?;
            return Ok(true);
        }
        Eviction::Fold(seq) => (seq, true),
        Eviction::Drop(seq) => (seq, false),
    };
    let mut gone = ranges_of(tables.connection, seq)?;
    gone.insert(seq);
    let next = next_after(tables.index, seq, max_exposed, same_deployment);
    for declarer in next.into_iter().chain([written]) {
        if declare(tables, declarer, &gone)? {
            rows::delete(tables, seq, seq)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Evicts the lowest row if single numbers no longer fit anywhere. Every number below it is held by the hub or
/// declared by a stored row, so one range declares all; false if that does not fit either.
fn drop_lowest(tables: &mut Tables<'_>, written: u64) -> SqlResult<bool> {
    let Some(lowest) = tables.index.lowest().filter(|seq| *seq < written) else { return Ok(false) };
    let declared = declare(tables, written, &SeqRanges::span(1, lowest))?;
    if declared {
        rows::delete(tables, lowest, lowest)?;
    }
    Ok(declared)
}

/// The next newer row that was never read for sending, of the same deployment or of any.
fn next_after(index: &Index, seq: u64, max_exposed: u64, same_deployment: bool) -> Option<u64> {
    let unseen = seq.max(max_exposed);
    let is_queued = |later: &u64| delivery::state(index, *later) == QUEUED;
    if same_deployment {
        index.after_of_deployment(seq, unseen).find(is_queued)
    } else {
        index.after(unseen).find(is_queued)
    }
}

/// Adds numbers to the declaration of a row; false if it has no room for them.
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
