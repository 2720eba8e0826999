//! Tests which events are actions, their revisions, and the limits of a chronicle that begins midway.

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use serde_json::json;

use super::*;

/// A chronicle with LEDGER's end.
#[derive(Default)]
struct Ledger {
    chronicle: Chronicle,
    end: u64,
    now: Timestamp,
}

impl Ledger {
    /// A device's desired state has `web` of a generation, or nothing, by a commit.
    fn tell(&mut self, device: &str, generation: u64, web: Option<u64>, commit: &str) -> &mut Self {
        self.tell_by(device, generation, web, commit, None)
    }

    /// The same, where the entry has a source of its own: it was applied by request.
    fn tell_by(
        &mut self,
        device: &str,
        generation: u64,
        web: Option<u64>,
        commit: &str,
        request: Option<&str>,
    ) -> &mut Self {
        let entry = |target: u64| {
            let mut entry = json!({"id": "web", "name": "web", "applicationId": "com-example-web",
                "digest": Digest::of_bytes(b"").to_string(), "targetGeneration": target,
                "profile": {"type": "simulated", "components": [{"name": "main"}]}});
            if let Some(request) = request {
                entry["source"] = json!({"kind": "api", "revision": request});
            }
            entry
        };
        let state = json!({"apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": "2026-11-20T08:00:00Z", "source": {"kind": "git", "revision": commit},
            "deployments": web.map(entry).into_iter().collect::<Vec<_>>()});
        self.end += 1;
        let at = Position { ledger_seq: self.end, stored_at: self.now };
        let key = format!("plant7/{device}").parse().unwrap();
        self.chronicle.apply(at, &key, &serde_json::from_value(state).unwrap());
        self
    }

    fn told(&self, up_to: u64) -> Vec<String> {
        let (actions, _) = self.chronicle.actions(&"web".parse().unwrap(), up_to);
        let said = actions.iter().map(|action| {
            let revision = action.source.as_ref().map_or("-", |source| &source.revision);
            format!("{} {:?} {revision}", action.ledger_seq, action.action)
        });
        said.collect()
    }

    fn all(&self) -> Vec<String> {
        self.told(self.end)
    }
}

#[test]
fn each_revision_is_one_action_however_many_devices_it_goes_to() {
    let mut ledger = Ledger::default();
    ledger.tell("a", 1, Some(1), "c1").tell("b", 1, Some(1), "c1");
    ledger.tell("a", 2, Some(2), "c2").tell("b", 2, Some(2), "c2");
    assert_eq!(ledger.all(), ["1 Published c1", "3 Changed c2"]);
    assert_eq!(ledger.told(2), ["1 Published c1"], "as of a fact");
}

#[test]
fn a_document_that_leaves_the_deployment_as_it_is_is_no_action() {
    let mut ledger = Ledger::default();
    ledger.tell("a", 1, Some(1), "c1").tell("a", 2, Some(1), "c2").tell("a", 2, Some(2), "c3");
    assert_eq!(ledger.all(), ["1 Published c1"], "not renewed, and not re-asserted");
}

#[test]
fn removing_the_last_device_is_a_removal_and_a_return_a_publication() {
    let mut ledger = Ledger::default();
    ledger.tell("a", 1, Some(1), "c1").tell("b", 1, Some(1), "c1");
    ledger.tell("a", 2, None, "c2").tell("b", 2, None, "c2");
    ledger.tell("a", 3, Some(3), "c1");
    assert_eq!(ledger.all(), ["1 Published c1", "4 Removed -", "5 Published c1"]);
}

#[test]
fn a_device_that_goes_back_acts_anew_and_one_that_comes_late_does_not() {
    let mut ledger = Ledger::default();
    ledger.tell("a", 1, Some(1), "c1").tell_by("a", 2, Some(2), "c1", Some("r1"));
    // Another device gets the commit only now: it joins the earlier action.
    ledger.tell("b", 1, Some(1), "c1");
    assert_eq!(ledger.all(), ["1 Published c1", "2 Changed r1"]);
    ledger.tell("a", 3, Some(3), "c1");
    assert_eq!(ledger.all(), ["1 Published c1", "2 Changed r1", "4 Changed c1"]);
}

