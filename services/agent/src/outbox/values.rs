//! The single values of the outbox: epoch, head, last receipt, last capabilities.

use muster_contract::receipt::Receipt;
use muster_contract::{Epoch, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::index::Tables;
use crate::db::{Connection, OptionalExtension, SqlResult, corrupt, params};
use crate::report::CapabilitiesBody;

/// Stores the head if its row was deleted.
pub(super) fn store_head(tables: &Tables<'_>) -> SqlResult<()> {
    let (connection, head) = (tables.connection, tables.index.head());
    if tables.index.highest().unwrap_or(0) < head && get(connection, "head")? != Some(head) {
        set(connection, "head", &head)
    } else {
        Ok(())
    }
}

/// Continues the numbers after `head`.
pub(super) fn restart(tables: &mut Tables<'_>, head: u64) -> SqlResult<()> {
    tables.index.set_head(head);
    set(tables.connection, "head", &head)
}

/// The epoch, if it is fixed.
pub(super) fn epoch(connection: &Connection) -> SqlResult<Option<Epoch>> {
    get(connection, "epoch")
}

/// The epoch; fixed now if it was not.
pub(super) fn fix_epoch(connection: &Connection, now: Timestamp) -> SqlResult<Epoch> {
    match epoch(connection)? {
        Some(epoch) => Ok(epoch),
        None => start_epoch(connection, now),
    }
}

/// Sets an epoch above that of the last receipt, whatever the clock says.
pub(super) fn start_epoch(connection: &Connection, now: Timestamp) -> SqlResult<Epoch> {
    let clock = u64::try_from(now.as_second()).ok().and_then(Epoch::new).unwrap_or(Epoch::FIRST);
    let above = receipt(connection)?.map_or(Epoch::FIRST, |receipt| receipt.epoch.next());
    let epoch = clock.max(above);
    set(connection, "epoch", &epoch)?;
    Ok(epoch)
}

/// The last receipt.
pub(super) fn receipt(connection: &Connection) -> SqlResult<Option<Receipt>> {
    get(connection, "receipt")
}

/// Stores the last receipt.
pub(super) fn set_receipt(tables: &mut Tables<'_>, receipt: &Receipt) -> SqlResult<()> {
    tables.index.set_refused(receipt);
    set(tables.connection, "receipt", receipt)
}

/// Whether the hub reads compressed batches of reports, by the last receipt of any epoch.
pub(super) fn hub_reads_batches(connection: &Connection) -> SqlResult<bool> {
    get(connection, "batches").map(|reads| reads.unwrap_or(false))
}

/// Stores whether the hub reads batches; true if it no longer does.
pub(super) fn set_hub_reads_batches(connection: &Connection, reads: bool) -> SqlResult<bool> {
    let before = hub_reads_batches(connection)?;
    if before != reads {
        set(connection, "batches", &reads)?;
    }
    Ok(before && !reads)
}

/// Whether the hub has dictionary 1 of reports, by the last receipt of any epoch.
pub(super) fn hub_has_dictionary(connection: &Connection) -> SqlResult<bool> {
    get(connection, "dictionary").map(|has| has.unwrap_or(false))
}

/// Stores whether the hub has the dictionary.
pub(super) fn set_hub_has_dictionary(connection: &Connection, has: bool) -> SqlResult<()> {
    if hub_has_dictionary(connection)? == has { Ok(()) } else { set(connection, "dictionary", &has) }
}

/// Whether the hub compares heartbeats with its desired state, by the last receipt of any epoch.
pub(super) fn hub_compares(connection: &Connection) -> SqlResult<bool> {
    get(connection, "compares").map(|compares| compares.unwrap_or(false))
}

/// Stores whether the hub compares heartbeats.
pub(super) fn set_hub_compares(connection: &Connection, compares: bool) -> SqlResult<()> {
    if hub_compares(connection)? == compares { Ok(()) } else { set(connection, "compares", &compares) }
}

/// The capabilities reported last.
pub(super) fn capabilities(connection: &Connection) -> SqlResult<Option<CapabilitiesBody>> {
    get(connection, "capabilities")
}

/// Stores the capabilities reported last.
pub(super) fn set_capabilities(connection: &Connection, body: &CapabilitiesBody) -> SqlResult<()> {
    set(connection, "capabilities", body)
}

/// Whether an action that is allowed once in `interval_ms` is allowed now; if so, stores the time. A clock that was
/// set back allows it.
pub(super) fn claim_interval(
    connection: &Connection,
    what: &str,
    interval_ms: i64,
    now: Timestamp,
) -> SqlResult<bool> {
    let now = now.as_millisecond();
    let last: Option<i64> = get(connection, what)?;
    let due = last.is_none_or(|last| now < last || now - last >= interval_ms);
    if due {
        set(connection, what, &now)?;
    }
    Ok(due)
}

pub(super) fn get<T: DeserializeOwned>(connection: &Connection, name: &str) -> SqlResult<Option<T>> {
    let text: Option<String> = connection
        .prepare_cached("SELECT value FROM memory WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt("memory", &error))).transpose()
}

fn set<T: Serialize>(connection: &Connection, name: &str, value: &T) -> SqlResult<()> {
    let text = serde_json::to_string(value).map_err(|error| corrupt("memory", &error))?;
    connection
        .prepare_cached(
            "INSERT INTO memory VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        )?
        .execute(params![name, text])
        .map(drop)
}
