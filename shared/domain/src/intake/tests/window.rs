//! LEDGER discards old facts: its window is enough to know the present state, however old the fleet is.

use std::collections::BTreeMap;

use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::ViewKey;
use proptest::prelude::*;

use super::*;
use crate::fold::{Fleet, Position};

const DAY: i64 = 24 * 60 * 60;

/// An event of a day.
#[derive(Debug, Clone)]
enum Event {
    Report {
        state: &'static str,
        generation: u64,
    },
    Capabilities,
    Desire,
    Quiet(i64),
    /// A report that cannot be parsed, with or without its number.
    Poison {
        numbered: bool,
    },
    /// A person drops the newest message in quarantine.
    Drop,
}

/// The digests of the views by key; they contain no positions.
fn views(ledger: &[(LedgerSubject, Fact, Timestamp)]) -> BTreeMap<ViewKey, String> {
    let mut fleet = Fleet::default();
    for (at, (subject, fact, stored_at)) in ledger.iter().enumerate() {
        let at = Position { ledger_seq: at as u64 + 1, stored_at: *stored_at };
        fleet.apply(at, subject, fact.clone());
    }
    let digest = |key: &ViewKey| fleet.digest_of(key).map(|digest| digest.to_string());
    let keys = ["deployment.web", "site.plant7", "fleet"].map(|key| ViewKey::parse(key).unwrap());
    keys.into_iter().filter_map(|key| digest(&key).map(|digest| (key, digest))).collect()
}

struct World {
    hub: Hub,
    seq: u64,
    generation: u64,
    wanted_at: Timestamp,
}

impl World {
    fn step(&mut self, event: &Event) {
        match event {
            Event::Report { state, generation } => {
                self.seq += 1;
                let report = with(status(1, self.seq, self.seq), "status", json!({ "state": state }));
                let report = with(report, "components", json!([{"name": "c", "state": state}]));
                self.hub.report(&with(report, "generation", json!(generation)));
            }
            Event::Capabilities => {
                self.seq += 1;
                self.hub.report(&json!({
                    "apiVersion": "muster/v1", "kind": "CapabilitiesReport", "epoch": 1, "seq": self.seq,
                    "head": self.seq, "observedAt": at(1_000).to_string(), "properties": {}, "agentVersion": "1",
                }));
            }
            Event::Desire => {
                self.generation += 1;
                self.apply_desired();
            }
            Event::Poison { numbered } => {
                self.seq += 1;
                self.hub.now = at(self.hub.now.as_second() + 1);
                let poison = with(status(1, self.seq, self.seq), "status", json!(self.seq));
                let poison = if *numbered { poison } else { with(poison, "seq", json!("lost")) };
                self.hub.report(&poison);
                if !numbered {
                    // The number itself is then declared as folded by the next report.
                    self.hub.report(&with(
                        status(1, self.seq + 1, self.seq + 1),
                        "coalesced",
                        json!([[self.seq, self.seq]]),
                    ));
                    self.seq += 1;
                }
            }
            Event::Drop => {
                let newest = self.hub.rejected.last().cloned();
                if let Some(held) = newest {
                    self.hub.intake.drop_rejected(
                        quarantined(Some(&press()), &held, 1),
                        VerdictRequest::default(),
                        self.hub.now,
                    );
                    self.hub.arrive();
                }
            }
            Event::Quiet(days) => (0..*days).for_each(|_| self.pass_a_day()),
        }
    }

    fn apply_desired(&mut self) {
        let state = desired(self.generation, false);
        self.wanted_at = self.hub.now;
        self.hub.intake.apply_desired(&press(), &state, self.hub.now);
        self.hub.ledger.push((LedgerSubject::Desired(press()), Fact::Desired(state), self.hub.now));
    }

