//! The devices: what DOWNLINK holds for each, what Git wants of them, and whose next document is due. No IO: the
//! announcer publishes what is due and says what became of it, until nothing is due.

mod ahead;
mod copied;

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::desired::{Source, SourceKind};
use muster_contract::query::{HeldBack, SomeDevices};
use muster_contract::{DeviceKey, Generation};

use self::ahead::Ahead;
use self::copied::Copied;
use crate::compose::{self, Changes, Git};
use crate::copies::LedgerCopy;
use crate::held::Held;
use crate::plan::{Draft, TooMuch, draft};
use crate::problems::Problems;
use crate::source::Fleet;

/// Devices named of those that have something in common.
pub const NAMED_MAX: usize = 20;

/// The devices, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Part of the fleet.
    pub devices: usize,
    /// Those of them with a folder in the last good commit, if there was one.
    pub in_git: Option<usize>,
    /// Taken out of the fleet.
    pub retired: usize,
    /// Without a folder any more, and without anything to run.
    pub left_over: SomeDevices,
    /// With something in DOWNLINK that nobody can read.
    pub unreadable: SomeDevices,
}

/// The devices.
#[derive(Debug, Default)]
pub struct Roster {
    held: BTreeMap<DeviceKey, Held>,
    fleet: Option<Fleet>,
    due: BTreeSet<DeviceKey>,
    /// Devices for which the commit is too much, with what was applied to them by request.
    over: BTreeMap<DeviceKey, TooMuch>,
    ahead: Ahead,
    copied: Copied,
}

impl Roster {
    /// The devices as DOWNLINK has them. Documents that must be said again are due.
    pub fn recovered(held: BTreeMap<DeviceKey, Held>) -> Self {
        let due = due_again(&held).collect();
        Self { held, due, ..Self::default() }
    }

    /// Takes a commit: from now on it is what Git wants. Gives the number of devices whose documents are due.
    ///
    /// # Errors
    /// Why it is refused as a whole; everything stays as it was.
    pub fn accept(&mut self, fleet: Fleet) -> Result<usize, Problems> {
        Changes { due: self.due, over: self.over } = compose::changes(&fleet, &self.held)?;
        self.due.extend(due_again(&self.held));
        self.ahead.take(&fleet.revision);
        self.copied.begin();
        self.fleet = Some(fleet);
        Ok(self.due.len())
    }

    /// The commit that was taken last came after all of `older`: devices whose documents another publisher made of those may
    /// be due. Gives their number.
    pub fn follows(&mut self, older: &BTreeSet<String>) -> usize {
        let overtaken = self.ahead.overtake(older);
        let count = overtaken.len();
        self.due.extend(overtaken);
        count
    }

    /// Takes the commit again that was published last before the start, as far as that can be told from the documents. One
    /// that would change a document of another commit or of a request may be older than that, so it is refused: what is
    /// published must not go back.
    ///
    /// # Errors
    /// Why it is refused as a whole; everything stays as it was.
    pub fn resume(&mut self, fleet: Fleet) -> Result<usize, Problems> {
        let changed = compose::changes(&fleet, &self.held)?.due;
        let of_another = |key: &&DeviceKey| {
            let document = self.held.get(*key).and_then(|held| held.document.as_ref());
            document.is_some_and(|document| document.source.revision != fleet.revision)
        };
        if let Some(key) = changed.iter().find(of_another) {
            let mut problems = Problems::default();
            let rule = "would go back behind what was published for the device since: nothing of the commit is taken, and \
                        devices keep what they have until a good one comes";
            problems.push(&format!("sites/{key}"), || None, "", rule);
            return problems.or(0);
        }
        self.accept(fleet)
    }

    /// Up to `max` documents that are due. Planned on what is held now, so whatever became unnecessary is due no
    /// more.
    pub fn next(&mut self, max: usize) -> Vec<(DeviceKey, Draft)> {
        let mut drafts = Vec::new();
        let (fleet, held, nothing) = (self.fleet.as_ref(), &self.held, Held::default());
        let ahead = &self.ahead;
        self.due.retain(|key| {
            if drafts.len() == max {
                return true;
            }
            let held = held.get(key).unwrap_or(&nothing);
            let fleet = fleet.filter(|_| !ahead.has(key));
            let wanted = fleet.and_then(|fleet| compose::commit(key, fleet, held));
            let next = wanted.or_else(|| compose::again(held)).and_then(|wanted| draft(held, &wanted));
            let due = next.is_some();
            drafts.extend(next.map(|draft| (key.clone(), draft)));
            due
        });
        drafts
    }

