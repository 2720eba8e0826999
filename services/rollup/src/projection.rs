//! The projection: the current fold of LEDGER, written by one consumer and read by all other parts.
//!
//! LEDGER may be created anew under a running rollup. Then the projection starts over with another [`Origin`],
//! and each part that keeps something derived from it (snapshot, views) notices that and starts over too.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::defined::ViewDefinition;
use muster_domain::fold::{Fleet, Timeline};
pub use muster_notify::Origin;
use tokio::sync::watch;

use crate::progress::LedgerProgress;

/// How long a view from a process that has read further is left alone before LEDGER's end is read, and the interval
/// after that. If LEDGER ends before it, it belongs to another LEDGER.
pub(crate) const AHEAD_ASK: Duration = Duration::from_secs(5);

/// The fold of one LEDGER.
#[derive(Debug)]
pub struct ProjectionState {
    /// Which LEDGER.
    pub origin: Origin,
    /// True once everything that LEDGER held at the start is read. Until then nothing may be published.
    pub caught_up: bool,
    /// The fold.
    pub fleet: Fleet,
    /// How its counts have changed.
    pub timeline: Timeline,
    /// Views that are defined and not counted, because more are defined than may be.
    pub uncounted: Vec<ViewDefinition>,
}

/// The shared projection.
#[derive(Debug)]
pub struct Projection {
    now: RwLock<ProjectionState>,
    read_to: watch::Sender<u64>,
    caught_up: watch::Sender<bool>,
    progress: LedgerProgress,
}

impl Projection {
    /// Creates a projection of this LEDGER that has no timeline yet.
    pub fn new(created_at: Timestamp, fleet: Fleet) -> Self {
        Self::restored(created_at, fleet, Timeline::default())
    }

    /// Creates a projection from a snapshot of this LEDGER, or an empty one.
    pub(crate) fn restored(created_at: Timestamp, fleet: Fleet, timeline: Timeline) -> Self {
        let read_to = fleet.as_of().ledger_seq;
        let now = ProjectionState {
            origin: Origin { created_at, restarts: 0 },
            caught_up: false,
            fleet,
            timeline,
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

    /// Reads the projection.
    pub fn read<T>(&self, look: impl FnOnce(&ProjectionState) -> T) -> T {
        look(&self.lock_read())
    }

    /// Updates the projection and notifies all followers of the new position.
    pub fn update<T>(&self, change: impl FnOnce(&mut ProjectionState) -> T) -> T {
        let mut now = self.lock_write();
        let result = change(&mut now);
        let read_to = now.fleet.as_of().ledger_seq;
        drop(now);
        self.read_to.send_if_modified(|told| std::mem::replace(told, read_to) != read_to);
        result
    }

    /// Changes the counted views and notifies all followers. The position stays.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Fleet) -> T) -> T {
        let result = edit(&mut self.lock_write().fleet);
        self.read_to.send_modify(|_| {});
        result
    }

    /// Replaces the view definitions: those that are counted, and those beyond the limit.
    pub fn define(&self, counted: Vec<ViewDefinition>, uncounted: Vec<ViewDefinition>) {
        let mut now = self.lock_write();
        now.fleet.define(counted);
        now.uncounted = uncounted;
        drop(now);
        self.read_to.send_modify(|_| {});
    }

    /// Updates the marks of changed views and devices; no view shows them.
    pub(crate) fn update_marks<T>(&self, take: impl FnOnce(&mut ProjectionState) -> T) -> T {
        take(&mut self.lock_write())
    }

    /// Starts over with an empty projection of a LEDGER created at another time or emptied. Not caught up any more.
    pub(crate) fn start_over(&self, created_at: Timestamp) {
        let mut now = self.lock_write();
        let origin = Origin { created_at, restarts: now.origin.restarts + 1 };
        *now = ProjectionState {
            origin,
            caught_up: false,
            fleet: Fleet::default(),
            timeline: Timeline::default(),
            uncounted: Vec::new(),
        };
        drop(now);
        self.progress.start_over();
        self.caught_up.send_replace(false);
        self.read_to.send_replace(0);
    }

    /// Says that everything LEDGER held when its reading began is read.
    pub fn set_caught_up(&self) {
        let mut now = self.lock_write();
        now.caught_up = true;
        now.timeline.begin();
        drop(now);
        self.caught_up.send_replace(true);
        self.read_to.send_modify(|_| {});
    }

    /// Follows [`ProjectionState::caught_up`].
    pub fn caught_up(&self) -> watch::Receiver<bool> {
        self.caught_up.subscribe()
    }

    /// Follows the sequence up to which LEDGER was read.
    pub fn read_to(&self) -> watch::Receiver<u64> {
        self.read_to.subscribe()
    }

    /// A fold is total, so a panic elsewhere does not leave it half-changed in a way that a lock could mend.
    fn lock_read(&self) -> RwLockReadGuard<'_, ProjectionState> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_write(&self) -> RwLockWriteGuard<'_, ProjectionState> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }
}
