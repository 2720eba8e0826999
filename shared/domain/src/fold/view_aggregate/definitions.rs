//! Replaces the definitions of a fleet's views, and counts the fleet for new ones in bounded steps.

use muster_contract::defined::ViewDefinition;

use super::super::delta::Delta;
use super::super::fleet::Fleet;
use super::{CountedDevice, ViewAggregate, ViewAggregates, mark};

impl Fleet {
    /// Replaces the definitions. An unchanged one keeps its counts; the others begin to count.
    pub fn define(&mut self, definitions: impl IntoIterator<Item = ViewDefinition>) {
        let ViewAggregates { list, changed, known } = &mut self.view_aggregates;
        let mut before = std::mem::take(list);
        for definition in definitions {
            let digest = definition.digest();
            let name = definition.name.clone();
            let aggregate = match before.remove(&name).filter(|aggregate| aggregate.digest == digest) {
                Some(aggregate) => aggregate,
                None => ViewAggregate::new(definition, digest),
            };
            list.insert(name, aggregate);
        }
        changed.extend(before.into_keys());
        *known = true;
    }

    /// Counts up to `max` devices for definitions that have not counted all. True while there are more; changes
    /// in between are counted as well.
    pub fn count_defined(&mut self, max: u32) -> bool {
        let Self { view_aggregates: ViewAggregates { list, changed, .. }, devices, totals, .. } = self;
        let end = devices.len() as u32;
        let mut left = max;
        for (name, aggregate) in list.iter_mut().filter(|(_, aggregate)| !aggregate.counted) {
            let upto = end.min(aggregate.cursor.saturating_add(left));
            left -= upto - aggregate.cursor;
            for number in aggregate.cursor..upto {
                let device = &devices[number as usize];
                let context = device.state.context();
                let seen = CountedDevice { totals, device, context: &context };
                aggregate.apply_delta(Delta::Add, number, seen);
            }
            aggregate.cursor = upto;
            if upto < end {
                return true;
            }
            aggregate.counted = true;
            mark(changed, name, aggregate);
        }
        false
    }

    /// True while definitions are not known, or some have yet to count.
    pub fn is_counting(&self) -> bool {
        !self.view_aggregates.known || self.view_aggregates.list.values().any(|aggregate| !aggregate.counted)
    }

    /// Whether the definitions are known.
    pub const fn knows_definitions(&self) -> bool {
        self.view_aggregates.known
    }
}
