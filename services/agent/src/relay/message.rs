//! Builds messages from reports and heartbeats: subject, headers and payload.

use muster_bus::event::attributes;
use muster_bus::{Headers, Outgoing, Trace};
use muster_contract::decode::{Document, to_bytes};
use muster_contract::headers::{CONTENT_ENCODING, REPORTS, ZSTD};
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Epoch, Timestamp};

use super::core::OutgoingBatch;
use crate::outbox::{Row, new_message_id, pack_rows};

/// The parts that every message of a device shares, built once: a long backlog is many messages.
pub(super) struct MessageBuilder {
    report: String,
    presence: String,
    source: String,
}

impl MessageBuilder {
    pub(super) fn of(device: &DeviceKey) -> Self {
        let (report, presence) = (subjects::report(device), subjects::presence(device));
        Self { report, presence, source: format!("muster/{device}") }
    }

    /// A report under its row's message id. `None` for a number that no report can have.
    pub(super) fn report(&self, row: &Row, epoch: Epoch, head: u64) -> Option<Outgoing> {
        let letter = row.serialize(epoch, head)?;
        Some(Outgoing {
            headers: self.headers(letter.kind, &row.message_id),
            message_id: Some(row.message_id.clone()),
            expected_stream: Some(stream::UPLINK),
            ..Outgoing::new(self.report.clone(), letter.bytes)
        })
    }

    /// Several reports in one message. It has no message id: rows that are sent again may be packed in another way, and ingest
    /// knows each report by its number. `None` if they do not fit into a batch.
    pub(super) fn batch(&self, batch: &OutgoingBatch) -> Option<Outgoing> {
        let payload = pack_rows(&batch.rows, batch.epoch, batch.head)?;
        let mut headers = Headers::new();
        headers.insert(REPORTS, batch.rows.len().to_string());
        headers.insert(CONTENT_ENCODING, ZSTD);
        Some(Outgoing {
            headers,
            expected_stream: Some(stream::UPLINK),
            ..Outgoing::new(self.report.clone(), payload)
        })
    }

    /// A heartbeat. There is no answer.
    pub(super) fn heartbeat(&self, heartbeat: &Heartbeat, now: Timestamp) -> Outgoing {
        Outgoing {
            headers: self.headers(Heartbeat::KIND, &new_message_id(now)),
            ..Outgoing::new(self.presence.clone(), to_bytes(heartbeat))
        }
    }

    /// CloudEvents attributes and the begin of a trace, both from one unique id.
    fn headers(&self, kind: &str, id: &str) -> Headers {
        attributes(&self.source, kind, id, Trace::of_id(uuid(id)))
    }
}

/// The UUID that a message id begins with.
fn uuid(id: &str) -> u128 {
    id.chars().filter_map(|c| c.to_digit(16)).take(32).fold(0, |id, digit| (id << 4) | u128::from(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_begins_with_the_messages_id_whatever_follows_it() {
        let id = new_message_id(Timestamp::UNIX_EPOCH);
        assert_eq!(format!("{:032x}", uuid(&id)), id.replace('-', ""));
        assert_eq!(uuid(&format!("{id}-2")), uuid(&id));
    }
}
