//! Counts targets that are tried again after an error, with their attempts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often targets are tried again after an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retried {
    /// Targets under retry.
    pub targets: u64,
    /// The attempts of all of them. A target counts with its worst retry: a crash loop before any other, then the retry with the
    /// most attempts.
    pub attempts: u64,
}

impl Retried {
    /// True if nothing is tried again.
    pub const fn is_nothing(&self) -> bool {
        self.targets == 0 && self.attempts == 0
    }

    /// The sum of both, of disjoint targets.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            targets: self.targets.saturating_add(other.targets),
            attempts: self.attempts.saturating_add(other.attempts),
        }
    }
}
