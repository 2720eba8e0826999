//! Devices whose last document another publisher made of a commit that this one has not seen. Which of two commits is the
//! newer one no revision tells; only the history of the branch does. Until it has that commit, what Git says of such a
//! device is what its document says: a publisher whose Git is stuck, or answers what was true a while ago, puts nothing
//! older in its place. No IO, no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_contract::DeviceKey;
use muster_contract::desired::{Source, SourceKind};

use crate::held::Document;
use crate::source::Fleet;

/// Commits of our own that are told from others'. A document of an older one has long been followed by one of these.
const OWN_MAX: usize = 64;

/// The devices.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The commit that the document is of; none where it is a request's, as that of a device whose folder has gone.
    commits: BTreeMap<DeviceKey, Option<String>>,
    /// The commits that were taken, the newest last.
    own: VecDeque<String>,
}

impl Ahead {
    /// A commit is taken. Where the branch was set back to it, what came in between is known no more. It is known now itself;
    /// and where a request's document says of no commit what it was made of, a new one of ours has to do.
    pub(super) fn take(&mut self, revision: &str) {
        if self.own.iter().any(|own| own == revision) {
            self.own.clear();
        }
        self.own.push_back(revision.to_owned());
        self.own.drain(..self.own.len().saturating_sub(OWN_MAX));
        let own = &self.own;
        self.commits.retain(|_, commit| commit.as_ref().is_some_and(|commit| !own.contains(commit)));
    }

    /// A device's document was read in the place of `before`. There is no `fleet` before the first commit.
    pub(super) fn see(
        &mut self,
        key: &DeviceKey,
        fleet: Option<&Fleet>,
        (before, now): (Option<&Document>, Option<&Document>),
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

    /// Whether a document says of Git what one of our commits says. A publisher that knows a commit with a folder for the
    /// device never makes a request's document of Git's.
    fn is_own(&self, key: &DeviceKey, fleet: Option<&Fleet>, before: Option<&Source>, now: &Source) -> bool {
        if now.kind == SourceKind::Git {
            return self.own.contains(&now.revision);
        }
        let was_gits = before.is_some_and(|before| before.kind == SourceKind::Git) || self.has(key);
        !(was_gits && fleet.is_some_and(|fleet| fleet.devices.contains_key(key)))
    }

    /// The commit that was taken last came after all of `older`. Gives the devices whose documents are of those.
    pub(super) fn overtake(&mut self, older: &BTreeSet<String>) -> Vec<DeviceKey> {
        let is_older = |commit: &Option<String>| commit.as_ref().is_some_and(|commit| older.contains(commit));
        self.commits.extract_if(.., |_, commit| is_older(commit)).map(|(key, _)| key).collect()
    }

    /// The commits that are not known here.
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
