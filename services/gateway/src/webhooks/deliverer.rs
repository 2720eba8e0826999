//! Delivers due notices. It claims one notice at a time from the hub, posts it, and reports the result; the hub decides about
//! retries.
//!
//! A gateway gets notices of webhooks alone that it can open, and for which it has a slot ([`super::slots`]). A gateway that dies
//! after a delivery has not reported it: once its claim ends, another gateway posts the event again with the same id.

use std::sync::Arc;
use std::time::Duration;

use muster_client::ask::{AskError, Hub};
use muster_contract::notify::{
    SealedWebhook, WEBHOOK_CLAIM_SECONDS, WebhookDelivery, WebhookDueAnswer, WebhookDueQuery, WebhookLine,
    WebhookResultRequest, WebhookState,
};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_webhook::Answer;
use muster_webhook::signature::{SIGNATURE, timed};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::slots::{DeliverySlots, Skipped};
use super::{OpenedTarget, Target, Webhooks, event};
use crate::metrics::Metrics;

/// Time for a whole delivery, from the name's lookup to the status of the answer.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of questions while nothing is due.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The same while the hub does not answer or refuses.
const REFUSED_EVERY: Duration = Duration::from_secs(5);
/// Attempts to report a result, and the delay between them. After that the claim ends and the notice is delivered again.
const REPORTS_MAX: usize = 3;
const REPORT_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The status by which a receiver wants no more notices.
const GONE: u16 = 410;

/// Time for the answer of a service of the hub.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Time for all reports of a result.
const REPORT_TIMEOUT: Duration = Duration::from_secs(8);

// A claim outlasts the answer that made it, the delivery and the reports of it.
const _: () = assert!(
    ANSWER_WITHIN.as_secs() + DELIVERY_TIMEOUT.as_secs() + REPORT_TIMEOUT.as_secs() < WEBHOOK_CLAIM_SECONDS
);

/// Delivers due notices. Clones share everything.
#[derive(Clone)]
pub(crate) struct Deliverer {
    hub: Hub,
    webhooks: Arc<Webhooks>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// This process among all gateways.
    gateway: String,
    public_host: Option<String>,
}

/// The outcome of an attempt.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    error: Option<String>,
    gone: bool,
    retry_after_seconds: Option<u64>,
    resealed: Option<SealedWebhook>,
}

impl Deliverer {
    /// A deliverer of a gateway that people know by a public host.
    pub(crate) fn new(
        hub: Hub,
        webhooks: Arc<Webhooks>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        public_host: Option<String>,
    ) -> Self {
        let gateway = format!("{:016x}", fastrand::u64(..));
        Self { hub, webhooks, clock, metrics, gateway, public_host }
    }

    /// Delivers until `stop`, and finishes the deliveries that are under way then.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (mut deliveries, mut is_refused, slots) = (JoinSet::new(), false, DeliverySlots::default());
        while !stop.is_cancelled() {
            // Several may have ended since: only those under way are kept.
            while deliveries.try_join_next().is_some() {}
            let mut delay = ASK_EVERY;
            while !slots.are_full() && !stop.is_cancelled() {
                match self.due(slots.skipped()).await {
                    Ok(Some(delivery)) => {
                        let slot = slots.acquire(&delivery);
                        let delivering = self.clone().deliver(delivery);
                        deliveries.spawn(async move {
                            delivering.await;
                            drop(slot);
                        });
                    }
                    Ok(None) => {
                        is_refused = false;
                        break;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut is_refused, true) {
                            tracing::warn!(error = chain(&error), "cannot ask for notices of webhooks");
                        }
                        delay = REFUSED_EVERY;
                        break;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(delay) => {}
                Some(_) = deliveries.join_next() => {}
            }
        }
        while deliveries.join_next().await.is_some() {}
    }

    async fn due(&self, skipped: Skipped) -> Result<Option<WebhookDelivery>, AskError> {
        let query = WebhookDueQuery {
            gateway: self.gateway.clone(),
            keys: self.webhooks.keys().to_vec(),
            skip_failing: skipped.failing,
            skip_hosts: skipped.hosts,
            skip_owners: skipped.owners,
        };
        let answer = self.hub.notify("webhook-due", &query).await?;
        let answer: WebhookDueAnswer = serde_json::from_value(answer).map_err(AskError::Misunderstood)?;
        Ok(answer.delivery)
    }

