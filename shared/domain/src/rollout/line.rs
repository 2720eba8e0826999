//! A deployment on a device as rollouts read it: from a line of a view, or from the fold without building such a line.

use muster_contract::fact::{DeadlineFact, DeadlineKind};
use muster_contract::retry::Retry;
use muster_contract::rollout::Deadlines;
use muster_contract::status::TargetStatus;
use muster_contract::view::{Freshness, Standing};
use muster_contract::{Generation, Timestamp};

use super::clock::RolloutClock;

/// A deployment on a device.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Its state by the last report.
    pub standing: Standing,
    /// Whether the device is heard.
    pub freshness: Freshness,
    /// Whether no missing report can be newer.
    pub known: bool,
    /// Whether the device is no longer a target.
    pub leaving: bool,
    /// Generation at which the device got its content.
    pub target_generation: Option<Generation>,
    /// Time of the last report, or of the content if that is later.
    pub changed_at: Option<Timestamp>,
    /// Time at which the device was last heard.
    pub last_heard_at: Option<Timestamp>,
    /// Running attempts after errors.
    pub retries: &'a [Retry],
    /// The deadline of the hub that the device has missed, and the time from which it counted.
    pub overdue: Option<(DeadlineKind, Timestamp)>,
}

impl Line<'_> {
    /// The line of a device for which the view has none: it says only how the device is heard.
    pub const fn of_hearing(freshness: Freshness, last_heard_at: Option<Timestamp>) -> Self {
        Self {
            standing: Standing::Removed,
            freshness,
            known: false,
            leaving: true,
            target_generation: None,
            changed_at: None,
            last_heard_at,
            retries: &[],
            overdue: None,
        }
    }

    /// Whether the device has reported anything of the content that it got at a generation. `pending` counts too: a device that was
    /// installing may report it again, and no report takes a begin back.
    pub(super) fn has_begun(&self, generation: Option<Generation>) -> bool {
        let is_of_content = self.target_generation == generation && !self.leaving;
        is_of_content && !matches!(self.standing, Standing::Waiting | Standing::Outdated)
    }

    /// Whether the device is silent, and has not reported the content that its desired state has now.
    pub(super) fn is_unreached(&self) -> bool {
        let is_removing = self.leaving && self.standing != Standing::Removed;
        let is_older = !self.leaving && matches!(self.standing, Standing::Waiting | Standing::Outdated);
        self.freshness != Freshness::Fresh && (is_removing || is_older)
    }

    /// Whether the device has missed a deadline of the hub, and the rollout's time from the same begin is over as well.
    pub(super) fn is_overdue(&self, deadlines: &Deadlines, clock: &RolloutClock<'_>) -> bool {
        let missed = self.overdue.and_then(|(missed, since)| Some((since, deadlines.of_device(missed)?)));
        missed.is_some_and(|(since, time)| since <= clock.began_by(time))
    }
}

impl<'a> From<&'a TargetStatus> for Line<'a> {
    fn from(line: &'a TargetStatus) -> Self {
        Self {
            standing: line.standing,
            freshness: line.freshness,
            known: line.known,
            leaving: line.leaving,
            target_generation: line.target_generation,
            changed_at: line.changed_at,
            last_heard_at: line.last_heard_at,
            retries: line.report.as_ref().map_or(&[], |report| &report.retries),
            overdue: line.deadline.as_ref().map(missed),
        }
    }
}

/// The kind of a passed deadline, and the time from which it counted.
pub(crate) const fn missed(fact: &DeadlineFact) -> (DeadlineKind, Timestamp) {
    (fact.deadline, fact.since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_begun_with_a_content_has_begun_while_silent_too() {
        let line = |standing, freshness, generation| Line {
            standing,
            freshness,
            known: false,
            leaving: false,
            target_generation: Generation::new(generation),
            changed_at: None,
            last_heard_at: None,
            retries: &[],
            overdue: None,
        };
        let has_begun = |standing, freshness| {
            [1, 2].map(|generation| line(standing, freshness, generation).has_begun(Generation::new(2)))
        };
        for freshness in [Freshness::Fresh, Freshness::Stale, Freshness::Never] {
            for standing in [Standing::Pending, Standing::Installing, Standing::Installed, Standing::Failed] {
                assert_eq!(has_begun(standing, freshness), [false, true], "{standing:?} {freshness:?}");
            }
            assert_eq!(has_begun(Standing::Waiting, freshness), [false, false]);
            assert_eq!(has_begun(Standing::Outdated, freshness), [false, false]);
        }
    }
}
