//! Decides the verdict on targets by one table, [`of_target`]. Passed deadlines and unknown reports are earlier rules, which do
//! not follow from a standing. The verdict on several targets is the earliest of their verdicts in the order of the rules.
//!
//! [`super::tally`] counts targets; the words of the rules are in [`Verdict::rule`].

use muster_contract::view::{Freshness, Standing, Verdict};

use super::standing::CountClass;

/// The verdict on one known target within its deadline.
pub(super) const fn of_target(standing: Standing, freshness: Freshness) -> Verdict {
    let is_fresh = matches!(freshness, Freshness::Fresh);
    match standing {
        Standing::Failed => Verdict::Failing,
        Standing::Pending | Standing::Installing | Standing::Removing | Standing::Removed if is_fresh => {
            Verdict::Progressing
        }
        // A silent device at work may have stopped for ever: that is no progress.
        Standing::Pending | Standing::Installing | Standing::Removing | Standing::Removed => Verdict::Waiting,
        Standing::Waiting | Standing::Outdated => Verdict::Waiting,
        Standing::Installed if is_fresh => Verdict::Converged,
        Standing::Installed => Verdict::ConvergedStale,
    }
}

/// True for a target that reports for its current generation and has not finished.
pub(super) const fn is_at_work(standing: Standing) -> bool {
    matches!(of_target(standing, Freshness::Fresh), Verdict::Progressing)
}

/// The verdict on the targets of two hubs from the verdict on those of each. A hub without targets leaves it to the other.
pub(super) fn together(one: Verdict, other: Verdict) -> Verdict {
    let has_targets = |verdict: Verdict| !matches!(verdict, Verdict::Empty | Verdict::Removing);
    match (has_targets(one), has_targets(other)) {
        (true, true) => one.min(other),
        (true, false) => one,
        (false, true) => other,
        (false, false) => one.max(other),
    }
}

/// The verdict on the same targets once nothing is known of their devices any more.
pub(super) const fn without_evidence(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Empty | Verdict::Removing | Verdict::Failing | Verdict::Overdue => verdict,
        Verdict::Incomplete
        | Verdict::Progressing
        | Verdict::Waiting
        | Verdict::ConvergedStale
        | Verdict::Converged => Verdict::Incomplete,
    }
}

impl CountClass {
    /// The verdict on this row alone; `None` if the row is not counted.
    pub(super) fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Nothing => None,
            Self::Leaving => Some(Verdict::Removing),
            Self::Target { standing, freshness, known, overdue, .. } => {
                let later = if overdue { Verdict::Overdue } else { Verdict::Converged };
                let unknown = if known { Verdict::Converged } else { Verdict::Incomplete };
                Some(of_target(standing, freshness).min(later).min(unknown))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_holds_at_one_hub_holds_over_both_unless_it_is_empty() {
        for one in Verdict::ALL {
            assert_eq!(together(one, one), one);
            for other in Verdict::ALL {
                let both = together(one, other);
                assert_eq!(both, together(other, one), "{one:?} {other:?}");
                let weak = [Verdict::Empty, Verdict::Removing];
                let wanted = match (weak.contains(&one), weak.contains(&other)) {
                    (false, false) => one.min(other),
                    (true, true) if one == other => one,
                    (true, true) => Verdict::Removing,
                    (true, false) => other,
                    (false, true) => one,
                };
                assert_eq!(both, wanted, "{one:?} {other:?}");
            }
        }
    }
}
