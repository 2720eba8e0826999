//! What the hub says it has: covering rows, queueing them again, declaring what is gone, beginning a new epoch. See
//! "Trim" and "Recover" in [`crate::outbox`].

use std::time::Duration;

use muster_contract::limits::{COVERED_AGE_KEPT, COVERED_ROWS_KEPT};
use muster_contract::receipt::Receipt;
use muster_contract::{Epoch, SeqRanges, Timestamp};

use super::index::{Index, Tables};
use super::passage::{COVERED, QUEUED, SENT, Stage};
use super::rows::{from_text, message_id};
use super::{
    Body, DECLARATION_INTERVAL, RANGES_PER_ROW_MAX, RENEWAL_INTERVAL, RESEND_AGE, Received, SILENCE_AGE,
    memory, passage, rows,
};
use crate::db::{Connection, SqlResult, params};
use crate::store;

/// Doublings of [`SILENCE_AGE`] at most: a week and a bit.
const SILENCE_DOUBLINGS_MAX: u64 = 10;

/// Takes a receipt.
pub(super) fn receive(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<Received> {
    let Some(epoch) = memory::epoch(tables.connection)? else {
        memory::set_receipt(tables.connection, receipt)?;
        return Ok(Received::OtherEpoch);
    };
    let ahead = receipt.epoch == epoch && receipt.through > tables.index.head();
    if receipt.epoch > epoch || ahead {
        return overtaken(tables, receipt, now);
    }
    if receipt.epoch < epoch {
        return Ok(Received::OtherEpoch);
    }
    memory::set_receipt(tables.connection, receipt)?;
    cover(tables, receipt, now)?;
    let requeued = queue_missing(tables, receipt, now)?;
    declare_gone(tables, receipt, now)?;
    forget(tables, now)?;
    Ok(Received::Taken { requeued })
}

/// Queues again what was sent and never mentioned, and forgets what was covered long enough.
pub(super) fn tidy(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<u64> {
    let requeued = queue_unmentioned(tables, now)?;
    forget(tables, now)?;
    Ok(requeued)
}

fn cover(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<()> {
    let Some(lowest) = passage::lowest(tables.index, |state| state != COVERED) else { return Ok(()) };
    let covered = Some(now.as_millisecond());
    for (from, to) in receipt.missing.missing(receipt.through).iter().filter(|(_, to)| *to >= lowest) {
        passage::change(tables, from.max(lowest), to, |run| match run.is.state {
            COVERED => run.is,
            _ => Stage { state: COVERED, covered, ..run.is },
        })?;
    }
    Ok(())
}

/// Rows that the hub misses although they were sent a while ago.
fn queue_missing(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<u64> {
    let (now, sent_by) = (now.as_millisecond(), before(now, RESEND_AGE));
    let is_due =
        |stage: Stage| stage.state != QUEUED && stage.sent.is_none_or(|sent| sent <= sent_by || sent > now);
    receipt.missing.iter().map(|(from, to)| queue(tables, from, to, is_due)).sum()
}

/// A clock that was set back says nothing about the age of a row: it is sent again rather than never.
fn queue_unmentioned(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<u64> {
    let now = now.as_millisecond();
    let silence = i64::try_from(SILENCE_AGE.as_millis()).unwrap_or(i64::MAX);
    let is_due = |stage: Stage| {
        let patience = silence << stage.round.min(SILENCE_DOUBLINGS_MAX);
        stage.state == SENT && stage.sent.is_some_and(|sent| sent <= now - patience || sent > now)
    };
    let sent = passage::spans(tables.index, |state| state == SENT);
    sent.into_iter().map(|(from, to)| queue(tables, from, to, is_due)).sum()
}

/// Queues again what is due of `from..=to`, and says how many rows that are.
fn queue(tables: &mut Tables<'_>, from: u64, to: u64, is_due: impl Fn(Stage) -> bool) -> SqlResult<u64> {
    let mut queued = Vec::new();
    passage::change(tables, from, to, |run| {
        if !is_due(run.is) {
            return run.is;
        }
        queued.push((run.first, run.last));
        Stage { state: QUEUED, round: run.is.round + 1, ..run.is }
    })?;
    Ok(queued.into_iter().map(|(first, last)| tables.index.count_within(first..=last)).sum())
}

/// Declares the numbers that the hub misses and that are neither here nor declared by a row that is here: without it
/// they would be missing for ever. Carried by a repetition of the capabilities, the smallest of all reports.
fn declare_gone(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<()> {
    let Some(lowest) = receipt.missing.min() else { return Ok(()) };
    // What waits here is on its way; only what is left over when nothing waits is gone.
    if passage::lowest(tables.index, |state| state == QUEUED).is_some() {
        return Ok(());
    }
    let held = held_from(tables.connection, lowest)?;
    let mut gone = SeqRanges::new();
    for (from, to) in held.missing(receipt.through).iter() {
        intersect(&receipt.missing, from, to, &mut gone);
    }
    let interval = DECLARATION_INTERVAL.as_millis() as i64;
    let Some(body) = memory::capabilities(tables.connection)? else { return Ok(()) };
    if gone.is_empty() || !memory::once_in(tables.connection, "declared", interval, now)? {
        return Ok(());
    }
    tracing::warn!(
        report.seqs = %gone,
        "the hub misses reports that are kept here no longer: declaring them as gone"
    );
    let body = super::CapabilitiesBody { observed_at: now, ..body };
    rows::insert(tables, &Body::Capabilities(body), &gone.truncated(RANGES_PER_ROW_MAX))?;
    // One of them may have been the newest of its deployment: without it the hub would take an older one for the truth.
    report_unmentioned(tables, now)
}

/// Reports every standing whose newest report is kept here no longer.
fn report_unmentioned(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<()> {
    for standing in store::all_standings(tables.connection)? {
        if !tables.index.mentions(standing.id().as_str()) {
            rows::insert(tables, &Body::Status(standing.body(now)), &SeqRanges::new())?;
        }
    }
    Ok(())
}

/// The numbers from `lowest` on that a row here has or declares.
fn held_from(connection: &Connection, lowest: u64) -> SqlResult<SeqRanges> {
    let mut held = SeqRanges::new();
    let mut statement = connection.prepare_cached("SELECT seq, coalesced FROM outbox WHERE seq >= ?1")?;
    let mut found = statement.query([lowest])?;
    while let Some(row) = found.next()? {
        held.insert(row.get(0)?);
        if let Some(text) = row.get::<_, Option<String>>(1)? {
            held.extend(&from_text(&text)?);
        }
    }
    Ok(held)
}

fn intersect(ranges: &SeqRanges, from: u64, to: u64, into: &mut SeqRanges) {
    for (low, high) in ranges.iter() {
        into.insert_span(low.max(from), high.min(to));
    }
}

/// Forgets covered rows that are too old or too many.
fn forget(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<()> {
    for run in passage::covered_by(tables.connection, before(now, COVERED_AGE_KEPT))? {
        forget_span(tables, run.first, run.last)?;
    }
    let covered = passage::count(tables.index, |state| state == COVERED);
    let mut too_many = covered.saturating_sub(COVERED_ROWS_KEPT as u64);
    for (first, last) in passage::spans(tables.index, |state| state == COVERED) {
        if too_many == 0 {
            break;
        }
        let nth =
            usize::try_from(too_many - 1).ok().and_then(|nth| tables.index.within(first..=last).nth(nth));
        let last = nth.unwrap_or(last);
        too_many -= tables.index.count_within(first..=last);
        forget_span(tables, first, last)?;
    }
    memory::keep_head(tables)
}

/// Of these numbers nothing is left to say.
fn forget_span(tables: &mut Tables<'_>, first: u64, last: u64) -> SqlResult<()> {
    rows::delete(tables, first, last)?;
    passage::change(tables, first, last, |_| Stage::default())
}

/// The hub knows more than this database: it is an old copy, or another device uses the same name.
fn overtaken(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<Received> {
    if !memory::once_in(tables.connection, "renewed", RENEWAL_INTERVAL.as_millis() as i64, now)? {
        let last: Option<i64> = memory::get(tables.connection, "renewed")?;
        let passed = now.as_millisecond().saturating_sub(last.unwrap_or_default());
        let passed = Duration::from_millis(u64::try_from(passed).unwrap_or_default());
        return Ok(Received::Chased { again_in: RENEWAL_INTERVAL.saturating_sub(passed) });
    }
    memory::set_receipt(tables.connection, receipt)?;
    renew(tables, now).map(Received::Renewed)
}

/// Begins a new epoch: capabilities, then what the hub does not have in its old order, then the standings that this
/// does not mention.
fn renew(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<Epoch> {
    let epoch = memory::begin_epoch(tables.connection, now)?;
    for (first, last) in passage::spans(tables.index, |state| state == COVERED) {
        rows::delete(tables, first, last)?;
    }
    for seq in tables.index.capabilities() {
        rows::delete(tables, seq, seq)?;
    }
    renumber(tables, now)?;
    if let Some(body) = memory::capabilities(tables.connection)? {
        let body = super::CapabilitiesBody { observed_at: now, ..body };
        // Number 1 was left free for it; writing it must not move the head.
        let head = tables.index.head();
        memory::restart(tables, 0)?;
        rows::insert(tables, &Body::Capabilities(body), &SeqRanges::new())?;
        memory::restart(tables, head.max(1))?;
    }
    report_unmentioned(tables, now)?;
    Ok(epoch)
}

/// Numbers the rows from 2 on (from 1, where there are no capabilities to come first), as if never sent. What they
/// declared has no meaning in the new epoch.
fn renumber(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<()> {
    let first = 1 + u64::from(memory::capabilities(tables.connection)?.is_some());
    let connection = tables.connection;
    let seqs: Vec<u64> = tables.index.after(0).collect();
    // Out of the way first: no old number may meet a new one.
    connection.execute("UPDATE outbox SET seq = -seq", [])?;
    passage::clear(tables)?;
    let update = "UPDATE outbox SET seq = ?2, message_id = ?3, \
                  bytes = bytes - coalesce(length(coalesced), 0), coalesced = NULL WHERE seq = -?1";
    let mut statement = connection.prepare(update)?;
    for (old, new) in seqs.iter().zip(first..) {
        statement.execute(params![old, new, message_id(now)])?;
    }
    // Not both at once.
    *tables.index = Index::default();
    *tables.index = Index::of(connection)?;
    memory::restart(tables, first - 1 + seqs.len() as u64)
}

fn before(now: Timestamp, age: Duration) -> i64 {
    now.as_millisecond().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}
