//! Ledgers of partitions that the hub does not hear, rule by rule: stopped and resumed, by partition,
//! overriding liveness.

use muster_contract::State::{Failed, Installing};
use muster_contract::fact::{Hearing, Liveness};
use muster_contract::partition::partition_of;

use super::{DRILL, OVEN, PRESS, Scenario};
use crate::ledger::{Ledger, Said, key, stored_at};

const WEB: [(&str, u64); 1] = [("web", 1)];

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "hub_stopped",
        about: "The hub does not listen to a partition: its devices are not fresh, whatever liveness says of them, and the views name the partition and since when. Devices of another partition stay what they are.",
        ledger: hub_stopped,
    },
    Scenario {
        name: "hub_resumed",
        about: "The hub listens again: the liveness facts hold again, also those that came meanwhile.",
        ledger: hub_resumed,
    },
    Scenario {
        name: "hub_stopped_before_the_first_fact",
        about: "The hub does not listen to a partition of which nothing was ever said: a device that comes there is not fresh, and one that was never heard stays so.",
        ledger: hub_stopped_before_the_first_fact,
    },
    Scenario {
        name: "hub_stopped_twice",
        about: "Two partitions stop, one stops again at another time, one resumes: the newest fact of each holds, and the resumption of one touches no other.",
        ledger: hub_stopped_twice,
    },
    Scenario {
        name: "hub_stopped_at_work",
        about: "Who was at work and failed before the hub stopped: work is waited for, a failure still fails and excludes nothing, groups say so too, and a device that is leaving concerns its deployment.",
        ledger: hub_stopped_at_work,
    },
    Scenario {
        name: "hub_stopped_where_nobody_is",
        about: "The hub does not listen to a partition without devices, or with retired ones alone: no view says so. A partition that cannot be is passed over, and so is a pulse, which is no place to have read to.",
        ledger: hub_stopped_where_nobody_is,
    },
];

/// The three are in partitions of their own.
fn running() -> Ledger {
    let partitions = [PRESS, DRILL, OVEN].map(|device| partition_of(&key(device)));
    assert!(
        partitions[0] != partitions[1] && partitions[1] != partitions[2] && partitions[0] != partitions[2]
    );
    let mut ledger = Ledger::default();
    for device in [PRESS, DRILL, OVEN] {
        ledger.desired(device, 1, &WEB).status(device, "web", &Said::default()).fresh(device, 1, 1);
    }
    ledger
}

fn hub_stopped() -> Ledger {
    let mut ledger = running();
    ledger.stopped(PRESS, stored_at(3)).fresh(PRESS, 1, 1);
    ledger
}

fn hub_resumed() -> Ledger {
    let mut ledger = running();
    ledger
        .stopped(PRESS, stored_at(3))
        .stopped(DRILL, stored_at(4))
        .stale(PRESS, 1, 1)
        .resumed(PRESS)
        .resumed(DRILL);
    ledger
}

fn hub_stopped_before_the_first_fact() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .stopped(PRESS, stored_at(0))
        .stopped(OVEN, stored_at(0))
        .desired(PRESS, 1, &WEB)
        .fresh(PRESS, 1, 1)
        .status(PRESS, "web", &Said::default())
        .desired(OVEN, 1, &WEB)
        .desired(DRILL, 1, &WEB)
        .status(DRILL, "web", &Said::default())
        .fresh(DRILL, 1, 1);
    ledger
}

fn hub_stopped_twice() -> Ledger {
    let mut ledger = running();
    ledger
        .stopped(PRESS, stored_at(3))
        .stopped(DRILL, stored_at(5))
        .stopped(OVEN, stored_at(6))
        .resumed(OVEN)
        .stopped(DRILL, stored_at(7))
        .stale(PRESS, 1, 1);
    ledger
}

fn hub_stopped_at_work() -> Ledger {
    let mut ledger = Ledger::default();
    let site = [("line", "one")];
    ledger
        .labelled(PRESS, 1, &[("web", 1)], &site)
        .status(PRESS, "web", &Said { components: &[("main", Installing)], ..Said::default() })
        .fresh(PRESS, 1, 1)
        .labelled(OVEN, 1, &[("db", 1)], &site)
        .status(OVEN, "db", &Said { components: &[("main", Failed)], ..Said::default() })
        .fresh(OVEN, 1, 1)
        .desired(DRILL, 1, &[("log", 1)])
        .status(DRILL, "log", &Said::default())
        .desired(DRILL, 2, &[])
        .fresh(DRILL, 1, 1)
        .stopped(PRESS, stored_at(11))
        .stopped(OVEN, stored_at(12))
        .stopped(DRILL, stored_at(13));
    ledger
}

fn hub_stopped_where_nobody_is() -> Ledger {
    let mut ledger = running();
    let taken = [PRESS, DRILL, OVEN].map(|device| partition_of(&key(device)));
    let free = (0..16).find(|partition| !taken.contains(partition)).unwrap();
    ledger
        .hearing(free, Hearing::Stopped, stored_at(3))
        .hearing(16, Hearing::Stopped, stored_at(3))
        .stopped(OVEN, stored_at(4))
        .retired(OVEN, 2)
        .liveness(DRILL, Liveness::Fresh, 1, 1, None)
        .pulse(DRILL, true);
    ledger
}
