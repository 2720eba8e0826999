//! Channels of incidents.

use muster_contract::subjects::LedgerSubject;

use super::{Channel, fact, key};

pub(super) fn list() -> Vec<Channel> {
    vec![
        fact(
            "incident",
            &LedgerSubject::Incident(Some(key())),
            &["Incident"],
            "What a person should know of a device.",
        ),
        fact(
            "incidentOfHub",
            &LedgerSubject::Incident(None),
            &["Incident"],
            "What a person should know of the hub itself.",
        ),
    ]
}
