//! Questions about the past: what was known at a point in LEDGER, what is known of a moment by now, what changed between
//! two points, and whether a rebuild says the same as what runs.
//!
//! A [`Point`] in a [`Query`](crate::query::Query) puts any question to the past. `muster.query.moment` says first what
//! a point is: which sequence a time stands for, and how much of a moment is sure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::ids::{ComponentName, DeploymentId, DeviceKey, Generation, HubName, SiteId};
use crate::query::SomeDevices;
use crate::state::State;
use crate::view::{AsOf, Bounds, Complete, Counts, Freshness, Split, Standing, Verdict, keyed};
use crate::why::Evidence;

/// Which of what was ever known is asked for; the present where nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Point {
    /// As known then: with the last fact that LEDGER stored at or before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// As known with this fact of LEDGER; 0 is before the first. Not beside `at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_seq: Option<u64>,
    /// What is known of this time: beside what was known then, the reports that came later and that their device
    /// observed at or before it. Known by now, or by the point that `at` or `atSeq` name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<Timestamp>,
}

impl Point {
    /// As known at a time.
    pub const fn at(at: Timestamp) -> Self {
        Self { at: Some(at), at_seq: None, about: None }
    }

    /// As known with a fact of LEDGER.
    pub const fn at_seq(ledger_seq: u64) -> Self {
        Self { at: None, at_seq: Some(ledger_seq), about: None }
    }

    /// The same with the fact that it stands for.
    #[must_use]
    pub const fn at_fact(self, ledger_seq: u64) -> Self {
        Self { at: None, at_seq: Some(ledger_seq), about: self.about }
    }

    /// True where the present is asked for.
    pub fn is_now(&self) -> bool {
        *self == Self::default()
    }
}

/// Answer of `muster.query.moment`: what a point is. The past of a LEDGER never changes, so whoever asks on with
/// `atSeq` = `asOf.ledgerSeq` (and the same `about`) is answered of the same state for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MomentAnswer {
    /// Up to where answers about the point have read.
    pub as_of: AsOf,
    /// With `about`: what that rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<Hindsight>,
    /// Where the answer is of several hubs: what the point is in the LEDGER of each, by name. No sequence stands for all of
    /// them, so whoever asks on asks with times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<HubMoment>,
}

/// What a point is in the LEDGER of one hub of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubMoment {
    /// Its name in the federation.
    pub name: HubName,
    /// Up to where its answers about the point have read.
    pub as_of: AsOf,
}

/// What is known of a moment, and how sure that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hindsight {
    /// The moment.
    pub at: Timestamp,
    /// What the hub held then: the last fact that LEDGER stored at or before the moment.
    pub known_then: AsOf,
    /// Reports that came later and count, because their device observed them at or before the moment.
    pub late_reports: u64,
    /// Devices whose clock was found wrong at any time: when they observed something is uncertain.
    #[serde(default, skip_serializing_if = "SomeDevices::is_empty")]
    pub skewed: SomeDevices,
    /// The largest of their differences to the hub's clock, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skew_seconds: u64,
}

/// Answer of `muster.query.digests`: the digests of all views as of one point, to be compared with anybody else's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DigestsAnswer {
    /// The point.
    pub as_of: AsOf,
    /// Digest of all of them: of the canonical JSON of one object with every view's key and digest.
    pub digest: Digest,
    /// How many views there are.
    pub of: u64,
    /// Digests by key of the bucket `views`, in order.
    #[schemars(schema_with = "keyed::<String, Digest>")]
    pub views: BTreeMap<String, Digest>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Request of `muster.query.diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffQuery {
    /// The deployment.
    pub id: DeploymentId,
    /// Only devices of a site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// The earlier point.
    pub from: Point,
    /// The later point; the present where nothing is said.
    #[serde(default)]
    pub to: Point,
    /// Most devices wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Devices after this one: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Answer of `muster.query.diff`: how a deployment differs between two points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffAnswer {
    /// The deployment.
    pub deployment: DeploymentId,
    /// As it was at the earlier point.
    pub from: DiffSide,
    /// As it was at the later point.
    pub to: DiffSide,
    /// How many devices differ (of one site, if one was named).
    pub changed: u64,
    /// Those devices, ordered by site and device.
    pub devices: Vec<DeviceChange>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The view of a deployment at a point, as far as it is compared. Without targets and devices that it is leaving, the
/// verdict is `empty` and there is no digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffSide {
    /// The point.
    pub as_of: AsOf,
    /// Where the answer is of several hubs: what the point is in the LEDGER of each, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<HubMoment>,
    /// The verdict.
    pub verdict: Verdict,
    /// Devices that shall run it.
    pub targets: u64,
    /// Devices that shall not and still have it.
    pub leaving: u64,
    /// Targets past their deadline.
    #[serde(default, skip_serializing_if = "is_zero")]
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

/// How a device's standing differs between two points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceChange {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Its standing at the earlier point; absent where it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Stand>,
    /// Its standing at the later point; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Stand>,
    /// Components that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentChange>,
    /// The facts between the two points that made it so, in LEDGER's order.
    pub facts: Vec<Evidence>,
}

/// A device's standing with a deployment, as the counts see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stand {
    /// Where it stands.
    pub standing: Standing,
    /// Whether that is fresh.
    pub freshness: Freshness,
    /// Whether that is known.
    pub known: bool,
    /// It shall not run any more and is still there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// It is past its deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
    /// Reports of the device that were not in; 0 for one that is leaving.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing_reports: u64,
    /// Generation at which its target last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_generation: Option<Generation>,
    /// Generation that its last report is about.
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

/// Answer of `muster.query.verify`: whether a rebuild says the same as what runs. Everything is compared at a sequence
/// that both have read to; while facts come in, that moves on from part to part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerifyAnswer {
    /// Up to where both had read at the end.
    pub as_of: AsOf,
    /// Nothing differs.
    pub same: bool,
    /// What the rebuild began with.
    pub base: RebuildBase,
    /// The sequence after which the rebuild began to read.
    pub base_seq: u64,
    /// Digest of all views of what runs, as in [`DigestsAnswer`].
    pub running: Digest,
    /// Digest of all views of the rebuild.
    pub rebuilt: Digest,
    /// Devices compared.
    pub devices: u64,
    /// Views compared.
    pub views: u64,
    /// Devices and views that differ.
    pub differences: u64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Difference>,
}

/// What a rebuild begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RebuildBase {
    /// The first fact ever: LEDGER still holds everything.
    Ledger,
    /// The oldest checkpoint that LEDGER can be read on from: what came before it has aged out.
    Checkpoint,
    /// The first fact that LEDGER still holds. It gives the same views; what aged out of devices' records is not compared.
    Window,
}

/// Something that differs between what runs and a rebuild.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The device as `site/device`, or the key of the view.
    pub key: String,
    /// The field, as in `rows[0].report.state`; `.` for all of it.
    pub field: String,
    /// What runs says; absent where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Value>,
    /// The rebuild says; absent where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<Value>,
    /// The sequence at which both were looked at.
    #[serde(rename = "ledgerSeq")]
    pub ledger_seq: u64,
}

/// The digest of all views by key: of the canonical JSON of one object.
pub fn digest_of_digests(views: &BTreeMap<String, Digest>) -> Digest {
    Digest::of_value(views)
}

#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}
