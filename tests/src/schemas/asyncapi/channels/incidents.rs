//! Channels of incidents.

use muster_contract::subjects::LedgerSubject;

use super::{Channel, fact, key};

pub(super) fn list() -> Vec<Channel> {
    vec![
        fact("incident", &LedgerSubject::Incident(Some(key())), &["Incident"], "An incident of a device."),
        fact(
            "incidentOfHub",
            &LedgerSubject::Incident(None),
            &["Incident"],
            "An incident of the hub itself.",
        ),
    ]
}
