//! Batches of reports in the simulation: their headers, their reports as the hub reads them, and damage on their way. The agent
//! packs and ingest unpacks; this module only looks inside.

use muster_agent::relay::core::{OutgoingBatch, Ticket};
use muster_contract::headers::{CONTENT_ENCODING, REPORTS, ZSTD};
use muster_contract::limits::BATCH_TEXT_BYTES_MAX;
use muster_contract::packed::unpack;
use serde_json::Value;

use muster_agent::outbox::{Encoded, Encoding, pack_rows};
use muster_agent::relay::core::Input;
use muster_bus::PublishErrorKind;

use super::device::{Chore, Upward};
use super::hub::Stored;
use super::law::{Lawful, must};
use super::relay::{ANSWER_TIMEOUT, HEADER_BYTES};
use super::world::World;

/// Level of compression; any is right.
const LEVEL: i32 = 1;

/// The headers of a message that UPLINK holds.
pub(crate) fn headers(stored: &Stored) -> Vec<(&'static str, String)> {
    let of_batch = |reports: &String| [(REPORTS, reports.clone()), (CONTENT_ENCODING, ZSTD.to_owned())];
    stored.reports.iter().flat_map(of_batch).collect()
}

/// Compresses the text of a batch.
pub(crate) fn compressed(text: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(text, LEVEL).unwrap()
}

/// The single reports of a message that UPLINK holds.
pub(crate) fn singles(stored: &Stored) -> Vec<Vec<u8>> {
    if stored.reports.is_none() {
        return vec![stored.bytes.to_vec()];
    }
    let text = zstd::bulk::decompress(&stored.bytes, BATCH_TEXT_BYTES_MAX).unwrap_or_default();
    unpack(&text).unwrap_or_default()
}

/// Corrupts one report of a batch so that its number can be parsed and it cannot.
fn with_a_spoilt_report(bytes: &[u8], at: usize) -> Vec<u8> {
    let text = zstd::bulk::decompress(bytes, BATCH_TEXT_BYTES_MAX).unwrap();
    let mut batch: Value = serde_json::from_slice(&text).unwrap();
    let reports = batch["reports"].as_array().map_or(1, Vec::len);
    batch["reports"][at % reports]["observedAt"] = "one day".into();
    compressed(batch.to_string().as_bytes())
}

impl World {
    /// An agent sends several reports in one message.
    pub(crate) fn send_batch(&mut self, device: usize, batch: &OutgoingBatch, ticket: Ticket) -> Lawful {
        let (life, connection) = (self.devices[device].life, self.devices[device].connection);
        let epoch = batch.epoch.get();
        let mut numbers: Vec<_> = batch.rows.iter().map(|row| (epoch, row.seq)).collect();
        numbers.sort_unstable();
        let seen = || format!("device {device} {numbers:?}");
        self.tally.checks += 3;
        self.law.sends_report(device)?;
        must(
            self.devices[device].count.0 == Some(epoch),
            "a report goes under the epoch of its number",
            seen,
        )?;
        must(self.devices[device].beaten_over == connection, "a connection begins with a heartbeat", seen)?;
        must(self.profile.batches, "a hub that does not read batches gets single reports", seen)?;
        must(
            batch.rows.iter().all(|row| !row.is_repeated),
            "a report that is asked for again goes alone",
            seen,
        )?;
        let Some(Encoded { mut bytes, .. }) = pack_rows(&batch.rows, batch.epoch, batch.head, Encoding::Zstd)
        else {
            self.feed_relay(device, Input::Answer(ticket, Err(PublishErrorKind::Permanent)));
            return Ok(());
        };
        self.feed_relay(device, Input::Written(bytes.len() + HEADER_BYTES));
        let sent_as = numbers.clone();
        if std::mem::take(&mut self.devices[device].spoil) {
            if self.chance.bool() {
                bytes.truncate(bytes.len() / 3);
                numbers.clear();
            } else {
                bytes = with_a_spoilt_report(&bytes, self.chance.usize(..numbers.len()));
                self.devices[device].hidden = true;
            }
        }
        self.tally.sent += sent_as.len() as u64;
        self.tally.batches += 1;
        if let Some(agent) = &mut self.devices[device].agent {
            agent.relay.await_answer(ticket);
        }
        let reports = Some(sent_as.len().to_string());
        let answer_to = Some((sent_as, ticket));
        self.up(device, Upward::Report { bytes: bytes.into(), numbers, reports, answer_to });
        self.chore(device, life, ANSWER_TIMEOUT, Chore::AnswerTimeout(ticket));
        Ok(())
    }
}
