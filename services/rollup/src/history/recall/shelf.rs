//! What was rebuilt and is kept, what is being rebuilt, and what waits for it. No IO.

use std::cmp::Reverse;
use std::time::Duration;

use muster_bus::Requester;
use muster_contract::query::ErrorBody;
use muster_service::fair::FairQueue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Asked, Made, PATIENCE, Progress, Wanted};
use crate::present::Origin;

/// Points that are kept when they are made: of those that operators asked for, and of all others. A comparison needs two.
const KEPT_MAX: usize = 2;
/// How long a point is kept that nobody asks for.
const KEPT_FOR: Duration = Duration::from_secs(5 * 60);
/// How long what a comparison found, and why a rebuild failed, is the answer to whoever asks again.
const TOLD_FOR: Duration = Duration::from_secs(5);
/// How long what was made of the present is the present for whoever asks for that: who was told to ask again finds it, however
/// many facts have come in meanwhile.
pub(super) const NOW_FOR: Duration = Duration::from_secs(5);

const _: () = assert!(NOW_FOR.as_millis() > PATIENCE.as_millis());

/// How far a rebuild is.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    Waiting,
    Reading { at: u64, to: u64 },
    Done(Result<Made, ErrorBody>),
}

/// What is made, is being made, or waits.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) origin: Origin,
    pub(super) entries: Vec<Entry>,
    pub(super) waiting: FairQueue<Requester, Job>,
    /// Nobody makes anything any more.
    pub(super) is_ended: bool,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) wanted: Wanted,
    /// Who asked for it first.
    pub(super) requester: Requester,
    /// Somebody asked for it as the present.
    pub(super) of_now: bool,
    pub(super) stage: watch::Receiver<Stage>,
    pub(super) asked_at: Instant,
    pub(super) done_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) wanted: Wanted,
    pub(super) origin: Origin,
    pub(super) progress: Progress,
}

impl Shelf {
    /// What is asked for, or what stands in for it.
    pub(super) fn find(&mut self, asked: Asked) -> Option<&mut Entry> {
        let same = self.entries.iter().position(|entry| entry.wanted == asked.wanted);
        let at = same.or_else(|| self.entries.iter().position(|entry| entry.stands_in_for(asked)))?;
        let entry = &mut self.entries[at];
        entry.of_now |= asked.now_since.is_some();
        Some(entry)
    }

    /// Lets go of what was told, of what nobody asked for in a while, and of the least asked for where too much is kept.
    pub(super) fn tidy(&mut self) {
        self.entries.retain(|entry| match (&*entry.stage.borrow(), entry.wanted) {
            (Stage::Done(Err(_)), _) | (Stage::Done(Ok(_)), Wanted::Verified) => {
                entry.asked_at.elapsed() < TOLD_FOR
            }
            (Stage::Done(Ok(_)), _) => entry.asked_at.elapsed() < KEPT_FOR,
            _ => entry.stage.has_changed().is_ok(),
        });
        for operators in [false, true] {
            while let Some(at) = self.surplus(operators) {
                self.entries.remove(at);
            }
        }
    }

    /// The point that is to go of those that operators, or all others, asked for, where more are kept than may be: the oldest of
    /// the requester that has most of them.
    fn surplus(&self, of_operators: bool) -> Option<usize> {
        let is_of = |entry: &Entry| entry.is_kept() && entry.requester.is_operator() == of_operators;
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

impl Entry {
    /// Whether it is what somebody wants who named no end: the same, as of a moment ago.
    pub(super) fn stands_in_for(&self, asked: Asked) -> bool {
        let Some(since) = asked.now_since.filter(|_| self.of_now && self.is_of_this_moment()) else {
            return false;
        };
        match (self.wanted, asked.wanted) {
            (Wanted::At(by), Wanted::At(now)) => (since..=now).contains(&by),
            (
                Wanted::About { moment, then, by },
                Wanted::About { moment: same_moment, then: same_then, by: now },
            ) => (moment, then) == (same_moment, same_then) && (since..=now).contains(&by),
            _ => false,
        }
    }

    fn is_of_this_moment(&self) -> bool {
        self.done_at.is_none_or(|done_at| done_at.elapsed() < NOW_FOR)
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(&*self.stage.borrow(), Stage::Done(Ok(Made::Past(_))))
    }
}
