//! Questions to the query service (`muster.query.*`) and to the publisher (`muster.publisher.*`), and their answers.
//! An answer is either what was asked for or an [`ErrorReply`].

mod errors;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::commit::CommitName;
use crate::fact::{Account, DeadlineFact, Incident};
use crate::history::Point;
use crate::ids::{DeploymentId, DeviceId, DeviceKey, Epoch, Generation, Seq, SiteId};
use crate::limits::RETRIES_MAX;
use crate::liveness::{holds, is_so};
use crate::pulse::HubHearing;
use crate::ranges::SeqRanges;
use crate::retry::Retry;
use crate::silence::SilentSites;
use crate::state::{ComponentStatus, DeploymentStatus, State};
use crate::view::{AsOf, DeploymentView, Freshness, Standing, keyed};

pub use errors::{ErrorBody, ErrorCode, ErrorReply};

/// Rows of one answer, where the request does not say.
pub const PAGE_DEFAULT: usize = 200;
/// Most rows of one answer.
pub const PAGE_MAX: usize = 1000;
/// Most targets of a page of status in detail: what shall run is read for each.
pub const DETAIL_PAGE_MAX: usize = 200;

const _: () = assert!(DETAIL_PAGE_MAX <= PAGE_MAX);

/// A question. Every field is optional on the wire; which are needed depends on the endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Query {
    /// A deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
    /// A site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// A device; needs its site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// Of a list of devices only those that are heard so, any of several; those that are retired are not among them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub freshness: BTreeSet<Freshness>,
    /// How much of it.
    pub output: Output,
    /// When: the present where nothing is said.
    #[serde(flatten)]
    pub point: Point,
    /// Most rows wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Rows after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// How much an answer shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// The view alone.
    #[default]
    Summary,
    /// And a line for each device.
    All,
    /// And all that is known of each line.
    Detail,
}

/// Answer of `muster.query.deployment`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentAnswer {
    /// The view.
    pub view: DeploymentView,
    /// Sites that are silent as a whole, with targets of this deployment.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// A line for each device, with `output` all or detail, ordered by site and device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<StandingLine>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Answer of `muster.query.deployments`: views ordered by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentsAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The views.
    pub deployments: Vec<DeploymentView>,
    /// Partitions with devices that were asked about that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Sites that are silent as a whole, of those that were asked about.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Answer of `muster.query.devices`: ordered by site and device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DevicesAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The devices. Where only some pass a filter there may be none of them on this page, and more to come.
    pub devices: Vec<DeviceLine>,
    /// Partitions with devices that were asked about that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One device in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceLine {
    /// Which.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Whether it is heard.
    pub freshness: Freshness,
    /// When the hub last heard it, as far as facts tell: freshness itself is a fact only when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// It was taken out of the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// Its epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Highest report number it has spoken of.
    pub head: u64,
    /// The accounting of its epoch.
    pub account: Account,
    /// Numbers in quarantine that nobody has dropped: whatever was reported before one of them is not known any more.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub in_doubt: SeqRanges,
    /// Messages in quarantine of which the hub cannot tell yet which numbers they are: until the next heartbeat says how
    /// far the device's numbers go, nothing of it is known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: u64,
    /// False while the device says that it cannot keep what it would report: nothing of it is known then.
    #[serde(default = "holds", skip_serializing_if = "is_so")]
    pub storing: bool,
    /// Generation of its desired state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Its targets by standing.
    #[schemars(schema_with = "keyed::<Standing, u64>")]
    pub standings: BTreeMap<Standing, u64>,
    /// How many incidents it has had.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub incidents: u64,
    /// Messages without a readable number in quarantine, beside those in the account.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unnumbered_quarantined: u64,
    /// When its token ends, where a tenth of the token's life or less is left and no newer one is known. It is out then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ends_at: Option<Timestamp>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Answer of `muster.query.device`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The device.
    pub device: DeviceLine,
    /// Its deployments, ordered by id.
    pub deployments: Vec<StandingLine>,
    /// What it says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Map<String, Value>>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Version of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Its last incident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_incident: Option<Incident>,
    /// The device's partition, where the hub does not listen to it.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// What is not shown.
    #[serde(default, skip_serializing_if = "DeviceOmitted::is_nothing")]
    pub omitted: DeviceOmitted,
}

