//! Ids of rare facts: the same fact always has the same id, so that the bus recognises a second publish. Readers recognise the fact of
//! a report by its number. Correctness does not depend on ids: fences and accounts keep numbers from being lost or doubled.

use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::incident::IncidentRequest;
use muster_contract::quarantine::QuarantineDecision;
use muster_contract::subjects::{LedgerSubject, NOBODY};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Seq, Timestamp};

/// `<site>.<device>.quarantine.<position in UPLINK>.<millisecond at which it was stored there>`: an UPLINK that was created again
/// has the same positions.
pub(super) fn quarantine(key: Option<&DeviceKey>, position: u64, stored_at: Timestamp) -> String {
    let at = stored_at.as_millisecond();
    match key {
        Some(key) => format!("{}.{}.quarantine.{position}.{at}", key.site, key.device),
        None => format!("{NOBODY}.{NOBODY}.quarantine.{position}.{at}"),
    }
}

/// The id of the last message of a batch, with `.sum.<messages>`; a batch of one message has the id of that message.
pub(super) fn batch(key: Option<&DeviceKey>, position: u64, stored_at: Timestamp, messages: u64) -> String {
    let last = quarantine(key, position, stored_at);
    if messages == 1 { last } else { format!("{last}.sum.{messages}") }
}

/// `<site>.<device>.rejected.<epoch>.<seq>.<digest>`: a report in QUARANTINE. A number may come with several contents.
pub(super) fn rejected_number(key: &DeviceKey, epoch: Epoch, seq: Seq, content: &Digest) -> String {
    format!("{}.{}.rejected.{epoch}.{seq}.{content}", key.site, key.device)
}

/// `<site>.<device>.rejected.<digest>`: a message in QUARANTINE without a number.
pub(super) fn rejected(key: Option<&DeviceKey>, payload: &Digest) -> String {
    match key {
        Some(key) => format!("{}.{}.rejected.{payload}", key.site, key.device),
        None => format!("{NOBODY}.{NOBODY}.rejected.{payload}"),
    }
}

/// `<subject>.again.<second>`; quarantine facts share a subject, so theirs contain the time at which the message was stored.
/// Incidents share one too, but only one refusal of a device stands.
pub(super) fn reasserted_by_age(subject: &LedgerSubject, fact: &Fact, now: Timestamp) -> String {
    match fact {
        Fact::Quarantine(fact) => {
            format!("{subject}.{}.again.{}", fact.received_at.as_nanosecond(), now.as_second())
        }
        _ => format!("{subject}.again.{}", now.as_second()),
    }
}

/// `<subject>.again.at.<position>`: the fact at this position, re-asserted to make room.
pub(super) fn reasserted_for_room(subject: &LedgerSubject, position: u64) -> String {
    format!("{subject}.again.at.{position}")
}

/// Whether an incident with this id is re-asserted: the id of a new one does not begin with the subject.
pub(super) fn is_reasserted_incident(subject: &LedgerSubject, id: &str) -> bool {
    id.strip_prefix(&subject.to_string()).is_some_and(|rest| rest.starts_with(".again."))
}

/// `<site>.<device>.verdict.<sequence in QUARANTINE>.<verdict>`
pub(super) fn verdict(key: Option<&DeviceKey>, quarantine_seq: u64, verdict: QuarantineDecision) -> String {
    match key {
        Some(key) => format!("{}.{}.verdict.{quarantine_seq}.{verdict:?}", key.site, key.device),
        None => format!("{NOBODY}.{NOBODY}.verdict.{quarantine_seq}.{verdict:?}"),
    }
}

/// `<site>.<device>.deadline.<deployment>.<generation>.<millisecond from which the deadline counts>`
pub(super) fn deadline(
    key: &DeviceKey,
    deployment: &DeploymentId,
    generation: Generation,
    since: Timestamp,
) -> String {
    let since = since.as_millisecond();
    format!("{}.{}.deadline.{deployment}.{generation}.{since}", key.site, key.device)
}

/// `<site>.<device>.<kind>.<evidence>`. About a token it is the id that the renewer's request has, so that LEDGER recognises the
/// incident of both.
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
        IncidentKind::ProfileUnsupported { deployment, generation, .. } => {
            format!("profile-unsupported.{deployment}.{generation}")
        }
        IncidentKind::DesiredRefused(refusal) => {
            let generation = refusal.generation.map_or(0, Generation::get);
            let since = refusal.since.as_millisecond();
            format!("desired-refused.{generation}.{}.{since}", refusal.code.as_str())
        }
        IncidentKind::DesiredAccepted { generation, refused_since } => {
            format!("desired-accepted.{generation}.{}", refused_since.as_millisecond())
        }
        IncidentKind::TokenEnding { .. } | IncidentKind::TokenRenewed { .. } => {
            return IncidentRequest::new(Some(key.clone()), what.clone()).id();
        }
        IncidentKind::ForeignDocument { .. }
        | IncidentKind::ForeignView { .. }
        | IncidentKind::LedgerReplaced { .. }
        | IncidentKind::ConnectionsExceeded { .. }
        | IncidentKind::LedgerNearlyFull { .. }
        | IncidentKind::QuarantineFull { .. } => what.name().to_owned(),
    };
    format!("{}.{}.{evidence}", key.site, key.device)
}
