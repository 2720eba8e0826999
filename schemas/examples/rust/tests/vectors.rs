//! The reducer vectors hold for the example, also for one that was written down in the middle of a ledger and read again,
//! and no state is taken from a snapshot that cannot be trusted.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use muster_contract::Timestamp;
use muster_contract::view::AsOf;
use muster_example::fleet::Fleet;
use muster_example::snapshot::{self, Window};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Vector {
    ledger: Vec<Message>,
    views: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    seq: u64,
    stored_at: Timestamp,
    subject: String,
    fact: Value,
}

/// What happens to the text of a snapshot.
type Damage = fn(String) -> String;

const LEDGER: Window = Window { created: Timestamp::UNIX_EPOCH, first: 1, last: 1000 };

fn vectors() -> Vec<(PathBuf, Vector)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let vectors: Vec<_> =
        files.map(|file| (file.clone(), serde_json::from_slice(&fs::read(file).unwrap()).unwrap())).collect();
    assert!(!vectors.is_empty());
    vectors
}

fn apply(fleet: &mut Fleet, messages: &[Message]) {
    for message in messages {
        let as_of = AsOf { ledger_seq: message.seq, at: message.stored_at };
        fleet.apply(as_of, &message.subject, message.fact.to_string().as_bytes());
    }
}

fn views(fleet: &Fleet) -> BTreeMap<String, Value> {
    fleet.views().into_iter().map(|(key, view)| (key.to_string(), view)).collect()
}

#[test]
fn every_vector_holds() {
    for (file, vector) in vectors() {
        let mut fleet = Fleet::default();
        apply(&mut fleet, &vector.ledger);
        assert_eq!(views(&fleet), vector.views, "{}", file.display());
    }
}

#[test]
fn a_snapshot_and_the_tail_give_the_same_views_wherever_the_ledger_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot.json");
    for (file, vector) in vectors() {
        let mut whole = Fleet::default();
        for (at, message) in vector.ledger.iter().enumerate() {
            apply(&mut whole, std::slice::from_ref(message));
            let written = serde_json::to_string(&whole).unwrap();
            let read: Fleet = serde_json::from_str(&written).unwrap();
            assert_eq!(read, whole, "{} cut after {at}", file.display());
            // A disk takes its time.
            if at == vector.ledger.len() / 2 {
                snapshot::save(&path, read, &LEDGER).unwrap();
                let mut fleet = snapshot::load(&path, &LEDGER).unwrap();
                apply(&mut fleet, &vector.ledger[at + 1..]);
                assert_eq!(views(&fleet), vector.views, "{} cut after {at}", file.display());
            }
        }
    }
}

#[test]
fn a_snapshot_that_cannot_be_trusted_is_set_aside() {
    let (_, vector) = vectors().into_iter().find(|(file, _)| file.ends_with("amnesia.json")).unwrap();
    let mut fleet = Fleet::default();
    apply(&mut fleet, &vector.ledger);
    let read_to = fleet.as_of.ledger_seq;
    let dir = tempfile::tempdir().unwrap();
    let (path, aside) = (dir.path().join("snapshot.json"), dir.path().join("snapshot.json.aside"));
    let later = LEDGER.created + jiff::SignedDuration::from_secs(1);
    let anew = Window { created: later, ..LEDGER };
    let shorter = Window { last: read_to - 1, ..LEDGER };
    let aged = Window { first: read_to + 2, ..LEDGER };
    let cut = |text: String| text[..text.len() / 2].to_owned();
    let changed = |text: String| text.replace(r#""state":"installed""#, r#""state":"failed""#);
    let same = |text: String| text;
    let table: [(Damage, Window); 5] =
        [(cut, LEDGER), (changed, LEDGER), (same, anew), (same, shorter), (same, aged)];
    for (at, (damage, ledger)) in table.into_iter().enumerate() {
        snapshot::save(&path, fleet.clone(), &LEDGER).unwrap();
        let text = damage(fs::read_to_string(&path).unwrap());
        fs::write(&path, &text).unwrap();
        assert_eq!(snapshot::load(&path, &ledger).unwrap(), Fleet::default(), "case {at}");
        assert_eq!(fs::read_to_string(&aside).unwrap(), text, "case {at}: it is kept");
        assert!(!path.exists(), "case {at}");
    }
    snapshot::save(&path, fleet.clone(), &LEDGER).unwrap();
    let enough = Window { first: read_to + 1, last: read_to, ..LEDGER };
    assert_eq!(snapshot::load(&path, &enough).unwrap(), fleet);
}