/// What is not shown of a device, so that the answer stays a message. No standing is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceOmitted {
    /// Components of its deployments: of each the least severe, and of those the last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub components: u64,
    /// Components that are tried again: of each deployment those that were tried least often.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u64,
    /// Texts of errors and reasons that are shown, and cut short.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub texts: u64,
    /// What it says it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capabilities: bool,
}

impl DeviceOmitted {
    /// True where everything is shown.
    pub const fn is_nothing(&self) -> bool {
        self.components == 0 && self.retries == 0 && self.texts == 0 && !self.capabilities
    }
}

/// A device's standing with a deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StandingLine {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The deployment.
    pub deployment: DeploymentId,
    /// Where it stands.
    pub standing: Standing,
    /// Whether that is fresh.
    pub freshness: Freshness,
    /// When the hub last heard the device, as far as facts tell, where it was heard once and is not fresh. Absent where it is
    /// fresh: a heartbeat is no fact, so the time would be that of some older one, and mislead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Whether that is known.
    pub known: bool,
    /// It shall not run any more and is still there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// It is past its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue: Option<DeadlineFact>,
    /// Generation at which its target last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_generation: Option<Generation>,
    /// Why it is so, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it changed last: the hub took in its last report, or was told what it shall run, if that was later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The last report, unless nothing was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<LastReport>,
}

/// The last report of a deployment on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastReport {
    /// The state reported.
    pub state: State,
    /// The generation it is about.
    pub generation: Generation,
    /// When the device saw it, by its own clock.
    pub observed_at: Timestamp,
    /// When the hub took it in.
    pub received_at: Timestamp,
    /// Which report it is.
    pub epoch: Epoch,
    /// Which report it is.
    pub seq: Seq,
    /// Where LEDGER holds it.
    pub ledger_seq: u64,
    /// What is tried again after an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RETRIES_MAX))]
    pub retries: Vec<Retry>,
    /// The whole status, with `output` detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DeploymentStatus>,
    /// The components, with `output` detail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentStatus>,
}

/// Request of `muster.publisher.apply`: this device shall run these documents as well, until they are removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApplyRequest {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Margo ApplicationDeployment documents as YAML.
    pub documents: String,
    /// Name of the file they come from, for what is said of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// Request of `muster.publisher.remove`: what was applied by request is taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoveRequest {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The deployment; all that were applied by request where none is named.
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
    /// False where that is what it was before.
    pub changed: bool,
    /// What the device shall run now.
    pub deployments: Vec<DeploymentId>,
    /// True where nothing was ever published for the device, and Git has no folder for it: new, or a slip of the pen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_device: bool,
    /// True where the device was retired and is part of the fleet again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returned: bool,
    /// What was applied now in place of the same deployment in Git, until it is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<DeploymentId>,
}

/// Request of `muster.publisher.status`. Every field may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PublisherQuery {
    /// A commit of which the answer shall also say whether a newer one has taken its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitName>,
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

/// What the publisher knows of its Git source.
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
    /// LEDGER up to this sequence holds every document of `applied`: a view as of it or later speaks of all its targets.
    /// Absent while that is not so yet, and while any document of another commit, or one that is to be said again, is on its
    /// way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_through: Option<u64>,
    /// The commit that was asked about, where it is not `applied` and the newest one that was taken came after it. Absent
    /// also where that is not known yet: Git is asked for it, and the same question later is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// Newest commit, if it was refused, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedCommit>,
    /// Devices for which nothing of the commit that was taken last is published, and why. Each keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<HeldBack>,
    /// When the repository was last asked with success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_at: Option<Timestamp>,
    /// Polls that failed since the last one that did not.
    #[serde(default)]
    pub failures: u64,
    /// Why the last poll failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Since when the repository hangs: it takes requests and gives no answer. Absent once it answers, or refuses.
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
