//! Notices: a subscriber registers a filter, and the rollup publishes the present state of what passes it, and again after each
//! change. The filters are those of [`StatusQuery`].
//!
//! A notice is complete: the newest one replaces all before it. The stream holds the newest notice of each subscription, so a
//! slow subscriber delays nobody. A gap in the numbers means that notices were replaced before they were read.

pub(crate) mod change;
mod content;
mod missed;
mod owner;
mod status;
mod webhook;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::ids::{ComponentName, DeploymentId, HubName, SiteId, SubscriptionName};
use crate::limits::FILTER_VALUES_MAX;
use crate::pulse::HubHearing;
use crate::query::Output;
use crate::status::{AppStatus, Axis, DevicePath, Rollup, StatusQuery, TargetStatus};
use crate::version::{ApiVersion, kind};
use crate::view::{AsOf, DeploymentView, Verdict};

pub use change::{StandingChange, Stood};
pub use content::{ContentQuery, NoticeContent};
pub use missed::{GoneRange, HubPosition, MissedAnswer, MissedQuery};
pub use owner::SubscriptionOwner;
pub use status::NoticeStatus;
pub use webhook::{
    RevokedOwner, SealedWebhook, WEBHOOK_CLAIM_SECONDS, WEBHOOK_ERROR_BYTES_MAX, WEBHOOK_GATEWAY_BYTES_MAX,
    WEBHOOK_GIVE_UP_DEFAULT_SECONDS, WEBHOOK_GIVE_UP_MAX_SECONDS, WEBHOOK_GIVE_UP_MIN_SECONDS,
    WEBHOOK_HOST_BYTES_MAX, WEBHOOK_KEY_DIGITS, WEBHOOK_KEYS_MAX, WEBHOOK_OWNER_BYTES_MAX,
    WEBHOOK_REVOCATIONS_MAX, WEBHOOK_SEALED_BYTES_MAX, WEBHOOK_SKIPPED_MAX, WEBHOOKS_MAX, Webhook,
    WebhookClaim, WebhookDelivery, WebhookDueAnswer, WebhookDueQuery, WebhookLine, WebhookProgress,
    WebhookRequest, WebhookResultRequest, WebhookRevokeAnswer, WebhookRevokeRequest, WebhookState,
    WebhookUntriedCause, WebhooksAnswer,
};

/// Default of the least time between two notices.
pub const WINDOW_DEFAULT_MS: u64 = 3_000;
/// Shortest window: a view is written at most twice in it.
pub const WINDOW_MIN_MS: u64 = 200;
/// Longest window.
pub const WINDOW_MAX_MS: u64 = 60 * 60 * 1000;
/// Lease of a subscription that names none, after which a dead subscriber gives its place back: an hour.
pub const LEASE_DEFAULT_SECONDS: u64 = 60 * 60;
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
/// From so many subscriptions on, a user who is no operator may make one more only while it has few.
pub const SUBSCRIPTIONS_SCARCE_FROM: usize = 600;
/// Subscriptions that such a user may have then and still make one.
pub const SUBSCRIPTIONS_OF_USER_IF_SCARCE: usize = 4;
/// Targets that one notice lists; it counts the others.
pub const NOTICE_TARGETS_MAX: usize = 200;
/// Changed standings that one notice lists; it counts the others.
pub const NOTICE_CHANGES_MAX: usize = 100;

/// Request of `muster.notify.subscribe`: a filter on the status of the fleet. Values of one filter are alternatives, several
/// filters must all hold. Without a deployment, site or device it covers the whole fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// The subscriber's name for the subscription, which outlives restarts on either side.
    pub name: SubscriptionName,
    /// The deployment; all deployments if absent.
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
    /// Only one of EMCO's axes. If absent, notices have both, and `ready` decides the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Axis>,
    /// `summary`, or `all` for a line for each target.
    #[serde(default)]
    pub output: Output,
    /// The changes that make a new notice.
    #[serde(default)]
    pub on: TellOn,
    /// Least time between two notices, in milliseconds. The next one has the changes in between.
    #[serde(default = "window_default")]
    #[schemars(range(min = WINDOW_MIN_MS, max = WINDOW_MAX_MS))]
    pub window_ms: u64,
    /// The subscription ends this many seconds after the last `subscribe` or `confirm` of the subscriber.
    #[serde(default = "lease_default")]
    #[schemars(range(min = LEASE_MIN_SECONDS, max = LEASE_MAX_SECONDS))]
    pub lease_seconds: u64,
    /// True: the subscription waits for names that the fleet does not have yet. False: they are refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait_for: bool,
}

const fn window_default() -> u64 {
    WINDOW_DEFAULT_MS
}

const fn lease_default() -> u64 {
    LEASE_DEFAULT_SECONDS
}

