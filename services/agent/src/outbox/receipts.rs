//! Applies receipts: covers rows, requeues them, declares lost numbers, and begins a new epoch ("Receipts" and
//! "Recovery" in [`crate::outbox`]).

use std::time::Duration;

use muster_contract::headers::{ZSTD, ZSTD_REPORTS_1};
use muster_contract::limits::{COVERED_AGE_KEPT, COVERED_ROWS_KEPT};
use muster_contract::receipt::Receipt;
use muster_contract::{Epoch, SeqRanges, Timestamp};

use super::delivery_table::{COVERED, DeliveryState, QUEUED, SENT, covered_by};
use super::index::{Index, Tables};
use super::rows::{RANGES_PER_ROW_MAX, from_text, message_id};
use super::{delivery, rows, values};
use crate::db::{Connection, SqlResult, params};
use crate::report::{Body, CapabilitiesBody};
use crate::store;

/// Age from which a sent row that a receipt misses is sent again: until then it may still be under way.
pub(crate) const RESEND_AGE: Duration = Duration::from_secs(30);
/// Age from which a sent row that no receipt ever mentions is sent again; doubles with each repetition.
pub const UNMENTIONED_AGE: Duration = Duration::from_secs(10 * 60);
/// Least time between two epochs that this device begins by itself. Two devices with one name begin epochs in turn at
/// this pace; after one of them has stopped, the hub accepts the other within this time.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(45);
/// Least time between two rows that only declare lost numbers.
pub(crate) const DECLARATION_INTERVAL: Duration = Duration::from_secs(60);
/// Doublings of [`UNMENTIONED_AGE`] at most: about a week.
const UNMENTIONED_DOUBLINGS_MAX: u64 = 10;

/// The outcome of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptOutcome {
    /// It was applied; `requeued` rows are to be sent again.
    Applied {
        /// Requeued rows.
        requeued: u64,
    },
    /// It is of an older epoch, or none is fixed yet.
    OtherEpoch,
    /// The hub knows more than this database: a new epoch has begun, and every waiting report has a new number.
    Renewed(Epoch),
    /// The hub knows more than this database, again: most likely two devices use one name. Nothing was changed.
    DuplicateIdentity {
        /// Time until the same receipt leads to a new epoch.
        retry_in: Duration,
    },
}

/// Applies a receipt. No row after `max_exposed` was read for sending, so a receipt that covers one is about another
/// report.
pub(super) fn receive(
    tables: &mut Tables<'_>,
    receipt: &Receipt,
    max_exposed: u64,
    now: Timestamp,
) -> SqlResult<ReceiptOutcome> {
    let no_longer_reads_batches = values::set_hub_reads_batches(tables.connection, receipt.reads(ZSTD))?;
    values::set_hub_has_dictionary(tables.connection, receipt.reads(ZSTD_REPORTS_1))?;
    values::set_hub_compares(tables.connection, receipt.generation.is_some())?;
    let Some(epoch) = values::epoch(tables.connection)? else {
        values::set_receipt(tables, receipt)?;
        return Ok(ReceiptOutcome::OtherEpoch);
    };
    let is_unsent = || receipt.covered().max().is_some_and(|highest| highest > max_exposed);
    let ahead = receipt.epoch == epoch && (receipt.through > tables.index.head() || is_unsent());
    if receipt.epoch > epoch || ahead {
        return handle_newer_receipt(tables, receipt, now);
    }
    if receipt.epoch < epoch {
        return Ok(ReceiptOutcome::OtherEpoch);
    }
    let mut refused_before = SeqRanges::new();
    tables.index.refused(Some(epoch)).iter().for_each(|refused| _ = refused_before.extend(&refused.ranges));
    values::set_receipt(tables, receipt)?;
    cover(tables, receipt, now)?;
    let mut requeued = requeue_missing(tables, receipt, &refused_before, now)?;
    if no_longer_reads_batches {
        requeued += requeue_batched(tables, receipt)?;
    }
    declare_lost(tables, receipt, now)?;
    delete_expired(tables, now)?;
    Ok(ReceiptOutcome::Applied { requeued })
}

