//! How deep the water is: whether reports of a partition wait in UPLINK, as the server says. That nothing comes proves
//! nothing, because a server or a link may be slow; that the server had nothing more to give at a moment does.

use muster_contract::Timestamp;
use muster_contract::subjects::stream::UPLINK;
use serde::Deserialize;
use serde_json::json;

use crate::bus::Bus;
use crate::read::ReadError;
use crate::topology::partition_consumer_name;

/// Where a partition's consumer was at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sounding {
    /// The moment, by the server's clock, which is also that of [`Delivery::stored_at`](crate::Delivery::stored_at).
    pub at: Timestamp,
    /// The last stream sequence delivered.
    delivered: u64,
    /// Messages delivered and not acknowledged.
    unacknowledged: u64,
    /// Messages not delivered.
    waiting: u64,
}

#[derive(Deserialize)]
struct Info {
    ts: Timestamp,
    delivered: Delivered,
    num_ack_pending: u64,
    num_pending: u64,
}

#[derive(Deserialize)]
struct Delivered {
    stream_seq: u64,
}

impl Bus {
    /// Asks the server how far a partition's consumer has come.
    pub async fn sound(&self, partition: u16) -> Result<Sounding, ReadError> {
        let subject = format!("CONSUMER.INFO.{UPLINK}.{}", partition_consumer_name(partition));
        let info = self.wire.api::<Info>(&subject, &json!({})).await;
        info.map(Sounding::from).map_err(|error| ReadError::of("how far a partition has come", error))
    }
}

impl Sounding {
    /// Reports that nobody is done with.
    pub const fn outstanding(&self) -> u64 {
        self.unacknowledged + self.waiting
    }

    /// The moment up to which the partition's only reader has every report, the last of them that of the stream sequence
    /// `handed_out`; none where some were on their way.
    pub fn reached_by(&self, handed_out: u64) -> Option<Timestamp> {
        // Less than what has come is the beginning of another stream, or older than what has come.
        let all_came = self.unacknowledged == 0 || self.delivered == handed_out;
        (self.waiting == 0 && all_came).then_some(self.at)
    }
}

impl From<Info> for Sounding {
    fn from(info: Info) -> Self {
        let Info { ts: at, delivered, num_ack_pending: unacknowledged, num_pending: waiting } = info;
        Self { at, delivered: delivered.stream_seq, unacknowledged, waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_has_everything_only_where_nothing_waits_and_nothing_is_on_its_way() {
        let at = Timestamp::UNIX_EPOCH;
        let table = [
            // delivered, unacknowledged, waiting, handed out
            ((0, 0, 0), 0, Some(at)),
            ((9, 0, 0), 0, Some(at)),
            ((9, 2, 0), 9, Some(at)),
            ((9, 2, 0), 12, None),
            ((9, 2, 0), 8, None),
            ((9, 2, 0), 0, None),
            ((9, 2, 1), 9, None),
            ((0, 0, 1), 0, None),
        ];
        for ((delivered, unacknowledged, waiting), handed_out, expected) in table {
            let sounding = Sounding { at, delivered, unacknowledged, waiting };
            assert_eq!(sounding.reached_by(handed_out), expected, "{sounding:?} {handed_out}");
        }
    }
}
