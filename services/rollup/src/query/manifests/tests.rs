//! Tests which manifests an answer contains and which it leaves out, against a LEDGER double.

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::status::StatusQuery;
use muster_domain::fold::Position;
use serde_json::{Value, json};

use super::*;
use crate::projection::Origin;

const LATE: Duration = Duration::from_secs(60);

fn entry_json(id: &str, note: &str, generation: u64) -> Value {
    let mut entry = json!({"id": id, "name": id, "applicationId": "com-example-app",
        "profile": {"type": "simulated", "components": [{"name": "main", "properties": {"note": note}}]}});
    entry["digest"] = Digest::of_value(&entry).to_string().into();
    entry["targetGeneration"] = generation.into();
    entry
}

fn desired_json(generation: u64, entries: &[Value]) -> Value {
    json!({"apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
        "issuedAt": "2026-11-20T08:00:00Z", "source": {"kind": "git", "revision": format!("c{generation}")},
        "deployments": entries})
}

/// LEDGER with a message at each sequence from 1 on.
struct Ledger(Vec<(&'static str, Value)>);

impl Ledger {
    fn at(&self, ledger_seq: u64) -> Option<Message> {
        let (subject, document) = self.0.get(ledger_seq as usize - 1)?;
        Some(((*subject).to_owned(), document.to_string().into()))
    }

    fn fleet(&self) -> Fleet {
        let mut fleet = Fleet::default();
        for (ledger_seq, (subject, document)) in (1..).zip(&self.0) {
            let subject = LedgerSubject::parse(subject).unwrap();
            let fact = Fact::parse(&subject, document.to_string().as_bytes()).unwrap();
            fleet.apply(Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH }, &subject, fact);
        }
        fleet
    }
}

const PRESS: &str = "muster.desired.plant7.press-4";
const DRILL: &str = "muster.desired.plant7.drill-1";

/// Two devices with the same deployment, and one of them with one more.
fn two() -> Ledger {
    let web = entry_json("web", "first", 1);
    Ledger(vec![
        (PRESS, desired_json(1, &[entry_json("db", "x", 1), web.clone()])),
        (DRILL, desired_json(1, &[web])),
    ])
}

fn lines(fleet: &Fleet) -> StatusAnswer {
    let query = StatusQuery { output: muster_contract::query::Output::Detail, ..StatusQuery::default() };
    fleet.status_answer(&query, None, usize::MAX).unwrap()
}

/// An answer of the fleet, with what a LEDGER gives by now.
async fn told(fleet: &Fleet, ledger: &Ledger, cache: &Mutex<ManifestCache>) -> (StatusAnswer, Vec<u64>) {
    let mut answer = lines(fleet);
    let asked = Mutex::new(Vec::new());
    let read = |ledger_seq| {
        asked.lock().unwrap().push(ledger_seq);
        std::future::ready(ledger.at(ledger_seq))
    };
    let wanted = wanted(fleet, &answer.targets, None);
    let entries = gathered(&wanted, Instant::now() + LATE, cache, read).await;
    add_manifests(&mut answer, entries);
    (answer, asked.into_inner().unwrap())
}

#[tokio::test]
async fn a_manifest_is_told_once_however_many_targets_share_it() {
    let (ledger, cache) = (two(), Mutex::default());
    let fleet = ledger.fleet();
    let (answer, asked) = told(&fleet, &ledger, &cache).await;
    assert_eq!(asked, [1, 2], "each document once");
    assert_eq!((answer.targets.len(), answer.manifests.len(), answer.manifests_left_out), (3, 2, 0));
    for target in &answer.targets {
        let manifest = answer.manifest(target).unwrap();
        assert_eq!((&manifest.id, Some(manifest.digest())), (&target.deployment, target.digest));
        assert_eq!(target.source.as_ref().unwrap().revision, "c1");
    }
    let (again, asked) = told(&fleet, &Ledger(Vec::new()), &cache).await;
    assert_eq!((asked.len(), again), (0, answer), "what was read is held");
}

#[tokio::test]
async fn after_an_update_the_older_manifest_is_not_told() {
    let (mut ledger, cache) = (two(), Mutex::default());
    let (before, _) = told(&ledger.fleet(), &ledger, &cache).await;
    ledger.0.push((DRILL, desired_json(2, &[entry_json("web", "second", 2)])));
    let (after, asked) = told(&ledger.fleet(), &ledger, &cache).await;
    assert_eq!(asked, [3], "the others are held");
    let note = |answer: &StatusAnswer, at: usize| {
        answer.manifest(&answer.targets[at]).unwrap().profile.components[0].properties["note"].clone()
    };
    assert_eq!((note(&before, 0), note(&after, 0)), ("first".into(), "second".into()));
    assert_eq!(note(&after, 2), "first", "the other device has still the older one");
    assert_eq!(after.targets[0].source.as_ref().unwrap().revision, "c2");
}

/// Whatever LEDGER holds at a sequence by now, an answer contains only the target's own manifest.
#[tokio::test]
async fn a_manifest_that_is_not_the_targets_own_is_left_out() {
    let ledger = two();
    let fleet = ledger.fleet();
    let web = |note, generation| entry_json("web", note, generation);
    let mut forged = web("first", 1);
    forged["profile"]["components"][0]["properties"]["note"] = "forged".into();
    for (what, drills, left_out) in [
        ("as it was", Some((DRILL, desired_json(1, &[web("first", 1)]))), 0),
        ("re-asserted in a later document", Some((DRILL, desired_json(5, &[web("first", 1)]))), 0),
        ("gone", None, 1),
        ("of another device", Some((PRESS, desired_json(1, &[web("first", 1)]))), 1),
        ("of another generation", Some((DRILL, desired_json(2, &[web("second", 2)]))), 1),
        ("without the deployment", Some((DRILL, desired_json(1, &[entry_json("db", "first", 1)]))), 1),
        ("with another content than its digest says", Some((DRILL, desired_json(1, &[forged]))), 1),
        ("no desired state", Some((DRILL, json!({"kind": "Other"}))), 1),
        ("another fact", Some(("muster.liveness.plant7.drill-1", desired_json(1, &[web("first", 1)]))), 1),
    ] {
        let by_now = Ledger(ledger.0[..1].iter().cloned().chain(drills).collect());
        let (answer, _) = told(&fleet, &by_now, &Mutex::default()).await;
        assert_eq!(answer.manifests_left_out, left_out, "{what}");
        assert_eq!(answer.targets[0].digest.is_some(), left_out == 0, "{what}");
        assert!(answer.targets[1..].iter().all(|target| answer.manifest(target).is_some()), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_late_is_left_out_and_declared() {
    let ledger = two();
    let mut answer = lines(&ledger.fleet());
    let wanted = wanted(&ledger.fleet(), &answer.targets, None);
    let read = |ledger_seq| {
        let message = ledger.at(ledger_seq);
        async move {
            let takes = if ledger_seq == 2 { LATE } else { READS_FOR / 2 };
            tokio::time::sleep(takes).await;
            message
        }
    };
    let begun = Instant::now();
    let entries = gathered(&wanted, begun + READS_FOR, &Mutex::default(), read).await;
    assert_eq!(begun.elapsed(), READS_FOR);
    add_manifests(&mut answer, entries);
    assert_eq!((answer.manifests.len(), answer.manifests_left_out), (2, 1));
}

/// A superseded target has the entry of the document that was asked for, whenever that became the target.
#[tokio::test]
async fn a_superseded_generation_shows_the_entry_of_its_own_document() {
    let mut ledger = two();
    ledger.0.push((PRESS, desired_json(2, &[entry_json("db", "y", 2), entry_json("web", "first", 1)])));
    ledger.0.push((PRESS, desired_json(3, &[entry_json("web", "third", 3)])));
    let fleet = ledger.fleet();
    let mut answer = lines(&fleet);
    answer.targets.retain(|target| target.key.device.as_str() == "press-4");
    answer.targets.iter_mut().for_each(|target| target.superseded = true);
    let read = |ledger_seq| std::future::ready(ledger.at(ledger_seq));
    let late = Instant::now() + LATE;
    for (asked, place, web) in
        [(2, Some(3), Some("first")), (3, Some(4), Some("third")), (1, None, None), (2, Some(4), None)]
    {
        let mut told = answer.clone();
        let mut wanted = wanted(&fleet, &told.targets, Some(generation(asked)));
        place::find(&mut wanted, late, |_, found| {
            assert_eq!(found, generation(asked));
            std::future::ready(place)
        })
        .await;
        add_manifests(&mut told, gathered(&wanted, late, &Mutex::default(), read).await);
        let target = told.targets.iter().find(|target| target.deployment.as_str() == "web").unwrap();
        let note = told.manifest(target).map(|it| it.profile.components[0].properties["note"].clone());
        assert_eq!(note, web.map(Value::from), "{asked} at {place:?}");
        assert_eq!(
            told.manifests_left_out,
            told.targets.len() as u64 - told.manifests.len() as u64,
            "{asked}"
        );
    }
}

#[test]
fn a_row_without_a_target_or_generation_has_no_manifest() {
    let fleet = two().fleet();
    let mut answer = lines(&fleet);
    answer.targets[0].target_generation = None;
    answer.targets[1].superseded = true;
    let wanted = wanted(&fleet, &answer.targets, None);
    assert_eq!(wanted.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true]);
    add_manifests(&mut answer, vec![None; 3]);
    assert_eq!(answer.manifests_left_out, 2, "where nothing shall run nothing is left out");
}

fn generation(number: u64) -> Generation {
    Generation::new(number).unwrap()
}

fn held(id: &str, note: &str) -> Entry {
    let entry: DesiredDeployment = serde_json::from_value(entry_json(id, note, 1)).unwrap();
    let state: DesiredState = serde_json::from_value(desired_json(1, &[])).unwrap();
    Entry::new(entry.digest, state.source, Manifest::from(entry))
}

fn place(ledger_seq: u64, id: &str) -> ManifestRequest {
    let (key, version) = ("plant7/press-4".parse().unwrap(), Version::Target(generation(1)));
    ManifestRequest { ledger_seq: Some(ledger_seq), key, deployment: id.parse().unwrap(), version }
}

#[test]
fn a_manifest_that_is_too_large_is_left_out_and_its_digest_told() {
    let fleet = two().fleet();
    let mut answer = lines(&fleet);
    let large = held("db", &"x".repeat(MANIFEST_BYTES_MAX));
    let small = held("web", "first");
    add_manifests(&mut answer, vec![Some(small.clone()), Some(large.clone()), Some(small.clone())]);
    assert_eq!(answer.manifests.keys().collect::<Vec<_>>(), [&small.digest]);
    assert_eq!((answer.targets[1].digest, answer.manifests_left_out), (Some(large.digest), 1));
    withhold(&mut answer);
    assert_eq!((answer.manifests.len(), answer.manifests_left_out), (0, 3));
}

#[test]
fn a_manifest_is_cached_once_by_digest_and_per_document() {
    let mut cache = ManifestCache::default();
    let first = cache.hold(&place(1, "web"), held("web", "first"));
    let second = cache.hold(&place(2, "web"), held("web", "first"));
    assert!(Arc::ptr_eq(&first.manifest, &second.manifest));
    assert_eq!((cache.size().0, cache.size().1), (2, 1));
    assert_eq!(cache.find(&place(2, "web")), Some(second));
    assert_eq!((cache.find(&place(3, "web")), cache.find(&place(1, "db"))), (None, None));
    for version in [Version::Target(generation(2)), Version::Document(generation(1))] {
        let other = ManifestRequest { version, ..place(1, "web") };
        assert_eq!(cache.find(&other), None, "another generation is another entry");
    }
    let nowhere = ManifestRequest { ledger_seq: None, ..place(1, "web") };
    assert_eq!((cache.find(&nowhere), cache.size().0), (None, 2));
}

#[test]
fn a_new_ledger_clears_the_cache() {
    let mut cache = ManifestCache::default();
    let origin = Origin { created_at: Timestamp::UNIX_EPOCH, restarts: 0 };
    cache.enter(origin);
    cache.hold(&place(1, "web"), held("web", "first"));
    cache.enter(origin);
    assert!(cache.find(&place(1, "web")).is_some());
    cache.enter(Origin { restarts: 1, ..origin });
    assert_eq!((cache.find(&place(1, "web")), cache.size()), (None, (0, 0, 0)));
}

#[test]
fn the_cache_is_bounded_in_number_and_in_bytes() {
    let mut cache = ManifestCache::default();
    let small = held("web", "first");
    for ledger_seq in 1..=(2 * cache::ENTRIES_MAX as u64) {
        cache.hold(&place(ledger_seq, "web"), small.clone());
        assert!(cache.size().0 <= cache::ENTRIES_MAX);
    }
    let note = "x".repeat(cache::BYTES_MAX / 10);
    for ledger_seq in 1..=30 {
        cache.hold(&place(ledger_seq, "web"), held("web", &format!("{ledger_seq} {note}")));
        assert!(cache.size().2 <= cache::BYTES_MAX, "{:?}", cache.size());
        assert!(cache.find(&place(ledger_seq, "web")).is_some(), "what was read last is held");
    }
    let huge = held("web", &"x".repeat(cache::BYTES_MAX));
    let size = cache.size();
    assert_eq!(cache.hold(&place(99, "web"), huge.clone()), huge, "it is returned and not cached");
    assert_eq!((cache.find(&place(99, "web")), cache.size()), (None, size));
}