    /// A document of a device was stored.
    pub fn stored(&mut self, key: &DeviceKey, draft: Draft, sequence: u64) {
        self.held.insert(key.clone(), draft.stored(sequence));
        self.due.remove(key);
        self.over.remove(key);
    }

    /// A device's document was put in its own place, where nothing else was stored since.
    pub fn renewed(&mut self, key: &DeviceKey, before: u64, now: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.sequence == before) {
            held.sequence = now;
        }
    }

    /// A device's subject was read again. What another publisher has put back to an older commit of ours is due.
    pub fn read_again(&mut self, key: &DeviceKey, held: Held) {
        let (before, now) =
            (self.held.get(key).and_then(|before| before.document.as_ref()), held.document.as_ref());
        self.ahead.see(key, self.fleet.as_ref(), (before, now));
        let is_older = |fleet: &Fleet, source: &Source| {
            source.kind == SourceKind::Git && source.revision != fleet.revision && !self.ahead.has(key)
        };
        if let (Some(fleet), Some(document)) = (&self.fleet, now.filter(|_| now != before))
            && is_older(fleet, &document.source)
        {
            self.due.insert(key.clone());
        }
        self.held.insert(key.clone(), held);
    }

    /// A device's subject was verified: what DOWNLINK lacks, or holds in the place of our document, is due.
    pub fn verified(&mut self, key: &DeviceKey, held: Held) {
        let is_due = held.is_due_again();
        self.read_again(key, held);
        if is_due {
            self.due.insert(key.clone());
        }
    }

    /// The devices whose documents DOWNLINK is known to hold.
    pub fn published(&self) -> impl Iterator<Item = &DeviceKey> {
        self.held.iter().filter(|(_, held)| is_published(held)).map(|(key, _)| key)
    }

    /// True where DOWNLINK is known to hold a document of the device.
    pub fn has_published(&self, key: &DeviceKey) -> bool {
        self.held.get(key).is_some_and(is_published)
    }

    /// The commit that was taken last, unless another publisher knows a newer one for the device.
    pub fn fleet_of(&self, key: &DeviceKey) -> Option<&Fleet> {
        self.fleet.as_ref().filter(|_| !self.ahead.has(key))
    }

    /// True where a device says that it is past everything known to be published for it.
    pub fn is_behind(&self, key: &DeviceKey, generation: Generation) -> bool {
        self.held.get(key).and_then(|held| held.generation) < Some(generation)
    }

    /// A device is at `generation`. True where its document is due again now, above it.
    pub fn passed(&mut self, key: &DeviceKey, generation: Generation) -> bool {
        let held = self.held(key).above(Some(generation));
        let again = held.is_due_again();
        self.held.insert(key.clone(), held);
        if again {
            self.due.insert(key.clone());
        }
        again
    }

    /// What is held for a device.
    pub fn held(&self, key: &DeviceKey) -> Held {
        self.held.get(key).cloned().unwrap_or_default()
    }

    /// What is known of what Git says of a device, if Git is `configured`.
    pub fn git(&self, key: &DeviceKey, configured: bool) -> Git<'_> {
        match &self.fleet {
            Some(_) if self.ahead.has(key) => Git::Behind,
            Some(fleet) if fleet.held_back.contains(key) => Git::HeldBack,
            Some(fleet) => Git::Known(fleet),
            None if configured => Git::Unknown,
            None => Git::Absent,
        }
    }

    /// Devices with a document that says they are part of the fleet.
    pub fn devices(&self) -> usize {
        self.census().devices
    }

    /// The devices, counted.
    pub fn census(&self) -> Census {
        let documents = || self.held.iter().filter_map(|(key, held)| Some((key, held.document.as_ref()?)));
        let present = || documents().filter(|(_, document)| !document.retired);
        let in_git = |fleet: &Fleet| present().filter(|(key, _)| fleet.devices.contains_key(*key)).count();
        let unreadable = self.held.iter().filter(|(_, held)| held.unreadable.is_some());
        Census {
            devices: present().count(),
            in_git: self.fleet.as_ref().map(in_git),
            retired: documents().filter(|(_, document)| document.retired).count(),
            left_over: SomeDevices::of(self.left_over(), NAMED_MAX),
            unreadable: SomeDevices::of(unreadable.map(|(key, _)| key), NAMED_MAX),
        }
    }

    /// Devices that cannot use what the commit that was taken last says of them, and why; none where there are none.
    pub fn held_back(&self) -> Option<HeldBack> {
        let fleet = self.fleet.as_ref()?;
        let devices: BTreeSet<_> = fleet.held_back.iter().chain(self.over.keys()).collect();
        let mut problems = fleet.withheld.clone();
        problems.extend(compose::too_much(&self.over));
        (!devices.is_empty()).then(|| HeldBack {
            revision: fleet.revision.clone(),
            devices: SomeDevices::of(devices, NAMED_MAX),
            problems: problems.into_list(),
        })
    }

    /// Devices that came from Git, have no folder any more and nothing to run, and were not retired.
    pub fn left_over(&self) -> impl Iterator<Item = &DeviceKey> {
        let fleet = self.fleet.as_ref();
        let left = move |(key, held): &(&DeviceKey, &Held)| {
            let gone = fleet.is_some_and(|fleet| !fleet.devices.contains_key(*key));
            gone && held.document.as_ref().is_some_and(|document| {
                !document.retired && document.entries.is_empty() && document.source.kind == SourceKind::Git
            })
        };
        self.held.iter().filter(left).map(|(key, _)| key)
    }

    /// Retired devices for which a commit has a folder, so that it brings them back.
    pub fn brought_back<'a>(&'a self, fleet: &'a Fleet) -> impl Iterator<Item = &'a DeviceKey> {
        let retired = |key: &&DeviceKey| {
            let held = self.held.get(*key).and_then(|held| held.document.as_ref());
            held.is_some_and(|document| document.retired)
        };
        fleet.devices.keys().filter(|key| !fleet.held_back.contains(*key)).filter(retired)
    }

    /// Documents that are due.
    pub fn due(&self) -> usize {
        self.due.len()
    }

    /// Devices whose document another publisher made of a commit that this one does not know.
    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Those commits. A device whose document a request has made anew since then may be of none.
    pub fn unseen(&self) -> BTreeSet<String> {
        self.ahead.commits()
    }

    /// The commit that was taken last.
    pub fn revision(&self) -> Option<&str> {
        self.fleet.as_ref().map(|fleet| fleet.revision.as_str())
    }

    /// The commit that is published whole, if one is since the start.
    pub fn applied(&self) -> Option<&str> {
        self.revision().filter(|_| self.due.is_empty() && self.ahead.len() == 0)
    }

    /// Looks in LEDGER for the documents that stand, once the commit is published whole; while it is not, also because
    /// another publisher's documents came between, for none.
    pub fn follow_ledger(&mut self) {
        match (self.applied().is_some(), self.copied.is_under_way()) {
            (true, true) => self.copied.publish(documents(&self.held)),
            (false, false) => self.copied.begin(),
            (true, false) | (false, true) => {}
        }
    }

    /// LEDGER holds these; true where it holds the whole commit since.
    pub fn in_ledger(&mut self, copies: Vec<LedgerCopy>) -> bool {
        self.copied.see(copies)
    }

    /// LEDGER is read from its beginning, and may be another one.
    pub fn ledger_anew(&mut self) {
        self.copied.begin_anew(documents(&self.held));
    }

    /// LEDGER up to this sequence holds every document of the commit that was taken last, once that is known.
    pub const fn applied_through(&self) -> Option<u64> {
        self.copied.through()
    }

    /// The commit of the newest document from Git, published whole or not. It need not be the last commit: an older document
    /// that was said again is newer, and a commit whose only documents others have followed is in none. [`Self::resume`]
    /// therefore looks at all of them.
    pub fn last_published(&self) -> Option<&str> {
        let documents = self.held.values().filter_map(|held| Some((held.sequence, held.document.as_ref()?)));
        let from_git = documents.filter(|(_, document)| document.source.kind == SourceKind::Git);
        let newest = from_git.max_by_key(|(sequence, _)| *sequence);
        newest.map(|(_, document)| document.source.revision.as_str())
    }
}