/// Requeues rows that were sent and never mentioned, and deletes expired covered rows.
pub(super) fn maintain(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<u64> {
    let requeued = requeue_unmentioned(tables, now)?;
    delete_expired(tables, now)?;
    Ok(requeued)
}

fn cover(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<()> {
    let Some(lowest) = delivery::lowest(tables.index, |state| state != COVERED) else { return Ok(()) };
    let covered = Some(now.as_millisecond());
    for (from, to) in receipt.covered().iter().filter(|(_, to)| *to >= lowest) {
        delivery::change(tables, from.max(lowest), to, |run| match run.value.state {
            COVERED => run.value,
            _ => DeliveryState { state: COVERED, covered, ..run.value },
        })?;
    }
    Ok(())
}

/// Requeues rows that the hub misses although they were sent a while ago. Rows that the receipt refuses wait until a
/// receipt misses them and no longer refuses them; meanwhile they are sent as rarely as rows that no receipt
/// mentions. Rows that the receipt before refused had arrived, so they are not under way and are sent at once.
fn requeue_missing(
    tables: &mut Tables<'_>,
    receipt: &Receipt,
    refused_before: &SeqRanges,
    now: Timestamp,
) -> SqlResult<u64> {
    let (now, sent_by) = (now.as_millisecond(), before(now, RESEND_AGE));
    let is_due = |current: DeliveryState| {
        current.state != QUEUED && current.sent.is_none_or(|sent| sent <= sent_by || sent > now)
    };
    let mut missing = receipt.missing.clone();
    receipt.all_refused().iter().for_each(|(from, to)| _ = missing.remove_span(from, to));
    let mut requested = SeqRanges::new();
    missing.iter().for_each(|(from, to)| intersect(refused_before, from, to, &mut requested));
    let is_unqueued = |current: DeliveryState| current.state != QUEUED;
    let mut requeued = 0;
    for (from, to) in requested.iter() {
        requeued += requeue(tables, from, to, is_unqueued)?;
    }
    for (from, to) in missing.iter() {
        requeued += requeue(tables, from, to, is_due)?;
    }
    Ok(requeued)
}

/// Requeues sent rows that the receipt neither covers nor refuses: they may have been sent in a batch that the hub did not read.
fn requeue_batched(tables: &mut Tables<'_>, receipt: &Receipt) -> SqlResult<u64> {
    let mut sent = SeqRanges::new();
    for (from, to) in delivery::spans(tables.index, |state| state == SENT) {
        sent.insert_span(from, to);
    }
    receipt.all_refused().iter().for_each(|(from, to)| _ = sent.remove_span(from, to));
    let is_first_time = |current: DeliveryState| current.state == SENT && current.round == 0;
    sent.iter().map(|(from, to)| requeue(tables, from, to, is_first_time)).sum()
}

/// A clock that was set back does not tell the age of a row: it is sent again rather than never.
fn requeue_unmentioned(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<u64> {
    let now = now.as_millisecond();
    let unmentioned = i64::try_from(UNMENTIONED_AGE.as_millis()).unwrap_or(i64::MAX);
    let is_due = |current: DeliveryState| {
        let age = unmentioned << current.round.min(UNMENTIONED_DOUBLINGS_MAX);
        current.state == SENT && current.sent.is_some_and(|sent| sent <= now - age || sent > now)
    };
    let sent = delivery::spans(tables.index, |state| state == SENT);
    sent.into_iter().map(|(from, to)| requeue(tables, from, to, is_due)).sum()
}

/// Requeues the rows of `from..=to` that are due, and returns their number.
fn requeue(
    tables: &mut Tables<'_>,
    from: u64,
    to: u64,
    is_due: impl Fn(DeliveryState) -> bool,
) -> SqlResult<u64> {
    let mut queued = Vec::new();
    delivery::change(tables, from, to, |run| {
        if !is_due(run.value) {
            return run.value;
        }
        queued.push((run.first, run.last));
        DeliveryState { state: QUEUED, round: run.value.round + 1, ..run.value }
    })?;
    Ok(queued.into_iter().map(|(first, last)| tables.index.count_within(first..=last)).sum())
}

/// Declares the numbers that the hub misses and that no stored row has or declares: otherwise they would be missing
/// for ever. The declaration is sent with the capabilities again, the smallest of all reports.
fn declare_lost(tables: &mut Tables<'_>, receipt: &Receipt, now: Timestamp) -> SqlResult<()> {
    let Some(lowest) = receipt.missing.min() else { return Ok(()) };
    // Queued rows will be sent; a number is lost if the hub misses it although nothing is queued.
    if delivery::lowest(tables.index, |state| state == QUEUED).is_some() {
        return Ok(());
    }
    let held = known_from(tables.connection, lowest)?;
    let mut gone = SeqRanges::new();
    for (from, to) in held.missing(receipt.through).iter() {
        intersect(&receipt.missing, from, to, &mut gone);
    }
    let interval = DECLARATION_INTERVAL.as_millis() as i64;
    let Some(body) = values::capabilities(tables.connection)? else { return Ok(()) };
    if gone.is_empty() || !values::claim_interval(tables.connection, "declared", interval, now)? {
        return Ok(());
    }
    tracing::warn!(
        report.seqs = %gone,
        "the hub misses reports that are no longer stored here: declaring them as dropped"
    );
    let body = CapabilitiesBody { observed_at: now, ..body };
    rows::insert(tables, &Body::Capabilities(body), &gone.truncated(RANGES_PER_ROW_MAX))?;
    // A lost report may have been the newest of its deployment: otherwise the hub would take an older one for the newest.
    report_unmentioned(tables, now)
}

/// Reports every record whose newest report is no longer stored.
fn report_unmentioned(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<()> {
    for record in store::all_records(tables.connection)? {
        if !tables.index.has_newest(record.id().as_str()) {
            rows::insert(tables, &Body::Status(record.body(now)), &SeqRanges::new())?;
        }
    }
    Ok(())
}

/// The numbers from `lowest` on that a stored row has or declares.
fn known_from(connection: &Connection, lowest: u64) -> SqlResult<SeqRanges> {
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

/// Deletes covered rows that are too old or too many.
fn delete_expired(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<()> {
    for run in covered_by(tables.connection, before(now, COVERED_AGE_KEPT))? {
        delete_span(tables, run.first, run.last)?;
    }
    let covered = delivery::count(tables.index, |state| state == COVERED);
    let mut too_many = covered.saturating_sub(COVERED_ROWS_KEPT as u64);
    for (first, last) in delivery::spans(tables.index, |state| state == COVERED) {
        if too_many == 0 {
            break;
        }
        let nth =
            usize::try_from(too_many - 1).ok().and_then(|nth| tables.index.within(first..=last).nth(nth));
        let last = nth.unwrap_or(last);
        too_many -= tables.index.count_within(first..=last);
        delete_span(tables, first, last)?;
    }
    values::store_head(tables)
}

/// Deletes the rows with these numbers, and their delivery states.
fn delete_span(tables: &mut Tables<'_>, first: u64, last: u64) -> SqlResult<()> {
    rows::delete(tables, first, last)?;
    delivery::change(tables, first, last, |_| DeliveryState::default())
}

/// The hub knows more than this database: it is an old copy, or another device uses the same name.
fn handle_newer_receipt(
    tables: &mut Tables<'_>,
    receipt: &Receipt,
    now: Timestamp,
) -> SqlResult<ReceiptOutcome> {
    if !values::claim_interval(tables.connection, "renewed", RENEWAL_INTERVAL.as_millis() as i64, now)? {
        let last: Option<i64> = values::get(tables.connection, "renewed")?;
        let passed = now.as_millisecond().saturating_sub(last.unwrap_or_default());
        let passed = Duration::from_millis(u64::try_from(passed).unwrap_or_default());
        return Ok(ReceiptOutcome::DuplicateIdentity { retry_in: RENEWAL_INTERVAL.saturating_sub(passed) });
    }
    values::set_receipt(tables, receipt)?;
    renumber_in_new_epoch(tables, now).map(ReceiptOutcome::Renewed)
}

/// Begins a new epoch: capabilities, then the reports that the hub does not have in their old order, then the records
/// that these do not mention.
fn renumber_in_new_epoch(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<Epoch> {
    let epoch = values::start_epoch(tables.connection, now)?;
    for (first, last) in delivery::spans(tables.index, |state| state == COVERED) {
        rows::delete(tables, first, last)?;
    }
    for seq in tables.index.capabilities() {
        rows::delete(tables, seq, seq)?;
    }
    renumber(tables, now)?;
    if let Some(body) = values::capabilities(tables.connection)? {
        let body = CapabilitiesBody { observed_at: now, ..body };
        // Number 1 is free for it; writing it must not move the head.
        let head = tables.index.head();
        values::restart(tables, 0)?;
        rows::insert(tables, &Body::Capabilities(body), &SeqRanges::new())?;
        values::restart(tables, head.max(1))?;
    }
    report_unmentioned(tables, now)?;
    Ok(epoch)
}

/// Renumbers the rows from 2 on (from 1 without capabilities), as if never sent. Their declarations mean nothing in
/// the new epoch.
fn renumber(tables: &mut Tables<'_>, now: Timestamp) -> SqlResult<()> {
    let first = 1 + u64::from(values::capabilities(tables.connection)?.is_some());
    let connection = tables.connection;
    let seqs: Vec<u64> = tables.index.after(0).collect();
    // To negative numbers first: no old number may collide with a new one.
    connection.execute("UPDATE outbox SET seq = -seq", [])?;
    delivery::clear(tables)?;
    let update = "UPDATE outbox SET seq = ?2, message_id = ?3, \
                  bytes = bytes - coalesce(length(coalesced), 0), coalesced = NULL WHERE seq = -?1";
    let mut statement = connection.prepare(update)?;
    for (old, new) in seqs.iter().zip(first..) {
        statement.execute(params![old, new, message_id(now)])?;
    }
    // The old index is dropped first: there is memory for one.
    *tables.index = Index::default();
    *tables.index = Index::of(connection)?;
    values::restart(tables, first - 1 + seqs.len() as u64)
}

fn before(now: Timestamp, age: Duration) -> i64 {
    now.as_millisecond().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}
