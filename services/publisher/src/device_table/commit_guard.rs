//! Guards documents that another publisher made of a commit that is unknown here. A revision does not say which of two
//! commits is newer; only the history of the branch does. Until the history has that commit, the document stands for Git's
//! content: a publisher whose repository is stuck or out of date replaces it with nothing older. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_contract::DeviceKey;
use muster_contract::desired::{Source, SourceKind};

use crate::published::Document;
use crate::source::Fleet;

/// Own commits that are remembered. Documents of older ones have long been replaced.
const OWN_MAX: usize = 64;

/// The devices with documents of unknown commits.
#[derive(Debug, Default)]
pub(super) struct ForeignCommitGuard {
    /// The commit of the document; `None` for a request's, such as that of a device without a folder.
    commits: BTreeMap<DeviceKey, Option<String>>,
    /// The accepted commits, the newest last.
    own: VecDeque<String>,
}

impl ForeignCommitGuard {
    /// Adds an accepted commit. If the branch was set back to it, the commits in between become unknown. Documents of this
    /// commit, and a request's documents that name no commit, are not guarded any more.
    pub(super) fn add_own(&mut self, revision: &str) {
        if self.own.iter().any(|own| own == revision) {
            self.own.clear();
        }
        self.own.push_back(revision.to_owned());
        self.own.drain(..self.own.len().saturating_sub(OWN_MAX));
        let own = &self.own;
        self.commits.retain(|_, commit| commit.as_ref().is_some_and(|commit| !own.contains(commit)));
    }

    /// Records a read document that replaced `before`. `fleet` is `None` before the first commit.
    pub(super) fn observe(
        &mut self,
        key: &DeviceKey,
        fleet: Option<&Fleet>,
        before: Option<&Document>,
        now: Option<&Document>,
    ) {
        let Some(document) = now.filter(|_| now != before) else { return };
        let before = before.map(|before| &before.source);
        if self.is_own(key, fleet, before, &document.source) {
            self.commits.remove(key);
        } else if before.map(Source::unsigned) != Some(document.source.unsigned()) {
            let Source { kind, revision, .. } = &document.source;
            self.commits.insert(key.clone(), (*kind == SourceKind::Git).then(|| revision.clone()));
        }
    }

    /// Whether a document agrees with one of the own commits. A publisher that knows a commit with a folder for the device
    /// never replaces a document from Git by one of a request.
    fn is_own(&self, key: &DeviceKey, fleet: Option<&Fleet>, before: Option<&Source>, now: &Source) -> bool {
        if now.kind == SourceKind::Git {
            return self.own.contains(&now.revision);
        }
        let was_gits = before.is_some_and(|before| before.kind == SourceKind::Git) || self.has(key);
        !(was_gits && fleet.is_some_and(|fleet| fleet.devices.contains_key(key)))
    }

    /// Removes and returns the devices whose documents are of `older` commits, which are ancestors of the last accepted one.
    pub(super) fn remove_ancestors(&mut self, older: &BTreeSet<String>) -> Vec<DeviceKey> {
        let is_older = |commit: &Option<String>| commit.as_ref().is_some_and(|commit| older.contains(commit));
        self.commits.extract_if(.., |_, commit| is_older(commit)).map(|(key, _)| key).collect()
    }

    /// The unknown commits.
    pub(super) fn commits(&self) -> BTreeSet<String> {
        self.commits.values().flatten().cloned().collect()
    }

    pub(super) fn has(&self, key: &DeviceKey) -> bool {
        self.commits.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.commits.len()
    }
}
