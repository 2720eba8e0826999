//! Keeps the newest times in a part of a view, by block of devices. A time that is retracted makes at most the maximum of its
//! block stale, and a block is searched at once: no fact and no view costs a search of the whole fleet.

use std::ops::Range;

use muster_contract::Timestamp;

use crate::fold::delta::Delta;
use crate::fold::max_timestamp::{MaxTimestamp, Times};

/// Devices of a block: a stale maximum costs a visit of so many, and a view one of each block.
const BLOCK: u32 = 256;

/// The newest times by block, in the order of the devices' numbers. Blocks without times are absent.
#[derive(Debug, Default)]
pub(super) struct NewestTimes(Vec<(u32, BlockTimes)>);

/// The newest times of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockTimes {
    changed: MaxTimestamp,
    heard: MaxTimestamp,
}

/// The block of a device.
pub(super) const fn block_of(device: u32) -> u32 {
    device / BLOCK
}

/// The devices of a block, of so many in all.
pub(super) fn devices_of(block: u32, devices: u32) -> Range<u32> {
    block * BLOCK..devices.min((block + 1) * BLOCK)
}

impl NewestTimes {
    /// Adds the times of a device or retracts them. True if a maximum of its block is stale afterwards.
    pub(super) fn apply(&mut self, delta: Delta, number: u32, times: Times) -> bool {
        let block = self.block_mut(block_of(number));
        block.changed.apply(delta, times.changed_at);
        block.heard.apply(delta, times.heard_at);
        block.is_stale()
    }

    /// Replaces the time at which a device was heard. True if a maximum of its block is stale afterwards.
    pub(super) fn exchange_heard(
        &mut self,
        number: u32,
        was: Option<Timestamp>,
        is: Option<Timestamp>,
    ) -> bool {
        let block = self.block_mut(block_of(number));
        block.heard.exchange(was, is);
        block.is_stale()
    }

    /// Whether a maximum of a block is stale.
    pub(super) fn is_stale_in(&self, block: u32) -> bool {
        self.place(block).is_ok_and(|place| self.0[place].1.is_stale())
    }

    /// Sets the recomputed times of a block.
    pub(super) fn set(&mut self, block: u32, times: BlockTimes) {
        if let Ok(place) = self.place(block) {
            if times == BlockTimes::default() {
                self.0.remove(place);
            } else {
                self.0[place].1 = times;
            }
        }
    }

    /// The newest times of all devices that count.
    pub(super) fn newest(&self) -> Times {
        let blocks = || self.0.iter().map(|(_, block)| block);
        debug_assert!(blocks().all(|block| !block.is_stale()), "a fact left a maximum stale");
        Times {
            changed_at: blocks().filter_map(|block| block.changed.bound()).max(),
            heard_at: blocks().filter_map(|block| block.heard.bound()).max(),
        }
    }

    fn place(&self, block: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&block, |(held, _)| *held)
    }

    fn block_mut(&mut self, block: u32) -> &mut BlockTimes {
        let place = self.place(block).unwrap_or_else(|place| {
            self.0.insert(place, (block, BlockTimes::default()));
            place
        });
        &mut self.0[place].1
    }
}

impl BlockTimes {
    /// Adds the times of a device.
    pub(super) fn add(&mut self, times: Times) {
        self.changed.apply(Delta::Add, times.changed_at);
        self.heard.apply(Delta::Add, times.heard_at);
    }

    const fn is_stale(&self) -> bool {
        self.changed.is_stale() || self.heard.is_stale()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Devices over three blocks, the last of them not full.
    const DEVICES: u32 = 2 * BLOCK + 7;

    fn at(second: i64) -> Option<Timestamp> {
        Timestamp::from_second(second).ok()
    }

    fn naive(counted: &BTreeMap<u32, Times>) -> Times {
        counted.values().copied().fold(Times::default(), Times::newest)
    }

    /// Recomputes stale blocks, as after a fact; how many devices it visited.
    fn recompute(newest: &mut NewestTimes, counted: &BTreeMap<u32, Times>) -> u32 {
        let mut visited = 0;
        for block in 0..=block_of(DEVICES) {
            if newest.is_stale_in(block) {
                let (mut times, devices) = (BlockTimes::default(), devices_of(block, DEVICES));
                visited += devices.len() as u32;
                devices.filter_map(|number| counted.get(&number)).for_each(|device| times.add(*device));
                newest.set(block, times);
            }
        }
        visited
    }

    /// Replaces what a device contributes, as a fact does.
    fn replace(newest: &mut NewestTimes, counted: &mut BTreeMap<u32, Times>, number: u32, is: Option<Times>) {
        if let Some(was) = counted.remove(&number) {
            newest.apply(Delta::Retract, number, was);
        }
        if let Some(is) = is {
            newest.apply(Delta::Add, number, is);
            counted.insert(number, is);
        }
    }

    proptest! {
        /// Few times, so that many are equal; devices at the edges of the blocks, so that they meet.
        #[test]
        fn times_of_a_view_equal_a_search_after_any_changes(
            changes in prop::collection::vec(
                (prop::sample::select(vec![0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, DEVICES - 1]),
                 prop::option::weighted(0.7, (prop::option::of(0i64..5), prop::option::of(0i64..5))), any::<bool>()),
                1..60,
            ),
            facts_of in 1usize..4,
        ) {
            let (mut newest, mut counted) = (NewestTimes::default(), BTreeMap::<u32, Times>::new());
            for fact in changes.chunks(facts_of) {
                for (number, times, is_heard_alone) in fact {
                    let is = times.map(|(changed, heard)| Times {
                        changed_at: changed.and_then(at), heard_at: heard.and_then(at),
                    });
                    match (counted.get_mut(number), is) {
                        (Some(was), Some(is)) if *is_heard_alone => {
                            newest.exchange_heard(*number, was.heard_at, is.heard_at);
                            was.heard_at = is.heard_at;
                        }
                        (_, is) => replace(&mut newest, &mut counted, *number, is),
                    }
                }
                recompute(&mut newest, &counted);
                prop_assert_eq!(newest.newest(), naive(&counted));
            }
        }
    }

    #[test]
    fn a_view_that_loses_its_newest_time_each_time_visits_one_block() {
        let (mut newest, mut counted) = (NewestTimes::default(), BTreeMap::<u32, Times>::new());
        for number in 0..DEVICES {
            let times = Times { changed_at: at(i64::from(number)), heard_at: at(i64::from(number)) };
            replace(&mut newest, &mut counted, number, Some(times));
        }
        for number in (0..DEVICES).rev() {
            replace(&mut newest, &mut counted, number, None);
            let visited = recompute(&mut newest, &counted);
            assert!(visited <= BLOCK, "{number}: {visited}");
            assert_eq!(newest.newest(), naive(&counted));
        }
    }
}
