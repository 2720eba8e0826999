//! Notices: a subscriber says once what it wants to be told of, and is told how that is now, and then whenever it has
//! changed. The words of the filters are those of [`StatusQuery`].
//!
//! A notice is whole: whoever has the newest needs none before it. The bus holds one notice of each subscription, so a
//! slow subscriber costs nobody anything, and finds the present when it comes back. Numbers without a neighbour say that
//! others were in between.

mod change;
mod owner;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::ids::{ComponentName, DeploymentId, SiteId, SubscriptionName};
use crate::pulse::HubHearing;
use crate::query::Output;
use crate::status::{
    AppStatus, Axis, Deployed, DevicePath, FILTER_VALUES_MAX, Ready, Rollup, StatusQuery, TargetStatus,
};
use crate::version::{ApiVersion, kind};
use crate::view::{AsOf, DeploymentView, Verdict};

pub use change::{StandingChange, Stood};
pub use owner::SubscriptionOwner;

/// Least time between two notices, where a subscription does not say.
pub const WINDOW_DEFAULT_MS: u64 = 3_000;
/// Shortest window: views are not written more often either.
pub const WINDOW_MIN_MS: u64 = 200;
/// Longest window.
pub const WINDOW_MAX_MS: u64 = 60 * 60 * 1000;
/// How long a subscription is kept of which nothing is heard, where it does not say: a week.
pub const LEASE_DEFAULT_SECONDS: u64 = 7 * 24 * 60 * 60;
/// Shortest lease.
pub const LEASE_MIN_SECONDS: u64 = 5;
/// Longest lease.
pub const LEASE_MAX_SECONDS: u64 = 30 * 24 * 60 * 60;
/// Longest lease of a user who is no operator: a week.
pub const LEASE_OTHERS_MAX_SECONDS: u64 = 7 * 24 * 60 * 60;
/// Subscriptions there may be.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// Subscriptions that one user may have.
pub const SUBSCRIPTIONS_OF_USER_MAX: usize = 64;
/// Subscriptions that only operators may make, of all there may be.
pub const SUBSCRIPTIONS_OPERATOR_RESERVE: usize = 200;
/// Targets that one notice lists; it says how many more there are.
pub const NOTICE_TARGETS_MAX: usize = 200;
/// Changed standings that one notice lists; it says how many more there are.
pub const NOTICE_CHANGES_MAX: usize = 100;

/// Request of `muster.notify.subscribe`: what somebody wants to be told of. Values of one filter are alternatives, several
/// filters must all hold. Without a deployment, site or device it is about the whole fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// The subscriber's own name for it. It stays with the subscription over every restart on either side.
    pub name: SubscriptionName,
    /// The deployment; every one where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
    /// Only of these applications.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub app: Vec<String>,
    /// Only at these sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub site: Vec<SiteId>,
    /// Only on these devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub device: Vec<DevicePath>,
    /// Only these components.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub component: Vec<ComponentName>,
    /// One axis only. Where none is named both are told, and `ready` decides the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Axis>,
    /// `summary`, or `all` for a line for each target.
    #[serde(default)]
    pub output: Output,
    /// What makes a new notice.
    #[serde(default)]
    pub on: TellOn,
    /// Least time between two notices. What happens meanwhile is in the next one.
    #[serde(default = "window_default")]
    #[schemars(range(min = WINDOW_MIN_MS, max = WINDOW_MAX_MS))]
    pub window_ms: u64,
    /// How long it is kept when nothing is heard of the subscriber: no subscribe and no confirm.
    #[serde(default = "lease_default")]
    #[schemars(range(min = LEASE_MIN_SECONDS, max = LEASE_MAX_SECONDS))]
    pub lease_seconds: u64,
    /// Names that nobody knows yet are waited for, instead of refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait_for: bool,
}

const fn window_default() -> u64 {
    WINDOW_DEFAULT_MS
}

const fn lease_default() -> u64 {
    LEASE_DEFAULT_SECONDS
}

/// What makes a new notice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TellOn {
    /// Anything of what is told.
    #[default]
    Change,
    /// Only the status and the verdict.
    Verdict,
}

impl Subscription {
    /// A subscription with nothing but a name: the whole fleet, in short.
    pub const fn named(name: SubscriptionName) -> Self {
        Self {
            name,
            id: None,
            app: Vec::new(),
            site: Vec::new(),
            device: Vec::new(),
            component: Vec::new(),
            status: None,
            output: Output::Summary,
            on: TellOn::Change,
            window_ms: WINDOW_DEFAULT_MS,
            lease_seconds: LEASE_DEFAULT_SECONDS,
            wait_for: false,
        }
    }