/// What is published, by device.
fn documents(held: &BTreeMap<DeviceKey, Held>) -> impl Iterator<Item = (DeviceKey, Generation)> {
    held.iter().filter_map(|(key, held)| Some((key.clone(), held.document.as_ref()?.generation)))
}

fn due_again(held: &BTreeMap<DeviceKey, Held>) -> impl Iterator<Item = DeviceKey> {
    held.iter().filter(|(_, held)| held.is_due_again()).map(|(key, _)| key.clone())
}

/// True where DOWNLINK is known to hold this document.
fn is_published(held: &Held) -> bool {
    held.document.is_some() && held.sequence > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::content::Content;
    use crate::content::tests::{content, request};

    fn key(text: &str) -> DeviceKey {
        text.parse().unwrap()
    }

    fn fleet(revision: &str, devices: &[(&str, &[Arc<Content>])]) -> Fleet {
        let devices = devices.iter().map(|(name, contents)| (key(name), contents.to_vec())).collect();
        Fleet { revision: revision.to_owned(), devices, ..Fleet::default() }
    }

    fn publish_all(roster: &mut Roster) -> Vec<String> {
        let mut published = Vec::new();
        loop {
            let drafts = roster.next(1);
            if drafts.is_empty() {
                return published;
            }
            for (key, draft) in drafts {
                published.push(key.to_string());
                let sequence = published.len() as u64 + draft.expected_sequence;
                roster.stored(&key, draft, sequence);
            }
        }
    }

    #[test]
    fn a_commit_is_applied_when_nothing_is_due() {
        let mut roster = Roster::default();
        let log = [content("log", "run")];
        assert_eq!(roster.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap(), 2);
        assert_eq!(roster.applied(), None);
        assert_eq!(publish_all(&mut roster), ["a/one", "a/two"]);
        assert_eq!((roster.applied(), roster.due(), roster.devices()), (Some("c1"), 0, 2));
    }

    #[test]
    fn a_refused_commit_leaves_the_last_one_in_place() {
        let mut roster = Roster::default();
        roster.accept(fleet("c1", &[("a/one", &[])])).unwrap();
        let many: Vec<_> = (0..129).map(|at| content(&format!("d{at}"), "run")).collect();
        let mut strict = fleet("c2", &[("a/one", &many)]);
        strict.policy.strict = true;
        assert!(roster.accept(strict).is_err());
        assert_eq!(publish_all(&mut roster), ["a/one"]);
        assert_eq!(roster.applied(), Some("c1"));
    }

    #[test]
    fn a_commit_that_broke_off_is_resumed_and_one_that_others_followed_is_not() {
        let log = [content("log", "run")];
        let mut before = Roster::default();
        before.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap();
        let (first, draft) = before.next(1).remove(0);
        before.stored(&first, draft, 1);
        let mut broken_off = Roster::recovered(before.held);
        assert_eq!(broken_off.resume(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap(), 1);
        publish_all(&mut broken_off);

        // The next commit changes one device alone, and the other one's document is said again after that.
        let newer = [content("log", "newer")];
        broken_off.accept(fleet("c2", &[("a/one", &log), ("a/two", &newer)])).unwrap();
        publish_all(&mut broken_off);
        let one = key("a/one");
        broken_off.held.get_mut(&one).unwrap().sequence = 99;
        let mut after = Roster::recovered(broken_off.held);
        assert_eq!(after.last_published(), Some("c1"), "the newest message is of the older commit");
        let refused = after.resume(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap_err();
        assert!(refused.into_list()[0].rule.contains("go back"));
        assert!(publish_all(&mut after).is_empty() && matches!(after.git(&one, true), Git::Unknown));
    }

    #[test]
    fn a_device_that_was_retired_is_not_brought_back_by_a_commit_of_before() {
        let log = [content("log", "run")];
        let mut before = Roster::default();
        before.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap();
        publish_all(&mut before);
        before.accept(fleet("c2", &[("a/one", &log)])).unwrap();
        publish_all(&mut before);
        let two = key("a/two");
        let gone = compose::retire(&two, Git::Absent, &before.held(&two), true, &request("r")).unwrap();
        let retired = draft(&before.held(&two), &gone).unwrap();
        before.stored(&two, retired, 9);
        let mut after = Roster::recovered(before.held);
        assert_eq!(after.last_published(), Some("c1"));
        assert!(after.resume(fleet("c1", &[("a/one", &log), ("a/two", &log)])).is_err());
        assert!(publish_all(&mut after).is_empty());
    }

    #[test]
    fn what_another_publisher_did_already_is_due_no_more() {
        let mut roster = Roster::default();
        let commit = fleet("c1", &[("a/one", &[content("log", "run")])]);
        roster.accept(commit).unwrap();
        let (_, theirs) = roster.next(1).remove(0);
        roster.read_again(&key("a/one"), theirs.stored(7));
        assert!(roster.next(1).is_empty());
        assert_eq!(roster.applied(), Some("c1"));
    }

    #[test]
    fn a_device_that_is_past_its_document_gets_it_again_without_any_commit() {
        let mut before = Roster::default();
        before.accept(fleet("c1", &[("a/one", &[content("log", "run")])])).unwrap();
        publish_all(&mut before);
        let mut roster = Roster::recovered(before.held);
        let one = key("a/one");
        assert!(!roster.is_behind(&one, Generation::FIRST));
        let theirs = Generation::new(9).unwrap();
        assert!(roster.is_behind(&one, theirs) && roster.passed(&one, theirs));
        let (_, again) = roster.next(1).remove(0);
        assert_eq!(again.generation.get(), 10);
        roster.stored(&one, again, 2);
        assert!(roster.next(1).is_empty() && !roster.is_behind(&one, theirs));
        assert!(!roster.passed(&key("a/nobody"), theirs), "there is nothing to say again");
        assert_eq!(roster.held(&key("a/nobody")).generation, Some(theirs));
    }

    #[test]
    fn devices_are_counted_by_who_knows_them_and_those_left_over_are_named() {
        let log = [content("log", "run")];
        let mut roster = Roster::default();
        roster.accept(fleet("c1", &[("a/one", &log), ("a/two", &log), ("a/three", &[])])).unwrap();
        publish_all(&mut roster);
        let three = key("a/three");
        let gone = compose::retire(&three, Git::Absent, &roster.held(&three), true, &request("r")).unwrap();
        let retired = draft(&roster.held(&three), &gone).unwrap();
        roster.stored(&three, retired, 9);
        let second = fleet("c2", &[("a/one", &log)]);
        assert_eq!(roster.brought_back(&second).count(), 0);
        roster.accept(second).unwrap();
        assert_eq!(roster.census().left_over, SomeDevices::default(), "it still has to be told");
        publish_all(&mut roster);
        let left_over = SomeDevices { count: 1, first: vec![key("a/two")] };
        let wanted =
            Census { devices: 2, in_git: Some(1), retired: 1, left_over, unreadable: SomeDevices::default() };
        assert_eq!(roster.census(), wanted);
        let third = fleet("c3", &[("a/one", &log), ("a/three", &log)]);
        assert_eq!(roster.brought_back(&third).collect::<Vec<_>>(), [&three]);
    }

    #[test]
    fn before_the_first_commit_the_newest_document_tells_which_was_published_last() {
        let mut before = Roster::default();
        for (revision, name) in [("c1", "a/one"), ("c2", "a/two")] {
            before.accept(fleet(revision, &[(name, &[content("log", revision)])])).unwrap();
            publish_all(&mut before);
        }
        let after = Roster::recovered(before.held);
        assert_eq!((after.applied(), after.last_published()), (None, Some("c2")));
        assert!(matches!(after.git(&key("a/one"), true), Git::Unknown));
        assert!(matches!(after.git(&key("a/one"), false), Git::Absent));
    }
}
