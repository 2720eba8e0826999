//! Tests two sources for one device: which source wins, which deployments stay, and which are refused.

use muster_contract::{Generation, RequestedBy};

use super::*;
use crate::content::tests::{content, request};
use crate::source::{Policy, RolloutFile};

fn key() -> DeviceKey {
    "a/one".parse().unwrap()
}

fn fleet(revision: &str, contents: &[Arc<Content>]) -> Fleet {
    Fleet { revision: revision.to_owned(), devices: [(key(), contents.to_vec())].into(), ..Fleet::default() }
}

fn nobody(revision: &str) -> Fleet {
    Fleet { revision: revision.to_owned(), ..Fleet::default() }
}

fn hold(held: &PublishedState, wanted: &DesiredDevice) -> PublishedState {
    draft(held, wanted).unwrap().stored(held.sequence + 1)
}

fn commands(wanted: &DesiredDevice) -> Vec<String> {
    let shown = |content: &Arc<Content>| {
        let entry = content.targeting(Generation::FIRST);
        let command = entry.profile.components[0].properties["command"].as_str().unwrap().to_owned();
        format!("{}={command}", entry.id)
    };
    wanted.contents.iter().map(shown).collect()
}

/// The published state after a commit with `log` and `web`, and a request for another `web`.
fn both() -> (Fleet, PublishedState) {
    let fleet = fleet("c1", &[content("log", "git"), content("web", "git")]);
    let held = hold(&PublishedState::default(), &commit(&key(), &fleet, &PublishedState::default()).unwrap());
    let wanted = apply_one(Git::Known(&fleet), &held, "web", "api", "r1");
    let held = hold(&held, &wanted);
    (fleet, held)
}

fn apply_one(git: Git<'_>, held: &PublishedState, id: &str, command: &str, revision: &str) -> DesiredDevice {
    apply(&key(), git, held, &[Content::clone(&content(id, command))], &request(revision)).unwrap()
}

#[test]
fn a_request_wins_over_git_until_it_is_removed() {
    let (fleet, held) = both();
    let again = commit(&key(), &fleet, &held).unwrap();
    assert_eq!(commands(&again), ["log=git", "web=api"]);
    assert_eq!(draft(&held, &again), None, "the commit that is applied already changes nothing");
    let id = "web".parse().unwrap();
    let removed = remove(&key(), Git::Known(&fleet), &held, Some(&id), &request("r2")).unwrap();
    assert_eq!(commands(&removed), ["log=git", "web=git"]);
    assert_eq!(removed.source, Source::new(SourceKind::Git, "c1".to_owned()));
}

#[test]
fn a_request_says_who_asked_and_git_entries_say_the_commit() {
    let (_, held) = both();
    let document = held.document.unwrap();
    assert_eq!(document.source.revision, "c1");
    let sources: Vec<_> =
        document.entries.iter().map(|entry| entry.content.targeting(entry.target).source).collect();
    assert_eq!(sources, [None, Some(request("r1"))]);
}

#[test]
fn the_same_request_again_changes_nothing() {
    let (fleet, held) = both();
    let again = apply_one(Git::Known(&fleet), &held, "web", "api", "r2");
    assert_eq!(draft(&held, &again), None);
    let other = apply_one(Git::Known(&fleet), &held, "web", "other", "r3");
    assert_eq!(commands(&other), ["log=git", "web=other"]);
    assert!(draft(&held, &other).is_some());
}

