//! Rounds of renewal: look at the roster, sign what is due, hand it over, keep the roster, tell what ends.
//!
//! A token goes to the hub before the roster says that it was signed: a crash in between signs it once more, and no device
//! is left without. All of it happens under the directory's lock, so nobody is revoked in between.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, IncidentReporter, Outgoing, PublishError};
use muster_contract::credential::Credential;
use muster_contract::incident::IncidentKind;
use muster_contract::subjects::{self, stream};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Timestamp, decode};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

use crate::due::Token;
use crate::keys::{Keys, KeysError};
use crate::metrics::Metrics;

/// Tokens that are signed in one round: the directory is held no longer than it takes to hand over so many.
const ROUND: usize = 256;

/// Renews tokens.
pub struct Renewer {
    /// Where tokens are handed over.
    pub bus: Bus,
    /// The directory of keys.
    pub keys: PathBuf,
    /// Time between two looks.
    pub every: Duration,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    pub metrics: Metrics,
    /// Where tokens that end are reported.
    pub incidents: IncidentReporter,
    /// Tokens whose end was reported, by key and end.
    pub reported: BTreeSet<(String, u64)>,
}

impl Renewer {
    /// Renews until `stop`. A round under way is finished: a token is never signed and then forgotten.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let is_more_due = match self.round().await {
                Ok(is_more_due) => is_more_due,
                Err(error) => {
                    tracing::warn!(error = chain(&error), retry_in = ?self.every, "cannot renew tokens yet");
                    false
                }
            };
            if !is_more_due {
                stop.run_until_cancelled(tokio::time::sleep(self.every)).await;
            }
        }
    }

    /// One round; true where more tokens are due than one round signs.
    async fn round(&mut self) -> Result<bool, KeysError> {
        let now = self.now();
        let dir = self.keys.clone();
        // Another process may hold the directory; nobody else waits for that.
        let mut keys = tokio::task::spawn_blocking(move || Keys::open(&dir)).await.unwrap_or_else(stopped)?;
        let due: Vec<Token> = keys.tokens().into_iter().filter(|token| token.is_due(now)).collect();
        let (mut signed, mut has_failed) = (0, false);
        for token in due.iter().take(ROUND) {
            let jwt = keys.renewed(token, now)?;
            if let Err(error) = self.hand_over(&token.device, jwt).await {
                tracing::warn!(device = %token.device, error = chain(&error), "cannot hand a renewed token over yet");
                self.metrics.failures.inc();
                has_failed = true;
                break;
            }
            // The next one may fail, and what is kept must be what was handed over.
            keys.keep()?;
            tracing::info!(device = %token.device, "renewed a token");
            self.metrics.renewed.inc();
            signed += 1;
        }
        if has_failed {
            // The entry that was changed and not handed over is forgotten with this reading.
            drop(keys);
            let dir = self.keys.clone();
            keys = tokio::task::spawn_blocking(move || Keys::open(&dir)).await.unwrap_or_else(stopped)?;
        }
        self.tell(&keys.tokens(), now);
        Ok(!has_failed && due.len() > signed)
    }

    async fn hand_over(&self, device: &DeviceKey, jwt: String) -> Result<(), PublishError> {
        let document = Credential { api_version: ApiVersion::V1, kind: kind::Credential::Credential, jwt };
        let letter = Outgoing {
            expected_stream: Some(stream::DOWNLINK),
            ..Outgoing::new(subjects::credential(device), decode::to_bytes(&document))
        };
        self.bus.publish(letter).await.map(drop)
    }

    /// Counts tokens, and reports each that ends soon once.
    fn tell(&mut self, tokens: &[Token], now: u64) {
        let ending: Vec<&Token> = tokens.iter().filter(|token| token.ends_soon(now)).collect();
        self.metrics.tokens.set(tokens.len() as i64);
        self.metrics.ending.set(ending.len() as i64);
        self.metrics.first_end.set(tokens.iter().map(|token| token.expires).min().unwrap_or(0) as f64);
        let known: BTreeSet<_> = ending.iter().map(|token| (token.key.clone(), token.expires)).collect();
        let is_over = |token: &&Token| {
            let was_ending = self.reported.iter().any(|(key, _)| *key == token.key);
            was_ending && !token.ends_soon(now)
        };
        for token in tokens.iter().filter(is_over) {
            let what = IncidentKind::TokenRenewed { ends_at: time(token.expires) };
            self.incidents.report(Some(token.device.clone()), what);
        }
        for token in ending {
            if !self.reported.contains(&(token.key.clone(), token.expires)) {
                let (issued_at, ends_at) = (time(token.issued), time(token.expires));
                let what = IncidentKind::TokenEnding { issued_at, ends_at };
                self.incidents.report(Some(token.device.clone()), what);
            }
        }
        self.reported = known;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_second()).unwrap_or(0)
    }
}

fn stopped(error: tokio::task::JoinError) -> Result<Keys, KeysError> {
    let source = std::io::Error::other(error);
    Err(KeysError::File { doing: "read", path: PathBuf::new(), source })
}

fn time(seconds: u64) -> Timestamp {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
}
