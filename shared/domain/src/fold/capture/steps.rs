//! The steps of a copy of devices.

use muster_contract::DeviceKey;

use super::super::fleet::Fleet;
use super::super::record::DeviceRecord;
use super::Capture;

impl Fleet {
    /// Begins a copy of the devices that changed since the last such call (or
    /// [`drain_changed_devices`](Self::drain_changed_devices)), and of `also`, as they are now. A copy that was under way
    /// is given up.
    pub fn start_capture<'a>(&mut self, also: impl IntoIterator<Item = &'a DeviceKey>) {
        let given_up = std::mem::take(&mut self.capture);
        given_up.due.into_iter().for_each(|number| self.devices[number as usize].due = false);
        let mut due = std::mem::take(&mut self.changed);
        due.iter().for_each(|number| self.devices[*number as usize].changed = false);
        due.extend(also.into_iter().filter_map(|key| self.number_of(key)));
        // A device named twice is copied once: at its second turn it is no longer due.
        due.iter().for_each(|number| self.devices[*number as usize].due = true);
        self.capture.due = due;
    }

    /// Begins a copy of all devices as they are now. A copy that was under way is given up.
    pub fn start_capture_of_all(&mut self) {
        self.devices.iter_mut().for_each(|device| device.due = true);
        // Popped from its end: devices are copied in the order in which the fleet got to know them.
        let due = (0..self.devices.len() as u32).rev().collect();
        self.capture = Capture { due, kept: Vec::new() };
    }

    /// The next records of the copy, at most `max` beside those that facts have pushed ahead; none when all of it was
    /// given.
    pub fn capture(&mut self, max: usize) -> Vec<DeviceRecord> {
        let mut records = std::mem::take(&mut self.capture.kept);
        let enough = records.len() + max;
        while records.len() < enough
            && let Some(number) = self.capture.due.pop()
        {
            if std::mem::take(&mut self.devices[number as usize].due) {
                records.push(self.record_of(&self.devices[number as usize]));
            }
        }
        records
    }

    /// A fact is about to change a device.
    pub(in crate::fold) fn copy_ahead(&mut self, number: u32) {
        if std::mem::take(&mut self.devices[number as usize].due) {
            let record = self.record_of(&self.devices[number as usize]);
            self.capture.kept.push(record);
        }
    }
}
