//! Ids of facts: the same fact has the same id, so that whoever reads it recognises it, and the bus a second try of what is
//! rare. That nothing is lost and no number is there twice does not rest on that.

use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::quarantine::Verdict;
use muster_contract::subjects::{LedgerSubject, NOBODY};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Seq, Timestamp};

/// `<site>.<device>.<epoch>.<seq>`
pub(super) fn numbered(key: &DeviceKey, epoch: Epoch, seq: Seq) -> String {
    format!("{}.{}.{epoch}.{seq}", key.site, key.device)
}

/// `<site>.<device>.<epoch>.<seq>.amended.<folded>`
pub(super) fn amended(key: &DeviceKey, epoch: Epoch, seq: Seq, folded: u64) -> String {
    format!("{}.amended.{folded}", numbered(key, epoch, seq))
}

/// `<site>.<device>.quarantine.<position in UPLINK>.<millisecond at which it was stored there>`: an UPLINK that was made
/// anew has the same positions.
pub(super) fn quarantine(key: Option<&DeviceKey>, position: u64, stored_at: Timestamp) -> String {
    let at = stored_at.as_millisecond();
    match key {
        Some(key) => format!("{}.{}.quarantine.{position}.{at}", key.site, key.device),
        None => format!("{NOBODY}.{NOBODY}.quarantine.{position}.{at}"),
    }
}

/// The same of the last message of a sum, with `.sum.<messages>`; a sum of one is that message.
pub(super) fn summed(key: Option<&DeviceKey>, position: u64, stored_at: Timestamp, messages: u64) -> String {
    let last = quarantine(key, position, stored_at);
    if messages == 1 { last } else { format!("{last}.sum.{messages}") }
}

/// `<subject>.again.<second>`; of messages in quarantine, which share a subject, with the moment at which each came.
pub(super) fn said_again(subject: &LedgerSubject, fact: &Fact, now: Timestamp) -> String {
    match fact {
        Fact::Quarantine(fact) => {
            format!("{subject}.{}.again.{}", fact.received_at.as_nanosecond(), now.as_second())
        }
        _ => format!("{subject}.again.{}", now.as_second()),
    }
}

/// `<subject>.again.at.<position>`: said again for the sake of room, of the message at this position.
pub(super) fn reasserted(subject: &LedgerSubject, position: u64) -> String {
    format!("{subject}.again.at.{position}")
}

/// `<site>.<device>.verdict.<position in LEDGER>.<what became of it>`
pub(super) fn verdict(key: Option<&DeviceKey>, of: u64, verdict: Verdict) -> String {
    match key {
        Some(key) => format!("{}.{}.verdict.{of}.{verdict:?}", key.site, key.device),
        None => format!("{NOBODY}.{NOBODY}.verdict.{of}.{verdict:?}"),
    }
}

/// `<site>.<device>.deadline.<deployment>.<generation>.<millisecond that it counts from>`
pub(super) fn deadline(
    key: &DeviceKey,
    deployment: &DeploymentId,
    generation: Generation,
    since: Timestamp,
) -> String {
    let since = since.as_millisecond();
    format!("{}.{}.deadline.{deployment}.{generation}.{since}", key.site, key.device)
}

/// `<site>.<device>.<what>.<evidence>`
pub(super) fn incident(key: &DeviceKey, what: &IncidentKind) -> String {
    let evidence = match what {
        IncidentKind::Amnesia { epoch, .. } => format!("amnesia.{epoch}"),
        IncidentKind::Clone { known_epoch, epoch, .. } => format!("clone.{known_epoch}.{epoch}"),
        IncidentKind::SequenceFork { epoch, seq, other, .. } => format!("fork.{epoch}.{seq}.{other}"),
        IncidentKind::ClockSkew { seconds } => format!("skew.{seconds}"),
        IncidentKind::Gap { epoch, missing } => {
            let (from, to) = (missing.min().unwrap_or(0), missing.max().unwrap_or(0));
            format!("gap.{epoch}.{from}.{to}.{}", missing.count())
        }
        IncidentKind::GapClosed { epoch, through } => format!("gap-closed.{epoch}.{through}"),
        IncidentKind::RetiredButAlive { generation } => format!("retired-but-alive.{generation}"),
        IncidentKind::ForeignDocument { .. }
        | IncidentKind::ForeignView { .. }
        | IncidentKind::LedgerReplaced { .. }
        | IncidentKind::ConnectionsExceeded { .. }
        | IncidentKind::TokenEnding { .. }
        | IncidentKind::TokenRenewed { .. }
        | IncidentKind::LedgerNearlyFull { .. } => what.name().to_owned(),
    };
    format!("{}.{}.{evidence}", key.site, key.device)
}
