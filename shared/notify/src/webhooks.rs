//! Decides about webhooks: which notice is due, when a gateway repeats a failed delivery, and when a webhook is disabled. Pure.
//!
//! The record of a webhook in NOTICES has its progress. A gateway that takes over thus continues from there, and a receiver that
//! fails costs one stored notice.

use std::time::Duration;

use muster_contract::notify::{
    RevokedOwner, SubscriptionRecord, WEBHOOK_CLAIM_SECONDS, WEBHOOK_ERROR_BYTES_MAX, Webhook, WebhookClaim,
    WebhookDueQuery, WebhookLine, WebhookProgress, WebhookRequest, WebhookResultRequest, WebhookState,
};
use muster_contract::state::cut;
use muster_contract::{Timestamp, WebhookUrl};

/// Delay after the first failure; each further one doubles it.
const RETRY_MIN: Duration = Duration::from_secs(2);
/// Longest delay, also of those that a receiver asks for.
const RETRY_MAX: Duration = Duration::from_secs(15 * 60);
/// The record of a webhook that delivers nothing is stored again after this time, so that the server keeps it.
const STORED_AGAIN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a disabled webhook stays in the list.
const DISABLED_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A person may register a webhook so long after the revocation, before every gateway has read of it.
const REVOCATION_LAG: Duration = Duration::from_secs(60);
/// The key of a revocation that concerns everybody.
const EVERYBODY: &str = "*";

/// A webhook that is registered now.
pub(crate) fn registered(request: &WebhookRequest, now: Timestamp) -> Webhook {
    let progress = WebhookProgress {
        host: request.host.clone(),
        key: request.sealed.key.clone(),
        give_up_seconds: request.give_up_seconds,
        registered_at: now,
        ..WebhookProgress::default()
    };
    Webhook { progress, sealed: request.sealed.sealed.clone(), stored_at: now, claim: None }
}

/// Whether a gateway may claim the notice with this number.
pub(crate) fn is_due(record: &SubscriptionRecord, number: u64, now: Timestamp) -> bool {
    let Some(webhook) = &record.webhook else { return false };
    let is_new = number > record.seen.max(record.began);
    let is_time = webhook.progress.next_at.is_none_or(|next| next <= now);
    is_new && is_time && !is_claimed(record, now) && webhook.progress.disabled_at.is_none()
}

/// Whether a gateway delivers now.
pub(crate) fn is_claimed(record: &SubscriptionRecord, now: Timestamp) -> bool {
    let claim = record.webhook.as_ref().and_then(|webhook| webhook.claim.as_ref());
    claim.is_some_and(|claim| claim.until > now)
}

/// Whether a gateway can open the address of a webhook, and has a slot for its delivery.
pub(crate) fn is_for(webhook: &Webhook, owner: Option<&str>, query: &WebhookDueQuery) -> bool {
    let WebhookProgress { key, host, failures, .. } = &webhook.progress;
    query.keys.contains(key)
        && !(query.skip_failing && *failures > 0)
        && !query.skip_hosts.iter().any(|skipped| skipped == WebhookUrl::host_of(host))
        && owner.is_none_or(|owner| !query.skip_owners.iter().any(|skipped| skipped == owner))
}

/// Since when a notice of a webhook is due that no gateway has tried to deliver, if it is one; `waits_since` is the time since
/// which the webhook has a notice to deliver.
pub(crate) fn untried_since(
    record: &SubscriptionRecord,
    number: u64,
    waits_since: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    let Webhook { progress, claim, .. } = record.webhook.as_ref().filter(|_| is_due(record, number, now))?;
    let claimed = claim.as_ref().map(|claim| claim.until);
    [progress.next_at, progress.delivered_at, claimed].into_iter().flatten().chain([waits_since]).max()
}

