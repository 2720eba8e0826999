//! How far the devices are, from their heartbeats in PRESENCE: the newest of each, then each as it comes. Whether that
//! matters is the announcer's to say. Losing some is no harm: a heart beats again.

use muster_bus::Delivery;
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{origin, stream};
use muster_contract::{DeviceKey, Generation, decode};

use crate::announce::Desk;
use crate::held::believed;
use crate::listening::Listener;

/// Tells a desk of heartbeats.
pub(crate) struct Heartbeats(pub(crate) Desk);

impl Listener for Heartbeats {
    const STREAM: &str = stream::PRESENCE;
    const SUBJECTS: &str = "muster.presence.*.*.*";
    const WHAT: &str = "heartbeats";

    async fn begin(&self) -> bool {
        true
    }

    async fn hear(&self, deliveries: &[Delivery]) -> bool {
        self.0.heard(deliveries.iter().filter_map(generation).collect()).await
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
