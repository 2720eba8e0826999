//! Tracks whether LEDGER has copied every document of the published commit, because views count a target only from its copy
//! on. Generations identify documents, and no device gets one twice. So it does not matter which publisher wrote a document,
//! whether a newer one replaced it, or whether DOWNLINK was created again. No I/O, no clock.

use std::collections::BTreeMap;

use muster_contract::{DeviceKey, Generation};

/// A desired state that LEDGER has copied from DOWNLINK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerCopy {
    /// The device.
    pub key: DeviceKey,
    /// The generation, which identifies the document: no device gets one twice.
    pub generation: Generation,
    /// Its sequence in LEDGER.
    pub ledger_seq: u64,
}

/// The copies seen in LEDGER, and the documents of the commit that are still missing there.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// The highest copied generation of each device.
    newest: BTreeMap<DeviceKey, Generation>,
    /// The highest sequence of any copy.
    seen: u64,
    commit: CommitCoverage,
}

/// The state of the last accepted commit.
#[derive(Debug, Default)]
enum CommitCoverage {
    /// It is not completely published.
    #[default]
    UnderWay,
    /// It is published; these documents are not seen in LEDGER yet.
    Awaited(BTreeMap<DeviceKey, Generation>),
    /// LEDGER has all its documents up to this sequence.
    Whole(u64),
}

