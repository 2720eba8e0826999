//! Webhooks as the hub lists and removes them. Only a gateway registers one: it seals the address.

use muster_contract::SubscriptionName;
use muster_contract::notify::{
    SubscriptionAnswer, SubscriptionsQuery, UnsubscribeRequest, WEBHOOKS_MAX, WebhookLine, WebhooksAnswer,
};

use crate::ask::{AskError, Hub, understood};

/// All webhooks, ordered by name.
///
/// # Errors
/// When nobody answers, or the requester is no operator.
pub async fn list(hub: &Hub) -> Result<Vec<WebhookLine>, AskError> {
    let (mut webhooks, mut query) = (Vec::new(), SubscriptionsQuery::default());
    for _ in 0..=WEBHOOKS_MAX {
        let page: WebhooksAnswer = understood(&hub.notify("webhook-list", &query).await?)?;
        webhooks.extend(page.webhooks);
        if page.next.is_none() {
            return Ok(webhooks);
        }
        query.after = page.next;
    }
    Err(AskError::Endless { what: "webhooks" })
}

/// Removes a webhook.
///
/// # Errors
/// When nobody answers, there is no such webhook, or the requester is no operator.
pub async fn remove(hub: &Hub, name: SubscriptionName) -> Result<SubscriptionAnswer, AskError> {
    understood(&hub.notify("webhook-remove", &UnsubscribeRequest { name }).await?)
}
