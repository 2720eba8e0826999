//! Tracks whether the hub receives: its connection, the time of the last check, and the time up to which it has every report and
//! every heartbeat.
//!
//! A server does not always announce to a reader that its consumer is gone: until the reader notices, no lease may end.

use std::time::Duration;

use muster_bus::Link;
use muster_contract::Timestamp;
use muster_domain::intake::Watermarks;

use super::io::Conditions;

/// Time between two checks of leases, gaps and deadlines.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// A gap between two checks, or a step of the clock, after which the hub counts as not having received.
pub const STALL: Duration = Duration::from_secs(5);

const _: () = assert!(STALL.as_secs() >= 2 * TICK.as_secs());

/// The receive health of a session.
#[derive(Debug)]
pub(super) struct ReceiveHealth {
    link: Link,
    /// The hub received at the last check.
    received: bool,
    checked_at: Timestamp,
    /// When the last input came: at each tick, and more often.
    active_at: Timestamp,
    /// Every report stored up to this time was evaluated.
    complete_through: Timestamp,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Time may pass; the hub has everything stored up to these moments.
    Through(Watermarks),
    /// The hub received nothing for a while since the last check, and receives again.
    Stalled,
    /// The hub receives nothing.
    Nothing,
}

impl ReceiveHealth {
    pub(super) const fn new(link: Link, now: Timestamp) -> Self {
        Self { link, received: false, checked_at: now, active_at: now, complete_through: Timestamp::MIN }
    }

    /// Records that every report stored up to `at` was evaluated. After a redelivery `at` is earlier than before.
    pub(super) const fn set_complete_through(&mut self, at: Timestamp) {
        self.complete_through = at;
    }

    /// Whether the process stood still, or its clock stepped, since the last input.
    pub(super) fn has_stalled(&mut self, now: Timestamp) -> bool {
        is_stall(std::mem::replace(&mut self.active_at, now), now)
    }

    /// Whether time may pass.
    pub(super) fn check(&mut self, conditions: &Conditions) -> Received {
        let Conditions { now, link, heartbeats_through, .. } = *conditions;
        let heartbeats = heartbeats_through.filter(|_| link.is_up());
        let receives = heartbeats.is_some();
        let begins = receives && !self.received;
        let stalled = begins || link != self.link || is_stall(self.checked_at, now);
        (self.checked_at, self.link, self.received) = (now, link, receives);
        if stalled {
            return Received::Stalled;
        }
        heartbeats.map_or(Received::Nothing, |heartbeats| {
            Received::Through(Watermarks { reports: self.complete_through.min(now), heartbeats })
        })
    }

    /// Whether there is a connection.
    pub(super) const fn is_up(&self) -> bool {
        self.link.is_up()
    }
}

fn is_stall(before: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(before)).map_or(true, |since| since > STALL)
}
