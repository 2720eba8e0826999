//! The roll-up of two parts: counts add up, and the worse speaks for both.

use std::collections::BTreeMap;

use super::{KStatus, Rollup};

impl Rollup {
    /// Adds the counts of disjoint targets. The statuses follow, and the message is the one of the worse by kstatus; of
    /// equals the first.
    pub fn merge(&mut self, other: &Self) {
        let worse = match (self.worst(), other.worst()) {
            (Some(own), Some(theirs)) => theirs < own,
            (own, theirs) => own.is_none() && theirs.is_some(),
        };
        if self.message.is_none() || (worse && other.message.is_some()) {
            self.message.clone_from(&other.message);
        }
        self.targets += other.targets;
        self.leaving += other.leaving;
        self.overdue += other.overdue;
        self.known += other.known;
        self.superseded += other.superseded;
        for (standing, split) in &other.counts {
            let own = self.counts.entry(*standing).or_default();
            own.fresh += split.fresh;
            own.stale += split.stale;
            own.never += split.never;
        }
        add(&mut self.kstatus, &other.kstatus);
        add(&mut self.deployed_counts, &other.deployed_counts);
        add(&mut self.ready_counts, &other.ready_counts);
        self.changed_at = self.changed_at.max(other.changed_at);
        self.deployed_status = first(self.deployed_status, other.deployed_status);
        self.ready_status = first(self.ready_status, other.ready_status);
    }

    /// kstatus of the worst pair that it counts.
    fn worst(&self) -> Option<KStatus> {
        let superseded = (self.superseded > 0).then_some(KStatus::Unknown);
        first(self.kstatus.keys().next().copied(), superseded)
    }
}

fn first<K: Ord>(one: Option<K>, other: Option<K>) -> Option<K> {
    one.into_iter().chain(other).min()
}

fn add<K: Ord + Copy>(own: &mut BTreeMap<K, u64>, others: &BTreeMap<K, u64>) {
    others.iter().for_each(|(key, count)| *own.entry(*key).or_default() += count);
}

#[cfg(test)]
mod tests {
    use super::super::{Deployed, Ready};
    use super::*;

    fn rollup(ready: Ready, count: u64, message: &str) -> Rollup {
        Rollup {
            targets: count,
            ready_status: Some(ready),
            deployed_status: Some(Deployed::Applied),
            ready_counts: BTreeMap::from([(ready, count)]),
            kstatus: [(KStatus::Current, count)].into_iter().filter(|(_, count)| *count > 0).collect(),
            message: Some(message.to_owned()),
            ..Rollup::default()
        }
    }

    #[test]
    fn parts_add_up_and_the_worse_speaks() {
        let mut whole = rollup(Ready::Ready, 3, "ready");
        let failed = BTreeMap::from([(KStatus::Failed, 2)]);
        whole.merge(&Rollup { kstatus: failed, ..rollup(Ready::NotReady, 2, "E1 on press-4") });
        whole.merge(&rollup(Ready::Empty, 0, "nothing"));
        assert_eq!((whole.targets, whole.ready_status), (5, Some(Ready::NotReady)));
        assert_eq!(whole.ready_counts[&Ready::Ready] + whole.ready_counts[&Ready::NotReady], 5);
        assert_eq!(whole.message.as_deref(), Some("E1 on press-4"));
    }

    #[test]
    fn a_failure_on_a_later_page_speaks_before_what_has_not_begun() {
        let waits = Rollup {
            deployed_status: Some(Deployed::Pending),
            kstatus: BTreeMap::from([(KStatus::NotFound, 3)]),
            ..rollup(Ready::NotReady, 3, "nothing is reported of it")
        };
        let failed = Rollup {
            kstatus: BTreeMap::from([(KStatus::Failed, 1)]),
            ..rollup(Ready::NotReady, 1, "is failed: E1")
        };
        for (one, other) in [(&waits, &failed), (&failed, &waits)] {
            let mut whole = one.clone();
            whole.merge(other);
            assert_eq!(whole.message.as_deref(), Some("is failed: E1"));
            assert_eq!(whole.deployed_status, Some(Deployed::Pending), "the worst on each axis");
        }
    }
}
