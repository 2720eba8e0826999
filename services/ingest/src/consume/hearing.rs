//! How well the hub hears: over which link, since when, and up to which report everything has been taken in.

use std::time::Duration;

use muster_bus::{Delivery, Link};
use muster_contract::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time between two looks at what has passed.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// A gap between two looks, or a step of the clock, after which the hub counts as having been deaf.
const STALL: Duration = Duration::from_secs(5);
/// How long nothing may come while the way is open before nothing is waiting.
const QUIET: Duration = Duration::from_secs(1);

const _: () = assert!(STALL.as_secs() >= 2 * TICK.as_secs());

/// What the hub knows of its own ears.
#[derive(Debug)]
pub(super) struct Hearing {
    link: watch::Receiver<Link>,
    over: Link,
    looked_at: Timestamp,
    /// When a report came last, or the way was opened.
    came_at: Option<Instant>,
    /// Every report stored up to here has been taken in; up to now where nothing waits.
    taken_to: TakenTo,
}

/// How far reports have been taken in.
#[derive(Debug, Clone, Copy)]
enum TakenTo {
    /// Nothing waits.
    Now,
    /// Up to a report stored at this moment.
    Report(Timestamp),
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
        Self { link, over, looked_at: now, came_at: None, taken_to: TakenTo::Report(Timestamp::MIN) }
    }

    /// Reports came. The first, empty batch says that the way is open.
    pub(super) fn reports(&mut self, batch: &[Delivery]) {
        self.came_at = Some(Instant::now());
        if let Some(last) = batch.last() {
            self.taken_to = match last.pending {
                0 => TakenTo::Now,
                _ => TakenTo::Report(last.stored_at),
            };
        }
    }

    /// Whether time may pass.
    pub(super) fn look(&mut self, now: Timestamp) -> Heard {
        let link = *self.link.borrow_and_update();
        let since = Duration::try_from(now.duration_since(self.looked_at));
        let deaf = link != self.over || since.is_err() || since.is_ok_and(|since| since > STALL);
        (self.looked_at, self.over) = (now, link);
        if deaf {
            return Heard::Deaf;
        }
        if !link.is_up() {
            return Heard::Nothing;
        }
        if self.came_at.is_some_and(|at| at.elapsed() >= QUIET) {
            self.taken_to = TakenTo::Now;
        }
        Heard::Well(match self.taken_to {
            TakenTo::Now => now,
            TakenTo::Report(stored_at) => stored_at,
        })
    }

    /// True while there is a link.
    pub(super) const fn is_up(&self) -> bool {
        self.over.is_up()
    }
}
