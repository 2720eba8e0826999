//! The status of everything that passes a subscription's filters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::{Axis, Deployed, Ready, Rollup};

/// EMCO's status of a whole, with one value more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NoticeStatus {
    /// Every component is ready, by reports that are fresh and known to be the last.
    Ready,
    /// Some component is not ready, or not known to be.
    NotReady,
    /// Every device has taken up every component.
    Deployed,
    /// Some device has not taken up a component.
    NotDeployed,
    /// Nothing passes the filters. Never success.
    Empty,
}

impl NoticeStatus {
    /// The status on one axis; on `ready` if none is named.
    pub fn of(rollup: &Rollup, axis: Option<Axis>) -> Self {
        match axis {
            Some(Axis::Deployed) => match rollup.deployed_status {
                Some(Deployed::Applied) => Self::Deployed,
                Some(Deployed::Empty) | None => Self::Empty,
                Some(_) => Self::NotDeployed,
            },
            Some(Axis::Ready) | None => match rollup.ready_status {
                Some(Ready::Ready) => Self::Ready,
                Some(Ready::Empty) | None => Self::Empty,
                Some(_) => Self::NotReady,
            },
        }
    }

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
            Self::Deployed => "Deployed",
            Self::NotDeployed => "NotDeployed",
            Self::Empty => "Empty",
        }
    }
}
