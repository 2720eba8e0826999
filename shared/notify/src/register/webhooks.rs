//! The webhooks of the register: which are due for a gateway, in fair order, and which nobody delivers. It does no IO.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::notify::{
    NoticeEvent, RevokedOwner, SubscriptionRecord, WEBHOOK_CLAIM_SECONDS, WEBHOOKS_MAX, WebhookDueQuery,
    WebhookLine, WebhookUntriedCause,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::{SubscriptionName, Timestamp};

use super::{Line, Register};
use crate::webhooks;

/// A gateway that has not asked for so long does not count: longer than a gateway without a free slot needs for one.
const ASKED_WITHIN: Duration = Duration::from_secs(60);
/// Gateways that are remembered.
const GATEWAYS_MAX: usize = 64;

const _: () = assert!(ASKED_WITHIN.as_secs() >= 2 * WEBHOOK_CLAIM_SECONDS);

/// The gateways that ask this process for notices of webhooks.
#[derive(Debug, Default)]
pub(super) struct AskingGateways(BTreeMap<String, Asked>);

#[derive(Debug)]
struct Asked {
    keys: Vec<String>,
    at: Timestamp,
}

impl AskingGateways {
    fn insert(&mut self, query: &WebhookDueQuery, now: Timestamp) {
        let is_known = self.0.contains_key(&query.gateway);
        if !is_known && self.0.len() >= GATEWAYS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, asked)| asked.at).map(|(name, _)| name.clone());
            oldest.map(|name| self.0.remove(&name));
        }
        self.0.insert(query.gateway.clone(), Asked { keys: query.keys.clone(), at: now });
    }

    /// Why none of them has tried to deliver what this key has sealed.
    fn cause(&self, key: &str, now: Timestamp) -> WebhookUntriedCause {
        let mut asking =
            self.0.values().filter(|asked| now <= webhooks::after(asked.at, ASKED_WITHIN)).peekable();
        if asking.peek().is_none() {
            return WebhookUntriedCause::NoGateway;
        }
        let has_key = asking.any(|asked| asked.keys.iter().any(|own| own == key));
        if has_key { WebhookUntriedCause::Busy } else { WebhookUntriedCause::NoKey }
    }
}

/// A webhook with its name and the number of the newest notice.
type LiveWebhook<'a> = (&'a SubscriptionName, &'a SubscriptionRecord, u64);

impl Line {
    /// Remembers since when the webhook has a notice to deliver: an entry of the stream was stored at `at`.
    pub(crate) fn update_waiting(&mut self, at: Timestamp) {
        let newest = self.newest_number();
        let waits = self.webhook_record().is_some_and(|record| newest > record.seen.max(record.began));
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(at));
    }

    /// The record of a webhook.
    fn webhook_record(&self) -> Option<&SubscriptionRecord> {
        self.record.as_ref().filter(|record| record.webhook.is_some())
    }

    /// The number of the newest notice; 0 if there is none to deliver. One that ended an earlier registration is none.
    fn newest_number(&self) -> u64 {
        self.last.filter(|told| told.event != NoticeEvent::Ended).map_or(0, |told| told.number)
    }
}