#[test]
fn a_record_names_who_asked_and_a_commit_names_nobody() {
    let (fleet, held) = both();
    let anna = Source { requested_by: Some(RequestedBy::new("UA", "anna", None)), ..request("r2") };
    let by = |wanted: &DesiredDevice| {
        let entries = wanted.contents.iter().map(|content| content.targeting(Generation::FIRST).source);
        let named = entries.flatten().filter_map(|source| source.requested_by).count();
        (wanted.source.kind, wanted.source.requested_by.is_some(), named)
    };
    let contents = [Content::clone(&content("db", "api"))];
    let applied = apply(&key(), Git::Known(&fleet), &held, &contents, &anna).unwrap();
    assert_eq!(by(&applied), (SourceKind::Git, true, 1), "of three entries one is hers");
    let removed = remove(&key(), Git::Known(&fleet), &held, None, &anna).unwrap();
    assert_eq!(by(&removed), (SourceKind::Git, true, 0));
    let retired = retire(&key(), Git::Known(&nobody("c2")), &held, true, &anna).unwrap();
    assert_eq!(retired.source, anna);
    let next = commit(&key(), &fleet, &hold(&held, &applied)).unwrap();
    assert_eq!(by(&next), (SourceKind::Git, false, 1), "the entry is hers still");
}

#[test]
fn a_removed_folder_leaves_requested_deployments() {
    let (_, held) = both();
    let gone = commit(&key(), &nobody("c2"), &held).unwrap();
    assert_eq!((commands(&gone), gone.retired), (vec!["web=api".to_owned()], false));
    assert_eq!(gone.source.revision, "c2");
}

#[test]
fn a_removed_folder_leaves_an_empty_document() {
    let held = hold(
        &PublishedState::default(),
        &commit(&key(), &fleet("c1", &[content("log", "git")]), &PublishedState::default()).unwrap(),
    );
    let gone = commit(&key(), &nobody("c2"), &held).unwrap();
    assert!(gone.contents.is_empty() && !gone.retired);
    assert_eq!(commit(&key(), &nobody("c2"), &PublishedState::default()), None, "a device nobody knows of");
}

#[test]
fn before_the_first_good_commit_deployments_of_git_stay() {
    let (_, held) = both();
    for git in [Git::Unknown, Git::Absent] {
        let wanted = apply_one(git, &held, "db", "api", "r2");
        assert_eq!(commands(&wanted), ["db=api", "log=git", "web=api"]);
        assert_eq!(wanted.source.revision, "c1");
    }
}

#[test]
fn a_device_known_only_by_request_is_not_changed_by_git() {
    let held = hold(
        &PublishedState::default(),
        &apply_one(Git::Unknown, &PublishedState::default(), "db", "api", "r1"),
    );
    assert_eq!(held.document.as_ref().unwrap().source, request("r1"));
    let wanted = commit(&key(), &nobody("c1"), &held).unwrap();
    assert_eq!(draft(&held, &wanted), None);
    let all = remove(&key(), Git::Unknown, &held, None, &request("r2")).unwrap();
    assert!(all.contents.is_empty() && !all.retired);
}

#[test]
fn removing_what_was_never_requested_is_refused() {
    let (fleet, held) = both();
    let refused = |held: &PublishedState, id: &str| {
        let id = id.parse().unwrap();
        remove(&key(), Git::Known(&fleet), held, Some(&id), &request("r")).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&held, "log"),
        "'log' was not applied to a/one by request; it comes from Git: remove it there"
    );
    assert_eq!(refused(&held, "nothing"), "'nothing' was not applied to a/one by request");
    assert_eq!(refused(&PublishedState::default(), "web"), "a/one never had a desired state: check the name");
}

#[test]
fn removing_a_request_is_refused_before_the_first_commit() {
    let (_, held) = both();
    let refused = remove(&key(), Git::Unknown, &held, None, &request("r2")).unwrap_err();
    assert_eq!(refused, RequestRefused::GitUnknown(key()));
    assert!(remove(&key(), Git::Absent, &held, None, &request("r2")).is_ok());
}

