//! Remembers valid entries of desired states, so that a reader of many does not check the same entry again. Devices of a fleet
//! share entries, and the check of an entry, above all of its digest, takes several times as long as parsing it.
//!
//! It accepts and refuses the same documents: an entry that differs in anything is checked as a new one.

use std::collections::HashMap;

use crate::canonical::Digest;
use crate::decode::Violation;
use crate::desired::{DesiredDeployment, DesiredState};

/// Entries that are held.
const ENTRIES_MAX: usize = 256;
/// Bytes of a document of which entries are held: more would be memory for what seldom comes twice.
const DOCUMENT_BYTES_MAX: usize = 16 * 1024;

/// Entries that were checked, by their digest.
#[derive(Debug, Default)]
pub struct Checked {
    entries: HashMap<Digest, DesiredDeployment>,
}

impl Checked {
    /// The rules of a desired state that was read from so many bytes.
    ///
    /// # Errors
    /// The first broken rule, as without what was checked before.
    pub(crate) fn check(&mut self, state: &DesiredState, bytes: usize) -> Result<(), Violation> {
        state.check_by(|entry| {
            if self.entries.get(&entry.digest).is_some_and(|held| same(held, entry)) {
                return Ok(());
            }
            entry.check()?;
            if bytes <= DOCUMENT_BYTES_MAX {
                self.hold(entry);
            }
            Ok(())
        })
    }

    /// Where there is no more room, it begins anew: what comes often is soon here again.
    fn hold(&mut self, entry: &DesiredDeployment) {
        if self.entries.len() >= ENTRIES_MAX {
            self.entries.clear();
        }
        self.entries.insert(entry.digest, entry.clone());
    }
}

/// Whether two entries with the same digest have the same content. The generation at which it changed is the device's own.
fn same(one: &DesiredDeployment, other: &DesiredDeployment) -> bool {
    let DesiredDeployment {
        id,
        name,
        application_id,
        namespace,
        labels,
        target_generation: _,
        digest: _,
        profile,
        parameters,
        stopped,
        restart,
        source,
    } = one;
    (id, name, application_id) == (&other.id, &other.name, &other.application_id)
        && (namespace, labels) == (&other.namespace, &other.labels)
        && (profile, parameters, source) == (&other.profile, &other.parameters, &other.source)
        && (stopped, restart) == (&other.stopped, &other.restart)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::decode;
    use crate::fact::Fact;
    use crate::subjects::LedgerSubject;

    fn entry(id: &str, number: usize) -> Value {
        let mut entry = json!({
            "id": id, "name": id, "applicationId": "com.example.app",
            "profile": {"type": "simulated", "components": [{"name": "main", "properties": {"n": number}}]},
        });
        entry["digest"] = Digest::of_value(&entry).to_string().into();
        entry["targetGeneration"] = 1.into();
        entry
    }

    fn state(entries: &[Value]) -> Vec<u8> {
        let state = json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 3, "issuedAt": "2026-11-20T08:00:00Z",
            "source": {"kind": "git", "revision": "c1"}, "deployments": entries,
        });
        state.to_string().into_bytes()
    }

    #[test]
    fn what_was_checked_before_is_refused_and_taken_as_if_it_had_not_been() {
        let subject = LedgerSubject::parse("muster.desired.plant7.press-4").unwrap();
        let (good, other) = (entry("web", 1), entry("db", 2));
        let mut later = good.clone();
        later["targetGeneration"] = 2.into();
        let mut too_late = good.clone();
        too_late["targetGeneration"] = 4.into();
        let altered = |field: &str, value: Value| {
            let mut altered = good.clone();
            altered[field] = value;
            altered
        };
        let twice = [good.clone(), good.clone()];
        let documents = [
            state(std::slice::from_ref(&good)),
            state(&[later]),
            state(&[good.clone(), other.clone()]),
            state(&twice),
            state(&[too_late]),
            state(&[altered("name", "another".into())]),
            state(&[altered("id", "another".into())]),
            state(&[altered("parameters", json!({"A": {"value": 1, "targets": []}}))]),
            state(&[altered("digest", other["digest"].clone())]),
            state(&[altered("profile", other["profile"].clone())]),
            state(&[altered("stopped", true.into())]),
            state(&[altered("restart", 1.into())]),
            state(&[altered("namespace", "apps".into())]),
            state(&[altered("labels", json!({"line": "press"}))]),
        ];
        let mut checked = Checked::default();
        // Twice, and in both orders: what is held must not matter.
        for document in documents.iter().chain(documents.iter().rev()) {
            let alone = Fact::parse(&subject, document);
            assert_eq!(Fact::parse_beside(&subject, document, &mut checked), alone);
        }
        let taken = documents.iter().filter(|one| decode::parse::<DesiredState>(one).is_ok()).count();
        assert_eq!((taken, checked.entries.len()), (3, 2));
    }

    #[test]
    fn there_is_an_end_of_what_is_held() {
        let mut checked = Checked::default();
        for number in 0..3 * ENTRIES_MAX {
            let state: DesiredState = decode::parse(&state(&[entry("web", number)])).unwrap();
            checked.check(&state, 100).unwrap();
            assert!(checked.entries.len() <= ENTRIES_MAX);
        }
        let held = checked.entries.len();
        let state: DesiredState = decode::parse(&state(&[entry("large", 1)])).unwrap();
        checked.check(&state, DOCUMENT_BYTES_MAX + 1).unwrap();
        assert_eq!(checked.entries.len(), held, "a large document is not held");
    }
}
