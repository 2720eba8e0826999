//! How far the devices are, from their heartbeats in PRESENCE: the newest of each, then each as it comes. Whether that
//! matters is the announcer's to say. Losing some is no harm: a heart beats again.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{origin, stream};
use muster_contract::{DeviceKey, Generation, decode};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

use crate::announce::Desk;
use crate::held::believed;

/// Heartbeats taken at once.
const BATCH: usize = 1000;
/// Those of every device, in every partition.
const EVERYBODY: &str = "muster.presence.*.*.*";
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// Tells `desk` of heartbeats until `stop`.
pub async fn run(bus: Bus, desk: Desk, chance: Rng, stop: CancellationToken) {
    stop.run_until_cancelled(follow(bus, desk, chance)).await;
}

async fn follow(bus: Bus, desk: Desk, mut chance: Rng) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    loop {
        let Err(error) = listen(&bus, &desk, &mut retry).await else { return };
        let retry_in = retry.next(&mut chance);
        tracing::warn!(error = chain(&error), ?retry_in, "cannot read heartbeats");
        tokio::time::sleep(retry_in).await;
    }
}

/// Ends well only when nobody wants to know any more.
async fn listen(bus: &Bus, desk: &Desk, retry: &mut FullJitter) -> Result<(), ReadError> {
    let mut replay = bus.replay(stream::PRESENCE, &[EVERYBODY], Start::LastPerSubject).await?;
    loop {
        let beats = replay.next_batch(BATCH).await?;
        retry.reset();
        if !desk.heard(beats.iter().filter_map(generation).collect()).await {
            return Ok(());
        }
    }
}

/// The generation a device is at; none before its first, and none from what cannot be read: that is ingest's to tell.
fn generation(delivery: &Delivery) -> Option<(DeviceKey, Generation)> {
    let key = origin(&delivery.subject)?.device.ok()?;
    let beat: Heartbeat = decode::parse(&delivery.payload).ok()?;
    Some((key, believed(beat.generation)?))
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[test]
    fn a_heartbeat_says_how_far_its_device_is_unless_no_device_can_be_there() {
        for (at, wanted) in [(0, None), (1, Some(1)), (12, Some(12)), (u64::MAX, None)] {
            let beat = format!(
                r#"{{"apiVersion":"muster/v1","kind":"Heartbeat","epoch":1,"head":0,"unsent":0,"generation":{at},"agentVersion":"1"}}"#
            );
            let delivery = Delivery::new("muster.presence.3.a.one", beat, 1, Timestamp::UNIX_EPOCH);
            let said = generation(&delivery).map(|(key, at)| (key.to_string(), at.get()));
            assert_eq!(said, wanted.map(|at| ("a/one".to_owned(), at)));
        }
        let garbage = Delivery::new("muster.presence.3.a.one", "no", 1, Timestamp::UNIX_EPOCH);
        assert_eq!(generation(&garbage), None);
    }
}
