//! Tests of evidence: snapshots of a device are fresh for the lease that a heartbeat names, and nothing else prolongs it.

use super::*;
use muster_contract::evidence::{Fidelity, Provenance};

/// A heartbeat that vouches for so many seconds.
fn vouch(hub: &mut Hub, head: u64, seconds: u64) {
    let beat = json!({
        "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": head, "generation": 0, "leaseMs": seconds * 1000,
    });
    hub.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), hub.now, hub.now);
    hub.arrive();
}

fn sampled(number: u64) -> Value {
    with(with(status(1, number, number), "origin", json!("pull")), "fidelity", json!("sampled"))
}

#[test]
fn evidence_is_fresh_for_its_own_lease_longer_or_shorter_than_the_hubs() {
    use Liveness::{Fresh, Stale};
    for seconds in [10, 600] {
        let mut hub = Hub::new();
        vouch(&mut hub, 0, seconds);
        hub.pass(seconds as i64);
        assert_eq!(hub.states(), [Fresh], "{seconds} s");
        hub.pass(1);
        assert_eq!(hub.states(), [Fresh, Stale], "{seconds} s");
        vouch(&mut hub, 0, seconds);
        assert_eq!(hub.states(), [Fresh, Stale, Fresh], "{seconds} s");
    }
}

#[test]
fn a_sampled_report_keeps_its_fidelity_and_makes_no_device_fresh() {
    let mut hub = Hub::new();
    assert_eq!(hub.report(&sampled(1)), Outcome::New);
    let fact = hub.statuses()[0].clone();
    assert_eq!((fact.origin, fact.fidelity), (Provenance::Pull, Fidelity::Sampled));
    assert!(hub.liveness().is_empty(), "nobody vouches for it");
    vouch(&mut hub, 1, 10);
    hub.pass(11);
    assert_eq!(hub.report(&sampled(2)), Outcome::New);
    hub.pass(1);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
    // A report of the device itself is a sign of life, and its next heartbeat has the hub's lease again.
    hub.report(&status(1, 3, 3));
    hub.beat(1, 3, 0);
    hub.pass(80);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale, Liveness::Fresh]);
}

#[test]
fn evidence_grows_old_also_while_the_hub_hears_nothing() {
    let mut hub = Hub::new();
    vouch(&mut hub, 0, 30);
    hub.pass(1);
    hub.now = at(1_060);
    hub.intake.resume_receiving(hub.now);
    hub.pass(1);
    assert_eq!(hub.states(), [Liveness::Fresh, Liveness::Stale]);
}

#[test]
fn a_long_lease_is_forgotten_with_the_session_unless_presence_has_it() {
    use Liveness::{Fresh, Stale};
    const HOURS: i64 = 3;
    for is_in_presence in [true, false] {
        let mut hub = Hub::new();
        vouch(&mut hub, 0, HOURS as u64 * 3_600);
        let stored_at = hub.now;
        hub.pass(60);
        // Another process has the partition meanwhile, and may have read a heartbeat that ends the lease.
        hub.intake.rewind();
        if is_in_presence {
            let beat = json!({
                "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": 0, "generation": 0,
                "leaseMs": HOURS * 3_600_000,
            });
            hub.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), stored_at, hub.now);
        }
        hub.pass(600);
        let states = if is_in_presence { vec![Fresh] } else { vec![Fresh, Stale] };
        assert_eq!(hub.states(), states, "in PRESENCE: {is_in_presence}");
    }
}

#[test]
fn a_heartbeat_that_ends_a_lease_makes_nothing_fresh() {
    use Liveness::{Fresh, Stale};
    let mut hub = Hub::new();
    let end = |hub: &mut Hub| {
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": 0, "generation": 0, "leaseMs": 1,
        });
        hub.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), hub.now, hub.now);
        hub.arrive();
    };
    end(&mut hub);
    assert_eq!(hub.states(), [], "a device that was never heard");
    vouch(&mut hub, 0, 3_600);
    hub.pass(1);
    end(&mut hub);
    hub.pass(1);
    assert_eq!(hub.states(), [Fresh, Stale]);
    end(&mut hub);
    hub.pass(1);
    assert_eq!(hub.states(), [Fresh, Stale], "not for a moment");
}

#[test]
fn a_long_lease_does_not_outlast_an_hour_without_receiving() {
    use Liveness::{Fresh, Stale};
    for (minutes, states) in [(50, vec![Fresh]), (70, vec![Fresh, Stale])] {
        let mut hub = Hub::new();
        vouch(&mut hub, 0, 3 * 3_600);
        hub.pass(1);
        hub.now = at(1_001 + minutes * 60);
        hub.intake.resume_receiving(hub.now);
        hub.pass(120);
        assert_eq!(hub.states(), states, "{minutes} min");
    }
}
