//! Request and answer of `muster.notify.content`: what a notice about a filter would say now. A federation asks each hub
//! for it and adds the answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NoticeOmitted, NoticeState, StandingChange, Subscription};
use crate::view::AsOf;

/// Request of `muster.notify.content`. It stores nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContentQuery {
    /// The filter; its name, window and lease have no effect.
    pub subscription: Subscription,
    /// The position that the previous notice reflected: the changes since then are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

/// Answer of `muster.notify.content`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticeContent {
    /// The position in LEDGER that it reflects.
    pub as_of: AsOf,
    /// The state; absent if nothing passes the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NoticeState>,
    /// Standings that differ since `since`, ordered by site, device and deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<StandingChange>,
    /// Counts of the parts that do not fit.
    #[serde(default, skip_serializing_if = "NoticeOmitted::is_nothing")]
    pub omitted: NoticeOmitted,
    /// The reason why nothing passes the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
