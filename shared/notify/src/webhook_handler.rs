//! Handles the requests about webhooks (`muster.notify.webhook-*`): operators register, list and remove webhooks through a gateway,
//! and gateways claim deliveries, report their results, and say whose right was revoked. [`crate::webhooks`] decides.

use std::time::Duration;

use muster_bus::{PublishErrorKind, Requester, Role};
use muster_contract::notify::{
    LEASE_MAX_SECONDS, RevokedOwner, SealedWebhook, Subscription, SubscriptionAnswer, SubscriptionsQuery,
    UnsubscribeRequest, Webhook, WebhookDelivery, WebhookDueAnswer, WebhookDueQuery, WebhookLine,
    WebhookRequest, WebhookResultRequest, WebhookRevokeAnswer, WebhookRevokeRequest, WebhooksAnswer,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{bad, checked_limit};
use muster_contract::{SubscriptionName, Timestamp};
use muster_service::clock::{Clock as _, SystemClock};
use tokio::time::Instant;

use crate::handler::{
    ATTEMPTS_MAX, LINES_MAX, StoredSubscription, SubscriptionHandler, absent, busy, move_on, not_written,
};
use crate::register::held;
use crate::source::NoticeSource;
use crate::webhooks;

/// Time in which one request for a delivery tries one due webhook after another: other gateways claim at the same time, and
/// this process may not have read of their claims. A gateway that gets none asks again a second later.
const CLAIM_WITHIN: Duration = Duration::from_secs(2);

impl<S: NoticeSource> SubscriptionHandler<S> {
    /// Makes a webhook, or replaces the address and the secret of one.
    pub(crate) async fn webhook_register(
        &self,
        request: WebhookRequest,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        may_manage(requester)?;
        request.check().map_err(|violation| bad(violation.to_string()))?;
        let wanted = Subscription { lease_seconds: LEASE_MAX_SECONDS, ..request.subscription.clone() };
        self.store(&wanted, Some(&request), requester).await
    }

    /// Webhooks with their progress.
    pub(crate) async fn webhook_list(
        &self,
        request: &SubscriptionsQuery,
        requester: &Requester,
    ) -> Result<WebhooksAnswer, ErrorBody> {
        may_manage(requester)?;
        let limit = checked_limit(request.limit)?.min(LINES_MAX);
        self.known().await?;
        let now = SystemClock.now();
        let (webhooks, more) = held(&self.register).webhooks(request.after.as_ref(), limit, now);
        let last = webhooks.last().map(|line| line.subscription.name.clone());
        Ok(WebhooksAnswer { webhooks, next: last.filter(|_| more) })
    }

    /// Removes a webhook.
    pub(crate) async fn webhook_remove(
        &self,
        UnsubscribeRequest { name }: UnsubscribeRequest,
        requester: &Requester,
    ) -> Result<SubscriptionAnswer, ErrorBody> {
        may_manage(requester)?;
        let StoredSubscription { record, .. } = self.held(&name).await?;
        record.filter(|record| record.webhook.is_some()).ok_or_else(|| no_webhook(&name))?;
        self.unsubscribe(UnsubscribeRequest { name }, requester).await
    }

    /// Claims one notice for a gateway.
    pub(crate) async fn webhook_due(
        &self,
        query: WebhookDueQuery,
        requester: &Requester,
    ) -> Result<WebhookDueAnswer, ErrorBody> {
        may_deliver(requester)?;
        query.check().map_err(|violation| bad(violation.to_string()))?;
        self.known().await?;
        let now = SystemClock.now();
        let (due, query) = (held(&self.register).due_webhooks(&query, now), &query);
        let delivery = first_claimed(due, |name| async move { self.claim(&name, query, now).await }).await?;
        if delivery.is_none() {
            self.renew_one(now).await?;
        }
        Ok(WebhookDueAnswer { delivery })
    }

    /// Claims the newest notice of a webhook; none if it is not due any more.
    async fn claim(
        &self,
        name: &SubscriptionName,
        query: &WebhookDueQuery,
        now: Timestamp,
    ) -> Result<Option<WebhookDelivery>, ErrorBody> {
        let StoredSubscription { record: Some(mut record), revision } = self.held(name).await? else {
            return Ok(None);
        };
        let Some(notice) = self.newest(name).await?.filter(|notice| notice.reason.is_none()) else {
            return Ok(None);
        };
        if !webhooks::is_due(&record, notice.number, now) {
            return Ok(None);
        }
        let owner = record.owner.as_ref().map(|owner| owner.key.clone());
        let is_for = |webhook: &&mut Webhook| webhooks::is_for(webhook, owner.as_deref(), query);
        let Some(webhook) = record.webhook.as_mut().filter(is_for) else { return Ok(None) };
        webhooks::claim(webhook, &query.gateway, notice.number, now);
        let (progress, sealed) = (webhook.progress.clone(), webhook.sealed.clone());
        match self.write(&record, revision).await {
            Ok(()) => {
                held(&self.register).record_claim(name, &record);
                Ok(Some(WebhookDelivery {
                    host: progress.host,
                    sealed: SealedWebhook { sealed, key: progress.key },
                    owner,
                    failures: progress.failures,
                    notice,
                }))
            }
            // Another gateway was faster.
            Err(error) if error.kind == PublishErrorKind::Conflict => Ok(None),
            Err(error) => Err(not_written(&error)),
        }
    }

    /// Stores a webhook again that has long had nothing to deliver, before the server removes it.
    async fn renew_one(&self, now: Timestamp) -> Result<(), ErrorBody> {
        let Some(name) = held(&self.register).webhook_to_renew(now) else { return Ok(()) };
        let StoredSubscription { record: Some(record), revision } = self.held(&name).await? else {
            return Ok(());
        };
        match self.write(&record, revision).await {
            Err(error) if error.kind != PublishErrorKind::Conflict => Err(not_written(&error)),
            _ => Ok(()),
        }
    }

    /// Records the outcome of a claimed delivery. A late outcome changes nothing.
    pub(crate) async fn webhook_result(
        &self,
        request: WebhookResultRequest,
        requester: &Requester,
    ) -> Result<WebhookLine, ErrorBody> {
        may_deliver(requester)?;
        request.check().map_err(|violation| bad(violation.to_string()))?;
        let name = &request.name;
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record, revision } = self.held(name).await?;
            let mut record = record.ok_or_else(|| absent(name))?;
            let newest = self.newest(name).await?;
            let told = newest.as_ref().map_or(0, |notice| notice.number);
            let webhook = record.webhook.as_mut().ok_or_else(|| no_webhook(name))?;
            if !webhooks::is_of_claim(webhook, &request) {
                return webhooks::line(&record, told).ok_or_else(|| no_webhook(name));
            }
            webhooks::record_result(webhook, &request, SystemClock.now());
            if request.error.is_none() {
                move_on(&mut record, request.number, None, &[], newest.as_ref());
            }
            match self.write(&record, revision).await {
                Ok(()) => return webhooks::line(&record, told).ok_or_else(|| no_webhook(name)),
                Err(error) if error.kind == PublishErrorKind::Conflict => {}
                Err(error) => return Err(not_written(&error)),
            }
        }
        Err(busy(name))
    }

    /// Ends the webhooks of revoked owners. A repeated request ends the others.
    pub(crate) async fn webhook_revoke(
        &self,
        request: WebhookRevokeRequest,
        requester: &Requester,
    ) -> Result<WebhookRevokeAnswer, ErrorBody> {
        may_deliver(requester)?;
        request.check().map_err(|violation| bad(violation.to_string()))?;
        self.known().await?;
        let names = held(&self.register).webhooks_to_end(&request.revoked, SystemClock.now());
        let mut ended = Vec::new();
        for name in names {
            if self.end_webhook(&name, &request.revoked).await? {
                tracing::info!(webhook = name.as_str(), "ended a webhook: its owner was revoked");
                ended.push(name);
            }
        }
        Ok(WebhookRevokeAnswer { ended })
    }

    async fn end_webhook(
        &self,
        name: &SubscriptionName,
        revoked: &[RevokedOwner],
    ) -> Result<bool, ErrorBody> {
        for _ in 0..ATTEMPTS_MAX {
            let StoredSubscription { record: Some(mut record), revision } = self.held(name).await? else {
                return Ok(false);
            };
            if !webhooks::end_revoked(&mut record, revoked, SystemClock.now()) {
                return Ok(false);
            }
            match self.write(&record, revision).await {
                Ok(()) => return Ok(true),
                Err(error) if error.kind == PublishErrorKind::Conflict => {}
                Err(error) => return Err(not_written(&error)),
            }
        }
        Err(busy(name))
    }
}

