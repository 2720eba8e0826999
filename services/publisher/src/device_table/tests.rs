//! Tests of the device table: which documents are due, and which commits count as applied.

use std::collections::BTreeSet;
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

fn publish_all(table: &mut DeviceTable) -> Vec<String> {
    let mut published = Vec::new();
    loop {
        let drafts = table.next(1);
        if drafts.is_empty() {
            return published;
        }
        for (key, draft) in drafts {
            published.push(key.to_string());
            let sequence = published.len() as u64 + draft.expected_sequence;
            table.stored(&key, draft, sequence, Timestamp::UNIX_EPOCH);
        }
    }
}

#[test]
fn a_commit_is_applied_when_nothing_is_due() {
    let mut table = DeviceTable::default();
    let log = [content("log", "run")];
    assert_eq!(table.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap(), 2);
    assert_eq!(table.applied(), None);
    assert_eq!(publish_all(&mut table), ["a/one", "a/two"]);
    assert_eq!((table.applied(), table.due(), table.devices()), (Some("c1"), 0, 2));
}

#[test]
fn a_refused_commit_leaves_the_last_one_in_place() {
    let mut table = DeviceTable::default();
    table.accept(fleet("c1", &[("a/one", &[])])).unwrap();
    let many: Vec<_> = (0..129).map(|at| content(&format!("d{at}"), "run")).collect();
    let mut strict = fleet("c2", &[("a/one", &many)]);
    strict.policy.strict = true;
    assert!(table.accept(strict).is_err());
    assert_eq!(publish_all(&mut table), ["a/one"]);
    assert_eq!(table.applied(), Some("c1"));
}

#[test]
fn an_interrupted_commit_is_resumed_unless_newer_ones_followed() {
    let log = [content("log", "run")];
    let mut before = DeviceTable::default();
    before.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap();
    let (first, draft) = before.next(1).remove(0);
    before.stored(&first, draft, 1, Timestamp::UNIX_EPOCH);
    let nothing = BTreeSet::new();
    let mut broken_off = DeviceTable::recovered(before.held);
    assert_eq!(broken_off.resume(fleet("c1", &[("a/one", &log), ("a/two", &log)]), &nothing).unwrap(), 1);
    publish_all(&mut broken_off);

    // The next commit changes only one device, and then the other device's document is re-asserted.
    let newer = [content("log", "newer")];
    broken_off.accept(fleet("c2", &[("a/one", &log), ("a/two", &newer)])).unwrap();
    publish_all(&mut broken_off);
    let one = key("a/one");
    broken_off.held.get_mut(&one).unwrap().sequence = 99;
    let mut after = DeviceTable::recovered(broken_off.held);
    assert_eq!(after.last_published(), Some("c1"), "the newest message is of the older commit");
    let refused = after.resume(fleet("c1", &[("a/one", &log), ("a/two", &log)]), &nothing).unwrap_err();
    assert!(refused.into_list()[0].rule.contains("go back"));
    assert!(publish_all(&mut after).is_empty() && matches!(after.git(&one, true), Git::Unknown));
}

#[test]
fn an_interrupted_commit_is_resumed_over_documents_of_its_ancestors() {
    let (log, newer) = ([content("log", "run")], [content("log", "newer")]);
    let mut before = DeviceTable::default();
    before.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap();
    publish_all(&mut before);
    before.accept(fleet("c2", &[("a/one", &newer), ("a/two", &newer)])).unwrap();
    let (first, draft) = before.next(1).remove(0);
    before.stored(&first, draft, 9, Timestamp::UNIX_EPOCH);
    let second = fleet("c2", &[("a/one", &newer), ("a/two", &newer)]);
    let mut after = DeviceTable::recovered(before.held);
    assert!(after.resume(second.clone(), &BTreeSet::new()).is_err(), "c1 may be newer than c2");
    let older = BTreeSet::from(["c1".to_owned()]);
    assert_eq!(after.resume(second, &older).unwrap(), 1);
    after.follows(&older);
    assert_eq!(publish_all(&mut after), ["a/two"]);
}

