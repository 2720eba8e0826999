//! A number of devices with the first of them, where an answer cannot name all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::DeviceKey;

/// Devices that have something in common: how many, and the first of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SomeDevices {
    /// How many there are.
    pub count: u64,
    /// The first of them, in order.
    pub first: Vec<DeviceKey>,
}

impl SomeDevices {
    /// Counts devices and keeps the first `max` of them.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a DeviceKey>, max: usize) -> Self {
        let mut some = Self::default();
        for key in devices {
            some.count += 1;
            if some.first.len() < max {
                some.first.push(key.clone());
            }
        }
        some
    }

    /// True where there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}
