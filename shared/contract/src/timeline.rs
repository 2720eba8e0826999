//! Answer of `muster.query.timeline`: how the counts of the fleet, or of one deployment, have changed. The counts at a point hold
//! until the next one. Of older time some points are left out between others: then the next one may follow on them.
//!
//! A timeline follows from the facts in LEDGER and the times at which the bus stored them. It has no devices and no reasons:
//! the endpoints of the past have those, by the time of a point.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::DeploymentId;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::view::{AsOf, Bounds, Split, Verdict, keyed};

/// Points of one timeline, the present included.
pub const POINTS_MAX: usize = 620;
/// Bytes of a point in JSON, with every verdict and the largest counts.
const POINT_BYTES_MAX: usize = 420;

const _: () = assert!(POINTS_MAX * POINT_BYTES_MAX < MESSAGE_BYTES_MAX);

/// Answer of `muster.query.timeline`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimelineAnswer {
    /// The deployment; absent for the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentId>,
    /// The position in LEDGER that the answer reflects: the last point holds up to there.
    pub as_of: AsOf,
    /// The points, the oldest first. Nothing is known of the time before the first one.
    #[schemars(length(max = POINTS_MAX))]
    pub points: Vec<TimelinePoint>,
}

/// The counts at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimelinePoint {
    /// The time, by the hub's clock. All facts that LEDGER stored before it count, and none after it.
    pub at: Timestamp,
    /// Deployments by verdict; of a deployment its own.
    #[schemars(schema_with = "keyed::<Verdict, u64>")]
    pub deployments: BTreeMap<Verdict, u64>,
    /// Devices by freshness; of a deployment its targets.
    pub devices: Split,
    /// Targets.
    pub targets: u64,
    /// The bounds of the targets that run what they should.
    pub converged: Bounds,
    /// Reports that exist and are not in.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub missing_reports: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::COUNTER_MAX;

    #[test]
    fn the_largest_point_has_the_bytes_that_the_limit_assumes() {
        let most = COUNTER_MAX;
        let point = TimelinePoint {
            at: "2026-11-20T08:00:00Z".parse().unwrap(),
            // A count of deployments or targets is 32 bits wide.
            deployments: Verdict::ALL.into_iter().map(|verdict| (verdict, u64::from(u32::MAX))).collect(),
            devices: Split { fresh: u32::MAX.into(), stale: u32::MAX.into(), never: u32::MAX.into() },
            targets: u32::MAX.into(),
            converged: Bounds { lo: u32::MAX.into(), hi: u32::MAX.into() },
            missing_reports: most,
        };
        let bytes = serde_json::to_vec(&point).unwrap().len();
        assert!(bytes < POINT_BYTES_MAX, "{bytes}");
    }
}