#[test]
fn an_older_commit_does_not_bring_a_retired_device_back() {
    let log = [content("log", "run")];
    let mut before = DeviceTable::default();
    before.accept(fleet("c1", &[("a/one", &log), ("a/two", &log)])).unwrap();
    publish_all(&mut before);
    before.accept(fleet("c2", &[("a/one", &log)])).unwrap();
    publish_all(&mut before);
    let two = key("a/two");
    let gone = compose::retire(&two, Git::Absent, &before.held(&two), true, &request("r")).unwrap();
    let retired = draft(&before.held(&two), &gone).unwrap();
    before.stored(&two, retired, 9, Timestamp::UNIX_EPOCH);
    let mut after = DeviceTable::recovered(before.held);
    assert_eq!(after.last_published(), Some("c1"));
    assert!(after.resume(fleet("c1", &[("a/one", &log), ("a/two", &log)]), &BTreeSet::new()).is_err());
    assert!(publish_all(&mut after).is_empty());
}

#[test]
fn a_document_that_another_publisher_published_is_not_due() {
    let mut table = DeviceTable::default();
    let commit = fleet("c1", &[("a/one", &[content("log", "run")])]);
    table.accept(commit).unwrap();
    let (_, theirs) = table.next(1).remove(0);
    table.read_again(&key("a/one"), theirs.stored(7));
    assert!(table.next(1).is_empty());
    assert_eq!(table.applied(), Some("c1"));
}

#[test]
fn a_device_ahead_of_its_document_gets_it_again_without_a_commit() {
    let mut before = DeviceTable::default();
    before.accept(fleet("c1", &[("a/one", &[content("log", "run")])])).unwrap();
    publish_all(&mut before);
    let mut table = DeviceTable::recovered(before.held);
    let one = key("a/one");
    assert!(!table.is_behind(&one, Generation::FIRST));
    let theirs = Generation::new(9).unwrap();
    assert!(table.is_behind(&one, theirs) && table.note_generation(&one, theirs));
    let (_, again) = table.next(1).remove(0);
    assert_eq!(again.generation.get(), 10);
    table.stored(&one, again, 2, Timestamp::UNIX_EPOCH);
    assert!(table.next(1).is_empty() && !table.is_behind(&one, theirs));
    assert!(!table.note_generation(&key("a/nobody"), theirs), "there is nothing to say again");
    assert_eq!(table.held(&key("a/nobody")).generation, Some(theirs));
}

#[test]
fn devices_are_counted_by_who_knows_them_and_those_left_over_are_named() {
    let log = [content("log", "run")];
    let mut table = DeviceTable::default();
    table.accept(fleet("c1", &[("a/one", &log), ("a/two", &log), ("a/three", &[])])).unwrap();
    publish_all(&mut table);
    let three = key("a/three");
    let gone = compose::retire(&three, Git::Absent, &table.held(&three), true, &request("r")).unwrap();
    let retired = draft(&table.held(&three), &gone).unwrap();
    table.stored(&three, retired, 9, Timestamp::UNIX_EPOCH);
    let second = fleet("c2", &[("a/one", &log)]);
    assert_eq!(table.returning(&second).count(), 0);
    table.accept(second).unwrap();
    assert_eq!(table.summary().left_over, SomeDevices::default(), "its document is still due");
    publish_all(&mut table);
    let left_over = SomeDevices { count: 1, first: vec![key("a/two")] };
    let wanted = FleetSummary {
        devices: 2,
        in_git: Some(1),
        retired: 1,
        left_over,
        unreadable: SomeDevices::default(),
    };
    assert_eq!(table.summary(), wanted);
    let third = fleet("c3", &[("a/one", &log), ("a/three", &log)]);
    assert_eq!(table.returning(&third).collect::<Vec<_>>(), [&three]);
}

#[test]
fn before_the_first_commit_the_newest_document_names_the_last_commit() {
    let mut before = DeviceTable::default();
    for (revision, name) in [("c1", "a/one"), ("c2", "a/two")] {
        before.accept(fleet(revision, &[(name, &[content("log", revision)])])).unwrap();
        publish_all(&mut before);
    }
    let after = DeviceTable::recovered(before.held);
    assert_eq!((after.applied(), after.last_published()), (None, Some("c2")));
    assert!(matches!(after.git(&key("a/one"), true), Git::Unknown));
    assert!(matches!(after.git(&key("a/one"), false), Git::Absent));
}
