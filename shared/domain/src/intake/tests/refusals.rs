//! A device that refuses its desired state: one incident for each refusal and one for its end, over any death of ingest, and no
//! more of them than LEDGER can bear.

use muster_contract::incident::UNSUPPORTED_PROFILE;
use muster_contract::limits::{DESIRED_REFUSALS_PER_HOUR, REASSERT_AFTER};
use proptest::prelude::*;

use super::*;

impl Hub {
    /// A heartbeat of a device that holds a generation and refuses another one for a reason.
    pub(super) fn refusing(&mut self, epoch: u64, holds: u64, refused: Option<(u64, &str)>) {
        self.now = at(self.now.as_second() + 30);
        let since = self.now.to_string();
        let refused = refused.map(|(generation, code)| {
            json!({ "generation": generation, "code": code, "message": "no", "since": since })
        });
        let beat = json!({ "epoch": epoch, "head": 0, "generation": holds, "refused": refused });
        self.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), self.now, self.now);
        self.arrive();
    }

    fn pass_reassert_period(&mut self) {
        self.now = at(self.now.as_second() + REASSERT_AFTER.as_secs() as i64);
    }

    /// Re-asserts what LEDGER has and what holds and is old; returns the number of re-asserted facts.
    fn reassert_old(&mut self) -> usize {
        let mut count = 0;
        for (subject, fact, _) in self.ledger.clone() {
            count += usize::from(self.intake.reassert_if_old(&subject, &fact, self.now));
        }
        self.arrive();
        count
    }

    /// The incidents as text: what was refused and why, or what is held since.
    fn refusals(&self) -> Vec<String> {
        let text = |what: &IncidentKind| match what {
            IncidentKind::DesiredRefused(refusal) => {
                Some(format!("{} {}", refusal.refused(), refusal.code.as_str()))
            }
            IncidentKind::DesiredAccepted { generation, .. } => Some(format!("holds {generation}")),
            _ => None,
        };
        self.incidents().into_iter().filter_map(text).collect()
    }
}

#[test]
fn a_refusal_and_its_end_are_one_incident_each() {
    let mut hub = Hub::new();
    hub.refusing(1, 7, None);
    for _ in 0..3 {
        hub.refusing(1, 7, Some((4, "older")));
    }
    hub.refusing(1, 7, Some((4, "invalid")));
    hub.refusing(1, 7, Some((5, "invalid")));
    hub.refusing(1, 8, None);
    hub.refusing(1, 8, None);
    let wanted = ["generation 4 older", "generation 4 invalid", "generation 5 invalid", "holds 8"];
    assert_eq!(hub.refusals(), wanted);
}

#[test]
fn an_incident_says_since_when_and_not_later_than_the_hub_knew() {
    let mut hub = Hub::new();
    for since in [at(900), at(9_999_999)] {
        let beat = json!({
            "epoch": 1, "head": 0, "generation": 7,
            "refused": { "code": if since == at(900) { "older" } else { "other" }, "message": "no", "since": since.to_string() },
        });
        hub.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), hub.now, hub.now);
        hub.arrive();
    }
    let since = |what: &&IncidentKind| match what {
        IncidentKind::DesiredRefused(refusal) => Some(refusal.since),
        _ => None,
    };
    let found: Vec<Timestamp> = hub.incidents().iter().filter_map(since).collect();
    assert_eq!(found, [at(900), hub.now]);
}

#[test]
fn a_copy_with_an_older_epoch_does_not_speak_for_the_device() {
    let mut hub = Hub::new();
    hub.refusing(2, 7, Some((4, "older")));
    hub.refusing(1, 9, None);
    assert_eq!(hub.refusals(), ["generation 4 older"]);
}

#[test]
fn a_device_cannot_fill_ledger_with_refusals() {
    let mut hub = Hub::new();
    for turn in 0..1_000 {
        hub.refusing(1, 7, (turn % 2 == 0).then_some((turn + 1, "older")));
    }
    let hours = (1_000 * 30) / 3_600 + 1;
    let found = hub.refusals().len();
    assert!(found <= 2 * DESIRED_REFUSALS_PER_HOUR * hours, "{found}");
    // The one that stands is recorded as soon as there is room.
    for _ in 0..125 {
        hub.refusing(1, 7, Some((5_000, "invalid")));
    }
    assert_eq!(hub.refusals().last().unwrap(), "generation 5000 invalid");
}

