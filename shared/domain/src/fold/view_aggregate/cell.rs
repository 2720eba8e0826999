//! One part of a defined view: its counts and its times. A view counts one kind of thing; the other counts stay zero.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use muster_contract::State;
use muster_contract::defined::{ComponentPart, Counted, CountedPart, DevicePart};
use muster_contract::explained::Explained;
use muster_contract::view::Split;

use crate::aggregate::severity;
use crate::fold::delta::Delta;
use crate::fold::max_timestamp::{MaxTimestamp, Times};
use crate::fold::tally::{Devices, Group};
use crate::fold::totals::States;

/// A part of a view other than the total.
#[derive(Debug, Default)]
pub(super) struct Cell {
    pub(super) counts: Counts,
    /// When a row of it that counts last changed.
    pub(super) changed: MaxTimestamp,
    /// When a device of it was last heard.
    pub(super) heard: MaxTimestamp,
}

/// The counts of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) group: Group,
    pub(super) devices: Devices,
    pub(super) states: States,
}

impl Cell {
    /// Adds times or retracts them.
    pub(super) fn apply_times(&mut self, delta: Delta, times: Times) {
        self.changed.apply(delta, times.changed_at);
        self.heard.apply(delta, times.heard_at);
    }

    pub(super) const fn is_stale(&self) -> bool {
        self.changed.is_stale() || self.heard.is_stale()
    }
}

impl Counts {
    /// As a document with these times.
    pub(super) fn explained(&self, count: Counted, times: Times) -> Explained<CountedPart> {
        Explained {
            message: self.words(count),
            changed_at: times.changed_at,
            last_heard_at: times.heard_at,
            part: self.part(count),
        }
    }

    /// The same without a part of it.
    #[must_use]
    pub(super) fn without(self, part: &Self) -> Self {
        let mut states = self.states;
        states.iter_mut().zip(part.states).for_each(|(own, others)| *own -= others);
        Self { group: self.group.without(&part.group), devices: self.devices.without(&part.devices), states }
    }

    /// As a document without words and times.
    fn part(&self, count: Counted) -> CountedPart {
        let complete = self.group.complete();
        match count {
            Counted::Standings => CountedPart::Standings(self.group.part()),
            Counted::Devices => CountedPart::Devices(DevicePart {
                devices: self.devices.by_freshness(),
                complete: self.devices.complete(),
            }),
            Counted::Components => {
                CountedPart::Components(ComponentPart { components: self.components(), complete })
            }
        }
    }

    /// Why the verdict on the standings is so; of devices and components, how the worst of them are.
    fn words(&self, count: Counted) -> String {
        match count {
            Counted::Standings => self.group.verdict().words(self.group.heard()),
            Counted::Devices => device_words(self.devices.by_freshness()),
            Counted::Components => component_words(&self.components()),
        }
    }

    fn components(&self) -> BTreeMap<State, u64> {
        let counts = State::ALL.into_iter().map(|state| (state, u64::from(self.states[state as usize])));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// How devices are heard: that none is, or how many are silent.
fn device_words(devices: Split) -> String {
    let (silent, total) = (devices.stale + devices.never, devices.total());
    match devices.unheard("device") {
        Some(words) => words,
        None if total == 0 => "no device is counted".to_owned(),
        None if silent == 0 => "every device is heard".to_owned(),
        None => format!("devices that are silent: {silent} of {total}"),
    }
}

/// The state of the worst components, and how many are in it.
fn component_words(components: &BTreeMap<State, u64>) -> String {
    let total: u64 = components.values().sum();
    match components.keys().copied().max_by_key(|state| severity(*state)) {
        None => "no component is counted".to_owned(),
        Some(worst) if components[&worst] == total => format!("every component is {worst}"),
        Some(worst) => format!("components that are {worst}: {} of {total}", components[&worst]),
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.group += other.group;
        self.devices += other.devices;
        self.states.iter_mut().zip(other.states).for_each(|(own, others)| *own += others);
    }
}
