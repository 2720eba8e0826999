//! One target of a live rollout in few bytes: a fleet of 100,000 devices with 20 rollouts has two million targets.

use std::sync::Arc;

use muster_contract::rollout::Retries;
use muster_contract::view::Freshness;
use muster_contract::{Generation, Timestamp};

use super::super::line::Line;
use super::super::progress::Known;
use super::super::target::{Evidence, Target};
use super::{Content, LiveTarget, TargetDevice};

/// Bytes of a row.
const ROW_BYTES: usize = 56;

const _: () = assert!(size_of::<Row>() <= ROW_BYTES);

/// A time in eight bytes: nanoseconds since 1970, clamped to 64 bits (the years 1677 to 2262).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanoseconds(i64);

impl Nanoseconds {
    pub(super) fn of(time: Timestamp) -> Self {
        let nanoseconds = time.as_nanosecond();
        Self(i64::try_from(nanoseconds).unwrap_or(if nanoseconds < 0 { i64::MIN } else { i64::MAX }))
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_nanosecond(self.0.into()).unwrap_or_default()
    }
}

/// A target.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) device: Arc<TargetDevice>,
    /// Generation at which the device got its content, by its documents.
    pub(super) generation: Option<Generation>,
    pub(super) released_at: Option<Nanoseconds>,
    /// Time since which nothing has changed, if it is confirmed.
    since: Nanoseconds,
    pub(super) wave: u16,
    pub(super) known: Known,
    /// Whether its documents have the rollout's content.
    has_content: bool,
    /// The publisher's answer whether it has the content, until a later document arrives.
    answer: Option<bool>,
    has_since: bool,
    pub(super) is_silent: bool,
    /// Whether it has no end and has missed a deadline of the hub.
    pub(super) is_past_deadline: bool,
    pub(super) is_refused: bool,
    pub(super) is_soaked: bool,
    /// Whether it is in no count yet.
    pub(super) is_uncounted: bool,
    has_begun: bool,
}

/// The state of a target by its line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    known: Known,
    since: Option<Timestamp>,
    is_silent: bool,
    is_past_deadline: bool,
    has_begun: bool,
}

impl Row {
    pub(super) fn new(target: LiveTarget, wave: usize) -> Self {
        let LiveTarget { device, content, is_refused } = target;
        Self {
            device,
            generation: content.generation,
            released_at: content.at.map(Nanoseconds::of),
            since: Nanoseconds(0),
            // There are at most 32 waves.
            wave: wave as u16,
            known: Known::NotReleased,
            has_content: content.is_wanted,
            answer: None,
            has_since: false,
            is_silent: false,
            is_past_deadline: false,
            is_refused,
            is_soaked: false,
            is_uncounted: true,
            has_begun: false,
        }
    }

    /// The target as documents have it.
    pub(super) fn listed(&self) -> LiveTarget {
        let at = self.released_at.filter(|_| self.answer.is_none());
        let content = Content {
            is_wanted: self.has_content,
            generation: self.generation,
            at: at.map(Nanoseconds::timestamp),
        };
        LiveTarget { device: self.device.clone(), content, is_refused: self.is_refused }
    }

    pub(super) fn set_content(&mut self, content: Content, document: Generation) {
        let is_newer = match (content.generation, self.generation) {
            (Some(new), known) => Some(new) > known,
            // The document has no such deployment: it is gone if the document is newer.
            (None, known) => known.is_some_and(|known| document > known),
        };
        if is_newer {
            (self.has_content, self.generation, self.answer) = (content.is_wanted, content.generation, None);
            self.released_at = content.at.map(Nanoseconds::of);
        } else if content.generation.is_some() && content.generation == self.generation {
            self.has_content = content.is_wanted;
        }
    }

    pub(super) fn set_answer(&mut self, has_content: bool, now: Timestamp) {
        if self.has_content == has_content {
            self.answer = None;
        } else {
            (self.answer, self.released_at) = (Some(has_content), Some(Nanoseconds::of(now)));
        }
    }

    pub(super) const fn awaits_ledger(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn observe(&self, line: Option<&Line<'_>>, retries: Option<&Retries>) -> Observation {
        let known = match self.answer {
            Some(true) => Known::NotInLedger,
            Some(false) => Known::NotReleased,
            None => Known::of_content(self.has_content, self.generation, line, retries),
        };
        let since = match known.evidence(line) {
            Evidence::Confirmed(since) => Some(since),
            Evidence::Failed | Evidence::Overdue | Evidence::Debt | Evidence::Unknown => None,
        };
        let is_silent = line.is_some_and(|line| line.freshness != Freshness::Fresh);
        let has_begun = known.is_in_ledger() && line.is_some_and(|line| line.has_begun(self.generation));
        let is_past_deadline = matches!(known, Known::UnderWay | Known::TriesAgain)
            && line.is_some_and(|line| line.overdue.is_some());
        Observation {
            known,
            since,
            is_silent: is_silent && known != Known::NotInLedger,
            is_past_deadline,
            has_begun,
        }
    }

    pub(super) fn has_same(&self, observation: Observation) -> bool {
        let since = self.has_since.then_some(self.since);
        !self.is_uncounted
            && (self.known, since, self.is_silent, self.is_past_deadline, self.has_begun)
                == (
                    observation.known,
                    observation.since.map(Nanoseconds::of),
                    observation.is_silent,
                    observation.is_past_deadline,
                    observation.has_begun,
                )
    }

    pub(super) fn set_observation(&mut self, observation: Observation) {
        let Observation { known, since, is_silent, is_past_deadline, has_begun } = observation;
        (self.known, self.is_silent, self.is_past_deadline, self.has_begun) =
            (known, is_silent, is_past_deadline, has_begun);
        self.has_since = since.is_some();
        self.since = since.map_or(Nanoseconds(0), Nanoseconds::of);
    }

    pub(super) fn evidence(&self) -> Evidence {
        match self.known {
            Known::Confirmed if self.has_since => Evidence::Confirmed(self.since.timestamp()),
            Known::Failed => Evidence::Failed,
            _ => Evidence::Unknown,
        }
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target {
            key: &self.device.key,
            labels: &self.device.labels,
            is_released: self.known != Known::NotReleased,
            evidence: self.evidence(),
            has_begun: self.has_begun,
            silent_since: self.is_silent.then_some(Timestamp::MIN),
            released_at: self.released_at.map(Nanoseconds::timestamp),
            is_refused: self.is_refused,
        }
    }
}
