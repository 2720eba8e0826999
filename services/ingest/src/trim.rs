//! UPLINK's end: what every partition has acknowledged is removed, but for the last hour, so that the stream is full
//! only when ingest is behind. The owner of partition 0 does it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::limits::PARTITIONS;
use muster_service::clock::Clock;
use muster_service::error::chain;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;

/// The partition whose owner trims.
pub const TRIMMER: u16 = 0;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long an acknowledged report stays, for a person who wants to look.
const KEPT: Duration = Duration::from_secs(60 * 60);
/// Floors remembered: enough to reach back over what is kept.
const FLOORS_MAX: usize = 2 * (KEPT.as_secs() / LOOK_EVERY.as_secs()) as usize;

const _: () = assert!(FLOORS_MAX as u64 * LOOK_EVERY.as_secs() > KEPT.as_secs());

/// What everybody was done with, and when.
#[derive(Debug, Default)]
struct Floors(VecDeque<(Timestamp, u64)>);

impl Floors {
    /// Notes the floor at a moment; gives the newest floor that is old enough to be trimmed to, once.
    fn note(&mut self, now: Timestamp, floor: u64) -> Option<u64> {
        if self.0.len() >= FLOORS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, floor));
        let old = |at: Timestamp| Duration::try_from(now.duration_since(at)).is_ok_and(|age| age >= KEPT);
        let count = self.0.iter().take_while(|(at, _)| old(*at)).count();
        self.0.drain(..count).next_back().map(|(_, floor)| floor).filter(|floor| *floor > 0)
    }
}

/// Trims until `stop`.
pub async fn run(bus: Bus, clock: Arc<dyn Clock>, trimmed: Counter, stop: CancellationToken) {
    let mut floors = Floors::default();
    let trimming = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match trim(&bus, clock.now(), &mut floors).await {
                Ok(count) => _ = trimmed.inc_by(count),
                Err(error) => tracing::warn!(error = chain(&error), "cannot trim UPLINK; trying again"),
            }
        }
    };
    stop.run_until_cancelled(trimming).await;
}

async fn trim(bus: &Bus, now: Timestamp, floors: &mut Floors) -> Result<u64, ReadError> {
    let partitions = bus.partition_floors().await?;
    let lowest = partitions.iter().map(|partition| partition.stream_seq).min();
    // A partition without a consumer may have everything before it.
    let Some(lowest) = lowest.filter(|_| partitions.len() == usize::from(PARTITIONS)) else { return Ok(0) };
    match floors.note(now, lowest) {
        Some(floor) => bus.trim_uplink(floor + 1).await,
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_everybody_was_done_with_an_hour_ago_is_trimmed() {
        let at = |minute: i64| Timestamp::from_second(60 * minute).unwrap();
        let mut floors = Floors::default();
        // minute, floor, trimmed to
        let table = [
            (0, 0, None),
            (1, 10, None),
            (30, 500, None),
            (60, 900, None),
            (61, 910, Some(10)),
            (62, 920, None),
            (200, 5_000, Some(920)),
            (201, 5_001, None),
        ];
        for (minute, floor, trimmed) in table {
            assert_eq!(floors.note(at(minute), floor), trimmed, "minute {minute}");
        }
    }
}
