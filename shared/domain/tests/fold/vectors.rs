//! Tests the reducer vectors in `schemas/vectors/`: excerpts of LEDGER with the resulting views, for
//! implementations of the fold in other languages. They are the scenarios of this crate, written as the bus
//! carries them. `UPDATE_SCHEMAS=1` rewrites the files instead of failing.

use crate::scenarios;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::ledger::{Ledger, stored_at};
use crate::scenarios::Scenario;
use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_domain::fold::{Fleet, Position};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const SWITCH: &str = "UPDATE_SCHEMAS";

/// A file of `schemas/vectors/`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Vector {
    about: String,
    ledger: Vec<Message>,
    /// All views after the last message, by key. A key that is not here has no view.
    views: BTreeMap<String, Value>,
}

/// A message of LEDGER.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    seq: u64,
    stored_at: Timestamp,
    subject: String,
    fact: Value,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../schemas/vectors")
}

fn vector(scenario: &Scenario) -> Vector {
    let ledger = (scenario.ledger)();
    let messages = ledger.entries.iter().zip(1..).map(|(entry, seq)| Message {
        seq,
        stored_at: stored_at(seq),
        subject: entry.subject.to_string(),
        fact: document(&entry.fact),
    });
    Vector {
        about: scenario.about.to_owned(),
        ledger: messages.collect(),
        views: views(&ledger, &ledger.fold()),
    }
}

fn document(fact: &Fact) -> Value {
    let value = match fact {
        Fact::Desired(fact) => serde_json::to_value(fact),
        Fact::Status(fact) => serde_json::to_value(fact),
        Fact::Device(fact) => serde_json::to_value(fact),
        Fact::Liveness(fact) => serde_json::to_value(fact),
        Fact::Deadline(fact) => serde_json::to_value(fact),
        Fact::Incident(fact) => serde_json::to_value(fact),
        Fact::Quarantine(fact) => serde_json::to_value(fact),
        Fact::Verdict(fact) => serde_json::to_value(fact),
        Fact::Ownership(record) => serde_json::to_value(record),
        Fact::Pulse(pulse) => serde_json::to_value(pulse),
        Fact::Hearing(fact) => serde_json::to_value(fact),
    };
    value.unwrap()
}

/// The views of every deployment and site that a ledger speaks of, and the fleet's.
fn views(ledger: &Ledger, fleet: &Fleet) -> BTreeMap<String, Value> {
    let mut keys = BTreeSet::from([ViewKey::Fleet]);
    for entry in &ledger.entries {
        keys.extend(entry.subject.device().map(|key| ViewKey::Site(key.site.clone())));
        match (&entry.subject, &entry.fact) {
            (LedgerSubject::Status(_, id) | LedgerSubject::Deadline(_, id), _) => {
                keys.insert(ViewKey::Deployment(id.clone()));
            }
            (_, Fact::Desired(fact)) => {
                keys.extend(fact.deployments.iter().map(|entry| ViewKey::Deployment(entry.id.clone())));
                keys.extend(
                    fact.labels.clone().into_iter().map(|(label, value)| ViewKey::Group(label, value)),
                );
            }
            _ => {}
        }
    }
    keys.into_iter().filter_map(|key| Some((key.to_string(), shown(fleet, &key)?))).collect()
}

fn shown(fleet: &Fleet, key: &ViewKey) -> Option<Value> {
    match key {
        ViewKey::Deployment(id) => fleet.deployment_view(id).map(|view| serde_json::to_value(view).unwrap()),
        ViewKey::Site(id) => fleet.site_view(id).map(|view| serde_json::to_value(view).unwrap()),
        ViewKey::Fleet => Some(serde_json::to_value(fleet.fleet_view()).unwrap()),
        ViewKey::Group(label, value) => {
            fleet.group_view(label, value).map(|view| serde_json::to_value(view).unwrap())
        }
        // User-defined views are not part of the rules.
        ViewKey::Defined(_) => None,
    }
}

#[test]
fn every_scenario_is_published_as_a_vector_and_nothing_else_is() {
    let mut names = BTreeSet::new();
    for scenario in scenarios::all() {
        let file = folder().join(format!("{}.json", scenario.name));
        let text = serde_json::to_string_pretty(&vector(scenario)).unwrap() + "\n";
        names.insert(file.file_name().unwrap().to_owned());
        if std::env::var_os(SWITCH).is_some() {
            fs::create_dir_all(folder()).unwrap();
            fs::write(&file, &text).unwrap();
        }
        let have = fs::read_to_string(&file).unwrap_or_default();
        assert!(have == text, "{} is not what the scenario gives; {SWITCH}=1 rewrites it", file.display());
    }
    let there: BTreeSet<_> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, names, "each file has a scenario");
}

#[test]
fn a_vector_read_from_its_bytes_gives_its_views() {
    if std::env::var_os(SWITCH).is_some() {
        return; // The files are being written beside this test.
    }
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let vector: Vector = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let mut fleet = Fleet::default();
        for message in &vector.ledger {
            let subject = LedgerSubject::parse(&message.subject).unwrap();
            let fact = Fact::parse(&subject, message.fact.to_string().as_bytes())
                .unwrap_or_else(|refusal| panic!("{}: {refusal}", path.display()));
            let at = Position { ledger_seq: message.seq, stored_at: message.stored_at };
            fleet.apply(at, &subject, fact);
        }
        for (key, view) in &vector.views {
            let key = ViewKey::parse(key).unwrap();
            assert_eq!(shown(&fleet, &key).as_ref(), Some(view), "{key} of {}", path.display());
        }
    }
}
