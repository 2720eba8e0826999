//! Handles subscription requests (`muster.notify.*`).
//!
//! A request takes effect once NOTICES has stored it; the notifier, here or in another process, reads it from
//! there. Requests about webhooks are in [`crate::webhook_handler`]. [`crate::ownership`] decides who owns a name and how many
//! subscriptions a requester may have.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{
    Bus, Call, EndpointSpec, Fault, NoticeEntry, PublishError, PublishErrorKind, ReadError, Requester,
    ServiceSpec, with_lag,
};
use muster_contract::SubscriptionName;
use muster_contract::decode::{self, to_bytes};
use muster_contract::notify::{
    ConfirmRequest, HubPosition, MissedQuery, Notice, Subscription, SubscriptionAnswer, SubscriptionRecord,
    SubscriptionsAnswer, SubscriptionsQuery, UnsubscribeRequest, WebhookRequest,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{bad, checked_limit, read, read_or_default};
use muster_contract::subjects::NOTIFY_PREFIX;
use muster_service::clock::{Clock as _, SystemClock};
use muster_service::error::chain;
use muster_service::health::Latch;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::ownership::{Action, check_lease, is_allowed, not_yours, owner_of};
use crate::register::{SharedRegister, held};
use crate::source::{Beginning, NoticeSource};
use crate::webhooks;

/// The service's name in `$SRV.INFO`.
const SERVICE: &str = "muster-notify";
/// Version of the requests and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "Notifies subscribers of the state of what they watch, and of each change";
const ENDPOINTS: [&str; 12] = [
    "subscribe",
    "confirm",
    "unsubscribe",
    "list",
    "missed",
    "content",
    "webhook-register",
    "webhook-list",
    "webhook-remove",
    "webhook-due",
    "webhook-result",
    "webhook-revoke",
];
/// Attempts to write while others write the same name.
pub(crate) const ATTEMPTS_MAX: usize = 8;
/// How long a request waits until the subscriptions are known: less than the client's timeout.
const KNOWN_WAIT: Duration = Duration::from_secs(2);
/// Interval of that check.
const KNOWN_LOOK: Duration = Duration::from_millis(20);
/// Subscriptions in one answer, so that any list of filters fits into a message.
pub(crate) const LINES_MAX: usize = 10;

/// Handles subscription requests. Clones share everything.
#[derive(Debug)]
pub struct SubscriptionHandler<S> {
    pub(crate) bus: Bus,
    pub(crate) source: Arc<S>,
    pub(crate) register: SharedRegister,
}

impl<S> Clone for SubscriptionHandler<S> {
    fn clone(&self) -> Self {
        Self { bus: self.bus.clone(), source: Arc::clone(&self.source), register: Arc::clone(&self.register) }
    }
}

/// A subscription as the stream holds it now.
pub(crate) struct StoredSubscription {
    pub(crate) record: Option<SubscriptionRecord>,
    pub(crate) revision: u64,
}

impl<S: NoticeSource> SubscriptionHandler<S> {
    /// Creates a handler for the subscriptions of the register.
    pub const fn new(bus: Bus, source: Arc<S>, register: SharedRegister) -> Self {
        Self { bus, source, register }
    }

    /// Takes requests until `stop`; those already taken are answered then.
    pub async fn serve(self, offered: Latch, stop: CancellationToken) {
        let bus = self.bus.clone();
        let handler = move |call: Call| {
            let subscriptions = self.clone();
            async move {
                let answer = subscriptions.answer(call.endpoint, &call.payload, &call.requester).await;
                with_lag(answer.map_err(Fault::from), call.endpoint, &subscriptions.source.lag())
            }
        };
        let endpoint = |name| EndpointSpec { name, subject: format!("{NOTIFY_PREFIX}.{name}") };
        let spec = ServiceSpec {
            name: SERVICE,
            version: SERVICE_VERSION,
            description: DESCRIPTION,
            endpoints: ENDPOINTS.map(endpoint).to_vec(),
        };
        bus.offer(spec, handler, || offered.release(), stop).await;
    }

    /// The answer to a request, as JSON.
    ///
    /// # Errors
    /// The reason, for the requester.
    pub async fn answer(
        &self,
        endpoint: &str,
        request: &[u8],
        requester: &Requester,
    ) -> Result<Bytes, ErrorBody> {
        match endpoint {
            "subscribe" => json(self.subscribe(read(request)?, requester).await?),
            "confirm" => json(self.confirm(read(request)?, requester).await?),
            "unsubscribe" => {
                requester
                    .author(&format!("{NOTIFY_PREFIX}.{endpoint}"))
                    .map_err(|error| ErrorBody { code: ErrorCode::Forbidden, message: error.to_string() })?;
                json(self.unsubscribe(read(request)?, requester).await?)
            }
            "list" => json(self.list(&read_or_default(request)?, requester).await?),
            "missed" => self.missed(read(request)?, requester).await,
            "content" => json(self.source.content(read(request)?).await?),
            "webhook-register" => json(self.webhook_register(read(request)?, requester).await?),
            "webhook-list" => json(self.webhook_list(&read_or_default(request)?, requester).await?),
            "webhook-remove" => json(self.webhook_remove(read(request)?, requester).await?),
            "webhook-due" => json(self.webhook_due(read(request)?, requester).await?),
            "webhook-result" => json(self.webhook_result(read(request)?, requester).await?),
            "webhook-revoke" => json(self.webhook_revoke(read(request)?, requester).await?),
            other => Err(bad(format!("there is no request '{other}'"))),
        }
    }

    /// Makes a subscription, or takes up one that is there just like this.
    async fn subscribe(
        &self,
        wanted: Subscription,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        wanted.check().map_err(|violation| bad(violation.to_string()))?;
        check_lease(requester, &wanted)?;
        self.store(&wanted, None, requester).await
    }

    /// Stores a subscription that is new or exists with the same filters, with its webhook if it has one.
    pub(crate) async fn store(
        &self,
        wanted: &Subscription,
        webhook: Option<&WebhookRequest>,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        self.source.check(wanted).await?;
        self.known().await?;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(&wanted.name).await?;
            match &record {
                record if webhook.is_none() => refuse_webhook(record.as_ref())?,
                Some(record) if record.webhook.is_none() => return Err(taken(&wanted.name)),
                _ => held(&self.register).check_webhooks(&wanted.name)?,
            }
            let told = self.newest_number(&wanted.name).await?;
            let resumed = record.is_some();
            let record = self.taken_up(record, wanted, told, requester)?;
            let webhook = webhook.map(|request| webhooks::registered(request, SystemClock.now()));
            let record = SubscriptionRecord { webhook, ..record };
            match self.write(&record, revision).await {
                Ok(()) => return Ok(answered(&record, resumed, told)),
                Err(error) => {
                    held(&self.register).release(&wanted.name);
                    if error.kind != PublishErrorKind::Conflict {
                        return Err(not_written(&error));
                    }
                }
            }
        }
        Err(busy(&wanted.name))
    }

    /// The record of a subscription that is there just like this, or of a new one, which reserves its name.
    fn taken_up(
        &self,
        record: Option<SubscriptionRecord>,
        wanted: &Subscription,
        told: u64,
        requester: &Requester,
    ) -> Result<SubscriptionRecord, ErrorBody> {
        let Some(record) = record else {
            held(&self.register).reserve(&wanted.name, requester)?;
            let Beginning { ledger_seq, hubs } = self.source.beginning();
            return Ok(SubscriptionRecord {
                api_version: Default::default(),
                kind: Default::default(),
                subscription: wanted.clone(),
                // Notices of an earlier subscription with this name do not count for this one.
                seen: told,
                seen_seq: ledger_seq,
                seen_at: hubs,
                began: told,
                owner: owner_of(requester),
                webhook: None,
            });
        };
        if !is_allowed(requester, record.owner.as_ref(), Action::Change) {
            return Err(not_yours(&wanted.name));
        }
        if !is_same(&record.subscription, wanted) {
            return Err(taken(&wanted.name));
        }
        Ok(SubscriptionRecord { subscription: wanted.clone(), ..record })
    }

    /// Waits until the subscriptions are known, which is a moment after LEDGER is read. On a timeout an error
    /// is returned, because "no subscriptions" would be wrong.
    pub(crate) async fn known(&self) -> Result<(), ErrorBody> {
        let deadline = Instant::now() + KNOWN_WAIT;
        while !held(&self.register).is_known() {
            if Instant::now() >= deadline {
                let message = "still reading who has subscribed; ask again in a moment".to_owned();
                return Err(ErrorBody { code: ErrorCode::NotReady, message });
            }
            sleep(KNOWN_LOOK).await;
        }
        Ok(())
    }

    /// Records a subscriber's position, and that it is alive.
    async fn confirm(
        &self,
        request: ConfirmRequest,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        let ConfirmRequest { name, number, ledger_seq, hubs } = request;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(&name).await?;
            refuse_webhook(record.as_ref())?;
            let mut record = record.ok_or_else(|| absent(&name))?;
            if !is_allowed(requester, record.owner.as_ref(), Action::Change) {
                return Err(not_yours(&name));
            }
            let newest = self.newest(&name).await?;
            let told = newest.as_ref().map_or(0, |notice| notice.number);
            if number > told {
                return Err(bad(format!("number: {number} was never told; the newest is {told}")));
            }
            move_on(&mut record, number, ledger_seq, &hubs, newest.as_ref());
            match self.write(&record, revision).await {
                Ok(()) => return Ok(answered(&record, true, told)),
                Err(error) if error.kind == PublishErrorKind::Conflict => {}
                Err(error) => return Err(not_written(&error)),
            }
        }
        Err(busy(&name))
    }

    /// The changes that a subscriber has not confirmed.
    async fn missed(&self, request: MissedQuery, requester: &Requester) -> Result<Bytes, ErrorBody> {
        let stored = match &request.filter {
            Some(filter) => {
                filter.check().map_err(|violation| bad(violation.within("filter").to_string()))?;
                None
            }
            None => {
                let record = self.held(&request.name).await?.record.ok_or_else(|| absent(&request.name))?;
                if !is_allowed(requester, record.owner.as_ref(), Action::List) {
                    return Err(not_yours(&request.name));
                }
                Some((record, self.newest(&request.name).await?))
            }
        };
        self.source.missed(request, stored, requester.clone()).await
    }

    pub(crate) async fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        let UnsubscribeRequest { name } = request;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(&name).await?;
            let record = record.ok_or_else(|| absent(&name))?;
            if !is_allowed(requester, record.owner.as_ref(), Action::End) {
                return Err(not_yours(&name));
            }
            let told = self.newest_number(&name).await?;
            match self.bus.subscription_end(&name, revision).await {
                Ok(_) => return Ok(answered(&record, true, told)),
                Err(error) if error.kind == PublishErrorKind::Conflict => {}
                Err(error) => return Err(not_written(&error)),
            }
        }
        Err(busy(&name))
    }

    async fn list(
        &self,
        request: &SubscriptionsQuery,
        requester: &Requester,
    ) -> Result<SubscriptionsAnswer, ErrorBody> {
        let limit = checked_limit(request.limit)?;
        self.known().await?;
        let (subscriptions, more) =
            held(&self.register).page(requester, request.after.as_ref(), limit.min(LINES_MAX));
        let last = subscriptions.last().map(|line| line.subscription.name.clone());
        Ok(SubscriptionsAnswer { subscriptions, next: last.filter(|_| more) })
    }

    /// Writes a record for its lease. The server keeps a disabled webhook for a time of its own.
    pub(crate) async fn write(&self, record: &SubscriptionRecord, revision: u64) -> Result<(), PublishError> {
        let mut record = record.clone();
        let mut lease = Duration::from_secs(record.subscription.lease_seconds);
        if let Some(webhook) = &mut record.webhook {
            webhook.stored_at = SystemClock.now();
            lease = webhooks::kept_for(webhook).unwrap_or(lease);
        }
        let name = &record.subscription.name;
        self.bus.subscription_put(name, to_bytes(&record).into(), lease, revision).await.map(drop)
    }

    /// The subscription of a name as the stream has it: this process may not have read of it yet.
    pub(crate) async fn held(&self, name: &SubscriptionName) -> Result<StoredSubscription, ErrorBody> {
        let Some(entry) = self.bus.subscription_last(name).await.map_err(not_read)? else {
            return Ok(StoredSubscription { record: None, revision: 0 });
        };
        let NoticeEntry { value, revision, .. } = entry;
        // An unreadable entry is overwritten.
        let record = value.ok().and_then(|value| decode::parse::<SubscriptionRecord>(&value).ok());
        Ok(StoredSubscription { record, revision })
    }

    /// The newest notice of a name.
    pub(crate) async fn newest(&self, name: &SubscriptionName) -> Result<Option<Notice>, ErrorBody> {
        let last = self.bus.notice_last(name).await.map_err(not_read)?;
        Ok(last.and_then(|entry| decode::parse::<Notice>(&entry.value.ok()?).ok()))
    }

    /// Number of the newest notice of a name.
    async fn newest_number(&self, name: &SubscriptionName) -> Result<u64, ErrorBody> {
        Ok(self.newest(name).await?.map_or(0, |notice| notice.number))
    }
}