    /// Posts a notice, and reports the result.
    async fn deliver(self, delivery: WebhookDelivery) {
        self.metrics.webhooks_under_way.inc();
        let outcome = self.attempt(&delivery).await;
        self.metrics.webhooks_under_way.dec();
        self.metrics.webhook_deliveries.inc();
        if let Some(error) = &outcome.error {
            self.metrics.webhook_failures.inc();
            let (name, host) = (delivery.notice.name.as_str(), &delivery.host);
            tracing::info!(webhook = name, host, error, "cannot deliver a notice");
        }
        if timeout(REPORT_TIMEOUT, self.report(&delivery, outcome)).await.is_err() {
            let name = delivery.notice.name.as_str();
            tracing::warn!(webhook = name, "cannot report a delivery in time: it may be repeated");
        }
    }

    async fn attempt(&self, delivery: &WebhookDelivery) -> Outcome {
        // A gateway gets what one of its keys has sealed, so this text was altered.
        let Some(OpenedTarget { target, resealed }) = self.webhooks.open_target(&delivery.sealed) else {
            return Outcome::failed("the sealed address is damaged; register the webhook again");
        };
        let outcome = match timeout(DELIVERY_TIMEOUT, self.post(delivery, &target)).await {
            Ok(Ok(answer)) => Outcome::of(&answer),
            Ok(Err(error)) => Outcome::failed(&error),
            Err(_) => Outcome::failed(&format!("no answer within {DELIVERY_TIMEOUT:?}")),
        };
        Outcome { resealed, ..outcome }
    }

    async fn post(&self, delivery: &WebhookDelivery, target: &Target) -> Result<Answer, String> {
        let body = event::compose(&delivery.notice, self.public_host.as_deref());
        let signature = timed(target.secret.as_bytes(), self.clock.now().as_second(), &body);
        let headers = [("content-type", event::MEDIA_TYPE.to_owned()), (SIGNATURE, signature)];
        self.webhooks.client.post(&target.url, &headers, body, 0).await.map_err(|error| chain(&error))
    }

    async fn report(&self, delivery: &WebhookDelivery, outcome: Outcome) {
        let Outcome { error, gone, retry_after_seconds, resealed } = outcome;
        let (name, number) = (delivery.notice.name.clone(), delivery.notice.number);
        let gateway = self.gateway.clone();
        let result =
            WebhookResultRequest { name, number, gateway, error, gone, retry_after_seconds, resealed };
        for attempt in 1..=REPORTS_MAX {
            match self.hub.notify("webhook-result", &result).await {
                Ok(answer) => return log_disabled(answer),
                Err(error) if attempt == REPORTS_MAX || !error.may_pass() => {
                    let name = result.name.as_str();
                    tracing::warn!(webhook = name, error = chain(&error), "cannot report a delivery");
                    return;
                }
                Err(_) => sleep(REPORT_AGAIN_AFTER).await,
            }
        }
    }
}

fn log_disabled(answer: serde_json::Value) {
    let Ok(line) = serde_json::from_value::<WebhookLine>(answer) else { return };
    if line.state == WebhookState::Disabled {
        let (name, progress) = (line.subscription.name.as_str(), line.progress);
        let error = progress.last_error.unwrap_or_default();
        tracing::warn!(webhook = name, host = progress.host, error, "disabled a webhook; register it again");
    }
}

impl Outcome {
    fn failed(error: &str) -> Self {
        Self { error: Some(error.to_owned()), ..Self::default() }
    }

    fn of(answer: &Answer) -> Self {
        let error = match answer.status {
            200..=299 => return Self::default(),
            status @ 300..=399 => format!("the answer has status {status}; redirects are not followed"),
            status => format!("the answer has status {status}"),
        };
        let (gone, retry_after_seconds) = (answer.status == GONE, answer.retry_after);
        Self { error: Some(error), gone, retry_after_seconds, resealed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_success_is_one_and_410_ends_a_webhook() {
        let of = |status, retry_after| Outcome::of(&Answer { status, retry_after, body: Default::default() });
        for status in [200, 202, 204] {
            assert_eq!(of(status, None), Outcome::default(), "{status}");
        }
        for (status, gone) in
            [(301, false), (304, false), (400, false), (404, false), (410, true), (500, false)]
        {
            let outcome = of(status, None);
            assert!(outcome.error.unwrap().contains(&status.to_string()), "{status}");
            assert_eq!(outcome.gone, gone, "{status}");
        }
        assert_eq!(of(429, Some(60)).retry_after_seconds, Some(60));
    }
}
