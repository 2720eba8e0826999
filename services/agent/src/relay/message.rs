//! Documents as messages: subject, headers, bytes. What they say is decided elsewhere.

use bytes::Bytes;
use muster_bus::{Headers, Outgoing};
use muster_contract::decode::{Document, to_bytes};
use muster_contract::headers::{
    CE_ID, CE_SOURCE, CE_SPECVERSION, CE_SPECVERSION_VALUE, CE_TYPE, TRACEPARENT,
};
use muster_contract::presence::Heartbeat;
use muster_contract::report::Report;
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Epoch, Timestamp};

use crate::outbox::{Row, new_message_id};

/// A report under its row's message id. `None` for a number that no report can have.
pub(super) fn report(device: &DeviceKey, row: &Row, epoch: Epoch, head: u64) -> Option<Outgoing> {
    let (bytes, kind) = match row.report(epoch, head)? {
        Report::Status(report) => written(&report),
        Report::Capabilities(report) => written(&report),
    };
    Some(Outgoing {
        headers: headers(device, kind, &row.message_id),
        message_id: Some(row.message_id.clone()),
        expected_stream: Some(stream::UPLINK),
        ..Outgoing::new(subjects::report(device), bytes)
    })
}

/// A heartbeat: nobody waits for an answer to it.
pub(super) fn heartbeat(device: &DeviceKey, heartbeat: &Heartbeat, now: Timestamp) -> Outgoing {
    let (bytes, kind) = written(heartbeat);
    Outgoing {
        headers: headers(device, kind, &new_message_id(now)),
        ..Outgoing::new(subjects::presence(device), bytes)
    }
}

fn written<T: Document>(document: &T) -> (Bytes, &'static str) {
    (to_bytes(document).into(), T::KIND)
}

/// CloudEvents attributes and the beginning of a trace, both from one unique id.
fn headers(device: &DeviceKey, kind: &str, id: &str) -> Headers {
    let mut headers = Headers::new();
    headers.insert(CE_SPECVERSION, CE_SPECVERSION_VALUE);
    headers.insert(CE_ID, id);
    headers.insert(CE_SOURCE, format!("muster/{device}"));
    headers.insert(CE_TYPE, format!("muster.v1.{kind}"));
    headers.insert(TRACEPARENT, traceparent(id));
    headers
}

/// W3C trace context whose trace id is the message's UUID and whose span is the random half of it.
fn traceparent(id: &str) -> String {
    let hex: String = id.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    let span = hex.get(16..).unwrap_or_default();
    format!("00-{hex}-{span}-01")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_begins_with_the_message() {
        let id = new_message_id(Timestamp::UNIX_EPOCH);
        for id in [id.clone(), format!("{id}-2")] {
            let parts: Vec<_> = traceparent(&id).split('-').map(str::len).collect();
            assert_eq!(parts, [2, 32, 16, 2], "{id}");
        }
    }
}
