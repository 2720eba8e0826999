//! Composes what a receiver gets: a notice as a CloudEvent in structured mode.

use bytes::Bytes;
use muster_contract::Timestamp;
use muster_contract::headers::{CE_SPECVERSION_VALUE, CE_TYPE_PREFIX};
use muster_contract::notify::Notice;
use serde::Serialize;

/// The media type of an event.
pub(super) const MEDIA_TYPE: &str = "application/cloudevents+json; charset=utf-8";
/// The source of events without a public address.
const SOURCE: &str = "muster";
/// Digits of a digest in an id.
const ID_DIGITS: usize = 16;

#[derive(Serialize)]
struct WebhookEvent<'a> {
    specversion: &'static str,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    subject: &'a str,
    time: Timestamp,
    datacontenttype: &'static str,
    data: &'a Notice,
}

/// The id of a notice's event: each attempt has the same, and each gateway gives the same.
pub(super) fn id(notice: &Notice) -> String {
    let digest = notice.digest.to_string();
    let digits = digest.rsplit(':').next().unwrap_or_default();
    format!("{}.{}.{}", notice.name, notice.number, digits.get(..ID_DIGITS).unwrap_or(digits))
}

/// The event of a notice, from the gateway at a public host if it has one.
pub(super) fn compose(notice: &Notice, public_host: Option<&str>) -> Bytes {
    let event = WebhookEvent {
        specversion: CE_SPECVERSION_VALUE,
        id: id(notice),
        source: public_host.map_or_else(|| SOURCE.to_owned(), |host| format!("https://{host}/")),
        kind: format!("{CE_TYPE_PREFIX}Notice"),
        subject: notice.name.as_str(),
        time: notice.as_of.at,
        datacontenttype: "application/json",
        data: notice,
    };
    // Cannot fail: an object of texts and a document that was read from JSON.
    serde_json::to_vec(&event).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_event_has_the_attributes_of_cloudevents_and_an_id_that_stays() {
        let notice = json!({
            "apiVersion": "muster/v1", "kind": "Notice", "name": "alarms", "number": 7, "event": "gone",
            "asOf": { "ledgerSeq": 9, "at": "2026-11-26T19:00:00Z" }, "message": "nothing passes",
            "digest": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        });
        let read: Notice = serde_json::from_value(notice.clone()).unwrap();
        let event: Value = serde_json::from_slice(&compose(&read, Some("fleet.example"))).unwrap();
        let wanted = json!({
            "specversion": "1.0", "id": "alarms.7.0123456789abcdef", "source": "https://fleet.example/",
            "type": "muster.v1.Notice", "subject": "alarms", "time": "2026-11-26T19:00:00Z",
            "datacontenttype": "application/json", "data": notice,
        });
        assert_eq!(event, wanted);
        assert_eq!(compose(&read, None), compose(&read, None));
    }
}
