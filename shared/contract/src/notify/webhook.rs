//! Webhooks: subscriptions whose notices gateways post to https addresses. The hub keeps the address and the secret sealed by a
//! key of the gateways, and the progress of deliveries. One gateway that has the key claims the newest notice of a webhook at a
//! time.

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
/// Hexadecimal digits of the id of a gateway's key.
pub const WEBHOOK_KEY_DIGITS: usize = 16;
/// Keys that a gateway may name: the one that seals, and older ones.
pub const WEBHOOK_KEYS_MAX: usize = 4;
/// Hosts, and owners, whose deliveries a gateway may leave to others or to later: as many as it delivers notices at once.
pub const WEBHOOK_SKIPPED_MAX: usize = 64;
/// Revocations in one request.
pub const WEBHOOK_REVOCATIONS_MAX: usize = 256;
/// Bytes of the key of a revoked owner.
pub const WEBHOOK_OWNER_BYTES_MAX: usize = 128;
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
    /// Address and secret, sealed by a key of gateways.
    #[serde(flatten)]
    pub sealed: SealedWebhook,
    /// The webhook is disabled if each delivery has failed for this many seconds.
    #[serde(default = "give_up_default")]
    #[schemars(range(min = WEBHOOK_GIVE_UP_MIN_SECONDS, max = WEBHOOK_GIVE_UP_MAX_SECONDS))]
    pub give_up_seconds: u64,
}

/// Address and secret of a webhook, sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SealedWebhook {
    /// The sealed text.
    #[schemars(length(max = WEBHOOK_SEALED_BYTES_MAX))]
    pub sealed: String,
    /// The id of the key that sealed it: gateways with this key deliver.
    #[schemars(regex(pattern = r"^[0-9a-f]{16}$"))]
    pub key: String,
}

impl SealedWebhook {
    /// The rules that the shape alone does not hold.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        bounded("sealed", &self.sealed, WEBHOOK_SEALED_BYTES_MAX)?;
        check_key("key", &self.key)
    }
}

fn bounded(path: &str, text: &str, most: usize) -> Result<(), Violation> {
    match text.len() {
        0 => Err(Violation::at(path, "is empty")),
        bytes if bytes > most => Err(Violation::at(path, format!("{bytes} bytes are more than {most}"))),
        _ => Ok(()),
    }
}

fn check_key(path: &str, key: &str) -> Result<(), Violation> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if key.len() == WEBHOOK_KEY_DIGITS && key.bytes().all(is_digit) {
        return Ok(());
    }
    Err(Violation::at(path, format!("must be {WEBHOOK_KEY_DIGITS} hexadecimal digits in lower case")))
}

fn check_count<T>(path: &str, all: &[T], most: usize) -> Result<(), Violation> {
    let count = all.len();
    if count <= most {
        return Ok(());
    }
    Err(Violation::at(path, format!("{count} are more than {most}")))
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
        bounded("host", &self.host, WEBHOOK_HOST_BYTES_MAX)?;
        self.sealed.check()?;
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
    /// The id of the key that sealed address and secret: gateways with this key deliver.
    #[serde(default)]
    pub key: String,
    /// The webhook is disabled if each delivery has failed for this many seconds.
    pub give_up_seconds: u64,
    /// When it was last registered.
    #[serde(default)]
    pub registered_at: Timestamp,
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
    /// When the hub disabled or ended it: nothing is delivered until it is registered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Timestamp>,
    /// When its owner's right was revoked: it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_revoked_at: Option<Timestamp>,
}

/// The webhook of a subscription, as its record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Its settings and the progress of its deliveries.
    #[serde(flatten)]
    pub progress: WebhookProgress,
    /// Address and secret, sealed by the key of `key`.
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
    /// Nothing is delivered: the receiver failed for too long, wants no more notices, or the filter is too wide.
    Disabled,
    /// Nothing is delivered: the right of its owner was revoked.
    Ended,
}

/// Why a notice is due and no gateway has tried to deliver it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WebhookUntriedCause {
    /// No gateway has asked for notices within a minute.
    NoGateway,
    /// Gateways ask, and none of them has the key that sealed the address.
    NoKey,
    /// A gateway with the key asks; other deliveries take its places.
    Busy,
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
    /// Since when, at least, a notice is due that no gateway has tried to deliver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untried_since: Option<Timestamp>,
    /// Why no gateway has tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untried_cause: Option<WebhookUntriedCause>,
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
    /// The ids of its keys: it gets notices of webhooks alone that one of them has sealed.
    #[schemars(length(max = WEBHOOK_KEYS_MAX))]
    pub keys: Vec<String>,
    /// Only webhooks whose last delivery succeeded: the gateway has enough of the others under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_failing: bool,
    /// No webhooks of these hosts, at whichever port: the gateway has enough deliveries to them under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = WEBHOOK_SKIPPED_MAX))]
    pub skip_hosts: Vec<String>,
    /// No webhooks of owners with these keys, for the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = WEBHOOK_SKIPPED_MAX))]
    pub skip_owners: Vec<String>,
}

impl WebhookDueQuery {
    /// The rules that the shape alone does not hold.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        bounded("gateway", &self.gateway, WEBHOOK_GATEWAY_BYTES_MAX)?;
        check_count("keys", &self.keys, WEBHOOK_KEYS_MAX)?;
        self.keys.iter().try_for_each(|key| check_key("keys", key))?;
        check_count("skipHosts", &self.skip_hosts, WEBHOOK_SKIPPED_MAX)?;
        check_count("skipOwners", &self.skip_owners, WEBHOOK_SKIPPED_MAX)
    }
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
    /// Address and secret.
    #[serde(flatten)]
    pub sealed: SealedWebhook,
    /// The key of the webhook's owner; absent on a hub without accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
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
    /// Address and secret anew, if a key sealed them that is not the gateway's first: the hub keeps these instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resealed: Option<SealedWebhook>,
}

impl WebhookResultRequest {
    /// The rules that the shape alone does not hold.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        bounded("gateway", &self.gateway, WEBHOOK_GATEWAY_BYTES_MAX)?;
        self.resealed
            .as_ref()
            .map_or(Ok(()), |resealed| resealed.check().map_err(|violation| violation.within("resealed")))
    }
}

/// Request of `muster.notify.webhook-revoke`: a gateway says whose right was revoked. The hub ends the webhooks that these owners
/// registered before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookRevokeRequest {
    /// The revocations.
    #[schemars(length(max = WEBHOOK_REVOCATIONS_MAX))]
    pub revoked: Vec<RevokedOwner>,
}

/// A person whose right was revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RevokedOwner {
    /// The person's key; `*` stands for everybody.
    #[schemars(length(max = WEBHOOK_OWNER_BYTES_MAX))]
    pub key: String,
    /// Tokens issued up to this time are revoked.
    pub at: Timestamp,
}

impl WebhookRevokeRequest {
    /// The rules that the shape alone does not hold.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        check_count("revoked", &self.revoked, WEBHOOK_REVOCATIONS_MAX)?;
        let keys = self.revoked.iter().map(|owner| &owner.key);
        keys.into_iter().try_for_each(|key| bounded("revoked.key", key, WEBHOOK_OWNER_BYTES_MAX))
    }
}

/// Answer of `muster.notify.webhook-revoke`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookRevokeAnswer {
    /// The webhooks that have ended by it.
    pub ended: Vec<SubscriptionName>,
}
