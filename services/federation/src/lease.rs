//! How long a hub counts as heard: as long after its last answer as the lease, on this process's own clock, which no hub
//! can set. No IO.

use std::time::Duration;

use tokio::time::Instant;

/// When a hub was heard last, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    span: Duration,
    answered_at: Option<Instant>,
}

impl Lease {
    /// One of a hub that has never answered.
    pub const fn new(span: Duration) -> Self {
        Self { span, answered_at: None }
    }

    /// The hub has answered.
    pub fn renew(&mut self, at: Instant) {
        self.answered_at = self.answered_at.max(Some(at));
    }

    /// Whether it counts as heard.
    pub fn holds(&self, now: Instant) -> bool {
        self.ends_at().is_some_and(|end| now < end)
    }

    /// When it will not count as heard any more, unless it answers until then; none where it never did.
    pub fn ends_at(&self) -> Option<Instant> {
        self.answered_at.map(|at| at + self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_is_heard_from_its_answer_to_the_end_of_the_lease() {
        let (begun, span) = (Instant::now(), Duration::from_secs(90));
        let at = |seconds| begun + Duration::from_secs(seconds);
        // answers, asked at, heard
        let table: [(&[u64], u64, bool); 7] = [
            (&[], 0, false),
            (&[0], 0, true),
            (&[0], 89, true),
            (&[0], 90, false),
            (&[0, 60], 149, true),
            (&[0, 60], 150, false),
            (&[60, 0], 149, true),
        ];
        for (answers, now, heard) in table {
            let mut lease = Lease::new(span);
            answers.iter().for_each(|seconds| lease.renew(at(*seconds)));
            assert_eq!(lease.holds(at(now)), heard, "{answers:?} at {now}");
        }
    }
}