fn answered(record: &SubscriptionRecord, resumed: bool, told: u64) -> SubscriptionAnswer {
    let SubscriptionRecord { subscription, seen, seen_seq, seen_at, .. } = record;
    // In a federation the sum of the sequences is no place to go on from.
    let seen_seq = if seen_at.is_empty() { *seen_seq } else { 0 };
    SubscriptionAnswer { name: subscription.name.clone(), resumed, seen: *seen, told, seen_seq }
}

/// Moves the confirmed position on to a notice. The position of the newest notice is known; that of an older one is what
/// the subscriber says, but never beyond the newest.
pub(crate) fn move_on(
    record: &mut SubscriptionRecord,
    number: u64,
    ledger_seq: Option<u64>,
    hubs: &[HubPosition],
    newest: Option<&Notice>,
) {
    record.seen = record.seen.max(number);
    let Some(newest) = newest else { return };
    if number == newest.number {
        record.seen_seq = newest.as_of.ledger_seq;
        record.seen_at.clone_from(&newest.hubs);
        return;
    }
    if let Some(seq) = ledger_seq {
        record.seen_seq = record.seen_seq.max(seq.min(newest.as_of.ledger_seq));
    }
    for said in hubs {
        let Some(known) = newest.hubs.iter().find(|hub| hub.name == said.name) else { continue };
        let seq = said.ledger_seq.min(known.ledger_seq);
        match record.seen_at.iter_mut().find(|hub| hub.name == said.name) {
            Some(seen) => seen.ledger_seq = seen.ledger_seq.max(seq),
            None => record.seen_at.push(HubPosition { name: said.name.clone(), ledger_seq: seq }),
        }
    }
}

