//! The command line of `muster webhook`.

use clap::Subcommand;
use muster_contract::SubscriptionName;

pub(super) const WEBHOOK_EXAMPLES: &str = "\
A gateway with --webhook-key registers webhooks (POST /api/v1/webhooks) and posts notices to them. On a hub with keys,
operators alone may list and remove them. An address is not shown: it may be a secret, and the hub cannot read it.

Examples:
  muster webhook list
  muster webhook list --format json | jq '.webhooks[] | select(.untriedSince)'
  muster webhook remove alarms

Exit code 1: there is no such webhook.";

/// `muster webhook`
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// The webhooks with the progress of their deliveries
    List,
    /// Remove a webhook; its receiver gets nothing more
    Remove {
        /// The webhook
        name: SubscriptionName,
    },
}
