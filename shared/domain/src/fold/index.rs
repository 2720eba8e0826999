//! Maps a device key to its number in a few bytes: the device holds its own name and the site holds the site's,
//! and lookups compare them there.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use muster_contract::DeviceKey;

use super::device::Device;
use super::totals::Totals;

/// Numbers of devices by name. The caller passes the devices.
#[derive(Debug, Default)]
pub(super) struct DeviceIndex {
    slots: HashTable<IndexSlot>,
    hasher: DefaultHashBuilder,
}

/// Part of the name's hash lets a search skip most other devices.
#[derive(Debug, Clone, Copy)]
struct IndexSlot {
    hash: u32,
    number: u32,
}

impl IndexSlot {
    /// A table takes its place from the lowest bits and a mark from the highest.
    const fn spread(hash: u32) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        (hash as u64).wrapping_mul(ODD)
    }
}

impl DeviceIndex {
    /// The number of a device.
    pub(super) fn get(&self, devices: &[Device], totals: &Totals, key: &DeviceKey) -> Option<u32> {
        let hash = self.hash(key);
        let has_the_name = |Device { site, state, .. }: &Device| {
            state.name == key.device && totals.site(*site).id == key.site
        };
        let is_it = |slot: &IndexSlot| slot.hash == hash && has_the_name(&devices[slot.number as usize]);
        self.slots.find(IndexSlot::spread(hash), is_it).map(|slot| slot.number)
    }

    /// A device that has no number yet has this one.
    pub(super) fn insert(&mut self, key: &DeviceKey, number: u32) {
        let hash = self.hash(key);
        let rehash = |slot: &IndexSlot| IndexSlot::spread(slot.hash);
        self.slots.insert_unique(IndexSlot::spread(hash), IndexSlot { hash, number }, rehash);
    }

    fn hash(&self, key: &DeviceKey) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }
}
