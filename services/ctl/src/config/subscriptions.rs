//! The command line of `muster subscription`.

use clap::Subcommand;
use muster_contract::SubscriptionName;

pub(super) const SUBSCRIPTION_EXAMPLES: &str = "\
A subscription gets notices of changes. It ends by itself when its subscriber has not renewed it for its lease, an hour unless
it names another. One user may have 64; on a hub with keys an operator sees and ends those of everybody.

Examples:
  muster subscription list
  muster subscription list --format json | jq '.subscriptions[].owner'
  muster subscription end night-shift    its place is free; its subscriber gets a last notice with the reason

Exit code 1: there is no such subscription, or it belongs to another user.";

/// `muster subscription`
#[derive(Debug, Subcommand)]
pub enum SubscriptionCommand {
    /// The subscriptions to notices, with their owners and how far they have confirmed
    List,
    /// End subscriptions
    End {
        /// The subscriptions
        #[arg(required = true, value_name = "NAME")]
        names: Vec<SubscriptionName>,
    },
}
