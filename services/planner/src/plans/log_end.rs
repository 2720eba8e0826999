//! Whether the fold of PLANS is current. Pure: it reads no stream and no clock.
//!
//! PLANS has a connection and credentials of its own, so LEDGER's end says nothing about it. A planner whose fold is old would
//! take back what another planner has ordered.

use std::fmt;

use tokio::time::Instant;

use crate::evidence::BEHIND_AFTER;

/// The end of PLANS, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct LogEnd {
    /// The oldest known end that is not reached yet, and when it was asked for.
    goal: Option<(u64, Instant)>,
    /// The newest moment whose messages are all folded.
    current_at: Option<Instant>,
}

/// Why no order is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogBehind {
    /// PLANS was never read to its end.
    Reading,
    /// PLANS' end was not read in time, or PLANS does not answer.
    Late,
}

impl fmt::Display for LogBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reading => f.write_str("reading PLANS for the first time"),
            Self::Late => write!(
                f,
                "the end of PLANS was not read within {BEHIND_AFTER:?}: check the link to NATS and --plans-creds"
            ),
        }
    }
}

impl LogEnd {
    /// Records an end of PLANS. A newer end does not replace a goal, so that the goal is reached while PLANS grows.
    pub(super) fn observe(&mut self, last_seq: u64, asked_at: Instant) {
        self.goal.get_or_insert((last_seq, asked_at));
    }

    /// Records that everything up to a sequence is folded.
    pub(super) fn advance_to(&mut self, folded: u64) {
        if let Some((_, asked_at)) = self.goal.take_if(|(last_seq, _)| *last_seq <= folded) {
            self.current_at = self.current_at.max(Some(asked_at));
        }
    }

    /// Checks that the fold is current.
    ///
    /// # Errors
    /// Why no order may be sent.
    pub(super) fn check_current(&self, now: Instant) -> Result<(), LogBehind> {
        let current_at = self.current_at.ok_or(LogBehind::Reading)?;
        if now.duration_since(current_at) > BEHIND_AFTER { Err(LogBehind::Late) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_fold_of_plans_is_current_only_while_the_end_of_plans_is_read() {
        let (mut end, now) = (LogEnd::default(), Instant::now());
        let later = |seconds: u64| now + Duration::from_secs(seconds);
        end.observe(7, now);
        end.advance_to(6);
        assert_eq!(end.check_current(now), Err(LogBehind::Reading));
        end.observe(99, later(1));
        end.advance_to(7);
        assert_eq!(
            end.check_current(later(5)),
            Ok(()),
            "the first end is folded, though PLANS is longer now"
        );
        assert_eq!(end.check_current(later(6)), Err(LogBehind::Late), "PLANS does not answer any more");
        end.observe(9, later(6));
        end.advance_to(8);
        assert_eq!(end.check_current(later(6)), Err(LogBehind::Late), "PLANS goes further");
        end.advance_to(9);
        assert_eq!(end.check_current(later(11)), Ok(()));
    }
}