    /// The question about status that it asks again and again.
    pub fn query(&self) -> StatusQuery {
        StatusQuery {
            id: self.id.clone(),
            app: self.app.clone(),
            site: self.site.clone(),
            device: self.device.clone(),
            component: self.component.clone(),
            status: self.status,
            output: self.output,
            ..StatusQuery::default()
        }
    }

    /// True where it is about one deployment as a whole: then its verdict and its view are told too.
    pub const fn is_of_a_deployment(&self) -> bool {
        self.id.is_some()
            && self.app.is_empty()
            && self.site.is_empty()
            && self.device.is_empty()
            && self.component.is_empty()
    }

    /// The rules that the shape alone does not hold.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        if self.output == Output::Detail {
            return Err(Violation::at("output", "notices are told as summary or all; ask for detail"));
        }
        within("windowMs", self.window_ms, WINDOW_MIN_MS, WINDOW_MAX_MS)?;
        within("leaseSeconds", self.lease_seconds, LEASE_MIN_SECONDS, LEASE_MAX_SECONDS)
    }
}

const _: () = assert!(
    LEASE_DEFAULT_SECONDS <= LEASE_OTHERS_MAX_SECONDS && LEASE_OTHERS_MAX_SECONDS <= LEASE_MAX_SECONDS
);

fn within(path: &str, value: u64, least: u64, most: u64) -> Result<(), Violation> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Violation::at(path, format!("{value} is not within {least} and {most}")))
}

/// Answer of `muster.notify.subscribe` and `muster.notify.confirm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionAnswer {
    /// The subscription.
    pub name: SubscriptionName,
    /// It was there already, just like this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumed: bool,
    /// Number of the last notice that the subscriber has confirmed; nothing up to it is to be shown again.
    pub seen: u64,
    /// Number of the newest notice; 0 before the first. It waits on `muster.notice.<name>`.
    pub told: u64,
}

/// Request of `muster.notify.confirm`: the subscriber has done what it does with a notice, and is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfirmRequest {
    /// The subscription.
    pub name: SubscriptionName,
    /// The notice's number.
    pub number: u64,
}

/// Request of `muster.notify.unsubscribe`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnsubscribeRequest {
    /// The subscription.
    pub name: SubscriptionName,
}

/// Request of `muster.notify.list`. Every field may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SubscriptionsQuery {
    /// Most lines wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Lines after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<SubscriptionName>,
}

/// Answer of `muster.notify.list`: ordered by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionsAnswer {
    /// The subscriptions.
    pub subscriptions: Vec<SubscriptionLine>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SubscriptionName>,
}

/// A subscription and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionLine {
    /// What it is about.
    pub subscription: Subscription,
    /// Whose it is; absent where anybody may change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SubscriptionOwner>,
    /// The last notice confirmed.
    pub seen: u64,
    /// The newest notice.
    pub told: u64,
}

/// `muster.subscription.<name>`: a subscription as the bus keeps it, for as long as its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionRecord {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `SubscriptionRecord`
    pub kind: kind::SubscriptionRecord,
    /// What it is about.
    pub subscription: Subscription,
    /// The last notice confirmed.
    pub seen: u64,
    /// Number of the newest notice when it was made: what was told up to that was told to an earlier one of the same name.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub began: u64,
    /// Whose it is: nobody else may replace, confirm, list or end it, except that operators may list and end it. Absent where
    /// nobody vouched for who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SubscriptionOwner>,
}

impl Document for SubscriptionRecord {
    const KIND: &'static str = "SubscriptionRecord";

    fn check(&self) -> Result<(), Violation> {
        self.subscription.check().map_err(|violation| violation.within("subscription"))
    }
}

/// `muster.notice.<name>`: how what is watched is, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Notice`
    pub kind: kind::Notice,
    /// The subscription.
    pub name: SubscriptionName,
    /// 1, 2, 3 and so on. Where one is left out, it was replaced by a newer one before it was read.
    pub number: u64,
    /// What it says.
    pub event: NoticeEvent,
    /// Up to where it has read.
    pub as_of: AsOf,
    /// How far the notice before had read; absent in a first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The window held it back: there was more between the notice before and this one than is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub coalesced: bool,
    /// How it is; absent where there is nothing, or nothing more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NoticeState>,
    /// Standings that are otherwise than at the notice before, ordered by site, device and deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<StandingChange>,
    /// What its limits left out.
    #[serde(default, skip_serializing_if = "NoticeOmitted::is_nothing")]
    pub omitted: NoticeOmitted,
    /// Why it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// What is not there, or why it has ended, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Of what this subscription is told; two notices in a row never have the same. See [`NoticeState::digest`].
    pub digest: Digest,
}

