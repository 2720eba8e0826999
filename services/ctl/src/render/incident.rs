//! Incidents in words: of a device, and of the hub.

use std::fmt::Write as _;

use muster_contract::Timestamp;
use muster_contract::fact::{Incident, IncidentKind};
use muster_contract::incident::{ForeignView, HubIncident, QuarantineBound};

use super::format::{age, clean, span};

/// An incident in words.
pub fn incident(incident: &Incident, now: Timestamp) -> String {
    let what = match &incident.what {
        IncidentKind::Amnesia { known_epoch, epoch } => {
            format!("amnesia: epoch {epoch} began after {known_epoch}; the device lost its memory")
        }
        IncidentKind::Clone { known_epoch, epoch, seq } => {
            format!("clone: report {seq} of epoch {epoch} came although epoch {known_epoch} is known")
        }
        IncidentKind::SequenceFork { epoch, seq, .. } => {
            format!("sequence fork: report {seq} of epoch {epoch} came with two contents")
        }
        IncidentKind::ClockSkew { seconds } => {
            let side = if *seconds < 0 { "behind" } else { "ahead" };
            format!("clock skew: {} {side}", span(seconds.unsigned_abs()))
        }
        IncidentKind::Gap { epoch, missing } => {
            format!("gap: reports {missing} of epoch {epoch} are missing")
        }
        IncidentKind::GapClosed { epoch, through } => {
            format!("gap closed: epoch {epoch} is complete through {through}")
        }
        IncidentKind::RetiredButAlive { generation } => {
            format!("retired in generation {generation}, but alive")
        }
        IncidentKind::ProfileUnsupported { deployment, generation, message } => {
            format!("it cannot run {deployment} of generation {generation}: {}", clean(message))
        }
        IncidentKind::DesiredRefused(refusal) => {
            format!("it refused {}: {}", refusal.refused(), clean(&refusal.message))
        }
        IncidentKind::DesiredAccepted { generation, refused_since } => {
            format!(
                "it no longer refuses its desired state, as it did since {refused_since}; it holds generation {generation}"
            )
        }
        IncidentKind::ForeignDocument { downlink_seq, reason, .. } => {
            format!(
                "foreign document in DOWNLINK at {downlink_seq}: {}; its writer replaces it",
                clean(reason)
            )
        }
        IncidentKind::ForeignView { key, cause, .. } => {
            format!(
                "foreign entry in the bucket views: {} ({}); the rollup mends it",
                clean(key),
                foreign_view(*cause)
            )
        }
        IncidentKind::LedgerReplaced { known_created_at, known_seq, created_at, .. } => format!(
            "LEDGER was replaced: it was created {created_at}; the one of {known_created_at}, read to {known_seq}, is gone. \
             `muster restore` says what can be rebuilt"
        ),
        IncidentKind::ConnectionsExceeded { name, connections, limit, disconnected, .. } => {
            connections_exceeded(name, *connections, *limit, *disconnected)
        }
        IncidentKind::TokenEnding { ends_at, .. } => {
            format!(
                "its token ends at {ends_at} and was not renewed: is muster-renewer running? `muster enroll` renews it"
            )
        }
        IncidentKind::TokenRenewed { ends_at } => format!("its token was renewed and ends at {ends_at}"),
        IncidentKind::LedgerNearlyFull { bytes, bytes_max } => {
            format!("LEDGER is nearly full: {bytes} of {bytes_max} bytes")
        }
        IncidentKind::QuarantineFull { bound, limit } => quarantine_full(*bound, *limit),
    };
    format!("{what}, {}", age(now, incident.at))
}

fn connections_exceeded(name: &str, connections: u64, limit: u64, ended: u64) -> String {
    format!(
        "{connections} connections with the key of {}, which may have {limit}; {ended} ended",
        clean(name)
    )
}

fn quarantine_full(bound: QuarantineBound, limit: u64) -> String {
    let what = match bound {
        QuarantineBound::Reports => "rejected reports of one sender",
        QuarantineBound::Bytes => "bytes of rejected reports",
    };
    format!("QUARANTINE is full: it may hold {limit} {what}; `muster quarantine list`, then requeue or drop")
}

const fn foreign_view(cause: ForeignView) -> &'static str {
    match cause {
        ForeignView::Key => "no view has this key",
        ForeignView::NoView => "its value was no view",
        ForeignView::Damaged => "its digest was wrong",
        ForeignView::Stale => "its value was of an earlier moment",
        ForeignView::Unreached => "its value was of a moment that LEDGER has not reached",
        ForeignView::Contradicts => "its value contradicted LEDGER",
        ForeignView::Deleted => "it was deleted",
        ForeignView::Missing => "it was missing",
    }
}

/// Reports that the incidents of the hub are unknown, and why.
pub fn unknown(reason: &str) -> String {
    format!("the hub's incidents are not known: {}", clean(reason))
}

/// The incidents of the hub, a line each; nothing where there are none.
pub fn of_hub(incidents: &[HubIncident], now: Timestamp) -> String {
    let mut text = String::new();
    for HubIncident { incident: newest, count, .. } in incidents {
        let times = if *count > 1 { format!(" ({count} in 24 h)") } else { String::new() };
        let _ = writeln!(text, "incident of the hub: {}{times}", incident(newest, now));
    }
    text
}