#[test]
fn retiring_is_for_devices_that_git_does_not_have() {
    let (fleet, held) = both();
    let refused = retire(&key(), Git::Known(&fleet), &held, false, &request("r")).unwrap_err();
    assert!(refused.to_string().contains("remove the folder sites/a/one"), "{refused}");
    assert!(retire(&key(), Git::Unknown, &held, false, &request("r")).is_err());
    let nobody = nobody("c2");
    let wanted = retire(&key(), Git::Known(&nobody), &held, false, &request("r")).unwrap();
    assert!(wanted.retired && wanted.contents.is_empty());
    let retired = hold(&held, &wanted);
    assert_eq!(commit(&key(), &nobody, &retired), None, "a retired device stays retired");
    let back = commit(&key(), &fleet, &retired).unwrap();
    assert!(!back.retired, "a folder brings it back");
    let removed = remove(&key(), Git::Known(&fleet), &retired, None, &request("r")).unwrap();
    assert_eq!(draft(&retired, &removed), None);
}

#[test]
fn retiring_is_for_known_devices() {
    let (nobody, nothing) = (nobody("c2"), PublishedState::default());
    let retire = |reported| retire(&key(), Git::Known(&nobody), &nothing, reported, &request("r"));
    assert_eq!(retire(false).unwrap_err(), RequestRefused::UnknownDevice(key()));
    assert!(retire(true).unwrap().retired, "it reports although it never got a desired state");
}

#[test]
fn what_is_put_in_the_place_of_git_is_known() {
    let (fleet, held) = both();
    let contents = ["web", "db"].map(|id| Content::clone(&content(id, "other")));
    assert_eq!(overrides(&key(), Git::Known(&fleet), &held, &contents), ["web".parse().unwrap()]);
    assert!(!is_new(&key(), Git::Known(&fleet), &PublishedState::default()), "Git has it");
    assert!(is_new(&key(), Git::Unknown, &PublishedState::default()) && !is_new(&key(), Git::Absent, &held));
}

#[test]
fn a_request_is_not_removed_if_the_deployment_of_git_exceeds_a_limit() {
    let fleet = fleet("c1", &[content("web", &"x".repeat(200 * 1024))]);
    let held = hold(&PublishedState::default(), &commit(&key(), &fleet, &PublishedState::default()).unwrap());
    let held = hold(&held, &apply_one(Git::Known(&fleet), &held, "web", "small", "r1"));
    let large = "y".repeat(60 * 1024);
    let held = hold(&held, &apply_one(Git::Known(&fleet), &held, "db", &large, "r2"));
    let id = "web".parse().unwrap();
    let refused = remove(&key(), Git::Known(&fleet), &held, Some(&id), &request("r3")).unwrap_err();
    assert!(matches!(refused, RequestRefused::OverLimit(..)), "{refused}");
}

