//! The newest incident about the end of a device's token, by ingest or the renewer, and the incident that a token leads to.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::fact::IncidentKind;
use muster_contract::limits::{REASSERT_AFTER, TOKEN_INCIDENT_INTERVAL, TOKEN_REPEAT_PARTS};
use muster_contract::token::TokenTerm;
use serde::{Deserialize, Serialize};

use super::DeviceLedgerState;
use crate::lease::elapsed;

/// The newest incident about the end of the device's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedToken {
    /// When the token ends.
    ends_at: Timestamp,
    /// The token follows one that was ending.
    is_renewed: bool,
    /// When the fact was published.
    published_at: Timestamp,
}

impl DeviceLedgerState {
    /// The incident that LEDGER lacks about a token that the device has at `now`. An end is recorded again while the device keeps its
    /// token: the renewer may report a newer one that the device never fetches, and LEDGER must not forget the end before it comes.
    pub(crate) fn token_incident(&self, token: &TokenTerm, now: Timestamp) -> Option<IncidentKind> {
        let TokenTerm { issued_at, ends_at } = *token;
        if !token.ends_soon(now) {
            let is_newer = self.token.is_some_and(|known| !known.is_renewed && known.ends_at < ends_at);
            return is_newer.then_some(IncidentKind::TokenRenewed { ends_at });
        }
        let is_due = self.token.is_none_or(|known| {
            let is_recorded = !known.is_renewed && known.ends_at == ends_at;
            let interval = if is_recorded { repeat_interval(token) } else { TOKEN_INCIDENT_INTERVAL };
            elapsed(known.published_at, now) >= interval
        });
        is_due.then_some(IncidentKind::TokenEnding { issued_at, ends_at })
    }

    /// Applies an incident about the token. An older one that comes again changes nothing.
    pub(super) fn apply_token(&mut self, ends_at: Timestamp, is_renewed: bool, published_at: Timestamp) {
        if self.token.is_none_or(|known| known.published_at <= published_at) {
            self.token = Some(PublishedToken { ends_at, is_renewed, published_at });
        }
    }
}

/// Time after which the recorded end of a token is recorded again.
fn repeat_interval(token: &TokenTerm) -> Duration {
    (token.lifetime() / TOKEN_REPEAT_PARTS).clamp(TOKEN_INCIDENT_INTERVAL, REASSERT_AFTER)
}