/// Whether two subscriptions select the same. Their rates and retention may differ.
fn is_same(one: &Subscription, other: &Subscription) -> bool {
    let Subscription { window_ms, lease_seconds, wait_for, .. } = *other;
    Subscription { window_ms, lease_seconds, wait_for, ..one.clone() } == *other
}

fn json<T: Serialize>(answer: T) -> Result<Bytes, ErrorBody> {
    let internal =
        |error: serde_json::Error| ErrorBody { code: ErrorCode::Internal, message: error.to_string() };
    serde_json::to_vec(&answer).map(Bytes::from).map_err(internal)
}

pub(crate) fn absent(name: &SubscriptionName) -> ErrorBody {
    let message =
        format!("there is no subscription '{name}': it was never made, or has ended; subscribe again");
    ErrorBody { code: ErrorCode::NotFound, message }
}

fn taken(name: &SubscriptionName) -> ErrorBody {
    let message = format!(
        "subscription '{name}' exists with another content: take another name, or unsubscribe it first"
    );
    ErrorBody { code: ErrorCode::Conflict, message }
}

/// Refuses a request of a subscriber about a webhook: its lease and its progress are those of the gateways.
fn refuse_webhook(record: Option<&SubscriptionRecord>) -> Result<(), ErrorBody> {
    let Some(record) = record.filter(|record| record.webhook.is_some()) else { return Ok(()) };
    let name = &record.subscription.name;
    let message = format!("'{name}' is a webhook: take another name, or remove the webhook first");
    Err(ErrorBody { code: ErrorCode::Conflict, message })
}

pub(crate) fn busy(name: &SubscriptionName) -> ErrorBody {
    let message = format!("others change subscription '{name}' all the time; ask again");
    ErrorBody { code: ErrorCode::Conflict, message }
}

pub(crate) fn not_written(error: &PublishError) -> ErrorBody {
    ErrorBody {
        code: ErrorCode::Internal,
        message: format!("the subscription is not stored: {}", chain(error)),
    }
}

#[allow(clippy::needless_pass_by_value)]
fn not_read(error: ReadError) -> ErrorBody {
    ErrorBody {
        code: ErrorCode::Internal,
        message: format!("the subscription cannot be read: {}", chain(&error)),
    }
}