impl Register {
    /// Webhooks that have not been removed.
    fn live_webhooks(&self) -> impl Iterator<Item = LiveWebhook<'_>> {
        self.lines
            .iter()
            .filter_map(|(name, line)| Some((name, line.webhook_record()?, line.newest_number())))
    }

    /// Webhooks that deliver nothing any more.
    pub(crate) fn disabled_webhooks(&self) -> usize {
        self.live_webhooks().filter(|(_, record, _)| webhooks::is_disabled(record)).count()
    }

    /// Refuses one more webhook than there may be; the one of this name counts as new.
    ///
    /// # Errors
    /// The bound, for the requester.
    pub(crate) fn check_webhooks(&self, name: &SubscriptionName) -> Result<(), ErrorBody> {
        let others = self.live_webhooks().filter(|(other, ..)| *other != name).count();
        if others < WEBHOOKS_MAX {
            return Ok(());
        }
        let message = format!("there are {others} webhooks, and no more may be; remove one first");
        Err(ErrorBody { code: ErrorCode::Conflict, message })
    }

    /// Webhooks after a name, in order, and whether there are more.
    pub(crate) fn webhooks(
        &self,
        after: Option<&SubscriptionName>,
        limit: usize,
        now: Timestamp,
    ) -> (Vec<WebhookLine>, bool) {
        let live = self.lines.iter().filter(|(name, _)| after.is_none_or(|after| *name > after));
        let mut lines = live.filter_map(|(_, line)| self.shown_webhook(line, now));
        let page: Vec<_> = lines.by_ref().take(limit).collect();
        (page, lines.next().is_some())
    }

    fn shown_webhook(&self, line: &Line, now: Timestamp) -> Option<WebhookLine> {
        let (untried_since, untried_cause) = self.untried(line, now).unzip();
        let shown = webhooks::line(line.webhook_record()?, line.newest_number())?;
        Some(WebhookLine { untried_since, untried_cause, ..shown })
    }

    /// Since when a notice of a webhook is due without a try, and why.
    fn untried(&self, line: &Line, now: Timestamp) -> Option<(Timestamp, WebhookUntriedCause)> {
        let (record, waits_since) = line.webhook_record().zip(line.waits_since)?;
        let since = webhooks::untried_since(record, line.newest_number(), waits_since, now)?;
        let key = record.webhook.as_ref().map_or("", |webhook| &webhook.progress.key);
        Some((since, self.gateways.cause(key, now)))
    }

    /// Since when the oldest notice is due without a try, for each cause that there is.
    pub(crate) fn untried_webhooks(&self, now: Timestamp) -> BTreeMap<WebhookUntriedCause, Timestamp> {
        let mut oldest = BTreeMap::new();
        for (since, cause) in self.lines.values().filter_map(|line| self.untried(line, now)) {
            let known = oldest.entry(cause).or_insert(since);
            *known = since.min(*known);
        }
        oldest
    }

    /// Webhooks with a notice for a gateway to deliver: those of owners with the fewest deliveries under way first, then those
    /// that have failed least, then those that have waited longest. The gateway is remembered as one that asks.
    pub(crate) fn due_webhooks(&mut self, query: &WebhookDueQuery, now: Timestamp) -> Vec<SubscriptionName> {
        self.gateways.insert(query, now);
        let owner = |record: &SubscriptionRecord| record.owner.as_ref().map(|owner| owner.key.clone());
        let mut under_way = BTreeMap::<_, usize>::new();
        for (_, record, _) in self.live_webhooks().filter(|(_, record, _)| webhooks::is_claimed(record, now))
        {
            *under_way.entry(owner(record)).or_default() += 1;
        }
        let mut due: Vec<_> = self
            .live_webhooks()
            .filter(|(_, record, told)| webhooks::is_due(record, *told, now))
            .filter_map(|(name, record, _)| Some((name, record.webhook.as_ref()?, owner(record))))
            .filter(|(_, webhook, owner)| webhooks::is_for(webhook, owner.as_deref(), query))
            .map(|(name, webhook, owner)| {
                let (failures, others) = (webhook.progress.failures, under_way.get(&owner).copied());
                ((others.unwrap_or(0), failures, webhook.stored_at), name)
            })
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Counts a claim before the stream brings it, so that the next question does not try the same webhook.
    pub(crate) fn record_claim(&mut self, name: &SubscriptionName, claimed: &SubscriptionRecord) {
        let claim = claimed.webhook.as_ref().and_then(|webhook| webhook.claim.clone());
        let record = self.lines.get_mut(name).and_then(|line| line.record.as_mut());
        if let Some(webhook) = record.and_then(|record| record.webhook.as_mut()) {
            webhook.claim = claim;
        }
    }

    /// A webhook whose record must be stored again.
    pub(crate) fn webhook_to_renew(&self, now: Timestamp) -> Option<SubscriptionName> {
        let is_due = |record: &SubscriptionRecord| {
            record.webhook.as_ref().is_some_and(|webhook| webhooks::is_renewal_due(webhook, now))
        };
        self.live_webhooks().find(|(_, record, _)| is_due(record)).map(|(name, ..)| name.clone())
    }

    /// Webhooks that end because their owners' rights were revoked.
    pub(crate) fn webhooks_to_end(&self, revoked: &[RevokedOwner], now: Timestamp) -> Vec<SubscriptionName> {
        let ends = |record: &SubscriptionRecord| webhooks::end_revoked(&mut record.clone(), revoked, now);
        self.live_webhooks().filter(|(_, record, _)| ends(record)).map(|(name, ..)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
