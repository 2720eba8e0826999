//! Requests and answers about the past: the state as known at a point of LEDGER, the state at an event time as known by now, the
//! differences between two points, and the comparison of a rebuild with the running fold.
//!
//! A [`Point`] in a [`Query`](crate::query::Query) asks about the past. `muster.query.moment` resolves a point: the sequence that
//! a time stands for, and how certain an event time is.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::ids::{ComponentName, DeploymentId, DeviceKey, Generation, SiteId};
use crate::query::some_devices::SomeDevices;
use crate::state::State;
use crate::view::{AsOf, Bounds, Complete, Counts, Freshness, Split, Standing, Verdict, keyed};
use crate::why::Evidence;

pub use crate::point::Point;

/// Answer of `muster.query.moment`: a resolved point. The past of a LEDGER never changes, so a client that asks on with
/// `atSeq` = `asOf.ledgerSeq` (and the same `eventTime`) is answered of the same state for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MomentAnswer {
    /// The position in LEDGER that answers about the point reflect.
    pub as_of: AsOf,
    /// With `eventTime`: how certain the state at that time is.
    #[serde(default, alias = "about", skip_serializing_if = "Option::is_none")]
    pub event_time: Option<EventTimeCertainty>,
}

/// How certain the state at an event time is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventTimeCertainty {
    /// The event time.
    pub at: Timestamp,
    /// The last fact that LEDGER stored at or before it.
    pub known_then: AsOf,
    /// Later reports that count, because their device had observed them at or before it.
    pub late_reports: u64,
    /// Devices whose clock was ever found wrong: the times of their observations are uncertain.
    #[serde(default, skip_serializing_if = "SomeDevices::is_empty")]
    pub skewed: SomeDevices,
    /// The largest difference of these clocks to the hub's clock, in seconds.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub skew_seconds: u64,
}

/// Answer of `muster.query.digests`: the digests of all views at one point, to be compared with those of another reducer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DigestsAnswer {
    /// The point.
    pub as_of: AsOf,
    /// Digest of all views: of the canonical JSON of one object with every view's key and digest.
    pub digest: Digest,
    /// The number of views.
    pub of: u64,
    /// Digests by key of the bucket `views`, in order.
    #[schemars(schema_with = "keyed::<String, Digest>")]
    pub views: BTreeMap<String, Digest>,
    /// `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Request of `muster.query.diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffQuery {
    /// The deployment.
    pub id: DeploymentId,
    /// Only devices of this site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// The earlier point.
    pub from: Point,
    /// The later point; the present if absent.
    #[serde(default)]
    pub to: Point,
    /// Most devices in one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Devices after this one: `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Answer of `muster.query.diff`: the differences of a deployment between two points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffAnswer {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The deployment at the earlier point.
    pub from: DiffSide,
    /// The deployment at the later point.
    pub to: DiffSide,
    /// The number of devices that differ; at the query's site alone if it names one.
    pub changed: u64,
    /// Those devices, ordered by site and device.
    pub devices: Vec<DeviceChange>,
    /// `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The compared part of a deployment's view at a point. Without targets and devices that it is leaving, the
/// verdict is `empty` and there is no digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffSide {
    /// The point.
    pub as_of: AsOf,
    /// The verdict.
    pub verdict: Verdict,
    /// Devices that should run it.
    pub targets: u64,
    /// Devices that should not run it and still have it.
    pub leaving: u64,
    /// Targets past their deadline.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub overdue: u64,
    /// Targets by standing and freshness.
    #[schemars(schema_with = "keyed::<Standing, Split>")]
    pub counts: Counts,
    /// The bounds of the truth.
    pub converged: Bounds,
    /// How much is known.
    pub complete: Complete,
    /// States of each component.
    #[schemars(schema_with = "keyed::<ComponentName, BTreeMap<State, u64>>")]
    pub components: BTreeMap<ComponentName, BTreeMap<State, u64>>,
    /// Digest of the view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// The difference of a device's standing between two points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceChange {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Its standing at the earlier point; absent if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Stand>,
    /// Its standing at the later point; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Stand>,
    /// Components that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentChange>,
    /// The facts between the two points that caused the difference, in LEDGER's order.
    pub facts: Vec<Evidence>,
}

/// A device's standing with a deployment, as views count it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stand {
    /// The standing.
    pub standing: Standing,
    /// The freshness of the device.
    pub freshness: Freshness,
    /// Whether the standing is known.
    pub known: bool,
    /// True if the device should not run it any more and still has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// True if it is past its deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
    /// Missing reports of the device; 0 if the deployment is leaving it.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub missing_reports: u64,
    /// Generation at which its target last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_generation: Option<Generation>,
    /// Generation of its last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
}

/// A component whose state differs between two points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComponentChange {
    /// Its name.
    pub name: ComponentName,
    /// Its state in the last report by the earlier point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<State>,
    /// Its state in the last report by the later point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<State>,
}

/// Answer of `muster.query.verify`: the comparison of a rebuild with the running fold. Each part is compared at a sequence that
/// both have read; while facts arrive, later parts are compared at later sequences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerifyAnswer {
    /// The position in LEDGER of both at the end.
    pub as_of: AsOf,
    /// True if nothing differs.
    pub same: bool,
    /// Where the rebuild began.
    pub base: RebuildBase,
    /// The sequence after which the rebuild read LEDGER.
    pub base_seq: u64,
    /// Digest of all views of the running fold, as in [`DigestsAnswer`].
    pub running: Digest,
    /// Digest of all views of the rebuild.
    pub rebuilt: Digest,
    /// Devices compared.
    pub devices: u64,
    /// Views compared.
    pub views: u64,
    /// The number of differences in devices and views.
    pub differences: u64,
    /// The first differences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Difference>,
}

/// Where a rebuild begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RebuildBase {
    /// At the first fact ever: LEDGER still holds everything.
    Ledger,
    /// At the oldest checkpoint from which LEDGER has every later fact: earlier facts have aged out.
    Checkpoint,
    /// At the first fact that LEDGER still holds. The views are the same; the parts of devices' records that aged out are not
    /// compared.
    Window,
}

/// A difference between the running fold and a rebuild.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The device as `site/device`, or the key of the view.
    pub key: String,
    /// The field, as in `rows[0].report.state`; `.` for the whole.
    pub field: String,
    /// The value in the running fold; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Value>,
    /// The value in the rebuild; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<Value>,
    /// The sequence in LEDGER at which both were compared.
    #[serde(rename = "ledgerSeq")]
    pub ledger_seq: u64,
}

/// The digest of all views by key: of the canonical JSON of one object.
pub fn digest_of_digests(views: &BTreeMap<String, Digest>) -> Digest {
    Digest::of_value(views)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::query::Query;
    use crate::question::{point_of, read_of_a_point};

    #[test]
    fn the_former_name_of_event_time_is_read_and_never_written() {
        let at: Timestamp = "2026-08-22T08:00:00Z".parse().unwrap();
        for name in ["about", "eventTime"] {
            let question = json!({ "id": "web", name: at }).to_string();
            assert_eq!(point_of(question.as_bytes()).unwrap().event_time, Some(at), "{name}");
            let query: Query = read_of_a_point(question.as_bytes()).unwrap();
            assert_eq!(query.point.event_time, Some(at), "{name}");
            assert_eq!(serde_json::to_value(query.point).unwrap(), json!({ "eventTime": at }));
        }
    }
}
