//! Tracks finished, running and waiting rebuilds. It does no IO.

use std::cmp::Reverse;
use std::time::Duration;

use muster_bus::Requester;
use muster_contract::query::ErrorBody;
use muster_service::fair::FairQueue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{PATIENCE, Progress, RebuildRequest, RebuildTarget, Rebuilt};
use crate::projection::Origin;

/// Rebuilt points that are kept: so many for operators, and so many for all others. A comparison needs two.
const KEPT_MAX: usize = 2;
/// How long an unrequested point is kept.
const KEPT_FOR: Duration = Duration::from_secs(5 * 60);
/// How long the result of a comparison, or a rebuild's error, answers further requests.
const TOLD_FOR: Duration = Duration::from_secs(5);
/// How long a rebuild of the present serves as the present: a requester that was asked to try again finds it,
/// however many facts have arrived meanwhile.
pub(super) const NOW_FOR: Duration = Duration::from_secs(5);

const _: () = assert!(NOW_FOR.as_millis() > PATIENCE.as_millis());

/// How far a rebuild is.
#[derive(Debug, Clone)]
pub(super) enum RebuildStage {
    Waiting,
    Reading { at: u64, to: u64 },
    Done(Result<Rebuilt, ErrorBody>),
}

/// Finished, running and waiting rebuilds.
#[derive(Debug)]
pub(super) struct RebuildCache {
    pub(super) origin: Origin,
    pub(super) entries: Vec<CachedRebuild>,
    pub(super) waiting: FairQueue<Requester, RebuildJob>,
    /// The worker has ended.
    pub(super) is_ended: bool,
}

#[derive(Debug)]
pub(super) struct CachedRebuild {
    pub(super) wanted: RebuildTarget,
    /// The first requester.
    pub(super) requester: Requester,
    /// The point was requested as the present.
    pub(super) of_now: bool,
    pub(super) stage: watch::Receiver<RebuildStage>,
    pub(super) asked_at: Instant,
    pub(super) done_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct RebuildJob {
    pub(super) wanted: RebuildTarget,
    pub(super) origin: Origin,
    pub(super) progress: Progress,
}

impl RebuildCache {
    /// The requested point, or one that serves as well.
    pub(super) fn find(&mut self, asked: RebuildRequest) -> Option<&mut CachedRebuild> {
        let same = self.entries.iter().position(|entry| entry.wanted == asked.wanted);
        let at = same.or_else(|| self.entries.iter().position(|entry| entry.stands_in_for(asked)))?;
        let entry = &mut self.entries[at];
        entry.of_now |= asked.now_since.is_some();
        Some(entry)
    }

    /// Evicts errors and comparisons after [`TOLD_FOR`] and points after [`KEPT_FOR`] without a request, rebuilds
    /// that were abandoned, and surplus points where too many are kept.
    pub(super) fn tidy(&mut self) {
        self.entries.retain(|entry| match (&*entry.stage.borrow(), entry.wanted) {
            (RebuildStage::Done(Err(_)), _) | (RebuildStage::Done(Ok(_)), RebuildTarget::Verified) => {
                entry.asked_at.elapsed() < TOLD_FOR
            }
            (RebuildStage::Done(Ok(_)), _) => entry.asked_at.elapsed() < KEPT_FOR,
            _ => entry.stage.has_changed().is_ok(),
        });
        for operators in [false, true] {
            while let Some(at) = self.surplus(operators) {
                self.entries.remove(at);
            }
        }
    }

    /// The point to evict of those kept for operators, or for all others, where there are more than [`KEPT_MAX`]:
    /// of the requester with the most points the one requested longest ago.
    fn surplus(&self, of_operators: bool) -> Option<usize> {
        let is_of = |entry: &CachedRebuild| entry.is_kept() && entry.requester.is_operator() == of_operators;
        let kept: Vec<_> = self.entries.iter().enumerate().filter(|(_, entry)| is_of(entry)).collect();
        if kept.len() <= KEPT_MAX {
            return None;
        }
        let of =
            |requester: &Requester| kept.iter().filter(|(_, other)| other.requester == *requester).count();
        let surplus = kept.iter().min_by_key(|(_, entry)| (Reverse(of(&entry.requester)), entry.asked_at));
        surplus.map(|(at, _)| *at)
    }
}

impl CachedRebuild {
    /// Whether it serves a request without an end: the same target, as of a moment ago.
    pub(super) fn stands_in_for(&self, asked: RebuildRequest) -> bool {
        let Some(since) = asked.now_since.filter(|_| self.of_now && self.is_of_this_moment()) else {
            return false;
        };
        match (self.wanted, asked.wanted) {
            (RebuildTarget::At(by), RebuildTarget::At(now)) => (since..=now).contains(&by),
            (
                RebuildTarget::EventTime { moment, then, by },
                RebuildTarget::EventTime { moment: same_moment, then: same_then, by: now },
            ) => (moment, then) == (same_moment, same_then) && (since..=now).contains(&by),
            _ => false,
        }
    }

    fn is_of_this_moment(&self) -> bool {
        self.done_at.is_none_or(|done_at| done_at.elapsed() < NOW_FOR)
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(
            &*self.stage.borrow(),
            RebuildStage::Done(Ok(Rebuilt::Past(_) | Rebuilt::Changes(_) | Rebuilt::Remaining(_)))
        )
    }
}
