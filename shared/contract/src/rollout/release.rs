//! The request that governed devices get a content of a deployment, and its answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::ids::{DeploymentId, DeviceKey};
use crate::limits::{MESSAGE_BYTES_MAX, RELEASE_DEVICES_MAX};

/// Bytes of a device in a list of refusals, at most: two names of 63 characters, the longest reason, and the keys.
const REFUSED_BYTES_MAX: usize = 2 * 63 + 70;

const _: () = assert!(RELEASE_DEVICES_MAX * REFUSED_BYTES_MAX < MESSAGE_BYTES_MAX);
/// Request of `muster.publisher.release`: governed devices get this content of a deployment. The same request again changes
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseRequest {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content: the one that Git wants, or an earlier one that a device still has. Absent to remove a deployment that Git no
    /// longer has, and with `before`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// In place of `digest`: each device that has this content gets the one that it had before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Digest>,
    /// Whether devices get the content although its rollout is paused, stopped or rolled back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// The devices.
    #[schemars(length(min = 1, max = RELEASE_DEVICES_MAX))]
    pub devices: Vec<DeviceKey>,
    /// The commit for which the release was computed (`revision` of TargetsAnswer): if it is not the last accepted one, nothing
    /// is released. Absent to release whatever the commit is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The number of devices of the rollout that have the content already, for which the release was computed: if another number
    /// has it, and the release would change something, nothing is released. Two planners that judge at different times do not
    /// exceed a limit together. Absent to release whatever that number is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<u64>,
    /// The digest of the rollout's record for which the release was computed (of a record without decisions if there was none): if the
    /// record has changed, and the release would change something, nothing is released. Absent to release whatever the record is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Digest>,
}

impl ReleaseRequest {
    /// A release of no content to devices: the removal of a deployment.
    pub const fn new(deployment: DeploymentId, devices: Vec<DeviceKey>) -> Self {
        Self {
            deployment,
            digest: None,
            before: None,
            force: false,
            devices,
            revision: None,
            released: None,
            record: None,
        }
    }
}

/// Answer of `muster.publisher.release`. Each device of the request is in one of the lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseAnswer {
    /// Devices whose desired state in DOWNLINK has the content, by this request or before.
    pub released: Vec<DeviceKey>,
    /// Devices that keep their content, each with the reason.
    pub refused: Vec<RefusedRelease>,
}

/// A device that a release did not reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedRelease {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The reason.
    pub reason: ReleaseRefusal,
}

/// Why a release does not reach a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ReleaseRefusal {
    /// The last good commit has no folder for it, or retires it.
    NotInGit,
    /// No `rollout.yaml` governs it: it gets what Git wants at once.
    NotGoverned,
    /// The last good commit has a mistake for it.
    HeldBack,
    /// The publisher does not know the newest commit for it.
    GitUnknown,
    /// It runs another content of the deployment by request, until that is removed.
    AppliedByRequest,
    /// Git does not want this content for it, no device has the content, and this device has not had it lately.
    UnknownDigest,
    /// Git still wants the deployment for it, so it cannot be removed.
    StillInGit,
    /// Its document would exceed a limit.
    OverLimit,
    /// DOWNLINK did not store its document in several attempts.
    NotStored,
    /// The rollout of this content on the device is paused.
    Paused,
    /// The rollout of this content on the device is stopped, aborted or rolled back.
    Stopped,
    /// The rollout of this content on the device is neither aborted nor rolled back.
    NotRolledBack,
    /// Neither DOWNLINK nor LEDGER has a document of the device from before that content.
    NoEarlierContent,
}

impl ReleaseRefusal {
    /// The reason in words, as the end of a sentence about the device.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotInGit => "has no folder in the last good commit",
            Self::NotGoverned => "is governed by no rollout.yaml and gets what Git wants at once",
            Self::HeldBack => "is held back: the commit has a mistake for it",
            Self::GitUnknown => "has a commit that the publisher does not know",
            Self::AppliedByRequest => "runs the deployment by request; `muster remove` ends that",
            Self::UnknownDigest => "cannot get this content: Git does not want it, and no device has it",
            Self::StillInGit => "still has the deployment in Git, so it cannot be removed",
            Self::OverLimit => "would exceed a limit of its document",
            Self::NotStored => "did not get it: DOWNLINK has not stored its document; ask again",
            Self::Paused => "keeps what it has: the rollout is paused; `muster rollout resume` continues it",
            Self::Stopped => {
                "keeps what it has: the rollout is stopped; `muster rollout retry` begins it again"
            }
            Self::NotRolledBack => {
                "keeps it: the rollout is not rolled back; `muster rollout rollback` does that"
            }
            Self::NoEarlierContent => "keeps it: no earlier content of the device is known",
        }
    }
}
