//! Credentials that change while we are connected: the newer ones are taken up before the older ones end, without a
//! restart. Whoever renews them puts a new file in the old one's place.
//!
//! A new connection is made only for a JWT that can be better than the one in use: for the same key, of a later
//! issue, and not at its end. What is broken or half-written is waited out, and said once.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use muster_contract::Timestamp;
use muster_identity::Known;
use muster_service::clock::Clock;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::creds;

/// How often the file is looked at.
pub(crate) const CREDS_LOOK: Duration = Duration::from_secs(5);
/// What is left of a JWT's life when its end is first spoken of: a quarter.
const END_IS_NEAR: u64 = 4;

/// The JWT that the connection was last made with.
#[derive(Debug, Default)]
pub(crate) struct InUse(Mutex<Option<Known>>);

impl InUse {
    /// To be told at every connect.
    pub(crate) fn set(&self, known: Option<Known>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn get(&self) -> Option<Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What looks after the credentials of one connection.
pub(crate) struct Renewal {
    pub(crate) client: Client,
    pub(crate) path: PathBuf,
    pub(crate) in_use: Arc<InUse>,
    pub(crate) look: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What follows from a look.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// The file holds a better JWT than the one in use, issued at this second.
    Newer(u64),
    /// The one in use ends at this second, soon, and there is no better one.
    EndsSoon(u64),
    /// Nothing is to be done.
    Fine,
}

impl Renewal {
    /// Looks until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (mut told, mut taken_up) = (None, None);
        while stop.run_until_cancelled(sleep(self.look)).await.is_some() {
            let Some(in_use) = self.in_use.get() else { continue };
            let found = creds::read(&self.path).and_then(|creds| creds.known());
            let now = self.clock.now();
            match look(&in_use, found.as_ref().ok(), now) {
                // While there is no connection the next one is made with the newer ones anyway.
                Look::Newer(_) if self.client.connection_state() != State::Connected => {}
                // Asked for once: it comes, or the connection breaks and comes with them.
                Look::Newer(issued) if taken_up == Some(issued) => {}
                Look::Newer(issued) => {
                    taken_up = Some(issued);
                    self.take_up().await;
                }
                Look::EndsSoon(end) if told != Some(end) => {
                    told = Some(end);
                    self.tell(end, now, found.err().as_ref());
                }
                Look::EndsSoon(_) | Look::Fine => {}
            }
        }
    }

    async fn take_up(&self) {
        tracing::info!("newer credentials: connecting anew with them");
        // What is under way is not lost: senders see the link go, and send again what was not confirmed.
        if let Err(error) = self.client.force_reconnect().await {
            tracing::warn!(%error, "cannot connect anew");
        }
    }

    fn tell(&self, end: u64, now: Timestamp, broken: Option<&io::Error>) {
        let left = Duration::from_secs(end.saturating_sub(seconds(now)));
        let broken = broken.map(tracing::field::display);
        tracing::warn!(
            file = %self.path.display(), ?left, file.problem = broken,
            "the credentials end soon: have them renewed (`muster enroll`) and put in the old ones' place"
        );
    }
}

fn look(in_use: &Known, found: Option<&Known>, now: Timestamp) -> Look {
    let now = seconds(now);
    let lasts = |known: &Known| known.exp.is_none_or(|end| now < end);
    // Never back to an older one: it may be the one whose key was put out.
    let newer = |found: &&Known| found.sub == in_use.sub && found.iat > in_use.iat && lasts(found);
    if let Some(found) = found.filter(newer) {
        return Look::Newer(found.iat);
    }
    match in_use.exp {
        Some(end) if end.saturating_sub(now) < end.saturating_sub(in_use.iat) / END_IS_NEAR => {
            Look::EndsSoon(end)
        }
        _ => Look::Fine,
    }
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

const _: () = assert!(END_IS_NEAR > 1);

#[cfg(test)]
mod tests {
    use muster_identity::jwt::KnownNats;

    use super::*;

    fn known(sub: &str, iat: u64, exp: Option<u64>) -> Known {
        let nats = KnownNats {
            kind: "user".to_owned(),
            tags: Vec::new(),
            issuer_account: String::new(),
            revocations: Default::default(),
        };
        Known { sub: sub.to_owned(), iss: "A".to_owned(), name: String::new(), iat, exp, nats }
    }

    #[test]
    fn only_a_better_token_makes_a_new_connection() {
        let used = known("U", 100, Some(200));
        for (found, now, expected) in [
            (None, 150, Look::Fine),
            (None, 176, Look::EndsSoon(200)),
            (Some(used.clone()), 176, Look::EndsSoon(200)),
            (Some(known("U", 101, Some(300))), 150, Look::Newer(101)),
            (Some(known("U", 101, None)), 199, Look::Newer(101)),
            (Some(known("U", 99, Some(300))), 150, Look::Fine),
            (Some(known("X", 101, Some(300))), 150, Look::Fine),
            (Some(known("U", 101, Some(150))), 150, Look::Fine),
        ] {
            let at = Timestamp::from_second(now).unwrap();
            assert_eq!(look(&used, found.as_ref(), at), expected, "{found:?} at {now}");
        }
        let endless = known("U", 100, None);
        assert_eq!(look(&endless, None, Timestamp::from_second(1_000_000).unwrap()), Look::Fine);
    }
}