/// Ends a webhook whose owner's right was revoked after its registration; true if it has ended by this.
pub(crate) fn end_revoked(record: &mut SubscriptionRecord, revoked: &[RevokedOwner], now: Timestamp) -> bool {
    let Some((webhook, owner)) = record.webhook.as_mut().zip(record.owner.as_ref()) else { return false };
    let progress = &mut webhook.progress;
    let is_it = |revoked: &&RevokedOwner| {
        (revoked.key == owner.key || revoked.key == EVERYBODY)
            && progress.registered_at <= after(revoked.at, REVOCATION_LAG)
    };
    let Some(revoked) = revoked.iter().find(is_it).filter(|_| progress.owner_revoked_at.is_none()) else {
        return false;
    };
    let name = if owner.name.is_empty() { &owner.key } else { &owner.name };
    progress.last_error =
        Some(cut(format!("the right of its owner {name} was revoked"), WEBHOOK_ERROR_BYTES_MAX));
    (progress.owner_revoked_at, progress.next_at, webhook.claim) = (Some(revoked.at), None, None);
    progress.disabled_at.get_or_insert(now);
    true
}

/// Whether the record must be stored again although nothing has changed.
pub(crate) fn is_renewal_due(webhook: &Webhook, now: Timestamp) -> bool {
    webhook.progress.disabled_at.is_none() && after(webhook.stored_at, STORED_AGAIN_AFTER) <= now
}

/// Whether it is a webhook that delivers nothing any more.
pub(crate) fn is_disabled(record: &SubscriptionRecord) -> bool {
    record.webhook.as_ref().is_some_and(|webhook| webhook.progress.disabled_at.is_some())
}

/// Disables a webhook whose filter has become too wide; the record, and how long the server keeps it. `None` for a subscription
/// without a webhook.
pub(crate) fn too_wide(
    mut record: SubscriptionRecord,
    now: Timestamp,
) -> Option<(SubscriptionRecord, Duration)> {
    let webhook = record.webhook.as_mut()?;
    webhook.progress.last_error = Some("the filter matches more than a notice may hold".to_owned());
    (webhook.progress.disabled_at, webhook.progress.next_at, webhook.claim) = (Some(now), None, None);
    Some((record, DISABLED_KEPT))
}

/// How long the server keeps the record of a disabled webhook; none for another one.
pub(crate) fn kept_for(webhook: &Webhook) -> Option<Duration> {
    webhook.progress.disabled_at.map(|_| DISABLED_KEPT)
}

/// Claims a notice for a gateway.
pub(crate) fn claim(webhook: &mut Webhook, gateway: &str, number: u64, now: Timestamp) {
    let until = after(now, Duration::from_secs(WEBHOOK_CLAIM_SECONDS));
    webhook.claim = Some(WebhookClaim { gateway: gateway.to_owned(), number, until });
}

/// Whether a result is one of the present claim. Others are late: another gateway has claimed the notice, or the webhook was
/// registered again.
pub(crate) fn is_of_claim(webhook: &Webhook, result: &WebhookResultRequest) -> bool {
    webhook
        .claim
        .as_ref()
        .is_some_and(|claim| claim.gateway == result.gateway && claim.number == result.number)
}

/// Records the outcome of the claimed delivery.
pub(crate) fn record_result(webhook: &mut Webhook, result: &WebhookResultRequest, now: Timestamp) {
    webhook.claim = None;
    let progress = &mut webhook.progress;
    if let Some(resealed) = &result.resealed {
        (webhook.sealed, progress.key) = (resealed.sealed.clone(), resealed.key.clone());
    }
    let Some(error) = &result.error else {
        let WebhookProgress { host, key, give_up_seconds, registered_at, .. } = std::mem::take(progress);
        let delivered_at = Some(now);
        *progress = WebhookProgress {
            host,
            key,
            give_up_seconds,
            registered_at,
            delivered_at,
            ..WebhookProgress::default()
        };
        return;
    };
    progress.failures = progress.failures.saturating_add(1);
    progress.last_error = Some(cut(error.clone(), WEBHOOK_ERROR_BYTES_MAX));
    let since = *progress.failing_since.get_or_insert(now);
    if result.gone || after(since, Duration::from_secs(progress.give_up_seconds)) <= now {
        (progress.disabled_at, progress.next_at) = (Some(now), None);
        return;
    }
    let asked = Duration::from_secs(result.retry_after_seconds.unwrap_or(0)).min(RETRY_MAX);
    progress.next_at = Some(after(now, delay(progress.failures).max(asked)));
}

