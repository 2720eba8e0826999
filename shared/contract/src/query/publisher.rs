//! Requests to the publisher (`muster.publisher.*`) and their answers.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::some_devices::SomeDevices;
use crate::commit::CommitName;
use crate::ids::{DeploymentId, DeviceKey, Generation};
use crate::limits::{HELD_CHANGES_MAX, OPEN_ROLLOUTS_MAX, ROLLOUT_DEPLOYMENTS_MAX};
use crate::rollout::{HeldChange, OpenRollout};

/// Request of `muster.publisher.apply`: adds documents to the desired state of a device until they are removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApplyRequest {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Margo ApplicationDeployment documents as YAML.
    pub documents: String,
    /// Name of their file, for errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// Request of `muster.publisher.remove`: removes deployments that were applied by request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoveRequest {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The deployment; all that were applied by request if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
}

/// Request of `muster.publisher.retire`: the device leaves the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetireRequest {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
}

/// Answer to apply, remove and retire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublishAnswer {
    /// Generation of the device's desired state now.
    pub generation: Generation,
    /// False if the generation was the same before.
    pub changed: bool,
    /// Deployments that the device should run now.
    pub deployments: Vec<DeploymentId>,
    /// True if nothing was ever published for the device and Git has no folder for it: a new device, or a misspelt name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_device: bool,
    /// True if the device was retired and is part of the fleet again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returned: bool,
    /// Applied deployments that override the same deployment in Git until they are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<DeploymentId>,
}

/// Request of `muster.publisher.status`. Every field may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PublisherQuery {
    /// A commit; the answer then says whether a newer one superseded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitName>,
    /// Lists the deployments with a held change or an open rollout that follow this one; all of them if it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollouts_after: Option<String>,
}

/// Answer of `muster.publisher.status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublisherStatus {
    /// The Git source, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitStatus>,
    /// Devices with a desired state; retired ones are not among them.
    pub devices: u64,
    /// Those of them that have a folder in the last good commit; absent where no commit was good since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_git: Option<u64>,
    /// Devices that were taken out of the fleet.
    #[serde(default)]
    pub retired: u64,
    /// Devices that Git had once and has no more, with nothing left to run: to be retired, or to get a folder.
    #[serde(default, skip_serializing_if = "SomeDevices::is_empty")]
    pub left_over: SomeDevices,
    /// Devices for which something is published that nobody can read. Each keeps what it runs.
    #[serde(default, skip_serializing_if = "SomeDevices::is_empty")]
    pub unreadable: SomeDevices,
    /// Desired states published since the start.
    pub published: u64,
}

/// The state of the publisher's Git source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitStatus {
    /// Where it is; credentials in it are left out.
    pub url: String,
    /// The branch.
    pub branch: String,
    /// Last commit that was published whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    /// LEDGER up to this sequence holds every document of `applied`: a view as of it or later covers all its targets.
    /// Absent until then, and while a document of another commit, or a re-asserted one, is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_through: Option<u64>,
    /// The commit of the request, if it is not `applied` and the newest accepted commit came after it. Absent also while the
    /// publisher does not know: it asks Git, and a later request gets the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// Newest commit, if it was refused, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedCommit>,
    /// Devices for which nothing of the last accepted commit is published, and why. Each keeps its desired state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<HeldBack>,
    /// Changes of the last accepted commit that wait for a release, because a `rollout.yaml` governs them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = HELD_CHANGES_MAX))]
    pub held: Vec<HeldChange>,
    /// The number of held changes that are not listed.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub held_omitted: u64,
    /// Rollouts that have begun and not ended, those that are running first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = OPEN_ROLLOUTS_MAX))]
    pub open_rollouts: Vec<OpenRollout>,
    /// The number of open rollouts that are not listed.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub open_omitted: u64,
    /// The deployments that the query asked for with `rolloutsAfter`, ordered by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = ROLLOUT_DEPLOYMENTS_MAX))]
    pub rollout_deployments: Vec<DeploymentId>,
    /// Whether further ones follow: `rolloutsAfter` of the next query is the last listed one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more_deployments: bool,
    /// When the repository was last asked with success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_at: Option<Timestamp>,
    /// Polls that failed since the last one that did not.
    #[serde(default)]
    pub failures: u64,
    /// Why the last poll failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time since which the repository accepts requests and does not answer. Absent once it answers or refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hanging_since: Option<Timestamp>,
}

/// A commit that was refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedCommit {
    /// The commit.
    pub revision: String,
    /// Everything that is wrong with it.
    pub problems: Vec<Problem>,
}

/// Devices that cannot use what a commit says of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldBack {
    /// The commit. It is published to all other devices.
    pub revision: String,
    /// The devices.
    pub devices: SomeDevices,
    /// Everything that is wrong with what it says of them.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with a commit or a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The file or folder; empty where it is none of them alone.
    pub file: String,
    /// The line, where one is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The field; empty where the file or the document as a whole is meant.
    pub field: String,
    /// The rule and how it is broken.
    pub rule: String,
}
