//! UPLINK's end: what every partition has acknowledged is removed, but for the last hour; and that as well once the stream
//! is half full. So it is full only when ingest is behind. The owner of partition 0 does it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::limits::PARTITIONS;
use muster_contract::subjects::stream;
use muster_service::clock::Clock;
use muster_service::error::chain;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;

/// The partition whose owner trims.
pub const TRIMMER: u16 = 0;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Time between two looks at how full it is: a backlog must not fill half of it in less.
const LOOK_AT_ROOM_EVERY: Duration = Duration::from_secs(2);
/// How long an acknowledged report stays, for a person who wants to look.
const KEPT: Duration = Duration::from_secs(60 * 60);
/// Floors remembered: enough to reach back over what is kept.
const FLOORS_MAX: usize = 2 * (KEPT.as_secs() / LOOK_EVERY.as_secs()) as usize;

const _: () = assert!(LOOK_EVERY.as_secs().is_multiple_of(LOOK_AT_ROOM_EVERY.as_secs()));
const _: () = assert!(FLOORS_MAX as u64 * LOOK_EVERY.as_secs() > KEPT.as_secs());

/// What everybody was done with, and when.
#[derive(Debug, Default)]
struct Floors(VecDeque<(Timestamp, u64)>);

impl Floors {
    /// Notes the floor at a moment; gives the newest floor that is old enough to be trimmed to, once.
    fn note(&mut self, now: Timestamp, floor: u64) -> Option<u64> {
        // UPLINK is another one now: what was known of the old one would remove what nobody has read.
        if self.0.back().is_some_and(|(_, last)| floor < *last) {
            self.0.clear();
        }
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
    let looks = LOOK_EVERY.as_secs() / LOOK_AT_ROOM_EVERY.as_secs();
    let trimming = async {
        for look in 1_u64.. {
            tokio::time::sleep(LOOK_AT_ROOM_EVERY).await;
            let trim = async {
                match (is_half_full(&bus).await?, look % looks) {
                    (true, _) => trim_all(&bus).await,
                    (false, 0) => trim_old(&bus, clock.now(), &mut floors).await,
                    (false, _) => Ok(0),
                }
            };
            match trim.await {
                Ok(count) => _ = trimmed.inc_by(count),
                Err(error) => tracing::warn!(error = chain(&error), "cannot trim UPLINK; trying again"),
            }
        }
    };
    stop.run_until_cancelled(trimming).await;
}

async fn is_half_full(bus: &Bus) -> Result<bool, ReadError> {
    let uplink = bus.stream_state(stream::UPLINK).await?;
    Ok(uplink.bytes_max.is_some_and(|most| uplink.bytes >= most / 2))
}

/// Removes what everybody is done with.
async fn trim_all(bus: &Bus) -> Result<u64, ReadError> {
    match lowest_floor(bus).await? {
        Some(floor) if floor > 0 => bus.trim_uplink(floor + 1).await,
        _ => Ok(0),
    }
}

/// Removes what everybody has been done with for a while.
async fn trim_old(bus: &Bus, now: Timestamp, floors: &mut Floors) -> Result<u64, ReadError> {
    let floor = lowest_floor(bus).await?.and_then(|lowest| floors.note(now, lowest));
    match floor {
        Some(floor) => bus.trim_uplink(floor + 1).await,
        None => Ok(0),
    }
}

async fn lowest_floor(bus: &Bus) -> Result<Option<u64>, ReadError> {
    let partitions = bus.partition_floors().await?;
    let lowest = partitions.iter().map(|partition| partition.stream_seq).min();
    // A partition without a consumer may have everything before it.
    Ok(lowest.filter(|_| partitions.len() == usize::from(PARTITIONS)))
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
            // UPLINK was made anew, with numbers from 1.
            (300, 3, None),
            (362, 80, Some(3)),
        ];
        for (minute, floor, trimmed) in table {
            assert_eq!(floors.note(at(minute), floor), trimmed, "minute {minute}");
        }
    }
}
