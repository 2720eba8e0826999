//! The owner of a subscription.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The user who made a subscription, as the server vouched for it. The hub writes it; no request has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionOwner {
    /// The user's public key.
    pub key: String,
    /// The user's name, for people.
    pub name: String,
}
