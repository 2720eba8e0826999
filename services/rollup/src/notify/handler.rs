//! Handles subscription requests (`muster.notify.*`).
//!
//! A request takes effect once NOTICES has stored it; the notifier, here or in another rollup, reads it from
//! there. [`super::ownership`] decides who owns a name and how many subscriptions a requester may have.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{
    Bus, Call, EndpointSpec, Fault, NoticeEntry, PublishError, PublishErrorKind, ReadError, Requester,
    ServiceSpec,
};
use muster_contract::SubscriptionName;
use muster_contract::decode::{self, to_bytes};
use muster_contract::notify::{
    ConfirmRequest, Notice, Subscription, SubscriptionAnswer, SubscriptionRecord, SubscriptionsAnswer,
    SubscriptionsQuery, UnsubscribeRequest,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{bad, checked_limit, read, read_or_default};
use muster_contract::subjects::NOTIFY_PREFIX;
use muster_domain::fold::NothingToTell;
use muster_service::error::chain;
use muster_service::health::Latch;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::ownership::{Action, check_lease, is_allowed, not_yours, owner_of};
use super::{SharedRegister, held};
use crate::projection::Projection;

/// The service's name in `$SRV.INFO`.
const SERVICE: &str = "muster-notify";
/// Version of the requests and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "Tells subscribers how what they watch is, and when it has changed";
const ENDPOINTS: [&str; 4] = ["subscribe", "confirm", "unsubscribe", "list"];
/// Attempts to write while others write the same name.
const ATTEMPTS_MAX: usize = 8;
/// How long a request waits until the subscriptions are known: less than the client's timeout.
const KNOWN_WAIT: Duration = Duration::from_secs(2);
/// Interval of that check.
const KNOWN_LOOK: Duration = Duration::from_millis(20);
/// Subscriptions in one answer, so that any list of filters fits into a message.
const LINES_MAX: usize = 10;

/// Handles subscription requests. Clones share everything.
#[derive(Debug, Clone)]
pub struct SubscriptionHandler {
    bus: Bus,
    projection: Arc<Projection>,
    register: SharedRegister,
}

/// A subscription as the stream holds it now.
struct StoredSubscription {
    record: Option<SubscriptionRecord>,
    revision: u64,
}

impl SubscriptionHandler {
    /// Creates a handler for the subscriptions of the register.
    pub const fn new(bus: Bus, projection: Arc<Projection>, register: SharedRegister) -> Self {
        Self { bus, projection, register }
    }

    /// Takes requests until `stop`; those already taken are answered then.
    pub async fn serve(self, offered: Latch, stop: CancellationToken) {
        let bus = self.bus.clone();
        let handler = move |call: Call| {
            let desk = self.clone();
            async move { desk.answer(call.endpoint, &call.payload, &call.requester).await.map_err(Fault::from) }
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
            "unsubscribe" => json(self.unsubscribe(read(request)?, requester).await?),
            "list" => json(self.list(&read_or_default(request)?, requester).await?),
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
        self.can_be_told(&wanted)?;
        self.known().await?;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(&wanted.name).await?;
            let told = self.told(&wanted.name).await?;
            let (seen, began) = match &record {
                Some(record) if !is_allowed(requester, record.owner.as_ref(), Action::Change) => {
                    return Err(not_yours(&wanted.name));
                }
                Some(record) if !is_same(&record.subscription, &wanted) => return Err(taken(&wanted.name)),
                Some(record) => (record.seen, record.began),
                // Notices of an earlier subscription with this name do not count for this one.
                None => (told, told),
            };
            let (name, resumed) = (wanted.name.clone(), record.is_some());
            let owner = match record {
                Some(record) => record.owner,
                None => {
                    held(&self.register).reserve(&name, requester)?;
                    owner_of(requester)
                }
            };
            let (api_version, kind, subscription) = (Default::default(), Default::default(), wanted.clone());
            let record = SubscriptionRecord { api_version, kind, subscription, seen, began, owner };
            match self.write(&record, revision).await {
                Ok(()) => return Ok(SubscriptionAnswer { name, resumed, seen, told }),
                Err(error) => {
                    held(&self.register).release(&name);
                    if error.kind != PublishErrorKind::Conflict {
                        return Err(not_written(&error));
                    }
                }
            }
        }
        Err(busy(&wanted.name))
    }

    /// Checks that a subscription asks for something that can be evaluated.
    fn can_be_told(&self, wanted: &Subscription) -> Result<(), ErrorBody> {
        let looked = self.projection.read(|now| {
            let read_to = now.fleet.as_of().ledger_seq;
            if now.caught_up { Ok(now.fleet.notice_state(wanted, 0).map(drop)) } else { Err(read_to) }
        });
        match looked {
            Err(read_to) => {
                let message = format!("still reading LEDGER (at {read_to}); ask again in a moment");
                Err(ErrorBody { code: ErrorCode::NotReady, message })
            }
            Ok(Ok(())) => Ok(()),
            Ok(Err(NothingToTell::Absent(_))) if wanted.wait_for => Ok(()),
            Ok(Err(NothingToTell::Absent(message))) => Err(ErrorBody { code: ErrorCode::NotFound, message }),
            Ok(Err(error)) => Err(bad(error.to_string())),
        }
    }

    /// Waits until the subscriptions are known, which is a moment after LEDGER is read. On a timeout an error
    /// is returned, because "no subscriptions" would be wrong.
    async fn known(&self) -> Result<(), ErrorBody> {
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
        let ConfirmRequest { name, number } = request;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(&name).await?;
            let mut record = record.ok_or_else(|| absent(&name))?;
            if !is_allowed(requester, record.owner.as_ref(), Action::Change) {
                return Err(not_yours(&name));
            }
            let told = self.told(&name).await?;
            if number > told {
                return Err(bad(format!("number: {number} was never told; the newest is {told}")));
            }
            record.seen = record.seen.max(number);
            let seen = record.seen;
            match self.write(&record, revision).await {
                Ok(()) => return Ok(SubscriptionAnswer { name, resumed: true, seen, told }),
                Err(error) if error.kind == PublishErrorKind::Conflict => {}
                Err(error) => return Err(not_written(&error)),
            }
        }
        Err(busy(&name))
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        let UnsubscribeRequest { name } = request;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(&name).await?;
            let SubscriptionRecord { seen, owner, .. } = record.ok_or_else(|| absent(&name))?;
            if !is_allowed(requester, owner.as_ref(), Action::End) {
                return Err(not_yours(&name));
            }
            let told = self.told(&name).await?;
            match self.bus.subscription_end(&name, revision).await {
                Ok(_) => return Ok(SubscriptionAnswer { name, resumed: true, seen, told }),
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

    async fn write(&self, record: &SubscriptionRecord, revision: u64) -> Result<(), PublishError> {
        let Subscription { name, lease_seconds, .. } = &record.subscription;
        let lease = Duration::from_secs(*lease_seconds);
        self.bus.subscription_put(name, to_bytes(record).into(), lease, revision).await.map(drop)
    }

    /// The subscription of a name as the stream has it: this process may not have read of it yet.
    async fn held(&self, name: &SubscriptionName) -> Result<StoredSubscription, ErrorBody> {
        let Some(entry) = self.bus.subscription_last(name).await.map_err(not_read)? else {
            return Ok(StoredSubscription { record: None, revision: 0 });
        };
        let NoticeEntry { value, revision, .. } = entry;
        // An unreadable entry is overwritten.
        let record = value.ok().and_then(|value| decode::parse::<SubscriptionRecord>(&value).ok());
        Ok(StoredSubscription { record, revision })
    }

    /// Number of the newest notice of a name.
    async fn told(&self, name: &SubscriptionName) -> Result<u64, ErrorBody> {
        let last = self.bus.notice_last(name).await.map_err(not_read)?;
        let notice = last.and_then(|entry| decode::parse::<Notice>(&entry.value.ok()?).ok());
        Ok(notice.map_or(0, |notice| notice.number))
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

fn absent(name: &SubscriptionName) -> ErrorBody {
    let message =
        format!("there is no subscription '{name}': it was never made, or has ended; subscribe again");
    ErrorBody { code: ErrorCode::NotFound, message }
}

fn taken(name: &SubscriptionName) -> ErrorBody {
    let message = format!(
        "subscription '{name}' is there and about something else: take another name, or unsubscribe it first"
    );
    ErrorBody { code: ErrorCode::Conflict, message }
}

fn busy(name: &SubscriptionName) -> ErrorBody {
    let message = format!("others change subscription '{name}' all the time; ask again");
    ErrorBody { code: ErrorCode::Conflict, message }
}

fn not_written(error: &PublishError) -> ErrorBody {
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