#[test]
fn a_device_that_git_has_no_more_keeps_its_labels() {
    let labels: Arc<Labels> = Arc::new(serde_json::from_str(r#"{"ring":"canary"}"#).unwrap());
    let mut with = fleet("c1", &[content("log", "run")]);
    with.labels.insert(key(), labels.clone());
    let held = hold(&PublishedState::default(), &commit(&key(), &with, &PublishedState::default()).unwrap());
    let without = Fleet { revision: "c2".to_owned(), ..Fleet::default() };
    assert_eq!(commit(&key(), &without, &held).unwrap().labels, labels);
    let untagged = fleet("c3", &[content("log", "run")]);
    assert!(commit(&key(), &untagged, &held).unwrap().labels.is_empty(), "Git has it, and says so");
}

#[test]
fn a_commit_over_a_limit_holds_the_device_back_or_is_refused_if_strict() {
    let many: Vec<_> = (0..128).map(|at| content(&format!("d{at}"), "run")).collect();
    let held = hold(
        &PublishedState::default(),
        &apply_one(Git::Absent, &PublishedState::default(), "own", "api", "r1"),
    );
    let fleet = fleet("c1", &many);
    let strict = Fleet { policy: Policy { strict: true, ..Policy::default() }, ..fleet.clone() };
    let problems = changes(&strict, &[(key(), held.clone())].into()).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "sites/a/one: the device would have 129 deployments; 128 are allowed; requested deployments count as \
         well, and `muster remove` removes them"
    );
    assert_eq!(changes(&strict, &BTreeMap::new()).unwrap().due.len(), 1);
    let changes = changes(&fleet, &[(key(), held.clone())].into()).unwrap();
    assert_eq!((changes.due.len(), changes.over.len()), (0, 1));
    assert_eq!(commit(&key(), &fleet, &held), None, "it keeps what it has");
    let plenty: Vec<_> = many.iter().map(|content| Content::clone(content)).collect();
    assert!(matches!(
        apply(&key(), Git::Absent, &held, &plenty, &request("r2")),
        Err(RequestRefused::OverLimit(..))
    ));
}

#[test]
fn a_tombstone_retires_a_device_and_no_request_brings_it_back() {
    let (fleet, held) = both();
    let buried = Fleet { revision: "c2".to_owned(), retired: [key()].into(), ..Fleet::default() };
    assert!(changes(&buried, &[(key(), held.clone())].into()).unwrap().due.contains(&key()));
    let wanted = commit(&key(), &buried, &held).unwrap();
    assert!(wanted.retired && wanted.contents.is_empty() && wanted.source.revision == "c2");
    let retired = hold(&held, &wanted);
    assert!(changes(&buried, &[(key(), retired.clone())].into()).unwrap().due.is_empty());
    let web = [Content::clone(&content("web", "api"))];
    let refused = apply(&key(), Git::Known(&buried), &retired, &web, &request("r")).unwrap_err();
    assert!(refused.to_string().contains("sites/a/one/device.yaml"), "{refused}");
    assert!(!commit(&key(), &fleet, &retired).unwrap().retired, "a folder brings it back");
}

#[test]
fn a_removed_folder_retires_its_device_only_where_that_is_asked_for() {
    let own = hold(
        &PublishedState::default(),
        &commit(&key(), &fleet("c1", &[]), &PublishedState::default()).unwrap(),
    );
    let policy = Policy { retire_removed: true, ..Policy::default() };
    let retiring = Fleet { policy, ..nobody("c2") };
    assert_eq!(commit(&key(), &nobody("c2"), &own).map(|wanted| wanted.retired), Some(false));
    assert_eq!(commit(&key(), &retiring, &own).map(|wanted| wanted.retired), Some(true));
    let (_, applied_to) = both();
    assert!(!commit(&key(), &retiring, &applied_to).unwrap().retired, "a request keeps it");
    let by_request = hold(
        &PublishedState::default(),
        &apply_one(Git::Absent, &PublishedState::default(), "web", "api", "r1"),
    );
    assert!(!commit(&key(), &retiring, &by_request).unwrap().retired, "it was never Git's");
}

#[test]
fn a_device_that_is_held_back_keeps_its_deployments_of_git() {
    let (_, held) = both();
    let newer = Fleet { held_back: [key()].into(), ..fleet("c2", &[content("log", "newer")]) };
    assert_eq!(commit(&key(), &newer, &held), None);
    let applied = apply_one(Git::HeldBack, &held, "db", "api", "r2");
    assert_eq!(commands(&applied), ["db=api", "log=git", "web=api"]);
    assert_eq!(applied.source.revision, "c1");
    let refused = retire(&key(), Git::HeldBack, &held, false, &request("r")).unwrap_err();
    assert_eq!(refused, RequestRefused::InGit { key: key() });
}

/// A rollout that governs the device of these tests.
fn governed(fleet: Fleet) -> Fleet {
    let rollout = serde_json::from_str(r#"{"apiVersion":"muster/v1","kind":"Rollout"}"#).unwrap();
    let file = Arc::new(RolloutFile { path: "fleet/rollout.yaml".to_owned(), rollout });
    Fleet { rollouts: [(key(), file)].into(), ..fleet }
}

/// The state after `log` and `web` were released, and the next commit, which changes `web`, removes `log` and adds `db`.
fn held_change() -> (PublishedState, Fleet) {
    let first = fleet("c1", &[content("log", "git"), content("web", "git")]);
    let nothing = PublishedState::default();
    let held = hold(&nothing, &commit(&key(), &first, &nothing).unwrap());
    (held, governed(fleet("c2", &[content("db", "new"), content("web", "new")])))
}

fn released(fleet: &Fleet, held: &PublishedState, id: &str, content: Option<&Arc<Content>>) -> DesiredDevice {
    release(&key(), Git::Known(fleet), held, &id.parse().unwrap(), content, &request("r")).unwrap()
}

#[test]
fn a_governed_device_keeps_what_it_has_until_a_release() {
    let (held, next) = held_change();
    assert_eq!(
        draft(&held, &commit(&key(), &next, &held).unwrap()),
        None,
        "nothing goes out with the commit"
    );
    let free = Fleet { rollouts: BTreeMap::new(), ..next.clone() };
    assert_eq!(commands(&commit(&key(), &free, &held).unwrap()), ["db=new", "web=new"]);
    let new = commit(&key(), &next, &PublishedState::default()).unwrap();
    assert!(new.contents.is_empty() && !new.retired, "a new device gets an empty document");
}

#[test]
fn a_release_changes_one_deployment_and_names_who_asked() {
    let (held, next) = held_change();
    let new = content("web", "new");
    let anna = Source { requested_by: Some(RequestedBy::new("UA", "anna", None)), ..request("r") };
    let web = "web".parse().unwrap();
    let wanted = release(&key(), Git::Known(&next), &held, &web, Some(&new), &anna).unwrap();
    assert_eq!(commands(&wanted), ["log=git", "web=new"]);
    assert_eq!((wanted.source.revision.as_str(), &wanted.source.requested_by), ("c2", &anna.requested_by));
    let after = hold(&held, &wanted);
    assert_eq!(draft(&after, &commit(&key(), &next, &after).unwrap()), None, "and stays released");
    assert_eq!(draft(&after, &released(&next, &after, "web", Some(&new))), None, "twice is once");
    let db = hold(&after, &released(&next, &after, "db", Some(&content("db", "new"))));
    assert_eq!(
        commands(&released(&next, &db, "log", None)),
        ["db=new", "web=new"],
        "a removal is released as well"
    );
    assert_eq!(
        commands(&released(&next, &db, "web", Some(&content("web", "git")))),
        ["db=new", "log=git", "web=git"]
    );
}

#[test]
fn a_request_lets_no_held_change_out() {
    let (held, next) = held_change();
    let applied = apply_one(Git::Known(&next), &held, "own", "api", "r1");
    assert_eq!(commands(&applied), ["log=git", "own=api", "web=git"]);
    let held = hold(&held, &applied);
    let own = "own".parse().unwrap();
    let removed = remove(&key(), Git::Known(&next), &held, Some(&own), &request("r2")).unwrap();
    assert_eq!(commands(&removed), ["log=git", "web=git"]);
}

#[test]
fn a_release_is_refused_where_no_rollout_governs_or_git_is_unknown() {
    let (held, next) = held_change();
    let web = "web".parse().unwrap();
    let new = content("web", "new");
    let refused = |git: Git<'_>, held: &PublishedState| {
        release(&key(), git, held, &web, Some(&new), &request("r")).unwrap_err()
    };
    let free = Fleet { rollouts: BTreeMap::new(), ..next.clone() };
    assert_eq!(refused(Git::Known(&free), &held), ReleaseRefusal::NotGoverned);
    assert_eq!(refused(Git::Known(&nobody("c3")), &held), ReleaseRefusal::NotInGit);
    assert_eq!(refused(Git::HeldBack, &held), ReleaseRefusal::HeldBack);
    for git in [Git::Absent, Git::Unknown, Git::Behind] {
        assert_eq!(refused(git, &held), ReleaseRefusal::GitUnknown);
    }
    let by_request = hold(&held, &apply_one(Git::Known(&next), &held, "web", "api", "r1"));
    assert_eq!(refused(Git::Known(&next), &by_request), ReleaseRefusal::AppliedByRequest);
}