#[test]
fn a_refusal_that_stands_is_reasserted_until_it_ends() {
    let mut hub = Hub::new();
    hub.refusing(1, 7, Some((3, "older")));
    hub.refusing(1, 7, Some((4, "older")));
    hub.pass_reassert_period();
    hub.refusing(1, 7, Some((4, "older")));
    assert_eq!(hub.refusals(), ["generation 3 older", "generation 4 older"], "heartbeats re-assert nothing");
    assert_eq!((hub.reassert_old(), hub.reassert_old()), (1, 0), "once");
    let (subject, fact, _) = hub.ledger.last().unwrap().clone();
    assert_eq!(hub.ledger.iter().filter(|(_, other, _)| *other == fact).count(), 2, "the same fact");

    // LEDGER discards everything before, and another ingest reads it.
    hub.ledger = vec![(subject, fact, hub.now)];
    hub.restart();
    assert_eq!(hub.reassert_old(), 0, "it is young");
    hub.refusing(1, 7, Some((4, "older")));
    hub.pass_reassert_period();
    assert_eq!(hub.reassert_old(), 1);
    hub.refusing(1, 8, None);
    hub.pass_reassert_period();
    assert_eq!(hub.reassert_old(), 0, "it ended");
    assert_eq!(hub.refusals(), ["generation 4 older", "generation 4 older", "holds 8"]);
}

#[test]
fn a_refusal_reasserted_for_room_counts_against_no_bound() {
    let mut hub = Hub::new();
    hub.refusing(1, 7, Some((4, "older")));
    let (subject, fact, _) = hub.ledger.last().unwrap().clone();
    let positions = 2 * DESIRED_REFUSALS_PER_HOUR;
    for position in 0..positions {
        assert!(hub.intake.reassert_early(&subject, &fact, position as u64, hub.now));
        let publication = hub.intake.next_publication().unwrap();
        assert!(publication.is_reasserted_incident(), "{publication:?}");
        hub.ledger.push((publication.subject, publication.fact, hub.now));
        hub.intake.confirm();
    }
    hub.refusing(1, 7, Some((5, "older")));
    assert_eq!(hub.refusals().len(), positions + 2);
    assert_eq!(hub.refusals().last().unwrap(), "generation 5 older", "none waits for an hour to end");
    assert!(!hub.intake.reassert_early(&subject, &fact, 99, hub.now), "another one stands");
}

proptest! {
    /// Heartbeats of a device that accepts and refuses, and an ingest that dies before LEDGER has a fact, or after it.
    #[test]
    fn each_change_of_a_refusal_is_recorded_once_whenever_ingest_dies(
        steps in proptest::collection::vec((0u8..4, 0u8..3), 1..40),
    ) {
        let mut hub = Hub::new();
        let (mut wanted, mut known) = (Vec::new(), None);
        for (said, death) in steps {
            let refused = [None, Some((4, "older")), Some((4, "invalid")), Some((5, "older"))][usize::from(said)];
            // Beyond the bound of an hour a refusal waits.
            hub.now = at(hub.now.as_second() + 3_600);
            if death == 1 {
                // It dies with the fact in flight: LEDGER never has it.
                let before = hub.ledger.len();
                hub.refusing(1, 7, refused);
                hub.ledger.truncate(before);
            }
            if death > 0 {
                hub.restart();
            }
            hub.refusing(1, 7, refused);
            if refused != known {
                wanted.push(match refused {
                    Some((generation, code)) => format!("generation {generation} {code}"),
                    None => "holds 7".to_owned(),
                });
            }
            known = refused;
        }
        prop_assert_eq!(hub.refusals(), wanted);
    }
}

#[test]
fn a_profile_without_a_runtime_is_one_incident_for_each_content() {
    let mut hub = Hub::new();
    let refused = |seq: u64, generation: u64, content: char| {
        let report = with(status(1, seq, seq), "generation", json!(generation));
        let report = with(report, "digest", json!(format!("sha256:{}", content.to_string().repeat(64))));
        let error = json!({ "code": UNSUPPORTED_PROFILE, "source": "web", "message": "no runtime for helm" });
        let report = with(report, "status", json!({ "state": "failed", "error": error }));
        with(report, "components", json!([{ "name": "c", "state": "pending" }]))
    };
    hub.report(&status(1, 1, 1));
    for report in [refused(2, 4, '1'), refused(3, 5, '1'), refused(4, 6, '2')] {
        hub.report(&report);
        hub.report(&report);
        hub.restart();
    }
    let generations = hub.incidents().into_iter().filter_map(|what| match what {
        IncidentKind::ProfileUnsupported { generation, .. } => Some(generation.get()),
        _ => None,
    });
    assert_eq!(generations.collect::<Vec<_>>(), [4, 6]);
}
