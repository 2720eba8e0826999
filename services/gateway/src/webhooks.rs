//! Webhooks: gateways post the notices of subscriptions to https addresses, as CloudEvents that they sign.
//!
//! ```text
//! people ─► /api/v1/webhooks ─► muster.notify.webhook-{register, list, remove}
//! deliverer ◄─► muster.notify.webhook-{due, result}, one claimed notice at a time ─► https receiver
//! ```
//!
//! The hub keeps webhooks and their progress, so any gateway with the key continues where another one stopped. Address and secret
//! are sealed by a key of gateways ([`Target`]): the hub, its backups and other roles cannot read them. [`deliverer`] posts events,
//! [`slots`] bounds how many at once, [`event`] composes them, [`revocations`] reports whose right was revoked,
//! [`settings`] reads flags. This module stores nothing.

pub mod deliverer;
pub mod event;
pub(crate) mod revocations;
pub mod settings;
mod slots;

use data_encoding::BASE64URL_NOPAD;
use muster_contract::WebhookUrl;
use muster_contract::notify::SealedWebhook;
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
pub(crate) struct NewTarget {
    /// Host and port, for people.
    pub host: String,
    /// The sealed target.
    pub sealed: SealedWebhook,
    /// The secret, for the answer to the registration alone.
    pub secret: String,
}

/// A target that one of this gateway's keys has sealed.
struct OpenedTarget {
    target: Target,
    /// The target sealed anew, if an older key had sealed it.
    resealed: Option<SealedWebhook>,
}

impl Webhooks {
    /// Reads the key file and the authorities. The log has the ids of the keys, with which the list of webhooks names them.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn open(config: WebhooksConfig) -> Result<Self, WebhooksSetupError> {
        let sealer = Sealer::read(&config.key)?;
        let client = Client::new(AGENT, config.ca.as_deref(), config.allowed)?;
        let ids = sealer.key_ids();
        tracing::info!(seals = ids.first(), opens = ids.join(" "), "read the keys of webhooks");
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
    pub(crate) fn new_target(&self, url: WebhookUrl) -> Option<NewTarget> {
        let secret = BASE64URL_NOPAD.encode(&self.sealer.random_bytes::<SECRET_BYTES>()?);
        let (host, target) = (url.authority(), Target { url, secret });
        let sealed = self.seal(&target)?;
        Some(NewTarget { host, sealed, secret: target.secret })
    }

    /// The ids of the keys of this gateway.
    fn keys(&self) -> &[String] {
        self.sealer.key_ids()
    }

    fn seal(&self, target: &Target) -> Option<SealedWebhook> {
        let sealed = self.sealer.seal(Purpose::Webhook, target)?;
        Some(SealedWebhook { sealed, key: self.keys().first()?.clone() })
    }

    /// Opens a sealed target; `None` if another key sealed it.
    fn open_target(&self, sealed: &SealedWebhook) -> Option<OpenedTarget> {
        let (target, index) = self.sealer.open_with::<Target>(Purpose::Webhook, &sealed.sealed)?;
        let resealed = if index == 0 { None } else { self.seal(&target) };
        Some(OpenedTarget { target, resealed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::seal::tests::{sealer, sealer_of};

    fn webhooks(bytes: &[u8]) -> Webhooks {
        let client = Client::new(AGENT, None, std::collections::BTreeSet::new()).unwrap();
        Webhooks { sealer: sealer_of(bytes), client }
    }

    #[test]
    fn the_hub_sees_neither_address_nor_secret_and_another_key_opens_nothing() {
        let url: WebhookUrl = "https://Hooks.example:8443/T0/secret-path".parse().unwrap();
        let made = webhooks(&[1]).new_target(url.clone()).unwrap();
        assert_eq!((made.host.as_str(), made.secret.len()), ("hooks.example:8443", 43));
        let text = &made.sealed.sealed;
        assert!(!text.contains("secret-path") && !text.contains(&made.secret));
        assert_eq!(made.sealed.key, sealer(1).key_ids()[0]);
        assert!(made.sealed.check().is_ok());
        let opened = webhooks(&[1]).open_target(&made.sealed).unwrap();
        assert_eq!((opened.target.url, opened.target.secret), (url.clone(), made.secret.clone()));
        assert!(opened.resealed.is_none() && webhooks(&[2]).open_target(&made.sealed).is_none());
        assert_ne!(webhooks(&[1]).new_target(url).unwrap().secret, made.secret);
    }

    #[test]
    fn what_an_older_key_sealed_is_opened_and_sealed_anew_by_the_first() {
        let url: WebhookUrl = "https://hooks.example/path".parse().unwrap();
        let (old, both, new) = (webhooks(&[1]), webhooks(&[2, 1]), webhooks(&[2]));
        let made = old.new_target(url.clone()).unwrap();
        assert_eq!(both.keys(), [new.keys(), old.keys()].concat());
        let resealed = both.open_target(&made.sealed).unwrap().resealed.unwrap();
        assert_eq!(resealed.key, new.keys()[0]);
        let opened = new.open_target(&resealed).unwrap().target;
        assert_eq!((opened.url, opened.secret), (url, made.secret));
        assert!(old.open_target(&resealed).is_none());
    }
}
