//! Webhooks and the progress of their deliveries.

use muster_contract::Timestamp;
use muster_contract::notify::{SubscriptionAnswer, WebhookLine, WebhookState, WebhookUntriedCause};

use super::colour::{BAD, UNSURE, WELL, styled};
use super::format::{age, clean, excerpt, plural, span};
use super::table::{Cell, Table};
use crate::webhooks::WebhookList;

/// The table of webhooks, and a line for each one that needs a person.
pub fn list(list: &WebhookList, now: Timestamp) -> String {
    if list.webhooks.is_empty() {
        return "There are no webhooks; a gateway with --webhook-key registers them (POST /api/v1/webhooks).\n"
            .to_owned();
    }
    let mut table =
        Table::new(&["WEBHOOK", "HOST", "STATE", ">CONFIRMED", ">NEWEST", "DELIVERED", "OWNER", "KEY"]);
    for webhook in &list.webhooks {
        let WebhookLine { subscription, owner, progress, seen, told, .. } = webhook;
        let (state, style) = match webhook.state {
            WebhookState::Active => ("active", WELL),
            WebhookState::Failing => ("failing", UNSURE),
            WebhookState::Disabled => ("disabled", BAD),
            WebhookState::Ended => ("ended", BAD),
        };
        table.row([
            subscription.name.to_string().into(),
            clean(&progress.host).into(),
            Cell::styled(state, style),
            seen.to_string().into(),
            told.to_string().into(),
            progress.delivered_at.map_or_else(|| "never".to_owned(), |at| age(now, at)).into(),
            owner.as_ref().map_or_else(|| "-".to_owned(), |owner| clean(&owner.name)).into(),
            clean(&progress.key).into(),
        ]);
    }
    let troubles: String = list.webhooks.iter().flat_map(|webhook| troubles(webhook, now)).collect();
    format!("{}{troubles}{}\n", table.within(None), plural(list.webhooks.len() as u64, "webhook"))
}

fn troubles(webhook: &WebhookLine, now: Timestamp) -> Vec<String> {
    let (name, progress) = (&webhook.subscription.name, &webhook.progress);
    let mut lines = Vec::new();
    if let Some(error) = &progress.last_error {
        let error = excerpt(error).join(" ");
        let failing = progress.failing_since.map(|since| format!(", for {}", passed(since, now)));
        lines.push(format!("{name}: {error}{}\n", failing.unwrap_or_default()));
    }
    if let Some((since, cause)) = webhook.untried_since.zip(webhook.untried_cause) {
        let why = match cause {
            WebhookUntriedCause::NoGateway => "no gateway with --webhook-key asks for notices".to_owned(),
            WebhookUntriedCause::NoKey => format!(
                "no gateway has the key {}: add it to a file of --webhook-key, or register the webhook again",
                clean(&progress.key)
            ),
            WebhookUntriedCause::Busy => "the gateways with its key are busy".to_owned(),
        };
        let line = format!("{name}: a notice has waited for {}: {why}", passed(since, now));
        lines.push(styled(UNSURE, &line) + "\n");
    }
    lines
}

fn passed(since: Timestamp, now: Timestamp) -> String {
    span(u64::try_from(now.as_second() - since.as_second()).unwrap_or(0))
}

/// A webhook was removed.
pub fn removed(removed: &SubscriptionAnswer) -> String {
    format!("removed {}\n", removed.name)
}

#[cfg(test)]
mod tests {
    use muster_contract::notify::{Subscription, WebhookProgress};

    use super::*;

    fn line(name: &str, state: WebhookState) -> WebhookLine {
        WebhookLine {
            subscription: Subscription::named(name.parse().unwrap()),
            owner: None,
            state,
            seen: 3,
            told: 4,
            untried_since: None,
            untried_cause: None,
            progress: WebhookProgress {
                host: "hooks.example".to_owned(),
                key: "0123456789abcdef".to_owned(),
                ..WebhookProgress::default()
            },
        }
    }

    #[test]
    fn a_list_says_which_webhook_needs_a_person_and_why() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(300).unwrap());
        let mut ended = line("ended", WebhookState::Ended);
        ended.progress.last_error = Some("the right of its owner anna was revoked".to_owned());
        let mut untried = line("untried", WebhookState::Active);
        (untried.untried_since, untried.untried_cause) = (Some(then), Some(WebhookUntriedCause::NoKey));
        let webhooks = vec![line("alarms", WebhookState::Active), ended, untried];
        let shown = list(&WebhookList { webhooks }, now);
        let shown = anstream::adapter::strip_str(&shown).to_string();
        for words in [
            "alarms   hooks.example  active",
            "ended: the right of its owner anna was revoked",
            "untried: a notice has waited for 5m: no gateway has the key 0123456789abcdef: add it",
            "3 webhooks",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(list(&WebhookList { webhooks: Vec::new() }, now).contains("--webhook-key"));
    }
}
