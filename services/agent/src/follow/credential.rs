//! Handles a renewed JWT from the hub: passes it to the identity, which checks it. The connection then uses it by itself.

use std::path::Path;

use bytes::Bytes;
use muster_bus::Bus;
use muster_contract::canonical::Digest;
use muster_contract::credential::Credential;
use muster_contract::decode;
use muster_contract::subjects::{self, stream};
use muster_service::error::chain;

use super::Follower;
use crate::identity::{self, IdentityError};

impl Follower {
    /// Reads the stored JWT. A hub without one is no reason to stop reading.
    pub(super) async fn read_credential(&mut self, bus: &Bus) {
        if self.identity.is_none() {
            return;
        }
        match bus.last(stream::DOWNLINK, &subjects::credential(&self.device)).await {
            Ok(Some(message)) => self.credential(message.payload).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(error = chain(&error), "cannot read a renewed JWT"),
        }
    }

    pub(super) async fn credential(&mut self, payload: Bytes) {
        let Some(data_dir) = self.identity.clone() else {
            return tracing::debug!(
                "ignored a JWT: this agent's credentials are in the file given with --creds"
            );
        };
        let digest = Digest::of_bytes(&payload);
        let kept = tokio::task::spawn_blocking(move || keep(&data_dir, &payload)).await;
        match kept.unwrap_or_else(|panicked| Err(panicked.to_string())) {
            Ok(None) => {}
            Ok(Some(end)) => tracing::info!(end, "stored a renewed JWT from the hub"),
            Err(reason) => self.reject_credential(&reason, digest),
        }
    }

    fn reject_credential(&mut self, reason: &str, digest: Digest) {
        if self.rejected_credential.replace(digest) != Some(digest) {
            tracing::error!(reason, "rejected a JWT from the hub; the one in use stays");
        }
    }
}

/// Stores the JWT if it renews the one in use, and returns when it expires.
fn keep(data_dir: &Path, payload: &[u8]) -> Result<Option<String>, String> {
    let document: Credential = decode::parse(payload).map_err(|refusal| refusal.to_string())?;
    match identity::renew(data_dir, &document.jwt) {
        Ok(known) => {
            let end =
                |known| identity::expiry(&known).map_or_else(|| "never".to_owned(), |end| end.to_string());
            Ok(known.map(end))
        }
        // DOWNLINK keeps the last one sent, also after a person installed a later one.
        Err(IdentityError::NotLater) => Ok(None),
        Err(error) => Err(chain(&error)),
    }
}
