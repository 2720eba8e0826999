//! Channels about notices: the subscriptions, the newest notice of each, and the requests that make them.

use muster_contract::SubscriptionName;
use muster_contract::subjects::{self, stream};

use super::Channel;

/// The text that stands for the name until it is a parameter.
const NAME: &str = "x-subscription-x";

pub(super) fn all() -> Vec<Channel> {
    let name: SubscriptionName = NAME.parse().expect("this is a label");
    let of = |subject: String| subject.replace(NAME, "{subscription}");
    let held = Some(stream::NOTICES);
    let mut channels = vec![
        Channel::new(
            "subscription",
            &of(subjects::subscription(&name)),
            held,
            &["SubscriptionRecord"],
            "A subscription as the bus keeps it: for as long as its lease, unless it is renewed.",
        ),
        Channel::new(
            "notice",
            &of(subjects::notice(&name)),
            held,
            &["Notice"],
            "The newest notice of a subscription, in place of those before. Read it by direct get, follow it on \
             `liveNotice`.",
        ),
        Channel::new(
            "liveNotice",
            &of(subjects::live_notice(&name)),
            None,
            &["Notice"],
            "Notices republished as they are stored: core NATS, at most once, a hint to look.",
        ),
        request(
            "notifySubscribe",
            "subscribe",
            &["Subscription"],
            "Makes a subscription, or takes up and renews one of the same name that is about the same.",
        ),
        request(
            "notifyConfirm",
            "confirm",
            &["ConfirmRequest"],
            "A notice was dealt with, and the subscriber is there: renews the lease.",
        ),
        request("notifyUnsubscribe", "unsubscribe", &["UnsubscribeRequest"], "Ends a subscription."),
        request("notifyList", "list", &["SubscriptionsQuery"], "All subscriptions, page by page."),
        request(
            "notifyMissed",
            "missed",
            &["MissedQuery"],
            "Every change between the last confirmed notice and the newest one, in LEDGER's order, page by page.",
        ),
        request(
            "notifyContent",
            "content",
            &["ContentQuery"],
            "The notice that a filter would cause now. It stores nothing; a federation asks each hub.",
        ),
    ];
    channels.extend(of_webhooks());
    channels
}

fn request(name: &'static str, verb: &str, message: &'static [&'static str], about: &'static str) -> Channel {
    Channel::new(name, &format!("{}.{verb}", subjects::NOTIFY_PREFIX), None, message, about)
}

/// Requests about webhooks.
fn of_webhooks() -> [Channel; 6] {
    [
        request(
            "notifyWebhookRegister",
            "webhook-register",
            &["WebhookRequest"],
            "A gateway makes a webhook for an operator: notices that gateways post to an https address.",
        ),
        request(
            "notifyWebhookList",
            "webhook-list",
            &["SubscriptionsQuery"],
            "All webhooks with their progress, page by page, for operators.",
        ),
        request("notifyWebhookRemove", "webhook-remove", &["UnsubscribeRequest"], "Removes a webhook."),
        request(
            "notifyWebhookDue",
            "webhook-due",
            &["WebhookDueQuery"],
            "A gateway claims one notice to deliver, for 30 seconds.",
        ),
        request(
            "notifyWebhookResult",
            "webhook-result",
            &["WebhookResultRequest"],
            "The outcome of a claimed delivery. A late one changes nothing.",
        ),
        request(
            "notifyWebhookRevoke",
            "webhook-revoke",
            &["WebhookRevokeRequest"],
            "A gateway says whose right was revoked: the hub ends their webhooks.",
        ),
    ]
}
