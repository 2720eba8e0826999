//! Tests the pulse of a partition: how often it is published, and when it is current.

use muster_contract::fact::PulseFact;
use muster_contract::limits::PULSES_PER_LEASE;

use super::*;

impl Hub {
    fn listening() -> Self {
        let mut hub = Self::new();
        hub.intake.publish_pulses_as(3, "hub-1/4711/9f86d081", None);
        hub
    }

    /// The process dies, and another one reads LEDGER some time later.
    fn restart_listening(&mut self, after: i64) {
        self.now = at(self.now.as_second() + after);
        let unproven_since = self.pulses().last().and_then(|pulse| pulse.unproven_since(self.now));
        self.restart();
        self.intake.publish_pulses_as(3, "hub-2/17/00000000", unproven_since);
    }

    fn pulses(&self) -> Vec<&PulseFact> {
        self.facts(|fact| if let Fact::Pulse(pulse) = fact { Some(pulse) } else { None })
    }

    fn last_pulse_is_current(&self) -> bool {
        self.pulses().last().unwrap().current
    }
}

#[test]
fn an_owner_publishes_three_pulses_a_lease_and_only_while_time_passes() {
    let mut hub = Hub::listening();
    (0..900).for_each(|_| hub.pass(1));
    let pulses = hub.pulses();
    assert_eq!(pulses.len() as u64, 10 * PULSES_PER_LEASE);
    assert!(pulses.iter().all(|pulse| pulse.current && pulse.lease_seconds == 90), "{pulses:?}");
    let subjects: Vec<_> = hub.ledger.iter().map(|(subject, ..)| subject.to_string()).collect();
    assert!(subjects.iter().all(|subject| subject == "muster.hub.3"), "{subjects:?}");
    // A caller that does not receive lets no time pass.
    let made = pulses.len();
    hub.now = at(10_000);
    hub.intake.resume_receiving(hub.now);
    hub.arrive();
    assert_eq!(hub.pulses().len(), made);
    hub.pass(1);
    assert_eq!(hub.pulses().len(), made + 1);
}

#[test]
fn an_intake_that_owns_no_partition_publishes_no_pulse() {
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
    assert!(!hub.last_pulse_is_current(), "the hub has not heard the device for ten minutes");
    hub.pass(31);
    assert!(!hub.last_pulse_is_current());
    hub.beat(1, 0, 0);
    hub.pass(31);
    assert!(hub.last_pulse_is_current());
    assert_eq!(hub.states(), [Liveness::Fresh], "it was never stale");
}

#[test]
fn a_new_owner_publishes_stale_devices_before_its_first_current_pulse() {
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
fn owners_in_a_row_name_since_when_none_of_them_was_current() {
    let mut hub = Hub::listening();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.restart_listening(30);
    hub.pass(1);
    let since = Some(hub.now);
    for _ in 0..5 {
        hub.restart_listening(10);
        (0..50).for_each(|_| hub.pass(1));
        let pulse = *hub.pulses().last().unwrap();
        assert_eq!((pulse.current, pulse.unproven_since), (false, since), "no owner lives for a lease");
    }
    assert_eq!(hub.states(), [Liveness::Fresh]);
    (0..60).for_each(|_| hub.pass(1));
    let pulse = *hub.pulses().last().unwrap();
    assert_eq!((pulse.current, pulse.unproven_since), (true, None));
    // The hub's clock is set back.
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.restart_listening(10);
    hub.pass(1);
    hub.now = at(hub.now.as_second() - 300);
    hub.intake.resume_receiving(hub.now);
    hub.pass(31);
    assert!(hub.pulses().last().unwrap().unproven_since <= Some(hub.now));
}

#[test]
fn a_stale_fact_comes_before_the_pulse_that_relies_on_it() {
    let mut hub = Hub::listening();
    hub.beat(1, 0, 0);
    hub.pass(1);
    hub.now = at(hub.now.as_second() + 95);
    hub.intake.tick(hub.now, Watermarks::all(hub.now));
    let kinds: Vec<_> =
        std::iter::from_fn(|| hub.intake.next_publication()).map(|one| one.fact.kind()).collect();
    assert_eq!(kinds, ["LivenessFact", "PulseFact"]);
}

#[test]
fn a_pulse_of_unknown_outcome_is_repeated_and_a_clock_step_stops_none() {
    let mut hub = Hub::listening();
    hub.pass(1);
    hub.intake.rewind();
    hub.pass(1);
    assert_eq!(hub.pulses().len(), 2);
    hub.now = at(500);
    hub.intake.resume_receiving(hub.now);
    (0..31).for_each(|_| hub.pass(1));
    assert_eq!(hub.pulses().len(), 3);
}
