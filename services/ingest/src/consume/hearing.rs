//! How well the hub hears: over which link, since when, and up to which report everything has been taken in.

use std::time::Duration;

use muster_bus::Link;
use muster_contract::Timestamp;
use tokio::sync::watch;

use crate::presence::Hears;

/// Time between two looks at what has passed.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// A gap between two looks, or a step of the clock, after which the hub counts as having been deaf.
const STALL: Duration = Duration::from_secs(5);

const _: () = assert!(STALL.as_secs() >= 2 * TICK.as_secs());

/// What the hub knows of its own ears.
#[derive(Debug)]
pub(super) struct Hearing {
    link: watch::Receiver<Link>,
    over: Link,
    heartbeats: Hears,
    /// It heard at the last look.
    heard: bool,
    looked_at: Timestamp,
    /// Every report stored up to here has been taken in.
    taken_to: Timestamp,
}

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Time may pass; everything stored up to this moment has been taken in.
    Well(Timestamp),
    /// The hub was deaf since the last look; it hears from now on.
    Deaf,
    /// It hears nothing.
    Nothing,
}

impl Hearing {
    pub(super) fn new(mut link: watch::Receiver<Link>, now: Timestamp) -> Self {
        let over = *link.borrow_and_update();
        let heartbeats = Hears::default();
        Self { link, over, heartbeats, heard: false, looked_at: now, taken_to: Timestamp::MIN }
    }

    /// Where to say whether heartbeats can come.
    pub(super) fn of_heartbeats(&self) -> Hears {
        self.heartbeats.clone()
    }

    /// Every report stored up to a moment has been taken in. What is taken in again after a break begins further back.
    pub(super) const fn has_all_to(&mut self, at: Timestamp) {
        self.taken_to = at;
    }

    /// Whether time may pass.
    pub(super) fn look(&mut self, now: Timestamp) -> Heard {
        let link = *self.link.borrow_and_update();
        let since = Duration::try_from(now.duration_since(self.looked_at));
        let hears = link.is_up() && self.heartbeats.now();
        let begins = hears && !self.heard;
        let deaf = begins || link != self.over || since.is_err() || since.is_ok_and(|since| since > STALL);
        (self.looked_at, self.over, self.heard) = (now, link, hears);
        if deaf {
            return Heard::Deaf;
        }
        if !hears {
            return Heard::Nothing;
        }
        Heard::Well(self.taken_to.min(now))
    }

    /// True while there is a link.
    pub(super) const fn is_up(&self) -> bool {
        self.over.is_up()
    }
}