/// The changes that make a new notice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TellOn {
    /// Any change of what notices show.
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

    /// True if it covers one deployment as a whole: then notices have its verdict and view.
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
        if !matches!(self.output, Output::Summary | Output::All) {
            return Err(Violation::at("output", "a notice has output summary or all; ask for detail"));
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
#[serde(rename_all = "camelCase")]
pub struct SubscriptionAnswer {
    /// The subscription.
    pub name: SubscriptionName,
    /// True if the same subscription existed already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumed: bool,
    /// Number of the last notice that the subscriber has confirmed: it need not show notices up to it again.
    pub seen: u64,
    /// Number of the newest notice, on `muster.notice.<name>`; 0 before the first.
    pub told: u64,
    /// LEDGER sequence up to which the subscriber has confirmed all changes; those after it are in
    /// `muster.notify.missed`. Absent where it is not known, and in a federation.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub seen_seq: u64,
}

/// Request of `muster.notify.confirm`: the subscriber has processed a notice. It renews the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfirmRequest {
    /// The subscription.
    pub name: SubscriptionName,
    /// The notice's number.
    pub number: u64,
    /// `asOf.ledgerSeq` of the notice. If absent, the confirmed position moves only with the newest notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_seq: Option<u64>,
    /// `hubs` of the notice, in a federation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<HubPosition>,
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
    /// Most subscriptions in one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Subscriptions after this one: `next` of the previous page.
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

/// A subscription and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionLine {
    /// The filter.
    pub subscription: Subscription,
    /// Its owner; absent on a hub without accounts, where every client may change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SubscriptionOwner>,
    /// The last notice confirmed.
    pub seen: u64,
    /// The newest notice.
    pub told: u64,
}

/// `muster.subscription.<name>`: a subscription in its stream, kept as long as its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionRecord {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `SubscriptionRecord`
    pub kind: kind::SubscriptionRecord,
    /// The filter.
    pub subscription: Subscription,
    /// The last notice confirmed.
    pub seen: u64,
    /// LEDGER sequence up to which changes are confirmed: that of the last notice confirmed, or of the beginning of the
    /// subscription. 0 where it is not known.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub seen_seq: u64,
    /// In a federation, the same in the LEDGER of each hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen_at: Vec<HubPosition>,
    /// Number of the newest notice at the time of its creation: notices up to it belong to an earlier subscription of the same
    /// name.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub began: u64,
    /// Its owner: no other user may replace, confirm, list or end it, except that operators may list and end it. Absent on a hub
    /// without accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SubscriptionOwner>,
    /// Where gateways post its notices, and how that goes; absent where a subscriber reads them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

impl Document for SubscriptionRecord {
    const KIND: &'static str = "SubscriptionRecord";

    fn check(&self) -> Result<(), Violation> {
        self.subscription.check().map_err(|violation| violation.within("subscription"))
    }
}

/// `muster.notice.<name>`: the complete present state of what passes a subscription's filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Notice`
    pub kind: kind::Notice,
    /// The subscription.
    pub name: SubscriptionName,
    /// Its number: 1, 2, 3 and so on. A notice that is missing was replaced by a newer one.
    pub number: u64,
    /// The kind of notice.
    pub event: NoticeEvent,
    /// The position in LEDGER that it reflects.
    pub as_of: AsOf,
    /// The position that the previous notice reflected; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// In a notice of a federation, the position in the LEDGER of each hub that it reflects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<HubPosition>,
    /// True if the window delayed it: further changes since the previous notice are not shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub coalesced: bool,
    /// The state; absent if nothing passes the filter, or the subscription has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NoticeState>,
    /// Standings that differ from the previous notice, ordered by site, device and deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<StandingChange>,
    /// Counts of the parts that do not fit into a notice.
    #[serde(default, skip_serializing_if = "NoticeOmitted::is_nothing")]
    pub omitted: NoticeOmitted,
    /// The reason, if the subscription has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// The cause of `event` as a text: the reason why nothing passes the filter, or why the subscription has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Digest of what the subscription shows; two consecutive notices never have the same.
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

/// Kinds of notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoticeEvent {
    /// The first notice of a subscription.
    Present,
    /// The state differs from the previous notice.
    Changed,
    /// Nothing passes the filter: it is targeted nowhere and left nowhere. The subscription stays, and a notice follows once
    /// something does.
    Gone,
    /// The subscription has ended. No notice follows until a client subscribes again.
    Ended,
}

/// Why a subscription has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EndReason {
    /// A client ended it.
    Unsubscribed,
    /// Its lease ended.
    Expired,
    /// More standings pass the filters than one notice may look at.
    TooWide,
}

/// The parts that a notice leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticeOmitted {
    /// The number of targets that are not listed; the roll-up counts them.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub targets: u64,
    /// The number of changed standings that are not listed.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub changes: u64,
    /// True if changes may be missing, because there were too many or the rollup restarted. The state is complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_changes: bool,
    /// True if the view of the deployment did not fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub view: bool,
}

impl NoticeOmitted {
    /// True if nothing was left out.
    pub const fn is_nothing(&self) -> bool {
        self.targets == 0 && self.changes == 0 && !self.more_changes && !self.view
    }
}

/// The state of what passes the filters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoticeState {
    /// The status of the whole: `Ready` or `Deployed` only if every part is.
    pub status: NoticeStatus,
    /// The verdict, if the filter is one deployment and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Counts, and what follows from them.
    pub rollup: Rollup,
    /// A roll-up for each application, with `output` all and if every target is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppStatus>,
    /// The first targets with their components, ordered by site, device and deployment, with `output` all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,
    /// The view, if the filter is one deployment and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<Box<DeploymentView>>,
    /// Partitions that the hub does not listen to, if they have devices of the sites of the filter.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// In a federation, hubs that are not heard and may have parts of what passes the filters: the roll-up lacks them, so
    /// the status is neither `Ready` nor `Deployed`. The verdict and the view count their devices as stale.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_hubs: Vec<HubName>,
}

impl NoticeState {
    /// The digest of everything but `asOf`, `changedAt` and `lastHeardAt`, which change by themselves; or of status and verdict
    /// alone. A notice is published when it changes.
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

/// Removes the fields that say only up to when something is true.
fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("asOf");
            fields.remove("changedAt");
            fields.remove("lastHeardAt");
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
