//! How long a hub counts as heard: as long after its last answer as the lease, on this process's own clock, which no hub
//! can set. No IO.

use std::time::Duration;

use tokio::time::Instant;

/// When a hub was heard last, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    span: Duration,
    answered_at: Instant,
}

impl Lease {
    /// One of a hub that answered.
    pub const fn new(span: Duration, at: Instant) -> Self {
        Self { span, answered_at: at }
    }

    /// The hub has answered again. Answers may be told of out of order.
    pub fn renew(&mut self, at: Instant) {
        self.answered_at = self.answered_at.max(at);
    }

    /// Whether it counts as heard.
    pub fn holds(&self, now: Instant) -> bool {
        now < self.ends_at()
    }

    /// When it will not count as heard any more, unless it answers until then.
    pub fn ends_at(&self) -> Instant {
        self.answered_at + self.span
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
        let table: [(&[u64], u64, bool); 6] = [
            (&[0], 0, true),
            (&[0], 89, true),
            (&[0], 90, false),
            (&[0, 60], 149, true),
            (&[0, 60], 150, false),
            (&[60, 0], 149, true),
        ];
        for (answers, now, heard) in table {
            let mut lease = Lease::new(span, at(answers[0]));
            answers.iter().for_each(|seconds| lease.renew(at(*seconds)));
            assert_eq!(lease.holds(at(now)), heard, "{answers:?} at {now}");
        }
    }
}
