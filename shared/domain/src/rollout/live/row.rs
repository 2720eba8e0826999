//! One target of a live rollout in few bytes: a fleet of 100,000 devices with 20 rollouts has two million targets.

use std::sync::Arc;

use muster_contract::rollout::Retries;
use muster_contract::view::Freshness;
use muster_contract::{Generation, Timestamp};

use super::super::line::Line;
use super::super::progress::Known;
use super::super::target::{Evidence, Target};
use super::refusals::Refusals;
use super::{Content, LiveTarget, TargetDevice};

/// Bytes of a row.
const ROW_BYTES: usize = 40;

const _: () = assert!(size_of::<Row>() <= ROW_BYTES);

/// A time in eight bytes: nanoseconds since 1970, clamped to 64 bits (the years 1677 to 2262).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanoseconds(i64);

impl Nanoseconds {
    /// In place of a time that nobody knows.
    const UNKNOWN: Self = Self(i64::MIN);

    pub(super) fn of(time: Timestamp) -> Self {
        let (least, most) = (i64::MIN + 1, i64::MAX);
        let nanoseconds = time.as_nanosecond().clamp(least.into(), most.into());
        Self(i64::try_from(nanoseconds).unwrap_or(most))
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_nanosecond(self.0.into()).unwrap_or_default()
    }

    fn of_known(time: Option<Timestamp>) -> Self {
        time.map_or(Self::UNKNOWN, Self::of)
    }

    fn known(self) -> Option<Timestamp> {
        (self != Self::UNKNOWN).then(|| self.timestamp())
    }
}

/// Whether a target has the rollout's content: by its documents, or by a later answer of the publisher that they do not show yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Possession {
    No,
    Yes,
    /// Its documents do not have the content, and the publisher has answered that it has it.
    AnsweredYes,
    /// Its documents have the content, and the publisher has answered that it has another one.
    AnsweredNo,
}

impl Possession {
    const fn by_documents(has_content: bool) -> Self {
        if has_content { Self::Yes } else { Self::No }
    }

    const fn is_in_documents(self) -> bool {
        matches!(self, Self::Yes | Self::AnsweredNo)
    }

    const fn is_answered(self) -> bool {
        matches!(self, Self::AnsweredYes | Self::AnsweredNo)
    }
}

/// The counts of its wave that a target is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// None yet.
    Nowhere,
    /// Those that do not depend on the soak time.
    Unsoaked,
    /// Also among the confirmed ones whose soak time is over.
    Soaked,
}

/// A target.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) device: Arc<TargetDevice>,
    /// Generation at which the device got its content, by its documents.
    pub(super) generation: Option<Generation>,
    released_at: Nanoseconds,
    /// Time since which nothing has changed, if it is confirmed.
    since: Nanoseconds,
    pub(super) wave: u8,
    pub(super) known: Known,
    possession: Possession,
    pub(super) counted: Counted,
    pub(super) is_silent: bool,
    /// Whether it has no end and has missed a deadline of the hub.
    pub(super) is_past_deadline: bool,
    pub(super) refusals: Refusals,
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
            released_at: Nanoseconds::of_known(content.at),
            since: Nanoseconds::UNKNOWN,
            // There are at most 32 waves.
            wave: wave as u8,
            known: Known::NotReleased,
            possession: Possession::by_documents(content.is_wanted),
            counted: Counted::Nowhere,
            is_silent: false,
            is_past_deadline: false,
            refusals: Refusals::of_list(is_refused),
            has_begun: false,
        }
    }

    /// The target as documents have it.
    pub(super) fn listed(&self) -> LiveTarget {
        let at = self.released_at().filter(|_| !self.possession.is_answered());
        let content =
            Content { is_wanted: self.possession.is_in_documents(), generation: self.generation, at };
        LiveTarget { device: self.device.clone(), content, is_refused: self.refusals.is_by_list() }
    }

    pub(super) fn set_content(&mut self, content: Content, document: Generation) {
        let is_newer = match (content.generation, self.generation) {
            (Some(new), known) => Some(new) > known,
            // The document has no such deployment: it is gone if the document is newer.
            (None, known) => known.is_some_and(|known| document > known),
        };
        let by_documents = Possession::by_documents(content.is_wanted);
        if is_newer {
            (self.possession, self.generation) = (by_documents, content.generation);
            self.released_at = Nanoseconds::of_known(content.at);
        } else if content.generation.is_some()
            && content.generation == self.generation
            && !self.possession.is_answered()
        {
            self.possession = by_documents;
        }
    }

    pub(super) fn set_answer(&mut self, has_content: bool, now: Timestamp) {
        if self.possession.is_in_documents() == has_content {
            self.possession = Possession::by_documents(has_content);
        } else {
            self.possession = if has_content { Possession::AnsweredYes } else { Possession::AnsweredNo };
            self.released_at = Nanoseconds::of(now);
        }
    }

    pub(super) const fn awaits_ledger(&self) -> bool {
        self.possession.is_answered()
    }

    pub(super) fn released_at(&self) -> Option<Timestamp> {
        self.released_at.known()
    }

    pub(super) fn observe(&self, line: Option<&Line<'_>>, retries: Option<&Retries>) -> Observation {
        let known = match self.possession {
            Possession::AnsweredYes => Known::NotInLedger,
            Possession::AnsweredNo => Known::NotReleased,
            Possession::Yes => Known::of_content(true, self.generation, line, retries),
            Possession::No => Known::of_content(false, self.generation, line, retries),
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
        self.counted != Counted::Nowhere
            && (self.known, self.since, self.is_silent, self.is_past_deadline, self.has_begun)
                == (
                    observation.known,
                    Nanoseconds::of_known(observation.since),
                    observation.is_silent,
                    observation.is_past_deadline,
                    observation.has_begun,
                )
    }

    pub(super) fn set_observation(&mut self, observation: Observation) {
        let Observation { known, since, is_silent, is_past_deadline, has_begun } = observation;
        (self.known, self.is_silent, self.is_past_deadline, self.has_begun) =
            (known, is_silent, is_past_deadline, has_begun);
        self.since = Nanoseconds::of_known(since);
    }

    pub(super) fn evidence(&self) -> Evidence {
        match self.known {
            Known::Confirmed => self.since.known().map_or(Evidence::Unknown, Evidence::Confirmed),
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
            released_at: self.released_at(),
            is_refused: self.refusals.is_any(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_of_range_is_the_nearest_one_and_never_unknown() {
        let [first, last] = [Timestamp::MIN, Timestamp::MAX].map(|time| Nanoseconds::of_known(Some(time)));
        let nanoseconds = |time: Nanoseconds| time.known().map(Timestamp::as_nanosecond);
        assert_eq!(nanoseconds(first), Some(i128::from(i64::MIN) + 1));
        assert_eq!(nanoseconds(last), Some(i64::MAX.into()));
        assert_eq!(Nanoseconds::of_known(None).known(), None);
        let now = Timestamp::new(1_800_000_000, 7).unwrap();
        assert_eq!(Nanoseconds::of_known(Some(now)).known(), Some(now));
    }
}