/// Claims one webhook after another until a claim holds, for [`CLAIM_WITHIN`].
async fn first_claimed<F>(
    due: Vec<SubscriptionName>,
    claim: impl Fn(SubscriptionName) -> F,
) -> Result<Option<WebhookDelivery>, ErrorBody>
where
    F: Future<Output = Result<Option<WebhookDelivery>, ErrorBody>>,
{
    let end = Instant::now() + CLAIM_WITHIN;
    for name in due {
        if Instant::now() >= end {
            break;
        }
        if let Some(delivery) = claim(name).await? {
            return Ok(Some(delivery));
        }
    }
    Ok(None)
}

/// A webhook makes gateways connect to an address, so operators alone choose one. An open server proves no requester's
/// role.
fn may_manage(requester: &Requester) -> Result<(), ErrorBody> {
    let is_allowed = requester.is_operator() || *requester == Requester::Unverified;
    allowed(is_allowed, "webhooks are for operators")
}

/// A gateway without a login has the credentials of an operator.
fn may_deliver(requester: &Requester) -> Result<(), ErrorBody> {
    let is_gateway = matches!(requester, Requester::User { role: Some(Role::Gateway | Role::Operator), .. });
    allowed(is_gateway || *requester == Requester::Unverified, "only a gateway delivers to webhooks")
}

