//! Restarts ingest within each lease while the only device is silent: what readers of LEDGER believe must not outlast the law.

use fastrand::Rng;
use serde_json::json;

use super::agenda::{MINUTE, Millis, SECOND};
use super::device::Upward;
use super::ingest::OwnerEvent;
use super::law::Lawful;
use super::profile::Profile;
use super::world::{Event, Sabotage, World};

/// When a run ends: long after the law allows that the device is fresh.
const END: Millis = 14 * MINUTE;
/// Restarts, so many that they go on to the end.
const RESTARTS: u32 = 60;

fn run(sabotage: Sabotage) -> Lawful {
    let mut world = World::of(Rng::with_seed(1), Profile::scripted(1, END), sabotage, false);
    world.devices[0].connection = Some(1);
    let beat = json!({ "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": 0, "unsent": 0,
        "generation": 0, "agentVersion": "1" });
    for at in [5, 20] {
        let beat = Upward::Beat(beat.to_string().into_bytes().into());
        world.agenda.at(at * SECOND, Event::Up(0, 1, beat));
    }
    world.agenda.at(0, Event::Owner(0, 0, 0, OwnerEvent::Start));
    world.agenda.at(0, Event::Monitor);
    world.agenda.at(40 * SECOND, Event::FlapIngest(0, RESTARTS));
    while let Some(event) = world.agenda.next() {
        if world.agenda.now() > END {
            break;
        }
        world.happens(event)?;
    }
    Ok(())
}

#[test]
fn restarts_within_each_lease_keep_no_silent_device_fresh() {
    run(Sabotage::None).unwrap();
    let breach = run(Sabotage::ProvesAnew).unwrap_err();
    assert_eq!(breach.law, "no restart keeps a silent device fresh", "{breach:?}");
}