    fn pass_a_day(&mut self) {
        self.hub.beat(1, self.seq, 0);
        // The hub checks many times a minute: it publishes that the device is heard long before the lease ends.
        self.hub.pass(1);
        self.hub.pass(DAY - 1);
        // As the publisher re-asserts desired states.
        if self.generation > 0 && self.hub.now.duration_since(self.wanted_at).as_secs() >= 20 * DAY {
            self.apply_desired();
        }
        // As ingest reads the oldest part of LEDGER.
        let old = self.hub.now.as_second() - REASSERT_AFTER.as_secs() as i64;
        let aged = self.hub.ledger.iter().filter(|(_, _, stored_at)| stored_at.as_second() <= old);
        for (subject, fact, _) in aged.cloned().collect::<Vec<_>>() {
            self.hub.intake.reassert_if_old(&subject, &fact, self.hub.now);
        }
        self.hub.arrive();
    }

    /// The facts that LEDGER still holds if it discards them a few days after their re-assertion.
    fn window(&self) -> Vec<(LedgerSubject, Fact, Timestamp)> {
        let first = self.hub.now.as_second() - REASSERT_AFTER.as_secs() as i64 - 3 * DAY;
        let kept = self.hub.ledger.iter().filter(|(_, _, stored_at)| stored_at.as_second() >= first);
        kept.cloned().collect()
    }
}

fn event() -> impl Strategy<Value = Event> {
    let state = prop::sample::select(vec!["installing", "installed", "failed", "removed"]);
    prop_oneof![
        4 => (state, 1u64..4).prop_map(|(state, generation)| Event::Report { state, generation }),
        1 => Just(Event::Capabilities),
        1 => Just(Event::Desire),
        3 => (1i64..30).prop_map(Event::Quiet),
        2 => any::<bool>().prop_map(|numbered| Event::Poison { numbered }),
        1 => Just(Event::Drop),
    ]
}

proptest! {
    #[test]
    fn a_window_of_ledger_has_the_views_of_all_of_it(events in prop::collection::vec(event(), 1..40)) {
        let hub = Hub::new();
        let mut world = World { wanted_at: hub.now, hub, seq: 0, generation: 0 };
        for event in &events {
            world.step(event);
        }
// A device without a document that was silent since has no state to know.
        world.step(&Event::Desire);
        world.step(&Event::Quiet(1));
        prop_assert_eq!(views(&world.window()), views(&world.hub.ledger));
// An intake that is restored from the window re-asserts the same facts, and not more often.
        let said = world.hub.ledger.len();
        world.hub.ledger = world.window();
        let kept = world.hub.ledger.len();
        world.hub.restart();
        world.hub.intake.apply_desired(&press(), &desired(world.generation, false), world.wanted_at);
        world.pass_a_day();
        prop_assert!(world.hub.ledger.len() <= kept + 5 + world.hub.quarantine().len(), "{said} facts, {kept} kept");
        world.step(&Event::Quiet(60));
        prop_assert_eq!(views(&world.window()), views(&world.hub.ledger));
    }
}

#[test]
fn a_fact_that_holds_is_reasserted_once_and_others_are_not() {
    let hub = Hub::new();
    let mut world = World { wanted_at: hub.now, hub, seq: 0, generation: 0 };
    world.step(&Event::Capabilities);
    world.step(&Event::Report { state: "installing", generation: 1 });
    world.step(&Event::Report { state: "installed", generation: 1 });
    world.step(&Event::Quiet(50));
    let again = |world: &World| {
        let statuses = world.hub.statuses();
        let said = statuses.iter().filter(|fact| fact.reasserted).map(|fact| fact.seq.get());
        said.collect::<Vec<_>>()
    };
    assert_eq!(again(&world), [3, 3], "the newest, every twenty days");
    let natures =
        world.hub.facts(|fact| if let Fact::Device(fact) = fact { Some(fact.reasserted) } else { None });
    assert_eq!(natures, [false, true, true]);
    world.step(&Event::Report { state: "removed", generation: 1 });
    world.step(&Event::Quiet(50));
    assert_eq!(again(&world), [3, 3], "it is no target any more");
}
