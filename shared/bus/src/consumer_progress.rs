//! How far the consumer of a partition of UPLINK has come, as the server says.
//!
//! Silence proves nothing, because a server or a link may be slow. An answer that nothing is pending proves that the
//! server had no further report at that moment.

use muster_contract::Timestamp;
use muster_contract::subjects::stream::UPLINK;
use serde::Deserialize;
use serde_json::json;

use crate::bus::Bus;
use crate::read_error::ReadError;
use crate::topology::partition_consumer_name;

/// The state of a partition's consumer at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerProgress {
    /// The moment, by the server's clock, which is also that of [`Delivery::stored_at`](crate::Delivery::stored_at).
    pub at: Timestamp,
    /// The last stream sequence delivered.
    delivered: u64,
    /// Messages delivered and not acknowledged.
    unacknowledged: u64,
    /// Messages not delivered.
    pending: u64,
}

#[derive(Deserialize)]
struct ProgressInfo {
    ts: Timestamp,
    delivered: DeliveredInfo,
    num_ack_pending: u64,
    num_pending: u64,
}

#[derive(Deserialize)]
struct DeliveredInfo {
    stream_seq: u64,
}

impl Bus {
    /// Asks the server how far a partition's consumer has come.
    pub async fn consumer_progress(&self, partition: u16) -> Result<ConsumerProgress, ReadError> {
        let subject = format!("CONSUMER.INFO.{UPLINK}.{}", partition_consumer_name(partition));
        let info = self.wire.api::<ProgressInfo>(&subject, &json!({})).await;
        info.map(ConsumerProgress::from).map_err(|error| ReadError::of("how far a partition has come", error))
    }
}

impl ConsumerProgress {
    /// Messages of the partition that are not acknowledged, delivered or not.
    pub const fn outstanding(&self) -> u64 {
        self.unacknowledged + self.pending
    }

    /// The moment up to which the partition's only reader has every report, if its last one had the stream sequence
    /// `handed_out`; `None` if reports were pending or on their way.
    pub fn reached_by(&self, handed_out: u64) -> Option<Timestamp> {
        // A sequence below `handed_out` belongs to another stream, or is older than what the reader has.
        let has_all = self.unacknowledged == 0 || self.delivered == handed_out;
        (self.pending == 0 && has_all).then_some(self.at)
    }
}

impl From<ProgressInfo> for ConsumerProgress {
    fn from(info: ProgressInfo) -> Self {
        let ProgressInfo { ts: at, delivered, num_ack_pending: unacknowledged, num_pending: pending } = info;
        Self { at, delivered: delivered.stream_seq, unacknowledged, pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_has_everything_if_nothing_is_pending_or_on_its_way() {
        let at = Timestamp::UNIX_EPOCH;
        let table = [
            // delivered, unacknowledged, pending, handed out
            ((0, 0, 0), 0, Some(at)),
            ((9, 0, 0), 0, Some(at)),
            ((9, 2, 0), 9, Some(at)),
            ((9, 2, 0), 12, None),
            ((9, 2, 0), 8, None),
            ((9, 2, 0), 0, None),
            ((9, 2, 1), 9, None),
            ((0, 0, 1), 0, None),
        ];
        for ((delivered, unacknowledged, pending), handed_out, expected) in table {
            let progress = ConsumerProgress { at, delivered, unacknowledged, pending };
            assert_eq!(progress.reached_by(handed_out), expected, "{progress:?} {handed_out}");
        }
    }
}
