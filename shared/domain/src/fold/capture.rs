//! Copies some devices as of one moment, in small steps while the fold goes on: a device is copied just before
//! a fact changes it. So no reader waits longer than one step. [`steps`] takes them.

mod steps;

use super::record::DeviceRecord;

/// The devices still to copy, and the records copied ahead of their turn.
#[derive(Debug, Default)]
pub(super) struct Capture {
    due: Vec<u32>,
    kept: Vec<DeviceRecord>,
}
