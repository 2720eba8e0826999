//! The present: the fold of LEDGER so far, written by one corridor and looked at by everyone else.
//!
//! LEDGER itself may be made anew under a running rollup. Then the present starts over: it is of another [`Origin`], and
//! whoever keeps something derived from it (snapshot, views) sees that and starts over too.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::defined::ViewDefinition;
use muster_domain::fold::Fleet;
use tokio::sync::watch;

use crate::progress::LedgerProgress;

/// How long a view or a notice of somebody who has read further than the present is left alone before LEDGER's end is asked
/// for, and again after that. Where LEDGER ends before it, it is of another one.
pub(crate) const AHEAD_ASK: Duration = Duration::from_secs(5);

/// Which LEDGER a present is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// When the stream was created.
    pub created_at: Timestamp,
    /// How often this process has started over.
    pub restarts: u64,
}

/// The fold of one LEDGER.
#[derive(Debug)]
pub struct Now {
    /// Which LEDGER.
    pub origin: Origin,
    /// Everything LEDGER held when its reading began is read. Until then nobody is to be told anything.
    pub caught_up: bool,
    /// The fold.
    pub fleet: Fleet,
    /// Views that are defined and not counted, because more are defined than may be.
    pub uncounted: Vec<ViewDefinition>,
}

/// The present, shared.
#[derive(Debug)]
pub struct Present {
    now: RwLock<Now>,
    read_to: watch::Sender<u64>,
    caught_up: watch::Sender<bool>,
    progress: LedgerProgress,
}

impl Present {
    /// The present as a snapshot of this LEDGER left it, or an empty one.
    pub fn new(created_at: Timestamp, fleet: Fleet) -> Self {
        let read_to = fleet.as_of().ledger_seq;
        let now = Now {
            origin: Origin { created_at, restarts: 0 },
            caught_up: false,
            fleet,
            uncounted: Vec::new(),
        };
        Self {
            now: RwLock::new(now),
            read_to: watch::Sender::new(read_to),
            caught_up: watch::Sender::new(false),
            progress: LedgerProgress::new(read_to),
        }
    }

    /// How far LEDGER is read, also where no fact came.
    pub const fn progress(&self) -> &LedgerProgress {
        &self.progress
    }

    /// Looks at the present.
    pub fn look<T>(&self, look: impl FnOnce(&Now) -> T) -> T {
        look(&self.read())
    }

    /// Changes the present and tells everyone up to where it has read now.
    pub fn change<T>(&self, change: impl FnOnce(&mut Fleet) -> T) -> T {
        let mut now = self.write();
        let result = change(&mut now.fleet);
        let read_to = now.fleet.as_of().ledger_seq;
        drop(now);
        self.read_to.send_if_modified(|told| std::mem::replace(told, read_to) != read_to);
        result
    }

    /// Changes what is counted of the present, and has everyone look again. It has read no further.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Fleet) -> T) -> T {
        let result = edit(&mut self.write().fleet);
        self.read_to.send_modify(|_| {});
        result
    }

    /// These are all the views that are defined: those that are counted, and those beyond them.
    pub fn define(&self, counted: Vec<ViewDefinition>, uncounted: Vec<ViewDefinition>) {
        let mut now = self.write();
        now.fleet.define(counted);
        now.uncounted = uncounted;
        drop(now);
        self.read_to.send_modify(|_| {});
    }

    /// Takes something out of the present that is no part of what is shown: marks of what changed.
    pub fn take<T>(&self, take: impl FnOnce(&mut Now) -> T) -> T {
        take(&mut self.write())
    }

    /// Starts over with an empty present, of a LEDGER created at another time or emptied. Not caught up any more.
    pub fn start_over(&self, created_at: Timestamp) {
        let mut now = self.write();
        let origin = Origin { created_at, restarts: now.origin.restarts + 1 };
        *now = Now { origin, caught_up: false, fleet: Fleet::default(), uncounted: Vec::new() };
        drop(now);
        self.progress.start_over();
        self.caught_up.send_replace(false);
        self.read_to.send_replace(0);
    }

    /// Says that everything LEDGER held when its reading began is read.
    pub fn set_caught_up(&self) {
        self.write().caught_up = true;
        self.caught_up.send_replace(true);
    }

    /// Follows [`Now::caught_up`].
    pub fn caught_up(&self) -> watch::Receiver<bool> {
        self.caught_up.subscribe()
    }

    /// Follows the sequence up to which LEDGER was read.
    pub fn read_to(&self) -> watch::Receiver<u64> {
        self.read_to.subscribe()
    }

    /// A fold is total, so a panic elsewhere does not leave it half-changed in a way that a lock could mend.
    fn read(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Now> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }
}