impl Coverage {
    /// Resets the commit: a new one is accepted, or it is not completely published any more.
    pub(super) fn reset(&mut self) {
        self.commit = CommitCoverage::UnderWay;
    }

    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.commit, CommitCoverage::UnderWay)
    }

    /// Awaits the documents of a completely published commit: the current ones of all devices, also unchanged ones.
    pub(super) fn await_documents(&mut self, documents: impl Iterator<Item = (DeviceKey, Generation)>) {
        let is_missing = |(key, wanted): &(DeviceKey, Generation)| {
            self.newest.get(key).is_none_or(|newest| newest < wanted)
        };
        self.commit = CommitCoverage::Awaited(documents.filter(is_missing).collect());
        self.complete_if_covered();
    }

    /// Awaits a newer document of a device, in addition to the others.
    pub(super) fn await_document(&mut self, key: &DeviceKey, generation: Generation) {
        if self.newest.get(key).is_some_and(|newest| *newest >= generation) {
            return;
        }
        match &mut self.commit {
            // `await_documents` follows once the commit is completely published.
            CommitCoverage::UnderWay => {}
            CommitCoverage::Awaited(awaited) => _ = awaited.insert(key.clone(), generation),
            CommitCoverage::Whole(_) => {
                self.commit = CommitCoverage::Awaited(BTreeMap::from([(key.clone(), generation)]));
            }
        }
    }

    /// Adds copies; true if they complete the commit.
    pub(super) fn add_copies(&mut self, copies: Vec<LedgerCopy>) -> bool {
        let mut is_whole = false;
        for copy in copies {
            // Add all of them, also those after the one that completes the commit.
            is_whole |= self.add_copy(copy);
        }
        is_whole
    }

    fn add_copy(&mut self, copy: LedgerCopy) -> bool {
        let LedgerCopy { key, generation, ledger_seq } = copy;
        self.seen = self.seen.max(ledger_seq);
        if let CommitCoverage::Awaited(awaited) = &mut self.commit
            && awaited.get(&key).is_some_and(|wanted| *wanted <= generation)
        {
            awaited.remove(&key);
        }
        let newest = self.newest.entry(key).or_insert(generation);
        *newest = generation.max(*newest);
        self.complete_if_covered()
    }

    /// Marks the commit as complete if no document is awaited any more; true the first time.
    fn complete_if_covered(&mut self) -> bool {
        let is_whole = matches!(&self.commit, CommitCoverage::Awaited(awaited) if awaited.is_empty());
        if is_whole {
            self.commit = CommitCoverage::Whole(self.seen);
        }
        is_whole
    }

    /// Discards the copies, because LEDGER is read from its beginning and may be another stream; awaits the documents again.
    pub(super) fn restart(&mut self, documents: impl Iterator<Item = (DeviceKey, Generation)>) {
        self.newest.clear();
        self.seen = 0;
        if !self.is_under_way() {
            self.await_documents(documents);
        }
    }

    /// The sequence up to which LEDGER has every document of the commit; `None` until it has all of them.
    pub(super) const fn through(&self) -> Option<u64> {
        match self.commit {
            CommitCoverage::Whole(through) => Some(through),
            CommitCoverage::UnderWay | CommitCoverage::Awaited(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(device: &str, generation: u64) -> (DeviceKey, Generation) {
        (device.parse().unwrap(), Generation::new(generation).unwrap())
    }

    fn copy(device: &str, generation: u64, ledger_seq: u64) -> LedgerCopy {
        let (key, generation) = document(device, generation);
        LedgerCopy { key, generation, ledger_seq }
    }

    fn documents() -> impl Iterator<Item = (DeviceKey, Generation)> {
        [document("a/one", 2), document("a/two", 1)].into_iter()
    }

    #[test]
    fn a_released_document_is_awaited_beside_the_others_of_its_commit() {
        let mut coverage = Coverage::default();
        coverage.await_documents(documents());
        coverage.add_copies(vec![copy("a/one", 2, 7), copy("a/two", 1, 8)]);
        assert_eq!(coverage.through(), Some(8));
        let (key, generation) = document("a/one", 3);
        coverage.await_document(&key, generation);
        assert_eq!(coverage.through(), None);
        assert!(!coverage.add_copies(vec![copy("a/one", 2, 9)]), "an older document, re-asserted");
        assert!(coverage.add_copies(vec![copy("a/one", 3, 10)]));
        assert_eq!(coverage.through(), Some(10));
        coverage.await_document(&key, generation);
        assert_eq!(coverage.through(), Some(10), "LEDGER has the document already");
    }

    #[test]
    fn a_commit_is_complete_with_the_last_of_its_documents() {
        let mut coverage = Coverage::default();
        assert!(
            !coverage.add_copies(vec![copy("a/one", 1, 4), copy("a/two", 1, 5)]),
            "no commit is published"
        );
        coverage.await_documents(documents());
        assert_eq!(coverage.through(), None, "a/one has a newer one");
        assert!(!coverage.add_copies(vec![copy("b/other", 9, 8), copy("a/one", 1, 9)]));
        assert!(coverage.add_copies(vec![copy("a/one", 2, 12), copy("a/two", 3, 13)]));
        assert_eq!(coverage.through(), Some(12));
        assert!(!coverage.add_copies(vec![copy("a/one", 3, 40)]), "a later request moves nothing");
        assert_eq!(coverage.through(), Some(12));
        coverage.await_documents([document("a/two", 3)].into_iter());
        assert_eq!(coverage.through(), Some(40), "what came behind the last one was seen as well");
    }

    #[test]
    fn a_copy_counts_before_its_publish_is_confirmed() {
        let mut coverage = Coverage::default();
        coverage.add_copies(vec![copy("a/one", 2, 6), copy("a/two", 1, 7)]);
        coverage.await_documents(documents());
        assert_eq!(coverage.through(), Some(7));
    }

    #[test]
    fn a_commit_that_changes_nothing_awaits_all_current_documents() {
        let mut coverage = Coverage::default();
        coverage.await_documents(documents());
        assert!(coverage.add_copies(vec![copy("a/two", 1, 3), copy("a/one", 2, 6)]));
        coverage.reset();
        assert_eq!(coverage.through(), None, "the next commit is not published");
        coverage.await_documents(documents());
        assert_eq!(coverage.through(), Some(6));
    }

    #[test]
    fn a_newer_document_counts_for_the_awaited_one_and_an_older_does_not() {
        let mut coverage = Coverage::default();
        coverage.await_documents(documents());
        assert!(!coverage.add_copies(vec![copy("a/one", 1, 3), copy("a/two", 1, 4)]));
        assert!(coverage.add_copies(vec![copy("a/one", 7, 5)]), "LEDGER has never seen generation 2");
    }

    #[test]
    fn another_ledger_is_searched_again() {
        let mut coverage = Coverage::default();
        coverage.await_documents(documents());
        coverage.add_copies(vec![copy("a/one", 2, 60), copy("a/two", 1, 61)]);
        coverage.restart(documents());
        assert_eq!(coverage.through(), None);
        assert!(coverage.add_copies(vec![copy("a/one", 2, 1), copy("a/two", 1, 2)]));
        assert_eq!(coverage.through(), Some(2));
    }

    #[test]
    fn without_any_document_nothing_is_missing() {
        let mut coverage = Coverage::default();
        coverage.await_documents(std::iter::empty());
        assert_eq!(coverage.through(), Some(0));
    }
}
