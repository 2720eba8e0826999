//! Webhooks: gateways post the notices of subscriptions to https addresses, as CloudEvents that they sign.
//!
//! ```text
//! people ─► /api/v1/webhooks ─► muster.notify.webhook-{register, list, remove}
//! deliverer ◄─► muster.notify.webhook-{due, result}, one claimed notice at a time ─► https receiver
//! ```
//!
//! The hub keeps webhooks and their progress, so any gateway continues where another one stopped. Address and secret are sealed
//! by a key that all gateways share ([`Target`]): the hub, its backups and other roles cannot read them. [`deliverer`] posts events,
//! [`event`] composes them, [`settings`] reads flags. This module stores nothing.

pub mod deliverer;
pub mod event;
pub mod settings;

use data_encoding::BASE64URL_NOPAD;
use muster_contract::WebhookUrl;
use muster_webhook::{Client, PostError, SetupError};
use serde::{Deserialize, Serialize};

use self::settings::WebhooksConfig;
use crate::login::seal::{KeyFileError, Purpose, Sealer};

/// The program's name for receivers.
const AGENT: &str = "muster-gateway";
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Why webhooks cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebhooksSetupError {
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The client cannot be made.
    #[error(transparent)]
    Client(#[from] SetupError),
}

/// The webhooks of a gateway.
#[derive(Debug)]
pub struct Webhooks {
    sealer: Sealer,
    client: Client,
}

/// Address and secret of a webhook. It is never printed.
#[derive(Serialize, Deserialize)]
pub struct Target {
    url: WebhookUrl,
    secret: String,
}

/// A target with a new secret.
pub struct NewTarget {
    /// Host and port, for people.
    pub host: String,
    /// The sealed target.
    pub sealed: String,
    /// The secret, for the answer to the registration alone.
    pub secret: String,
}

impl Webhooks {
    /// Reads the key file and the authorities.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn open(config: WebhooksConfig) -> Result<Self, WebhooksSetupError> {
        let sealer = Sealer::read(&config.key)?;
        let client = Client::new(AGENT, config.ca.as_deref(), config.allowed)?;
        Ok(Self { sealer, client })
    }

    /// Refuses an address that no delivery would reach, because it is private.
    ///
    /// # Errors
    /// The address is private.
    pub async fn check(&self, url: &WebhookUrl) -> Result<(), PostError> {
        self.client.check(url).await
    }

    /// Seals an address with a new secret; `None` if the system gives no random numbers.
    pub fn new_target(&self, url: WebhookUrl) -> Option<NewTarget> {
        let secret = BASE64URL_NOPAD.encode(&self.sealer.random_bytes::<SECRET_BYTES>()?);
        let (host, target) = (url.authority(), Target { url, secret });
        let sealed = self.sealer.seal(Purpose::Webhook, &target)?;
        Some(NewTarget { host, sealed, secret: target.secret })
    }

    /// Opens a sealed target; `None` if another key sealed it.
    fn target(&self, sealed: &str) -> Option<Target> {
        self.sealer.open(Purpose::Webhook, sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::seal::tests::sealer;

    #[test]
    fn the_hub_sees_neither_address_nor_secret_and_another_key_opens_nothing() {
        let webhooks = |byte| Webhooks {
            sealer: sealer(byte),
            client: Client::new(AGENT, None, std::collections::BTreeSet::new()).unwrap(),
        };
        let url: WebhookUrl = "https://Hooks.example:8443/T0/secret-path".parse().unwrap();
        let made = webhooks(1).new_target(url.clone()).unwrap();
        assert_eq!((made.host.as_str(), made.secret.len()), ("hooks.example:8443", 43));
        assert!(!made.sealed.contains("secret-path") && !made.sealed.contains(&made.secret));
        let opened = webhooks(1).target(&made.sealed).unwrap();
        assert_eq!((opened.url, opened.secret), (url.clone(), made.secret.clone()));
        assert!(webhooks(2).target(&made.sealed).is_none());
        assert_ne!(webhooks(1).new_target(url).unwrap().secret, made.secret);
    }
}
