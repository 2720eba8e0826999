//! Decides how long a hub counts as heard: for the lease after its last answer, by this process's own clock,
//! which no hub can set. It does no IO.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::parts::HubList;
use tokio::time::Instant;

/// When a hub was heard last, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    span: Duration,
    answered_at: Instant,
}

impl Lease {
    /// One of a hub that answered.
    pub(crate) const fn new(span: Duration, at: Instant) -> Self {
        Self { span, answered_at: at }
    }

    /// Renews the lease for an answer. Answers may be reported out of order.
    pub(crate) fn renew(&mut self, at: Instant) {
        self.answered_at = self.answered_at.max(at);
    }

    /// Whether it counts as heard.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        now < self.ends_at()
    }

    /// When it will not count as heard any more, unless it answers until then.
    pub(crate) fn ends_at(&self) -> Instant {
        self.answered_at + self.span
    }
}

/// Whether another federation heard a hub, within the lease, that this one does not hear. Its word is dated by its own clock:
/// one that is off by more than the lease is not believed.
pub(crate) fn hears_more(theirs: &HubList, own: &HubList, lease: Duration, now: Timestamp) -> bool {
    let recent = |heard_at: Timestamp| now.duration_since(heard_at).unsigned_abs() < lease;
    let unheard = own.hubs.iter().filter(|hub| !hub.heard);
    let mut said = unheard.filter_map(|hub| theirs.hubs.iter().find(|theirs| theirs.name == hub.name));
    said.any(|hub| hub.heard && hub.heard_at.is_some_and(recent))
}

#[cfg(test)]
mod tests {
    use muster_contract::parts::HubLine;

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

    #[test]
    fn a_federation_that_heard_a_hub_in_its_lease_hears_more() {
        let (lease, now) = (Duration::from_secs(90), 1_000);
        let list = |hubs: &[(&str, bool, i64)]| HubList {
            api_version: Default::default(),
            kind: Default::default(),
            hubs: hubs
                .iter()
                .map(|(name, heard, at)| HubLine {
                    name: name.parse().unwrap(),
                    heard: *heard,
                    as_of: None,
                    heard_at: Timestamp::from_second(*at).ok(),
                    sites: 1,
                })
                .collect(),
        };
        let own = list(&[("north", true, now), ("south", false, now - 95)]);
        let table = [
            (list(&[("north", true, now), ("south", true, now - 9)]), true, "it is heard there"),
            (list(&[("north", true, now), ("south", true, now - 95)]), false, "it was, as here"),
            (list(&[("north", true, now), ("south", true, now + 95)]), false, "a clock that is off"),
            (list(&[("north", true, now), ("south", false, now - 9)]), false, "nor is it there"),
            (list(&[("north", true, now)]), false, "it is no hub there"),
            (list(&[("north", false, 0), ("south", true, now - 9)]), true, "each hears another one"),
        ];
        let now = Timestamp::from_second(now).unwrap();
        for (theirs, more, why) in table {
            assert_eq!(hears_more(&theirs, &own, lease, now), more, "{why}");
        }
        let all = list(&[("north", true, 1_000), ("south", true, 999)]);
        assert!(!hears_more(&all, &all, lease, now), "there is nothing more to hear");
    }
}