/// The delay after so many failures in a row.
fn delay(failures: u64) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    2_u32
        .checked_pow(doublings)
        .and_then(|times| RETRY_MIN.checked_mul(times))
        .unwrap_or(RETRY_MAX)
        .min(RETRY_MAX)
}

/// A webhook for people.
pub(crate) fn line(record: &SubscriptionRecord, told: u64) -> Option<WebhookLine> {
    let progress = record.webhook.as_ref()?.progress.clone();
    let state = match (progress.owner_revoked_at, progress.disabled_at, progress.failures) {
        (Some(_), ..) => WebhookState::Ended,
        (None, Some(_), _) => WebhookState::Disabled,
        (None, None, 0) => WebhookState::Active,
        (None, None, _) => WebhookState::Failing,
    };
    let (subscription, owner) = (record.subscription.clone(), record.owner.clone());
    let (untried_since, untried_cause) = (None, None);
    Some(WebhookLine {
        subscription,
        owner,
        state,
        seen: record.seen,
        told,
        untried_since,
        untried_cause,
        progress,
    })
}

pub(crate) fn after(time: Timestamp, delay: Duration) -> Timestamp {
    time.saturating_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use muster_contract::notify::{SealedWebhook, Subscription, SubscriptionOwner};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sealed(text: &str, key: &str) -> SealedWebhook {
        SealedWebhook { sealed: text.to_owned(), key: key.to_owned() }
    }

    fn record(give_up_seconds: u64) -> SubscriptionRecord {
        let subscription = Subscription::named("alarms".parse().unwrap());
        let (host, sealed) = ("hooks.example".to_owned(), sealed("sealed", "01"));
        let request = WebhookRequest { subscription: subscription.clone(), host, sealed, give_up_seconds };
        SubscriptionRecord {
            api_version: Default::default(),
            kind: Default::default(),
            subscription,
            seen: 3,
            seen_seq: 0,
            seen_at: Vec::new(),
            began: 2,
            owner: None,
            webhook: Some(registered(&request, at(0))),
        }
    }

    fn result(number: u64, error: Option<&str>) -> WebhookResultRequest {
        WebhookResultRequest {
            name: "alarms".parse().unwrap(),
            number,
            gateway: "g1".to_owned(),
            error: error.map(str::to_owned),
            gone: false,
            retry_after_seconds: None,
            resealed: None,
        }
    }

    /// Fails a delivery at this second; the second of the next attempt.
    fn fail(webhook: &mut Webhook, second: i64, retry_after_seconds: Option<u64>) -> Option<i64> {
        let failed = WebhookResultRequest { retry_after_seconds, ..result(4, Some("status 500")) };
        claim(webhook, "g1", 4, at(second));
        record_result(webhook, &failed, at(second));
        webhook.progress.next_at.map(Timestamp::as_second)
    }

    #[test]
    fn one_gateway_at_a_time_has_a_notice_until_its_claim_ends() {
        let mut record = record(60);
        assert!(!is_due(&record, 3, at(1)), "it was delivered");
        assert!(is_due(&record, 4, at(1)));
        claim(record.webhook.as_mut().unwrap(), "g1", 4, at(1));
        assert!(!is_due(&record, 4, at(30)) && !is_due(&record, 5, at(30)));
        assert!(is_due(&record, 4, at(31)), "a gateway that died has recorded nothing");
        let webhook = record.webhook.as_mut().unwrap();
        claim(webhook, "g2", 5, at(31));
        assert!(!is_of_claim(webhook, &result(4, None)), "the result of an ended claim is late");
        let of_other = WebhookResultRequest { gateway: "g2".to_owned(), ..result(5, None) };
        assert!(is_of_claim(webhook, &of_other));
        record_result(webhook, &of_other, at(32));
        assert_eq!((webhook.claim.clone(), webhook.progress.delivered_at), (None, Some(at(32))));
        record.webhook = Some(registered(
            &WebhookRequest {
                subscription: record.subscription.clone(),
                host: "other.example".to_owned(),
                sealed: sealed("other", "02"),
                give_up_seconds: 60,
            },
            at(33),
        ));
        assert!(!is_of_claim(record.webhook.as_ref().unwrap(), &of_other), "it was registered again");
        record.webhook = None;
        assert!(!is_due(&record, 9, at(99)), "a subscription without a webhook is its subscriber's");
    }

    #[test]
    fn delays_double_up_to_a_bound_and_respect_the_receiver() {
        let mut record = record(7 * 24 * 60 * 60);
        let webhook = record.webhook.as_mut().unwrap();
        let next: Vec<_> = [0; 4].map(|_| fail(webhook, 100, None).unwrap()).to_vec();
        assert_eq!(next, [102, 104, 108, 116]);
        assert_eq!(fail(webhook, 100, Some(60)), Some(160), "the receiver's Retry-After");
        assert_eq!(fail(webhook, 100, Some(u64::MAX)), Some(100 + 15 * 60));
        (0..100).for_each(|_| _ = fail(webhook, 100, None));
        assert_eq!((webhook.progress.next_at, webhook.progress.failures), (Some(at(100 + 15 * 60)), 106));
        assert!(!is_due(&record, 4, at(999)) && is_due(&record, 4, at(1000)));
        let webhook = record.webhook.as_mut().unwrap();
        record_result(webhook, &result(4, None), at(1000));
        assert_eq!(
            (webhook.progress.failures, webhook.progress.failing_since, webhook.progress.last_error.clone()),
            (0, None, None)
        );
    }

    #[test]
    fn a_webhook_that_only_fails_or_is_gone_is_disabled_and_kept_for_a_week() {
        let mut record = record(60);
        let webhook = record.webhook.as_mut().unwrap();
        assert!(fail(webhook, 100, None).is_some() && fail(webhook, 159, None).is_some());
        assert_eq!(kept_for(webhook), None);
        assert_eq!(fail(webhook, 160, None), None, "it failed for 60 s");
        assert_eq!(line(&record, 4).unwrap().state, WebhookState::Disabled);
        assert!(!is_due(&record, 4, at(9999)));
        let webhook = record.webhook.as_mut().unwrap();
        assert_eq!(kept_for(webhook), Some(DISABLED_KEPT));
        assert!(!is_renewal_due(webhook, Timestamp::MAX));
        let mut other = super::tests::record(60);
        let gone = WebhookResultRequest { gone: true, ..result(4, Some("status 410")) };
        record_result(other.webhook.as_mut().unwrap(), &gone, at(1));
        assert_eq!(line(&other, 4).unwrap().state, WebhookState::Disabled);
    }

    #[test]
    fn a_webhook_whose_filter_is_too_wide_is_disabled_with_the_reason() {
        let (disabled, kept) = too_wide(record(60), at(7)).unwrap();
        let shown = line(&disabled, 4).unwrap();
        assert_eq!(
            (shown.state, shown.progress.disabled_at, kept),
            (WebhookState::Disabled, Some(at(7)), DISABLED_KEPT)
        );
        assert!(shown.progress.last_error.unwrap().contains("filter") && is_disabled(&disabled));
        assert!(!is_due(&disabled, 4, at(99)) && !is_disabled(&record(60)));
        assert_eq!(too_wide(SubscriptionRecord { webhook: None, ..record(60) }, at(7)), None);
    }

    #[test]
    fn an_idle_webhook_is_stored_again_and_an_error_is_bounded() {
        let mut record = record(60);
        let webhook = record.webhook.as_mut().unwrap();
        assert!(!is_renewal_due(webhook, at(86_399)) && is_renewal_due(webhook, at(86_400)));
        record_result(webhook, &result(4, Some(&"é".repeat(500))), at(1));
        assert!(webhook.progress.last_error.as_ref().unwrap().len() <= WEBHOOK_ERROR_BYTES_MAX);
        assert_eq!(line(&record, 4).unwrap().state, WebhookState::Failing);
    }

    #[test]
    fn an_untried_notice_waits_since_the_last_try_could_have_been() {
        let mut record = record(60);
        let untried = |record: &SubscriptionRecord, now| untried_since(record, 4, at(10), at(now));
        assert_eq!(untried(&record, 99), Some(at(10)), "nobody has tried it");
        assert_eq!(untried_since(&record, 3, at(10), at(99)), None, "there is nothing to deliver");
        let webhook = record.webhook.as_mut().unwrap();
        claim(webhook, "g1", 4, at(20));
        assert_eq!(untried(&record, 21), None, "a gateway tries it");
        assert_eq!(untried(&record, 99), Some(at(50)), "the claim has ended");
        assert!(fail(record.webhook.as_mut().unwrap(), 60, None).is_some());
        assert_eq!((untried(&record, 61), untried(&record, 99)), (None, Some(at(62))), "by its delay");
        record_result(record.webhook.as_mut().unwrap(), &result(3, None), at(70));
        assert_eq!(untried(&record, 99), Some(at(70)), "an older one was delivered then");
    }

    #[test]
    fn a_result_may_bring_the_address_sealed_anew() {
        let mut record = record(60);
        let webhook = record.webhook.as_mut().unwrap();
        for error in [None, Some("status 500")] {
            let resealed = Some(sealed("anew", "02"));
            record_result(webhook, &WebhookResultRequest { resealed, ..result(4, error) }, at(1));
            assert_eq!((webhook.sealed.as_str(), webhook.progress.key.as_str()), ("anew", "02"));
            assert_eq!(webhook.progress.registered_at, at(0));
        }
    }

    #[test]
    fn a_webhook_ends_with_the_right_of_its_owner() {
        let revoked = |key: &str, second| [RevokedOwner { key: key.to_owned(), at: at(second) }];
        let owned = |registered| {
            let mut record = record(60);
            record.owner = Some(SubscriptionOwner { key: "UANNA".to_owned(), name: "anna".to_owned() });
            record.webhook.as_mut().unwrap().progress.registered_at = at(registered);
            record
        };
        for (key, second, registered, ends) in [
            ("UANNA", 100, 50, true),
            ("UANNA", 100, 150, true),
            ("UANNA", 100, 161, false),
            ("UBOB", 100, 50, false),
            ("*", 100, 50, true),
        ] {
            let mut record = owned(registered);
            assert_eq!(end_revoked(&mut record, &revoked(key, second), at(200)), ends, "{key} {registered}");
            assert_eq!(is_due(&record, 4, at(300)), !ends);
            assert!(!end_revoked(&mut record, &revoked(key, second), at(201)), "once");
        }
        let mut record = owned(50);
        claim(record.webhook.as_mut().unwrap(), "g1", 4, at(199));
        assert!(end_revoked(&mut record, &revoked("UANNA", 100), at(200)));
        assert!(!is_of_claim(record.webhook.as_ref().unwrap(), &result(4, None)), "its result is late");
        let shown = line(&record, 4).unwrap();
        assert_eq!((shown.state, shown.progress.disabled_at), (WebhookState::Ended, Some(at(200))));
        assert!(shown.progress.last_error.unwrap().contains("anna was revoked"));
        assert_eq!(kept_for(record.webhook.as_ref().unwrap()), Some(DISABLED_KEPT));
        let mut nobodys = super::tests::record(60);
        assert!(!end_revoked(&mut nobodys, &revoked("*", 100), at(200)), "it has no owner");
    }
}
