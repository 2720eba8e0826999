//! Renews tokens in rounds: reads the registry, signs due tokens, publishes them, writes the registry once, and reports tokens
//! that expire soon.
//!
//! The hub stores a token before the registry records it: after a crash in between, the tokens of the round are signed once
//! more, and no device is left without one. The other order would leave a device without: its registered token would not be
//! due again before the one that it has ends. A round holds the directory's lock, so no revocation comes in between, and a
//! revocation after a crash is of every token that was issued before it.

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
pub(crate) struct Renewer {
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

/// The result of signing and publishing the tokens of a round. The registry in memory has the renewed ones, and no other.
#[derive(Debug, Default)]
struct Renewed<'a> {
    tokens: Vec<&'a Token>,
    failures: Vec<(&'a Token, RenewError)>,
}

impl Renewer {
    /// Renews until `stop`. A round under way is finished, so that every published token is recorded.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
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
        let publish = |device, jwt| publish(self.bus.clone(), device, jwt);
        let Renewed { tokens: renewed, failures } = renew_all(&mut keys, &due, now, publish).await;
        failures.iter().for_each(|(token, error)| self.failed(token, error));
        let saved = if renewed.is_empty() { Ok(()) } else { keys.save() };
        let is_more_due = saved.is_ok() && failures.is_empty() && due.len() > ROUND;
        match saved {
            Ok(()) => renewed.iter().for_each(|token| {
                tracing::info!(device = %token.device, "renewed a token");
                self.metrics.renewed.inc();
            }),
            Err(error) => {
                let error = RenewError::Record(error);
                renewed.iter().for_each(|token| self.failed(token, &error));
                // By the registry they are due as before.
                renewed.iter().for_each(|token| keys.discard(token));
            }
        }
        self.report(&keys.tokens(), now);
        self.metrics.show_ending(&keys.roles_ending(now));
        Ok(is_more_due)
    }

    fn failed(&self, token: &Token, error: &RenewError) {
        tracing::warn!(device = %token.device, error = chain(error), "cannot renew a token yet");
        self.metrics.failures.inc();
    }

    /// Another process may hold the directory's lock; the wait blocks no other task.
    async fn open(&self) -> Result<Keys, KeysError> {
        let dir = self.keys.clone();
        tokio::task::spawn_blocking(move || Keys::open(&dir)).await.unwrap_or_else(stopped)
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

async fn publish(bus: Bus, device: DeviceKey, jwt: String) -> Result<(), PublishError> {
    let document = Credential { api_version: ApiVersion::V1, kind: kind::Credential::Credential, jwt };
    let message = Outgoing {
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subjects::credential(&device), decode::to_bytes(&document))
    };
    bus.publish(message).await.map(drop)
}

/// Signs and publishes due tokens, as many as a round renews. It ends early if one cannot be published: then none can.
async fn renew_all<'a, F: Future<Output = Result<(), PublishError>>>(
    keys: &mut Keys,
    due: &'a [Token],
    now: u64,
    mut publish: impl FnMut(DeviceKey, String) -> F,
) -> Renewed<'a> {
    let mut round = Renewed::default();
    for token in due {
        if round.tokens.len() == ROUND {
            break;
        }
        let published = match keys.renewed(token, now) {
            Ok(jwt) => publish(token.device.clone(), jwt).await.map_err(RenewError::Publish),
            Err(error) => Err(RenewError::Sign(error)),
        };
        let Err(error) = published else {
            round.tokens.push(token);
            continue;
        };
        keys.discard(token);
        let is_signed = !matches!(error, RenewError::Sign(_));
        round.failures.push((token, error));
        if is_signed {
            break;
        }
    }
    round
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

#[cfg(test)]
mod tests {
    use std::future::ready;

    use muster_bus::wire::{ApiError, NoAnswer};

    use super::*;
    use crate::keys::tests::directory_of;

    #[tokio::test]
    async fn the_registry_is_written_once_a_round_with_published_renewals_alone() {
        let names = ["plant7/a", "plant7/b", "plant7/c", "plant7/d"];
        let dir = directory_of(&names, 5_000);
        let issued = || Keys::open(dir.path()).unwrap().tokens().iter().map(|token| token.issued).collect();
        let before = std::fs::read(dir.path().join("roster.json")).unwrap();
        let mut keys = Keys::open(dir.path()).unwrap();
        let due = keys.tokens();
        let mut published = Vec::new();
        let round = renew_all(&mut keys, &due, 5_600, |device, _| {
            assert_eq!(std::fs::read(dir.path().join("roster.json")).unwrap(), before, "{device}");
            if published.len() == 2 {
                let cut_off = ApiError::NoAnswer(NoAnswer::Disconnected);
                return ready(Err(PublishError::new("muster.credential", cut_off)));
            }
            published.push(device.to_string());
            ready(Ok(()))
        })
        .await;
        assert_eq!((round.tokens.len(), round.failures.len()), (2, 1), "the fourth is not tried");
        assert_eq!(published, names[..2]);
        keys.save().unwrap();
        drop(keys);
        let recorded: Vec<u64> = issued();
        assert_eq!(recorded, [5_600, 5_600, 5_000, 5_000]);
    }
}
