//! Webhooks: subscriptions whose notices gateways post to https addresses. The hub keeps the address and the secret sealed by a
//! key of the gateways, and the progress of deliveries. One gateway at a time claims the newest notice of a webhook.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Notice, Subscription, SubscriptionOwner, within};
use crate::decode::Violation;
use crate::ids::SubscriptionName;

/// Webhooks there may be, of all subscriptions.
pub const WEBHOOKS_MAX: usize = 256;
/// Bytes of a webhook's sealed address and secret.
pub const WEBHOOK_SEALED_BYTES_MAX: usize = 4096;
/// Bytes of a webhook's host and port.
pub const WEBHOOK_HOST_BYTES_MAX: usize = 300;
/// Bytes of a gateway's name in a claim.
pub const WEBHOOK_GATEWAY_BYTES_MAX: usize = 64;
/// Bytes of an error that are kept.
pub const WEBHOOK_ERROR_BYTES_MAX: usize = 256;
/// How long a gateway has a claimed notice to itself.
pub const WEBHOOK_CLAIM_SECONDS: u64 = 30;
/// Default of the time after which a webhook that only fails is disabled: a day.
pub const WEBHOOK_GIVE_UP_DEFAULT_SECONDS: u64 = 24 * 60 * 60;
/// Shortest such time.
pub const WEBHOOK_GIVE_UP_MIN_SECONDS: u64 = 10;
/// Longest such time: a week.
pub const WEBHOOK_GIVE_UP_MAX_SECONDS: u64 = 7 * 24 * 60 * 60;

/// Request of `muster.notify.webhook-register`, for operators, also through a gateway. It makes a webhook, or replaces address and
/// secret of the webhook with the same name and filters, which enables that webhook again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookRequest {
    /// Name and filters. Its lease is not read: a webhook lasts until it is removed.
    pub subscription: Subscription,
    /// Host and port of the address, for people.
    #[schemars(length(max = WEBHOOK_HOST_BYTES_MAX))]
    pub host: String,
    /// Address and secret, sealed by the key of the gateways.
    #[schemars(length(max = WEBHOOK_SEALED_BYTES_MAX))]
    pub sealed: String,
    /// The webhook is disabled if each delivery has failed for this many seconds.
    #[serde(default = "give_up_default")]
    #[schemars(range(min = WEBHOOK_GIVE_UP_MIN_SECONDS, max = WEBHOOK_GIVE_UP_MAX_SECONDS))]
    pub give_up_seconds: u64,
}

const fn give_up_default() -> u64 {
    WEBHOOK_GIVE_UP_DEFAULT_SECONDS
}

impl WebhookRequest {
    /// The rules that the shape alone does not hold.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        let bounded = |path: &str, text: &str, most: usize| match text.len() {
            0 => Err(Violation::at(path, "is empty")),
            bytes if bytes > most => Err(Violation::at(path, format!("{bytes} bytes are more than {most}"))),
            _ => Ok(()),
        };
        bounded("host", &self.host, WEBHOOK_HOST_BYTES_MAX)?;
        bounded("sealed", &self.sealed, WEBHOOK_SEALED_BYTES_MAX)?;
        let (least, most) = (WEBHOOK_GIVE_UP_MIN_SECONDS, WEBHOOK_GIVE_UP_MAX_SECONDS);
        within("giveUpSeconds", self.give_up_seconds, least, most)?;
        self.subscription.check().map_err(|violation| violation.within("subscription"))
    }
}

/// The settings of a webhook that people see, and the progress of its deliveries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookProgress {
    /// Host and port of the address.
    pub host: String,
    /// The webhook is disabled if each delivery has failed for this many seconds.
    pub give_up_seconds: u64,
    /// Deliveries that have failed since the last one that succeeded.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub failures: u64,
    /// Since when all deliveries fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// Earliest time of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// When a notice was last delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Timestamp>,
    /// Why the last delivery failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When the hub disabled it: nothing is delivered until it is registered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Timestamp>,
}

/// The webhook of a subscription, as its record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Its settings and the progress of its deliveries.
    #[serde(flatten)]
    pub progress: WebhookProgress,
    /// Address and secret, sealed by the key of the gateways.
    pub sealed: String,
    /// When the hub last stored it.
    pub stored_at: Timestamp,
    /// The gateway that delivers now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<WebhookClaim>,
}

/// A gateway's exclusive right to deliver one notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookClaim {
    /// The gateway's own random name.
    pub gateway: String,
    /// Number of the notice.
    pub number: u64,
    /// Its end: then another gateway may claim the notice.
    pub until: Timestamp,
}

/// The state of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WebhookState {
    /// The last delivery succeeded, or there was none yet.
    Active,
    /// The last delivery failed; it is tried again.
    Failing,
    /// Nothing is delivered.
    Disabled,
}

/// A webhook for people: without address and secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookLine {
    /// Name and filters.
    pub subscription: Subscription,
    /// Its owner; absent on a hub without accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SubscriptionOwner>,
    /// Its state.
    pub state: WebhookState,
    /// Number of the last delivered notice.
    pub seen: u64,
    /// Number of the newest notice.
    pub told: u64,
    /// Its settings and the progress of its deliveries.
    #[serde(flatten)]
    pub progress: WebhookProgress,
}

/// Answer of `muster.notify.webhook-list`: ordered by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhooksAnswer {
    /// The webhooks.
    pub webhooks: Vec<WebhookLine>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SubscriptionName>,
}

/// Request of `muster.notify.webhook-due`: a gateway asks for one notice to deliver, which it claims thereby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDueQuery {
    /// The gateway's own random name.
    #[schemars(length(max = WEBHOOK_GATEWAY_BYTES_MAX))]
    pub gateway: String,
    /// Only webhooks whose last delivery succeeded: the gateway has enough of the others under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_failing: bool,
}

/// Answer of `muster.notify.webhook-due`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookDueAnswer {
    /// The delivery; absent if none is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<WebhookDelivery>,
}

/// A notice that one gateway is to deliver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookDelivery {
    /// Host and port of the address.
    pub host: String,
    /// Address and secret, sealed by the key of the gateways.
    pub sealed: String,
    /// Deliveries that have failed since the last one that succeeded.
    pub failures: u64,
    /// The notice.
    pub notice: Notice,
}

/// Request of `muster.notify.webhook-result`: the outcome of a claimed delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookResultRequest {
    /// The webhook.
    pub name: SubscriptionName,
    /// Number of the notice.
    pub number: u64,
    /// The gateway's own random name.
    #[schemars(length(max = WEBHOOK_GATEWAY_BYTES_MAX))]
    pub gateway: String,
    /// Why the delivery failed; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The receiver wants no more notices: the webhook is disabled at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// The receiver wants no attempt for this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}