fn allowed(is_allowed: bool, rule: &str) -> Result<(), ErrorBody> {
    if is_allowed {
        return Ok(());
    }
    let message = format!("{rule}: ask with the credentials of such a role");
    Err(ErrorBody { code: ErrorCode::Forbidden, message })
}

fn no_webhook(name: &SubscriptionName) -> ErrorBody {
    let message = format!("there is no webhook '{name}': it was never registered, or was removed");
    ErrorBody { code: ErrorCode::NotFound, message }
}

#[cfg(test)]
mod tests {
    use muster_contract::OnBehalfOf;
    use muster_contract::notify::EndReason;
    use muster_contract::view::AsOf;

    use super::*;
    use crate::ownership::tests::user;

    fn delivery(name: &SubscriptionName) -> WebhookDelivery {
        let as_of = AsOf { ledger_seq: 9, at: Timestamp::UNIX_EPOCH };
        WebhookDelivery {
            host: "hooks.example".to_owned(),
            sealed: SealedWebhook { sealed: "a".to_owned(), key: "0".repeat(16) },
            owner: None,
            failures: 0,
            notice: crate::compose::ending(name, 1, None, as_of, EndReason::Expired),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_misses_claims_gets_the_next_due_webhook() {
        let due: Vec<SubscriptionName> = (0..64).map(|at| format!("a-{at}").parse().unwrap()).collect();
        let claimed = async |missed: usize, takes: Duration| {
            let is_missed = |name: &SubscriptionName| due[..missed].contains(name);
            let claim = |name: SubscriptionName| {
                let found = (!is_missed(&name)).then(|| delivery(&name));
                async move {
                    tokio::time::sleep(takes).await;
                    Ok(found)
                }
            };
            first_claimed(due.clone(), claim).await.unwrap().map(|delivery| delivery.notice.name.to_string())
        };
        let quick = Duration::from_millis(1);
        assert_eq!(claimed(40, quick).await.as_deref(), Some("a-40"));
        assert_eq!(claimed(64, quick).await, None);
        assert_eq!(claimed(40, CLAIM_WITHIN / 10).await, None, "an answer is due before");
    }

    #[test]
    fn operators_manage_webhooks_and_gateways_deliver() {
        let gateway = user("G", "gateway");
        let represented = |role: &str| gateway.representing(OnBehalfOf::new("A", "anna", role)).unwrap();
        // requester, may manage, may deliver
        let table = [
            (user("O", "operator"), true, true),
            (gateway.clone(), false, true),
            (represented("operator"), true, false),
            (represented("viewer"), false, false),
            (user("V", "viewer"), false, false),
            (user("S", "subscriber"), false, false),
            (user("X", "king"), false, false),
            (Requester::Unverified, true, true),
        ];
        for (requester, manages, delivers) in table {
            let found = (may_manage(&requester).is_ok(), may_deliver(&requester).is_ok());
            assert_eq!(found, (manages, delivers), "{requester:?}");
        }
        assert_eq!(may_manage(&user("V", "viewer")).unwrap_err().code, ErrorCode::Forbidden);
    }
}
