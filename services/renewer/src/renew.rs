//! Renews tokens in rounds: reads the registry, signs due tokens, publishes them, writes the registry, and reports tokens
//! that expire soon.
//!
//! The hub stores a token before the registry records it: after a crash in between, the token is signed once more, and no
//! device is left without one. A round holds the directory's lock, so no revocation comes in between.

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

/// Tokens that one round renews, which limits how long it holds the directory's lock.
const ROUND: usize = 256;

/// Why a token was not renewed.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error("cannot sign the token")]
    Sign(#[source] KeysError),
    #[error("cannot publish the token")]
    Publish(#[source] PublishError),
    #[error("cannot record the token")]
    Record(#[source] KeysError),
}

/// Renews tokens.
pub struct Renewer {
    /// The bus, to which it publishes tokens.
    pub bus: Bus,
    /// The directory of keys.
    pub keys: PathBuf,
    /// Time between two rounds.
    pub every: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Metrics,
    /// Reports tokens that expire soon.
    pub incidents: IncidentReporter,
    /// Reported tokens, by key and expiry.
    pub reported: BTreeSet<(String, u64)>,
}

impl Renewer {
    /// Renews until `stop`. A round under way is finished, so that every published token is recorded.
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

    /// Runs one round; true if more tokens are due than one round renews. Tokens that expire soon are reported also if renewing
    /// fails.
    async fn round(&mut self) -> Result<bool, KeysError> {
        let now = self.now();
        let mut keys = self.open().await?;
        let due: Vec<Token> = keys.tokens().into_iter().filter(|token| token.is_due(now)).collect();
        let (mut renewed, mut has_failed) = (0, false);
        for token in &due {
            if renewed == ROUND {
                break;
            }
            let Err(error) = self.renew(&mut keys, token, now).await else {
                tracing::info!(device = %token.device, "renewed a token");
                self.metrics.renewed.inc();
                renewed += 1;
                continue;
            };
            tracing::warn!(device = %token.device, error = chain(&error), "cannot renew a token yet");
            self.metrics.failures.inc();
            has_failed = true;
            // Reading the registry again discards the entry of the token that was not published.
            drop(keys);
            keys = self.open().await?;
            // Another token can be signed all the same, but not published or recorded.
            if !matches!(error, RenewError::Sign(_)) {
                break;
            }
        }
        self.report(&keys.tokens(), now);
        self.metrics.show_ending(&keys.roles_ending(now));
        Ok(!has_failed && due.len() > ROUND)
    }

    /// Another process may hold the directory's lock; the wait blocks no other task.
    async fn open(&self) -> Result<Keys, KeysError> {
        let dir = self.keys.clone();
        tokio::task::spawn_blocking(move || Keys::open(&dir)).await.unwrap_or_else(stopped)
    }

    /// Signs, publishes and records one token. It is recorded at once, because the next one may fail: the registry must record
    /// the published ones only.
    async fn renew(&self, keys: &mut Keys, token: &Token, now: u64) -> Result<(), RenewError> {
        let jwt = keys.renewed(token, now).map_err(RenewError::Sign)?;
        self.publish(&token.device, jwt).await.map_err(RenewError::Publish)?;
        keys.save().map_err(RenewError::Record)
    }

    async fn publish(&self, device: &DeviceKey, jwt: String) -> Result<(), PublishError> {
        let document = Credential { api_version: ApiVersion::V1, kind: kind::Credential::Credential, jwt };
        let message = Outgoing {
            expected_stream: Some(stream::DOWNLINK),
            ..Outgoing::new(subjects::credential(device), decode::to_bytes(&document))
        };
        self.bus.publish(message).await.map(drop)
    }

    /// Counts the tokens. Reports each that expires soon once, and its renewal after that.
    fn report(&mut self, tokens: &[Token], now: u64) {
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
