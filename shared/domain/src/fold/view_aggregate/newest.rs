//! Keeps the newest times of the devices that a view counts, by block of devices. A time that is retracted makes at most the
//! maximum of its block stale, and a block is searched at once: no fact and no view costs a search of the whole fleet.

use muster_contract::Timestamp;

use crate::fold::delta::Delta;
use crate::fold::max_timestamp::{MaxTimestamp, Times, highest};

/// Devices of a block: a stale maximum costs a visit of so many, and a view one of each block.
const BLOCK: u32 = 256;

/// The newest times by block, in the order of the devices' numbers.
#[derive(Debug, Default)]
pub(super) struct NewestTimes {
    blocks: Vec<BlockTimes>,
    /// Blocks with a maximum that may be stale.
    stale: Vec<u32>,
}

/// The newest times of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BlockTimes {
    changed: MaxTimestamp,
    heard: MaxTimestamp,
}

impl NewestTimes {
    /// Adds the times of a device or retracts them.
    pub(super) fn apply(&mut self, delta: Delta, number: u32, times: Times) {
        let block = self.block_mut(number);
        block.changed.apply(delta, times.changed_at);
        block.heard.apply(delta, times.heard_at);
        self.note_stale(number);
    }

    /// Replaces the time at which a device was heard.
    pub(super) fn exchange_heard(&mut self, number: u32, was: Option<Timestamp>, is: Option<Timestamp>) {
        self.block_mut(number).heard.exchange(was, is);
        self.note_stale(number);
    }

    /// Recomputes the blocks with a stale maximum from the times of the devices that count among the first `devices`.
    pub(super) fn recompute(&mut self, devices: u32, times_of: impl Fn(u32) -> Option<Times>) {
        for number in std::mem::take(&mut self.stale) {
            let block = &mut self.blocks[number as usize];
            if block.is_stale() {
                *block = BlockTimes::of(number, devices, &times_of);
            }
        }
    }

    /// The newest times of all devices that count.
    pub(super) fn newest(&self) -> Times {
        debug_assert!(self.blocks.iter().all(|block| !block.is_stale()), "a fact left a maximum stale");
        Times {
            changed_at: self.blocks.iter().filter_map(|block| block.changed.bound()).max(),
            heard_at: self.blocks.iter().filter_map(|block| block.heard.bound()).max(),
        }
    }

    fn block_mut(&mut self, number: u32) -> &mut BlockTimes {
        let block = (number / BLOCK) as usize;
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, BlockTimes::default());
        }
        &mut self.blocks[block]
    }

    /// Notes the block of a device if a maximum of it is stale.
    fn note_stale(&mut self, number: u32) {
        let block = number / BLOCK;
        if self.blocks[block as usize].is_stale() && self.stale.last() != Some(&block) {
            self.stale.push(block);
        }
    }
}

impl BlockTimes {
    /// The newest times of a block, by a visit of its devices.
    fn of(block: u32, devices: u32, times_of: &impl Fn(u32) -> Option<Times>) -> Self {
        let members = block * BLOCK..devices.min((block + 1) * BLOCK);
        let times: Vec<Times> = members.filter_map(times_of).collect();
        Self {
            changed: highest(times.iter().map(|times| MaxTimestamp::of(times.changed_at))),
            heard: highest(times.iter().map(|times| MaxTimestamp::of(times.heard_at))),
        }
    }

    const fn is_stale(&self) -> bool {
        self.changed.is_stale() || self.heard.is_stale()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
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
                newest.recompute(DEVICES, |number| counted.get(&number).copied());
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
            let visited = Cell::new(0);
            newest.recompute(DEVICES, |number| {
                visited.set(visited.get() + 1);
                counted.get(&number).copied()
            });
            assert!(visited.get() <= BLOCK, "{number}: {}", visited.get());
            assert_eq!(newest.newest(), naive(&counted));
        }
    }
}
