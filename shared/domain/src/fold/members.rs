//! Holds the devices of a site by number, ordered by name. The devices hold the names, so a member takes few
//! bytes here.
//!
//! The numbers are in chunks, so that an insertion does not move all later ones, however large the site is.

use std::ops::Bound;

use muster_contract::DeviceId;

use super::device::Device;

/// Numbers that a chunk has at most.
const CHUNK_MAX: usize = 512;

/// Numbers of devices in order. Those that ask bring all devices along.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// None is empty.
    chunks: Vec<Vec<u32>>,
}

impl Members {
    /// Inserts a device that is no member yet; whether it is among `devices` already does not matter.
    pub(super) fn insert(&mut self, devices: &[Device], name: &DeviceId, number: u32) {
        let (chunk, at) = self.place(devices, |other| other < name);
        let Some(numbers) = self.chunks.get_mut(chunk) else {
            self.chunks.push(vec![number]);
            return;
        };
        if numbers.len() < CHUNK_MAX {
            numbers.insert(at, number);
        } else if at == CHUNK_MAX {
            // Insertions in order, as from a snapshot, leave full chunks behind.
            match self.chunks.get_mut(chunk + 1).filter(|next| next.len() < CHUNK_MAX) {
                Some(next) => next.insert(0, number),
                None => self.chunks.insert(chunk + 1, vec![number]),
            }
        } else {
            let above = numbers.split_off(CHUNK_MAX / 2);
            self.chunks.insert(chunk + 1, above);
            self.insert(devices, name, number);
        }
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().flatten().copied()
    }

    /// Those from a name on.
    pub(super) fn from(&self, devices: &[Device], name: Bound<&DeviceId>) -> impl Iterator<Item = u32> {
        let (chunk, at) = match name {
            Bound::Unbounded => (0, 0),
            Bound::Included(name) => self.place(devices, |other| other < name),
            Bound::Excluded(name) => self.place(devices, |other| other <= name),
        };
        self.chunks.iter().skip(chunk).flatten().skip(at).copied()
    }

    /// The last of them.
    pub(super) fn last(&self) -> Option<u32> {
        self.chunks.last()?.last().copied()
    }

    /// The chunk, and the place in it, behind all that come before: in the first chunk where none does.
    fn place(&self, devices: &[Device], before: impl Fn(&DeviceId) -> bool) -> (usize, usize) {
        let comes_before = |number: &u32| before(&devices[*number as usize].state.name);
        let begun = self.chunks.partition_point(|chunk| chunk.first().is_some_and(comes_before));
        let chunk = begun.saturating_sub(1);
        let numbers = self.chunks.get(chunk).map_or(&[][..], Vec::as_slice);
        (chunk, numbers.partition_point(comes_before))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    use muster_contract::DeviceKey;
    use proptest::prelude::*;

    use super::*;

    fn key(name: u16) -> DeviceKey {
        format!("site/d{name:05}").parse().unwrap()
    }

    /// The members of a site whose devices come one after another, each only once.
    fn come(names: impl IntoIterator<Item = u16>) -> (Members, Vec<Device>) {
        let (mut members, mut devices) = (Members::default(), Vec::<Device>::new());
        for name in names {
            let (key, number) = (key(name), devices.len() as u32);
            members.insert(&devices, &key.device, number);
            devices.push(Device::new(0, key.device));
        }
        (members, devices)
    }

    fn names(devices: &[Device], numbers: impl Iterator<Item = u32>) -> Vec<DeviceId> {
        numbers.map(|number| devices[number as usize].state.name.clone()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn members_of_a_large_site_are_ordered_from_any_name_on(
            set in prop::collection::btree_set(0u16..9000, 0..3000),
            shuffled in any::<u64>(),
            from in 0u16..9000,
        ) {
            let mut order: Vec<u16> = set.iter().copied().collect();
            order.sort_by_key(|name| (u64::from(*name) + 1).wrapping_mul(shuffled | 1));
            let (members, devices) = come(order);
            let wanted = |keep: &dyn Fn(u16) -> bool| -> Vec<DeviceId> {
                set.iter().filter(|name| keep(**name)).map(|name| key(*name).device).collect()
            };
            let device = key(from).device;
            prop_assert_eq!(names(&devices, members.iter()), wanted(&|_| true));
            prop_assert_eq!(names(&devices, members.from(&devices, Unbounded)), wanted(&|_| true));
            prop_assert_eq!(names(&devices, members.from(&devices, Included(&device))), wanted(&|name| name >= from));
            prop_assert_eq!(names(&devices, members.from(&devices, Excluded(&device))), wanted(&|name| name > from));
            prop_assert_eq!(names(&devices, members.last().into_iter()).pop(), wanted(&|_| true).pop());
            prop_assert!(members.chunks.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
        }
    }

    #[test]
    fn insertions_in_order_leave_full_chunks() {
        let (members, _) = come(0..4 * CHUNK_MAX as u16);
        assert_eq!(members.chunks.len(), 4);
    }

    #[test]
    fn chunks_hold_more_than_one_device_in_any_order_of_insertion() {
        let (full, many) = (CHUNK_MAX as u16, 8 * CHUNK_MAX as u16);
        for order in [(0..full).chain((full..many).rev()).collect::<Vec<_>>(), (0..many).rev().collect()] {
            let (members, _) = come(order);
            assert!(members.chunks.len() <= 16, "{}", members.chunks.len());
        }
    }
}
