//! Follows the term of the token with which this device connects: reads it from the credentials, publishes it to heartbeats,
//! metrics and the status file, and logs once that it ends soon. It renews nothing: [`crate::follow`] and [`crate::join`] store
//! renewed tokens.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::creds;
use muster_contract::token::TokenTerm;
use muster_contract::{DeviceKey, Timestamp};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Time between two reads of the credentials.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The term of the token; `None` if the token does not end, or the device connects without one.
pub(crate) type CurrentToken = Option<TokenTerm>;

/// Reads the term of the token again and again.
#[derive(Debug)]
pub(crate) struct TokenMonitor {
    device: DeviceKey,
    creds: PathBuf,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    term: watch::Sender<CurrentToken>,
    /// The end that was logged last.
    logged_end: Option<Timestamp>,
}

impl TokenMonitor {
    /// A monitor of a credentials file, or of a folder with the identity.
    pub(crate) const fn new(
        device: DeviceKey,
        creds: PathBuf,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        term: watch::Sender<CurrentToken>,
    ) -> Self {
        Self { device, creds, clock, metrics, term, logged_end: None }
    }

    /// Checks until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(CHECK_INTERVAL)).await.is_some() {
            self.check().await;
        }
    }

    /// Reads the term once. While the credentials cannot be read, the last term stays; the connection reports the failure.
    pub(crate) async fn check(&mut self) {
        let path = self.creds.clone();
        match tokio::task::spawn_blocking(move || creds::term(&path)).await {
            Ok(Ok(term)) => self.apply(term),
            Ok(Err(error)) => tracing::debug!(error = chain(&error), "cannot read the credentials"),
            Err(_) => {}
        }
    }

    fn apply(&mut self, term: CurrentToken) {
        let now = self.clock.now();
        let ending = term.filter(|term| term.ends_soon(now)).map(|term| term.ends_at);
        self.metrics.set_token(term.map(|term| term.ends_at), ending.is_some());
        self.term.send_if_modified(|known| std::mem::replace(known, term) != term);
        if let Some(end) = ending.filter(|end| self.logged_end != Some(*end)) {
            self.logged_end = Some(end);
            tracing::warn!(
                token.ends_at = %end,
                "token not renewed and ending soon: start muster-renewer, or run `muster enroll {} --send`",
                self.device
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_identity::{KeyPair, claims};
    use muster_service::clock::SystemClock;

    use super::*;

    #[tokio::test]
    async fn the_term_of_the_newest_token_in_the_credentials_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let (signer, pair) = (KeyPair::new_account(), KeyPair::new_user());
        let now = SystemClock.now().as_second().cast_unsigned();
        let write = |issued, expires| {
            let user = claims::User { account: "A", key: &pair.public_key(), issued, expires };
            let token = claims::device(&signer, &user, &"plant7/press-4".parse().unwrap()).unwrap();
            std::fs::write(dir.path().join(creds::TOKEN_FILE), token).unwrap();
        };
        std::fs::write(dir.path().join(creds::SEED_FILE), pair.seed().unwrap()).unwrap();
        let term = watch::Sender::new(None);
        let mut known = term.subscribe();
        let (device, creds) = ("plant7/press-4".parse().unwrap(), dir.path().to_owned());
        let mut monitor = TokenMonitor::new(device, creds, Arc::new(SystemClock), Metrics::default(), term);
        monitor.check().await;
        assert!(!known.has_changed().unwrap(), "there is no token");

        write(now - 900, Some(now + 60));
        monitor.check().await;
        let ends_at = |known: &mut watch::Receiver<CurrentToken>| {
            known.borrow_and_update().map(|term| term.ends_at.as_second().cast_unsigned())
        };
        assert_eq!(ends_at(&mut known), Some(now + 60));
        assert_eq!((monitor.metrics.token_end(), monitor.metrics.is_token_ending()), (now + 60, true));
        assert_eq!(monitor.logged_end.map(|end| end.as_second().cast_unsigned()), Some(now + 60));
        monitor.check().await;
        assert!(!known.has_changed().unwrap(), "it is the same");

        write(now, Some(now + 900));
        monitor.check().await;
        assert_eq!(ends_at(&mut known), Some(now + 900));
        assert_eq!((monitor.metrics.token_end(), monitor.metrics.is_token_ending()), (now + 900, false));
        write(now, None);
        monitor.check().await;
        assert_eq!((ends_at(&mut known), monitor.metrics.token_end()), (None, 0));
    }
}
