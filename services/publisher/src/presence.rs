//! Reads the generations of devices from their heartbeats in PRESENCE: the newest of each device, then each later one. The
//! announcer decides what follows. Losing a heartbeat does no harm, because the next one follows.

use muster_bus::Delivery;
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{origin, stream};
use muster_contract::{DeviceKey, Generation};

use crate::announce::AnnouncerHandle;
use crate::published::plausible_generation;
use crate::stream_listener::StreamListener;

/// Passes the generations of heartbeats to the announcer.
pub(crate) struct Heartbeats(pub(crate) AnnouncerHandle);

impl StreamListener for Heartbeats {
    const STREAM: &str = stream::PRESENCE;
    const SUBJECTS: &str = "muster.presence.*.*.*";
    const WHAT: &str = "heartbeats";

    async fn on_start(&self) -> bool {
        true
    }

    async fn on_messages(&self, deliveries: &[Delivery]) -> bool {
        self.0.report_generations(deliveries.iter().filter_map(generation).collect()).await
    }
}

/// The generation of a device; `None` before its first, and for an unreadable heartbeat, which ingest quarantines.
fn generation(delivery: &Delivery) -> Option<(DeviceKey, Generation)> {
    let key = origin(&delivery.subject)?.device.ok()?;
    let beat = Heartbeat::parse(&delivery.payload).ok()?;
    Some((key, plausible_generation(beat.generation)?))
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[test]
    fn a_heartbeat_names_a_plausible_generation_or_none() {
        for (at, wanted) in [(0, None), (1, Some(1)), (12, Some(12)), (u64::MAX, None)] {
            let beat = format!(
                r#"{{"apiVersion":"muster/v1","kind":"Heartbeat","epoch":1,"head":0,"unsent":0,"generation":{at},"agentVersion":"1"}}"#
            );
            let delivery = Delivery::new("muster.presence.3.a.one", beat, 1, Timestamp::UNIX_EPOCH);
            let said = generation(&delivery).map(|(key, at)| (key.to_string(), at.get()));
            assert_eq!(said, wanted.map(|at| ("a/one".to_owned(), at)));
        }
        let short = Delivery::new("muster.presence.3.a.one", "[1,0,12]", 1, Timestamp::UNIX_EPOCH);
        assert_eq!(generation(&short).map(|(_, at)| at.get()), Some(12));
        let garbage = Delivery::new("muster.presence.3.a.one", "no", 1, Timestamp::UNIX_EPOCH);
        assert_eq!(generation(&garbage), None);
    }
}
