//! A target of the publisher's list in compact form. It judges nothing: a row of the rollout is made of it.

use std::sync::Arc;

use muster_contract::labels::Labels;
use muster_contract::{DeviceKey, Generation, Timestamp};

/// A device that rollouts govern. Its rollouts share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetDevice {
    /// The device.
    pub key: DeviceKey,
    /// Its labels.
    pub labels: Labels,
}

/// The content of the rollout's deployment that a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Whether it is the rollout's content.
    pub is_wanted: bool,
    /// Generation of the device at which it got the content.
    pub generation: Option<Generation>,
    /// Time at which it got the content, at the latest.
    pub at: Option<Timestamp>,
}

/// A target from the publisher's list.
#[derive(Debug, Clone)]
pub struct LiveTarget {
    /// The device.
    pub device: Arc<TargetDevice>,
    /// Its content.
    pub content: Content,
    /// Whether the publisher's list says that it gets no release, or does not go back.
    pub is_refused: bool,
}
