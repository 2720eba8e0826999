//! The pulse of a partition: how often it beats, and when everything that LEDGER says of freshness is proven.

use muster_contract::fact::PulseFact;
use muster_contract::limits::PULSES_PER_LEASE;

use super::*;

impl Hub {
    fn listening() -> Self {
        let mut hub = Self::new();
        hub.border.pulse_as(3, "hub-1/4711/9f86d081");
        hub
    }

    /// The process dies, and another one reads LEDGER some time later.
    fn restart_listening(&mut self, after: i64) {
        self.now = at(self.now.as_second() + after);
        self.restart();
        self.border.pulse_as(3, "hub-2/17/00000000");
    }

    fn pulses(&self) -> Vec<&PulseFact> {
        self.facts(|fact| if let Fact::Pulse(pulse) = fact { Some(pulse) } else { None })
    }

    fn last_pulse_is_current(&self) -> bool {
        self.pulses().last().unwrap().current
    }
}

#[test]
fn a_border_pulses_three_times_a_lease_and_only_while_time_passes() {
    let mut hub = Hub::listening();
    (0..900).for_each(|_| hub.pass(1));
    let pulses = hub.pulses();
    assert_eq!(pulses.len() as u64, 10 * PULSES_PER_LEASE);
    assert!(pulses.iter().all(|pulse| pulse.current && pulse.lease_seconds == 90), "{pulses:?}");
    let subjects: Vec<_> = hub.ledger.iter().map(|(subject, ..)| subject.to_string()).collect();
    assert!(subjects.iter().all(|subject| subject == "muster.hub.3"), "{subjects:?}");
    // Whoever does not hear lets no time pass.
    let made = pulses.len();
    hub.now = at(10_000);
    hub.border.hearing_again(hub.now);
    hub.arrive();
    assert_eq!(hub.pulses().len(), made);
    hub.pass(1);
    assert_eq!(hub.pulses().len(), made + 1);
}

#[test]
fn a_border_that_owns_no_partition_makes_no_pulse() {
    let mut hub = Hub::new();
    hub.pass(500);
    assert!(hub.pulses().is_empty());
}

#[test]
fn a_new_owner_is_current_once_every_fresh_device_was_heard() {
    let mut hub = Hub::listening();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.restart_listening(600);
    hub.pass(1);
    assert!(!hub.last_pulse_is_current(), "nobody has heard the device for ten minutes");
    hub.pass(31);
    assert!(!hub.last_pulse_is_current());
    hub.beat(1, 0, 0);
    hub.pass(31);
    assert!(hub.last_pulse_is_current());
    assert_eq!(hub.states(), [Liveness::Fresh], "it was never stale");
}

#[test]
fn a_new_owner_is_current_after_a_lease_and_says_before_who_is_stale() {
    let mut hub = Hub::listening();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.restart_listening(600);
    let begun = hub.ledger.len();
    (0..125).for_each(|_| hub.pass(1));
    let said: Vec<_> = hub.ledger[begun..]
        .iter()
        .map(|(_, fact, _)| match fact {
            Fact::Liveness(fact) => format!("{:?}", fact.state),
            Fact::Pulse(pulse) => format!("current {}", pulse.current),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        said,
        ["current false", "current false", "current false", "Stale", "current true", "current true"]
    );
}

#[test]
fn a_stale_fact_under_way_comes_before_the_pulse_that_relies_on_it() {
    let mut hub = Hub::listening();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.now = at(hub.now.as_second() + 95);
    hub.border.tick(hub.now, hub.now);
    let kinds: Vec<_> = std::iter::from_fn(|| hub.border.next_publication()).map(|one| one.kind).collect();
    assert_eq!(kinds, ["LivenessFact", "PulseFact"]);
}

#[test]
fn a_pulse_of_unknown_fate_is_made_again_and_a_clock_set_back_stops_none() {
    let mut hub = Hub::listening();
    hub.pass(1);
    hub.border.rewind();
    hub.pass(1);
    assert_eq!(hub.pulses().len(), 2);
    hub.now = at(500);
    hub.border.hearing_again(hub.now);
    (0..31).for_each(|_| hub.pass(1));
    assert_eq!(hub.pulses().len(), 3);
}