/// LEDGER has discarded its beginning: only the next document of a device proves that an unchanged device was
/// there.
#[test]
fn a_deployment_older_than_the_chronicle_was_never_removed_meanwhile() {
    let mut ledger = Ledger::default();
    ledger.tell("a", 8, Some(3), "c3").tell("a", 9, None, "c4").tell("a", 10, Some(10), "c5");
    assert_eq!(ledger.all(), ["2 Removed -", "3 Published c5"]);
    let since = |ledger: &Ledger| ledger.chronicle.actions(&"web".parse().unwrap(), u64::MAX).1;
    assert_eq!(since(&ledger).unwrap().ledger_seq, 1, "what came before is not told, and that is said");
    ledger.tell("b", 5, Some(4), "c5");
    assert_eq!(ledger.all(), ["3 Changed c5"]);
}

#[test]
fn an_unread_device_history_implies_no_action_on_the_whole() {
    let since = |generation| {
        let mut ledger = Ledger::default();
        ledger.tell("a", generation, Some(generation), "c1");
        assert_eq!(ledger.all(), ["1 Published c1"]);
        ledger.chronicle.actions(&"web".parse().unwrap(), u64::MAX).1.map(|since| since.ledger_seq)
    };
    assert_eq!((since(1), since(2)), (None, Some(1)));
}

#[test]
fn the_newest_actions_are_kept_with_the_time_they_are_complete_from() {
    let (mut ledger, more) = (Ledger::default(), 5);
    let id: DeploymentId = "web".parse().unwrap();
    for generation in 1..=(ACTIONS_MAX as u64 + more) {
        assert_eq!(ledger.chronicle.actions(&id, u64::MAX).1.is_some(), generation > ACTIONS_MAX as u64 + 1);
        ledger.tell("a", generation, Some(generation), &format!("c{generation}"));
    }
    let (actions, since) = ledger.chronicle.actions(&id, u64::MAX);
    assert_eq!((actions.len(), since), (ACTIONS_MAX, actions.first().map(as_of)));
    assert_eq!(since.unwrap().ledger_seq, more + 1);
    assert_eq!(ledger.chronicle.actions(&"db".parse().unwrap(), u64::MAX), (Vec::new(), None));
}

#[test]
fn a_reassertion_without_its_first_document_is_no_action() {
    let mut ledger = Ledger { now: "2026-12-10T08:00:00Z".parse().unwrap(), ..Ledger::default() };
    let since = |ledger: &Ledger| {
        let (_, since) = ledger.chronicle.actions(&"web".parse().unwrap(), u64::MAX);
        since.map(|since| since.ledger_seq)
    };
    // One device is at the newer commit and one still at the older, and both are re-asserted in the other
    // order.
    ledger.tell("b", 2, Some(2), "c2").tell("a", 1, Some(1), "c1");
    assert!(ledger.all().is_empty(), "{:?}", ledger.all());
    assert_eq!(since(&ledger), Some(1));

    // It leaves the one device that was known to have it. Another has had it all along.
    let mut ledger = Ledger { now: "2026-11-20T08:00:01Z".parse().unwrap(), ..Ledger::default() };
    ledger.tell("a", 1, Some(1), "c1").tell("a", 2, None, "c2");
    assert_eq!(ledger.all(), ["1 Published c1", "2 Removed -"]);
    ledger.now = "2026-12-10T08:00:00Z".parse().unwrap();
    ledger.tell("b", 1, Some(1), "c1");
    assert_eq!(ledger.all(), ["1 Changed c1"]);
    assert_eq!(since(&ledger), Some(1));
}
