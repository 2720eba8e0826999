//! The term of a device's token: its heartbeats report it, and an incident records that it ends soon.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::ENDS_SOON_PARTS;

/// When a token was issued, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenTerm {
    /// When the token was issued.
    pub issued_at: Timestamp,
    /// When it ends: the device is out then.
    pub ends_at: Timestamp,
}

impl TokenTerm {
    /// Time from its issue to its end; zero if it ends before its issue.
    pub fn lifetime(&self) -> Duration {
        Duration::try_from(self.ends_at.duration_since(self.issued_at)).unwrap_or(Duration::ZERO)
    }

    /// Whether a tenth of its lifetime or less is left at `now`, or it has ended.
    pub fn ends_soon(&self, now: Timestamp) -> bool {
        let left = self.ends_at.duration_since(now).as_millis().max(0);
        let lifetime = self.ends_at.duration_since(self.issued_at).as_millis().max(0);
        left * i128::from(ENDS_SOON_PARTS) <= lifetime
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_token_ends_soon_from_the_last_tenth_of_its_life_on() {
        let term = TokenTerm { issued_at: at(1_000), ends_at: at(2_000) };
        let ends_soon = [0, 1_000, 1_899, 1_900, 2_000, 9_000].map(|second| term.ends_soon(at(second)));
        assert_eq!(ends_soon, [false, false, false, true, true, true]);
        let nonsense = TokenTerm { issued_at: Timestamp::MAX, ends_at: Timestamp::MIN };
        assert!(nonsense.ends_soon(at(0)));
        assert!(!TokenTerm { issued_at: Timestamp::MAX, ends_at: at(1) }.ends_soon(at(0)));
    }
}
