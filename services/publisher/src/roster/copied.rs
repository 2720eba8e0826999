//! Whether LEDGER holds every document of the commit that is published: views count a target only from then on. Documents
//! are told apart by their generations, which no device is given twice, so it does not matter which of several publishers
//! wrote one, whether a newer one took its place, or whether DOWNLINK counts anew. No IO, no clock.

use std::collections::BTreeMap;

use muster_contract::{DeviceKey, Generation};

use crate::copies::LedgerCopy;

/// What is known of LEDGER.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// The highest generation of each device.
    newest: BTreeMap<DeviceKey, Generation>,
    /// The highest sequence at which any was seen.
    seen: u64,
    commit: Commit,
}

/// The commit that was taken last.
#[derive(Debug, Default)]
enum Commit {
    /// It is not published whole.
    #[default]
    UnderWay,
    /// These of its documents are not seen in LEDGER.
    Awaited(BTreeMap<DeviceKey, Generation>),
    /// LEDGER up to this sequence holds all of them.
    Whole(u64),
}

impl Copied {
    /// A commit is taken, or is not published whole any more: nothing is known of it.
    pub(super) fn begin(&mut self) {
        self.commit = Commit::UnderWay;
    }

    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.commit, Commit::UnderWay)
    }

    /// The commit is published whole, and these are its documents: all there are, also those that it did not change.
    pub(super) fn publish(&mut self, documents: impl Iterator<Item = (DeviceKey, Generation)>) {
        let is_missing = |(key, wanted): &(DeviceKey, Generation)| {
            self.newest.get(key).is_none_or(|newest| newest < wanted)
        };
        self.commit = Commit::Awaited(documents.filter(is_missing).collect());
        self.settle();
    }

    /// LEDGER holds these; true where it holds the whole commit since.
    pub(super) fn see(&mut self, copies: Vec<LedgerCopy>) -> bool {
        let mut is_whole = false;
        for copy in copies {
            // Every one is to be seen, also behind the one that made the commit whole.
            is_whole |= self.see_one(copy);
        }
        is_whole
    }

    fn see_one(&mut self, copy: LedgerCopy) -> bool {
        let LedgerCopy { key, generation, ledger_seq } = copy;
        self.seen = self.seen.max(ledger_seq);
        if let Commit::Awaited(awaited) = &mut self.commit
            && awaited.get(&key).is_some_and(|wanted| *wanted <= generation)
        {
            awaited.remove(&key);
        }
        let newest = self.newest.entry(key).or_insert(generation);
        *newest = generation.max(*newest);
        self.settle()
    }

    /// True where nothing is awaited any more, for the first time.
    fn settle(&mut self) -> bool {
        let is_whole = matches!(&self.commit, Commit::Awaited(awaited) if awaited.is_empty());
        if is_whole {
            self.commit = Commit::Whole(self.seen);
        }
        is_whole
    }

    /// LEDGER is read from its beginning, as it is: it may be another one. What was published is looked for again.
    pub(super) fn begin_anew(&mut self, documents: impl Iterator<Item = (DeviceKey, Generation)>) {
        self.newest.clear();
        self.seen = 0;
        if !self.is_under_way() {
            self.publish(documents);
        }
    }

    /// LEDGER up to this sequence holds every document of the commit; none while it does not, or nobody knows.
    pub(super) const fn through(&self) -> Option<u64> {
        match self.commit {
            Commit::Whole(through) => Some(through),
            Commit::UnderWay | Commit::Awaited(_) => None,
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
    fn a_commit_is_there_with_the_last_of_its_documents_and_not_before() {
        let mut copied = Copied::default();
        assert!(!copied.see(vec![copy("a/one", 1, 4), copy("a/two", 1, 5)]), "no commit is published");
        copied.publish(documents());
        assert_eq!(copied.through(), None, "a/one has a newer one");
        assert!(!copied.see(vec![copy("b/other", 9, 8), copy("a/one", 1, 9)]));
        assert!(copied.see(vec![copy("a/one", 2, 12), copy("a/two", 3, 13)]));
        assert_eq!(copied.through(), Some(12));
        assert!(!copied.see(vec![copy("a/one", 3, 40)]), "a later request moves nothing");
        assert_eq!(copied.through(), Some(12));
        copied.publish([document("a/two", 3)].into_iter());
        assert_eq!(copied.through(), Some(40), "what came behind the last one was seen as well");
    }

    #[test]
    fn a_copy_that_is_seen_before_its_publish_is_confirmed_counts() {
        let mut copied = Copied::default();
        copied.see(vec![copy("a/one", 2, 6), copy("a/two", 1, 7)]);
        copied.publish(documents());
        assert_eq!(copied.through(), Some(7));
    }

    #[test]
    fn a_commit_that_changes_nothing_is_there_where_all_that_stands_is() {
        let mut copied = Copied::default();
        copied.publish(documents());
        assert!(copied.see(vec![copy("a/two", 1, 3), copy("a/one", 2, 6)]));
        copied.begin();
        assert_eq!(copied.through(), None, "the next commit is not published");
        copied.publish(documents());
        assert_eq!(copied.through(), Some(6));
    }

    #[test]
    fn a_newer_document_stands_for_the_commits_own_and_an_older_one_does_not() {
        let mut copied = Copied::default();
        copied.publish(documents());
        assert!(!copied.see(vec![copy("a/one", 1, 3), copy("a/two", 1, 4)]));
        assert!(copied.see(vec![copy("a/one", 7, 5)]), "LEDGER has never seen generation 2");
    }

    #[test]
    fn another_ledger_is_searched_again() {
        let mut copied = Copied::default();
        copied.publish(documents());
        copied.see(vec![copy("a/one", 2, 60), copy("a/two", 1, 61)]);
        copied.begin_anew(documents());
        assert_eq!(copied.through(), None);
        assert!(copied.see(vec![copy("a/one", 2, 1), copy("a/two", 1, 2)]));
        assert_eq!(copied.through(), Some(2));
    }

    #[test]
    fn without_any_document_nothing_is_missing() {
        let mut copied = Copied::default();
        copied.publish(std::iter::empty());
        assert_eq!(copied.through(), Some(0));
    }
}
