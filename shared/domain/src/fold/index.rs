//! Which number a device has. A few bytes for each: its name is held by the device and that of its site by the site, and
//! they are looked at there.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use muster_contract::DeviceKey;

use super::device::Device;
use super::totals::Totals;

/// Numbers of devices by name. Those that ask bring the devices along.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: HashTable<Slot>,
    hasher: DefaultHashBuilder,
}

/// Part of the name's hash lets a search pass most others without a look at their device.
#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u32,
    number: u32,
}

impl Slot {
    /// A table takes its place from the lowest bits and a mark from the highest.
    const fn spread(hash: u32) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        (hash as u64).wrapping_mul(ODD)
    }
}

impl Index {
    /// The number of a device.
    pub(super) fn get(&self, devices: &[Device], totals: &Totals, key: &DeviceKey) -> Option<u32> {
        let hash = self.hash(key);
        let has_the_name = |Device { site, about, .. }: &Device| {
            about.name == key.device && totals.site(*site).id == key.site
        };
        let is_it = |slot: &Slot| slot.hash == hash && has_the_name(&devices[slot.number as usize]);
        self.slots.find(Slot::spread(hash), is_it).map(|slot| slot.number)
    }

    /// A device that has no number yet has this one.
    pub(super) fn insert(&mut self, key: &DeviceKey, number: u32) {
        let hash = self.hash(key);
        let rehash = |slot: &Slot| Slot::spread(slot.hash);
        self.slots.insert_unique(Slot::spread(hash), Slot { hash, number }, rehash);
    }

    fn hash(&self, key: &DeviceKey) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }
}
