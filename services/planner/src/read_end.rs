//! Whether a fold has reached the end of its stream, and when that end was read. Pure: it reads no stream and no clock.

use std::time::Duration;

use tokio::time::Instant;

/// Oldest end of a stream that decisions may rest on.
pub(crate) const BEHIND_AFTER: Duration = Duration::from_secs(5);

/// The ends of a stream, each with the moment `M` at which it was read.
#[derive(Debug)]
pub(crate) struct ReadEnd<M> {
    /// The oldest known end that is not folded yet.
    goal: Option<(u64, M)>,
    /// The newest moment whose messages are all folded.
    current_at: Option<M>,
}

/// Why a fold is not current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lag {
    /// The stream was never read to its end.
    Reading,
    /// The end of the stream was not read in time, or the stream does not answer.
    Late,
}

impl<M> Default for ReadEnd<M> {
    fn default() -> Self {
        Self { goal: None, current_at: None }
    }
}

impl<M: Copy + Ord> ReadEnd<M> {
    /// Records an end. A newer end does not replace a goal, so that the goal is reached while the stream grows.
    pub(crate) fn observe(&mut self, last_seq: u64, moment: M) {
        self.goal.get_or_insert((last_seq, moment));
    }

    /// Records that everything up to a sequence is folded; returns the moment of the goal if that reaches it.
    pub(crate) fn advance_to(&mut self, folded: u64) -> Option<M> {
        let (_, moment) = self.goal.take_if(|(last_seq, _)| *last_seq <= folded)?;
        self.current_at = self.current_at.max(Some(moment));
        Some(moment)
    }

    /// The newest moment whose messages are all folded.
    pub(crate) const fn current_at(&self) -> Option<M> {
        self.current_at
    }
}

/// Checks that a fold whose messages up to a moment are folded is current.
///
/// # Errors
/// Why it is not.
pub(crate) fn check_current(current_at: Option<Instant>, now: Instant) -> Result<(), Lag> {
    let current_at = current_at.ok_or(Lag::Reading)?;
    if now.duration_since(current_at) > BEHIND_AFTER { Err(Lag::Late) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fold_is_current_only_while_the_end_of_its_stream_is_read() {
        let (mut end, now) = (ReadEnd::default(), Instant::now());
        let later = |seconds: u64| now + Duration::from_secs(seconds);
        let check = |end: &ReadEnd<Instant>, seconds: u64| check_current(end.current_at(), later(seconds));
        end.observe(7, now);
        assert_eq!(end.advance_to(6), None);
        assert_eq!(check(&end, 0), Err(Lag::Reading));
        end.observe(99, later(1));
        assert_eq!(end.advance_to(7), Some(now), "the first end is folded, though the stream is longer now");
        assert_eq!(check(&end, 5), Ok(()));
        assert_eq!(check(&end, 6), Err(Lag::Late), "the stream does not answer any more");
        end.observe(9, later(6));
        end.advance_to(8);
        assert_eq!(check(&end, 6), Err(Lag::Late), "the stream goes further");
        end.advance_to(9);
        assert_eq!(check(&end, 11), Ok(()));
    }
}
