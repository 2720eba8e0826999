//! Recovery and version of a release, from its history: the labels of Helm's secrets. Pure.

use std::collections::BTreeMap;

use super::labels::DIGEST;

/// Beginning of the statuses of a revision that a running `helm` works on.
const PENDING: &str = "pending-";
/// Statuses of a revision that was deployed.
const DEPLOYED: &str = "deployed";
const SUPERSEDED: &str = "superseded";
/// The status of a release whose removal a running `helm` works on.
const UNINSTALLING: &str = "uninstalling";

/// A revision of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    pub(super) number: u64,
    /// Helm's status.
    pub(super) status: String,
    /// The version of the unit that it was made of.
    pub(super) digest_prefix: String,
}

/// The revisions of a release, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct History(pub(super) Vec<Revision>);

/// The way to recover a release that a killed `helm` left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Roll back to the newest revision that was deployed.
    Rollback(u64),
    /// Uninstall: no revision was ever deployed, or the removal was under way.
    Uninstall,
}

impl History {
    /// The history from the labels of a release's secrets.
    pub(super) fn of(labels: &[BTreeMap<String, String>]) -> Self {
        let text =
            |labels: &BTreeMap<String, String>, name: &str| labels.get(name).cloned().unwrap_or_default();
        let revision = |labels: &BTreeMap<String, String>| {
            let number = labels.get("version")?.parse().ok()?;
            Some(Revision { number, status: text(labels, "status"), digest_prefix: text(labels, DIGEST) })
        };
        let mut revisions: Vec<_> = labels.iter().filter_map(revision).collect();
        revisions.sort_by_key(|revision| revision.number);
        Self(revisions)
    }

    /// The newest revision.
    pub(super) fn newest(&self) -> Option<&Revision> {
        self.0.last()
    }

    /// The version of the unit that is deployed; empty if the newest revision is not.
    pub(super) fn deployed_version(&self) -> String {
        let deployed = self.newest().filter(|revision| revision.status == DEPLOYED);
        deployed.map(|revision| revision.digest_prefix.clone()).unwrap_or_default()
    }

    /// The recovery that a release needs before it can change, if any.
    pub(super) fn recovery(&self) -> Option<Recovery> {
        let newest = self.newest()?;
        if newest.status == UNINSTALLING {
            return Some(Recovery::Uninstall);
        }
        if !newest.status.starts_with(PENDING) {
            return None;
        }
        let was_deployed = |revision: &&Revision| [DEPLOYED, SUPERSEDED].contains(&revision.status.as_str());
        let last = self.0.iter().rev().find(was_deployed);
        Some(last.map_or(Recovery::Uninstall, |revision| Recovery::Rollback(revision.number)))
    }

    /// Whether the history still has a revision.
    pub(super) fn has(&self, number: u64) -> bool {
        self.0.iter().any(|revision| revision.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(statuses: &[&str]) -> History {
        let labels: Vec<BTreeMap<String, String>> = statuses
            .iter()
            .enumerate()
            .map(|(at, status)| {
                let version = (at + 1).to_string();
                let pairs = [("version", version.as_str()), ("status", status), (DIGEST, "00ff")];
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
            })
            .collect();
        History::of(&labels)
    }

    #[test]
    fn a_release_that_a_killed_process_left_is_recovered() {
        use Recovery::{Rollback, Uninstall};
        for (statuses, recovery) in [
            (&[][..], None),
            (&["deployed"], None),
            (&["failed"], None),
            (&["superseded", "failed"], None),
            (&["pending-install"], Some(Uninstall)),
            (&["failed", "pending-upgrade"], Some(Uninstall)),
            (&["deployed", "pending-upgrade"], Some(Rollback(1))),
            (&["superseded", "superseded", "pending-rollback"], Some(Rollback(2))),
            (&["superseded", "deployed", "failed", "pending-upgrade"], Some(Rollback(2))),
            (&["uninstalling"], Some(Uninstall)),
        ] {
            assert_eq!(history(statuses).recovery(), recovery, "{statuses:?}");
        }
    }

    #[test]
    fn only_a_deployed_newest_revision_runs() {
        assert_eq!(history(&["superseded", "deployed"]).deployed_version(), "00ff");
        assert_eq!(history(&["deployed", "failed"]).deployed_version(), "");
        assert_eq!(history(&[]).deployed_version(), "");
        let numbers: Vec<_> = history(&["a"; 12]).0.iter().map(|revision| revision.number).collect();
        assert_eq!(numbers, (1..=12).collect::<Vec<_>>(), "by number, not by text");
    }
}
