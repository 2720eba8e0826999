//! A renewed JWT that came over the hub: handed to the identity, which judges it. The connection takes it up by itself.

use std::path::Path;

use bytes::Bytes;
use muster_bus::Bus;
use muster_contract::canonical::Digest;
use muster_contract::credential::Credential;
use muster_contract::{decode, subjects};
use muster_service::error::chain;

use super::Follower;
use crate::identity::{self, IdentityError};

impl Follower {
    /// Looks for one. A hub that offers none is no reason to stop looking for the rest.
    pub(super) async fn look_for_credential(&mut self, bus: &Bus) {
        if self.identity.is_none() {
            return;
        }
        if let Err(error) = self.take_last(bus, subjects::credential(&self.device)).await {
            tracing::debug!(error = chain(&error), "cannot look for a renewed JWT");
        }
    }

    pub(super) async fn credential(&mut self, payload: Bytes) {
        let Some(data_dir) = self.identity.clone() else {
            return tracing::debug!(
                "ignored a JWT: this agent's credentials are in a file of their own (--creds)"
            );
        };
        let digest = Digest::of_bytes(&payload);
        let kept = tokio::task::spawn_blocking(move || keep(&data_dir, &payload)).await;
        match kept.unwrap_or_else(|panicked| Err(panicked.to_string())) {
            Ok(None) => {}
            Ok(Some(end)) => tracing::info!(end, "a renewed JWT came over the hub and is kept"),
            Err(reason) => self.refuse_credential(&reason, digest),
        }
    }

    fn refuse_credential(&mut self, reason: &str, digest: Digest) {
        if self.refused_credential.replace(digest) != Some(digest) {
            tracing::error!(reason, "refused a JWT that came over the hub; the one in use stays");
        }
    }
}

/// Keeps it if it is to be taken; says when it ends.
fn keep(data_dir: &Path, payload: &[u8]) -> Result<Option<String>, String> {
    let document: Credential = decode::parse(payload).map_err(|refusal| refusal.to_string())?;
    match identity::renew(data_dir, &document.jwt) {
        Ok(known) => {
            let end = |known| identity::end(&known).map_or_else(|| "never".to_owned(), |end| end.to_string());
            Ok(known.map(end))
        }
        // DOWNLINK keeps the last that was sent, also after somebody carried a later one here.
        Err(IdentityError::NotLater) => Ok(None),
        Err(error) => Err(chain(&error)),
    }
}
