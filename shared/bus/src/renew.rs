//! Watches the credentials of a connection and reconnects with newer ones before the old ones expire, without a restart.
//! A renewal replaces the file.
//!
//! Only a better JWT causes a reconnect: one for the same key, issued later, and not expired. A damaged or half-written
//! file is read again at the next check, and logged once when the JWT in use expires soon.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use muster_contract::Timestamp;
use muster_identity::TokenClaims;
use muster_service::clock::Clock;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::creds;

/// The part of a JWT's lifetime that is left when its expiry is logged first: a quarter.
const WARN_PART: u64 = 4;

/// The JWT of the last connect.
#[derive(Debug, Default)]
pub(crate) struct InUse(Mutex<Option<TokenClaims>>);

impl InUse {
    /// Sets the JWT, at every connect.
    pub(crate) fn set(&self, known: Option<TokenClaims>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn get(&self) -> Option<TokenClaims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The task that watches the credentials of one connection.
pub(crate) struct Renewal {
    pub(crate) client: Client,
    pub(crate) path: PathBuf,
    pub(crate) in_use: Arc<InUse>,
    pub(crate) check_interval: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
enum CredsCheck {
    /// The file holds a better JWT than the one in use, issued at this second.
    Newer(u64),
    /// The one in use expires soon, at this second, and there is no better one.
    ExpiresSoon(u64),
    /// There is nothing to do.
    Unchanged,
}

impl Renewal {
    /// Checks the file until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (mut warned_of, mut reconnected_for) = (None, None);
        while stop.run_until_cancelled(sleep(self.check_interval)).await.is_some() {
            let Some(in_use) = self.in_use.get() else { continue };
            let found = creds::read(&self.path).and_then(|creds| creds.claims());
            let now = self.clock.now();
            match check(&in_use, found.as_ref().ok(), now) {
                // The library reads the file at every connect, so the next connection has the newer ones.
                CredsCheck::Newer(_) if self.client.connection_state() != State::Connected => {}
                // One request is enough: the library reconnects, or the connection breaks and it reconnects then.
                CredsCheck::Newer(issued) if reconnected_for == Some(issued) => {}
                CredsCheck::Newer(issued) => {
                    reconnected_for = Some(issued);
                    self.reconnect().await;
                }
                CredsCheck::ExpiresSoon(end) if warned_of != Some(end) => {
                    warned_of = Some(end);
                    self.warn(end, now, found.err().as_ref());
                }
                CredsCheck::ExpiresSoon(_) | CredsCheck::Unchanged => {}
            }
        }
    }

    async fn reconnect(&self) {
        tracing::info!("found newer credentials; reconnecting with them");
        // Messages under way are not lost: senders see the link go, and send again what was not confirmed.
        if let Err(error) = self.client.force_reconnect().await {
            tracing::warn!(%error, "cannot reconnect");
        }
    }

    fn warn(&self, end: u64, now: Timestamp, broken: Option<&io::Error>) {
        let left = Duration::from_secs(end.saturating_sub(seconds(now)));
        let broken = broken.map(tracing::field::display);
        tracing::warn!(
            file = %self.path.display(), ?left, file.problem = broken,
            "the credentials expire soon: renew them (`muster enroll`) and replace the file"
        );
    }
}

fn check(in_use: &TokenClaims, found: Option<&TokenClaims>, now: Timestamp) -> CredsCheck {
    let now = seconds(now);
    let lasts = |known: &TokenClaims| known.exp.is_none_or(|end| now < end);
    // Never back to an older one: it may be one that was revoked.
    let newer = |found: &&TokenClaims| found.sub == in_use.sub && found.iat > in_use.iat && lasts(found);
    if let Some(found) = found.filter(newer) {
        return CredsCheck::Newer(found.iat);
    }
    match in_use.exp {
        Some(end) if end.saturating_sub(now) < end.saturating_sub(in_use.iat) / WARN_PART => {
            CredsCheck::ExpiresSoon(end)
        }
        _ => CredsCheck::Unchanged,
    }
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

const _: () = assert!(WARN_PART > 1);

#[cfg(test)]
mod tests {
    use muster_identity::jwt::NatsClaims;

    use super::*;

    fn known(sub: &str, iat: u64, exp: Option<u64>) -> TokenClaims {
        let nats = NatsClaims {
            kind: "user".to_owned(),
            tags: Vec::new(),
            issuer_account: String::new(),
            revocations: Default::default(),
        };
        TokenClaims { sub: sub.to_owned(), iss: "A".to_owned(), name: String::new(), iat, exp, nats }
    }

    #[test]
    fn only_a_better_token_makes_a_new_connection() {
        let used = known("U", 100, Some(200));
        for (found, now, expected) in [
            (None, 150, CredsCheck::Unchanged),
            (None, 176, CredsCheck::ExpiresSoon(200)),
            (Some(used.clone()), 176, CredsCheck::ExpiresSoon(200)),
            (Some(known("U", 101, Some(300))), 150, CredsCheck::Newer(101)),
            (Some(known("U", 101, None)), 199, CredsCheck::Newer(101)),
            (Some(known("U", 99, Some(300))), 150, CredsCheck::Unchanged),
            (Some(known("X", 101, Some(300))), 150, CredsCheck::Unchanged),
            (Some(known("U", 101, Some(150))), 150, CredsCheck::Unchanged),
        ] {
            let at = Timestamp::from_second(now).unwrap();
            assert_eq!(check(&used, found.as_ref(), at), expected, "{found:?} at {now}");
        }
        let endless = known("U", 100, None);
        assert_eq!(check(&endless, None, Timestamp::from_second(1_000_000).unwrap()), CredsCheck::Unchanged);
    }
}
