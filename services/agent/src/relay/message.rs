//! Builds messages from reports and heartbeats: subject, headers and payload.

use muster_bus::event::traced;
use muster_bus::{Headers, Outgoing, Trace};
use muster_contract::DeviceKey;
use muster_contract::decode::to_bytes;
use muster_contract::headers::{CONTENT_ENCODING, REPORTS};
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{self, stream};

use super::core::{OutgoingBatch, OutgoingReport};
use crate::outbox::{Encoded, pack_rows};

/// How a heartbeat is written: as much as the hub can read, and no more than it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeartbeatForm {
    /// Every field.
    Complete,
    /// The fields that the hub cannot derive.
    Brief,
    /// The numbers alone, unless another field says something.
    Short,
}

/// The parts that every message of a device shares, built once: a long backlog is many messages.
pub(super) struct MessageBuilder {
    report: String,
    presence: String,
}

impl MessageBuilder {
    pub(super) fn of(device: &DeviceKey) -> Self {
        Self { report: subjects::report(device), presence: subjects::presence(device) }
    }

    /// The message of a report. It has no CloudEvents attributes, which would repeat its subject and document; no message id,
    /// because ingest deduplicates by number; and a trace only if its row is sampled. `None` for a number that no report can have.
    pub(super) fn report(
        &self,
        OutgoingReport { epoch, head, row, encoding }: &OutgoingReport,
    ) -> Option<Outgoing> {
        let headers = traced(Trace::sample_of_id(uuid(&row.message_id)));
        Some(self.message(headers, row.encode(*epoch, *head, *encoding)?))
    }

    /// The message of several reports. `None` if they do not fit into a batch.
    pub(super) fn batch(&self, batch: &OutgoingBatch) -> Option<Outgoing> {
        let mut headers = Headers::new();
        headers.insert(REPORTS, batch.rows.len().to_string());
        Some(self.message(headers, pack_rows(&batch.rows, batch.epoch, batch.head, batch.encoding)?))
    }

    fn message(&self, mut headers: Headers, Encoded { bytes, encoding }: Encoded) -> Outgoing {
        if let Some(name) = encoding.name() {
            headers.insert(CONTENT_ENCODING, name);
        }
        let message = Outgoing::new(self.report.clone(), bytes);
        Outgoing { headers, expected_stream: Some(stream::UPLINK), ..message }
    }

    /// The message of a heartbeat. There is no answer.
    pub(super) fn heartbeat(&self, heartbeat: &Heartbeat, form: HeartbeatForm) -> Outgoing {
        let bytes = match form {
            HeartbeatForm::Complete => to_bytes(heartbeat),
            HeartbeatForm::Brief => heartbeat.to_brief_bytes(),
            HeartbeatForm::Short => heartbeat.to_short_bytes().unwrap_or_else(|| heartbeat.to_brief_bytes()),
        };
        Outgoing::new(self.presence.clone(), bytes)
    }
}

/// The UUID that a message id begins with.
fn uuid(id: &str) -> u128 {
    id.chars().filter_map(|c| c.to_digit(16)).take(32).fold(0, |id, digit| (id << 4) | u128::from(digit))
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;
    use crate::outbox::message_id;

    #[test]
    fn a_trace_begins_with_the_messages_id_whatever_follows_it() {
        let id = message_id(Timestamp::UNIX_EPOCH);
        assert_eq!(format!("{:032x}", uuid(&id)), id.replace('-', ""));
        assert_eq!(uuid(&format!("{id}-2")), uuid(&id));
    }
}
