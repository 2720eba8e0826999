//! Merges roll-ups: counts add up, and the message is that of the worse part. Computes the roll-up of a list of lines.

use std::collections::BTreeMap;

use super::{Axis, Deployed, KStatus, Ready, Rollup, TargetStatus};
use crate::evidence::EvidenceSource;
use crate::ids::{DeploymentId, DeviceKey};
use crate::output::LastReport;
use crate::view::{Retried, Standing};

/// The separator between a deployment and its device.
const ON: &str = " on ";
/// The separator between a device and the message about it.
const SAYS: &str = ": ";

/// A message about a deployment, with the deployment and the device before it.
pub fn placed(deployment: &DeploymentId, device: &DeviceKey, message: &str) -> String {
    format!("{deployment}{ON}{device}{SAYS}{message}")
}

/// The place that such words name; none where they name none.
pub fn place_of(words: &str) -> Option<(DeviceKey, DeploymentId)> {
    let (deployment, rest) = words.split_once(ON)?;
    let (device, _) = rest.split_once(SAYS)?;
    Some((device.parse().ok()?, deployment.parse().ok()?))
}

impl Rollup {
    /// That of nothing, on one axis or on both.
    pub fn nothing(axis: Option<Axis>) -> Self {
        Self {
            deployed_status: (axis != Some(Axis::Ready)).then_some(Deployed::Empty),
            ready_status: (axis != Some(Axis::Deployed)).then_some(Ready::Empty),
            ..Self::default()
        }
    }

    /// That of lines on one axis or on both. The first of the worst by kstatus speaks. Lines of a superseded generation are
    /// taken as what they show.
    pub fn of_lines<'a>(lines: impl IntoIterator<Item = &'a TargetStatus>, axis: Option<Axis>) -> Self {
        let (mut sum, mut worst) = (Self::nothing(axis), None);
        for line in lines {
            sum.count(line);
            if worst.is_none_or(|worst: &TargetStatus| line.axes.kstatus < worst.axes.kstatus) {
                worst = Some(line);
            }
        }
        sum.message = worst.map(|line| placed(&line.deployment, &line.key, &line.message));
        sum
    }

    fn count(&mut self, line: &TargetStatus) {
        *self.kstatus.entry(line.axes.kstatus).or_default() += 1;
        self.changed_at = self.changed_at.max(line.changed_at);
        self.last_heard_at = self.last_heard_at.max(line.last_heard_at);
        for part in &line.components {
            if let Some(deployed) = part.deployed_status {
                *self.deployed_counts.entry(deployed).or_default() += 1;
                self.deployed_status = first(self.deployed_status, Some(deployed));
            }
            if let Some(ready) = part.ready_status {
                *self.ready_counts.entry(ready).or_default() += 1;
                // A component that is absent is not ready.
                let status = if ready == Ready::NotPresent { Ready::NotReady } else { ready };
                self.ready_status = first(self.ready_status, Some(status));
            }
        }
        if line.leaving {
            self.leaving += 1;
            return;
        }
        self.targets += 1;
        self.overdue += u64::from(line.overdue);
        // Retries of an older generation count for nothing.
        if let Some(retry) = line.retry.filter(|_| line.standing != Standing::Outdated) {
            self.retried = self.retried.plus(Retried { targets: 1, attempts: retry.attempt.into() });
        }
        self.known += u64::from(line.known);
        *self.counts.entry(line.standing).or_default().get_mut(line.freshness) += 1;
        let evidence = line.report.as_ref().map(LastReport::evidence_source);
        for EvidenceSource { origin, fidelity } in evidence.into_iter().filter(|one| !one.is_every_change()) {
            *self.evidence.entry(origin).or_default().entry(fidelity).or_default() += 1;
        }
    }

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
        self.retried = self.retried.plus(other.retried);
        self.known += other.known;
        self.superseded += other.superseded;
        for (standing, split) in &other.counts {
            let own = self.counts.entry(*standing).or_default();
            own.fresh += split.fresh;
            own.stale += split.stale;
            own.never += split.never;
        }
        for (origin, by_fidelity) in &other.evidence {
            add(self.evidence.entry(*origin).or_default(), by_fidelity);
        }
        add(&mut self.kstatus, &other.kstatus);
        add(&mut self.deployed_counts, &other.deployed_counts);
        add(&mut self.ready_counts, &other.ready_counts);
        self.changed_at = self.changed_at.max(other.changed_at);
        self.last_heard_at = self.last_heard_at.max(other.last_heard_at);
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
    fn words_name_the_place_that_they_were_written_with() {
        let (web, press) = ("web".parse().unwrap(), "plant7/press-4".parse().unwrap());
        assert_eq!(place_of(&placed(&web, &press, "is failed: E1 on 3: x")), Some((press, web)));
        for words in ["", "E1 on 3 of 5, such as plant7/press-4: gone", "nothing is there yet"] {
            assert_eq!(place_of(words), None, "{words}");
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