impl Document for Notice {
    const KIND: &'static str = "Notice";

    fn check(&self) -> Result<(), Violation> {
        let has_state = matches!(self.event, NoticeEvent::Present | NoticeEvent::Changed);
        if self.number == 0 {
            return Err(Violation::at("number", "the first notice is number 1"));
        }
        if has_state != self.state.is_some() {
            return Err(Violation::at("state", "is there with present and changed, and with nothing else"));
        }
        if (self.event == NoticeEvent::Ended) != self.reason.is_some() {
            return Err(Violation::at("reason", "is there with ended, and with nothing else"));
        }
        Ok(())
    }
}

/// What a notice says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoticeEvent {
    /// The first of a subscription: how it is.
    Present,
    /// It is otherwise than at the notice before.
    Changed,
    /// What is watched is not there: targeted nowhere and left nowhere. The subscription stays, and tells when it is there.
    Gone,
    /// The subscription has ended. No notice follows until somebody subscribes again.
    Ended,
}

/// Why a subscription has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EndReason {
    /// Somebody asked for it.
    Unsubscribed,
    /// Nothing was heard of the subscriber for as long as its lease.
    Expired,
    /// What passes the filters has become more than can be looked at for each notice.
    TooWide,
}

/// What a notice leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticeOmitted {
    /// Targets beyond those listed; they are in the roll-up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub targets: u64,
    /// Changed standings beyond those listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes: u64,
    /// Changes may be missing: there were too many, or the hub was started again in between. The state is right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_changes: bool,
    /// The view of the deployment, for which there was no room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub view: bool,
}

impl NoticeOmitted {
    /// True where everything is told.
    pub const fn is_nothing(&self) -> bool {
        self.targets == 0 && self.changes == 0 && !self.more_changes && !self.view
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How what passes the filters is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoticeState {
    /// The status of the whole: `Ready` or `Deployed` only where each part is.
    pub status: NoticeStatus,
    /// The verdict, where a deployment is watched without further filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Counts, and what follows from them.
    pub rollup: Rollup,
    /// With `output` all, and where every target is listed: a roll-up for each application.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppStatus>,
    /// With `output` all: the first targets, ordered by site, device and deployment, with their components.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,
    /// The view, where a deployment is watched without further filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<Box<DeploymentView>>,
    /// Partitions with devices of the sites that are watched that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
}

/// EMCO's status of a whole, with one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NoticeStatus {
    /// Every component is ready, by reports that are fresh and known to be the last.
    Ready,
    /// Some is not, or is not known to be.
    NotReady,
    /// Every device has taken up every component.
    Deployed,
    /// Some has not.
    NotDeployed,
    /// Nothing passes the filters. Never success.
    Empty,
}

impl NoticeStatus {
    /// The status on one axis; `ready` where none is named.
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

impl NoticeState {
    /// What makes a notice news: of everything but `asOf` and `changedAt`, which move although nothing else does; or of status
    /// and verdict alone.
    pub fn digest(&self, on: TellOn) -> Digest {
        if on == TellOn::Verdict {
            return Digest::of_value(&(self.status, self.verdict));
        }
        // Cannot fail: it is JSON by its types.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        without_times(&mut value);
        Digest::of_value(&value)
    }
}

/// Takes out what says only up to when something is true.
fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("asOf");
            fields.remove("changedAt");
            fields.values_mut().for_each(without_times);
        }
        Value::Array(items) => items.iter_mut().for_each(without_times),
        _ => {}
    }
}

const _: () = {
    assert!(WINDOW_MIN_MS >= 1000 / crate::limits::VIEW_WRITES_PER_SECOND as u64);
    assert!(WINDOW_MIN_MS <= WINDOW_DEFAULT_MS && WINDOW_DEFAULT_MS <= WINDOW_MAX_MS);
    assert!(LEASE_MIN_SECONDS <= LEASE_DEFAULT_SECONDS && LEASE_DEFAULT_SECONDS <= LEASE_MAX_SECONDS);
};

#[cfg(test)]
mod tests;
