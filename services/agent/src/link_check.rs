//! The intervals by which an agent finds a link that no longer answers: within two heartbeats by the acknowledgements of the kernel,
//! and later, behind a proxy that acknowledges in the hub's place, by pings. Pure.

use std::time::Duration;

use muster_bus::config::PINGS_UNTIL_LOST;
use muster_bus::unacknowledged;
use muster_contract::limits::HEARTBEAT_JITTER;

/// Least and most heartbeats between two pings while the kernel shows unacknowledged bytes.
const HEARTBEATS_PER_PING: (u32, u32) = (4, 20);
/// Time between two pings in that case, within those bounds.
const PING_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Pings between two heartbeats where only they find a lost link.
const PINGS_PER_HEARTBEAT: u32 = 2;
/// Longest time between two pings where only they find a lost link: each costs an idle device traffic.
const PING_INTERVAL_MAX: Duration = Duration::from_secs(150);
/// Longest time without an acknowledgement; shorter interruptions are left to the kernel.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);
/// Least time without one, also with very frequent heartbeats: a lossy link needs a few repetitions.
const UNACKNOWLEDGED_MIN: Duration = Duration::from_secs(3);

const _: () = assert!(PINGS_UNTIL_LOST < 2 * PINGS_PER_HEARTBEAT);
// The next heartbeat, the time without an acknowledgement and an eighth of that for the check are within two heartbeats.
const _: () = assert!(HEARTBEAT_JITTER + 2.0 / 3.0 * (9.0 / 8.0) <= 1.0);

/// Time between two pings.
pub(crate) fn ping_interval(heartbeat: Duration) -> Duration {
    if unacknowledged::is_supported() {
        rare_pings(heartbeat)
    } else {
        PING_INTERVAL_MAX.min(heartbeat / PINGS_PER_HEARTBEAT)
    }
}

fn rare_pings(heartbeat: Duration) -> Duration {
    let (least, most) = HEARTBEATS_PER_PING;
    (heartbeat * most).min(PING_INTERVAL.max(heartbeat * least))
}

/// How long a heartbeat may stay unacknowledged.
pub(crate) fn unacknowledged_max(heartbeat: Duration) -> Duration {
    (heartbeat * 2 / 3).clamp(UNACKNOWLEDGED_MIN, UNACKNOWLEDGED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_device_pings_rarely_and_finds_a_dead_link_in_two_heartbeats() {
        assert_eq!(rare_pings(Duration::from_secs(1)), Duration::from_secs(20));
        for (heartbeat, pings) in [(5, 100), (30, 600), (300, 1_200), (3_600, 14_400)] {
            let heartbeat = Duration::from_secs(heartbeat);
            assert_eq!(rare_pings(heartbeat), Duration::from_secs(pings));
            let found =
                heartbeat.mul_f64(1.0 + HEARTBEAT_JITTER) + unacknowledged_max(heartbeat).mul_f64(9.0 / 8.0);
            assert!(found <= 2 * heartbeat, "{heartbeat:?}: {found:?}");
        }
    }
}
