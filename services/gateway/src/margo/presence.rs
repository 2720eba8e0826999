//! The time of each device's last heartbeat: each gateway publishes at most one heartbeat of a device in a period.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use muster_contract::DeviceKey;
use tokio::time::Instant;

/// Entries beyond which the gateway forgets devices whose next heartbeat is due.
const REMEMBERED_MAX: usize = 16 * 1024;

/// The time of each device's last heartbeat.
#[derive(Debug)]
pub(crate) struct Presence {
    period: Duration,
    sent: Mutex<HashMap<DeviceKey, Instant>>,
}

impl Presence {
    /// At most one heartbeat of a device in `period`.
    pub(crate) fn every(period: Duration) -> Self {
        Self { period, sent: Mutex::default() }
    }

    /// Whether a heartbeat is due.
    pub(super) fn is_due(&self, key: &DeviceKey, now: Instant) -> bool {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get(key).is_none_or(|at| now >= *at + self.period)
    }

    /// Records that a heartbeat was sent, or that the device has none to send now.
    pub(super) fn sent(&self, key: &DeviceKey, now: Instant) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= REMEMBERED_MAX {
            sent.retain(|_, at| now < *at + self.period);
        }
        sent.insert(key.clone(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_device_has_one_heartbeat_in_a_period() {
        let (presence, now) = (Presence::every(Duration::from_secs(30)), Instant::now());
        let [one, other]: [DeviceKey; 2] = ["a/b", "a/c"].map(|key| key.parse().unwrap());
        assert!(presence.is_due(&one, now) && presence.is_due(&one, now), "one that was not sent stays due");
        presence.sent(&one, now);
        assert!(presence.is_due(&other, now));
        assert!(!presence.is_due(&one, now + Duration::from_secs(29)));
        assert!(presence.is_due(&one, now + Duration::from_secs(30)));
    }
}
