//! Posts the question of a check or a hook to an https webhook, signed with the planner's secret, and reads its answer.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use muster_contract::WebhookUrl;
use muster_webhook::signature::{SIGNATURE, hex_hmac};
use muster_webhook::{Client, PostError, SetupError};

/// The program's name for receivers.
const AGENT: &str = "muster-planner";
/// Shortest secret.
const SECRET_BYTES_MIN: usize = 16;
/// The status of an answer that counts.
const OK: u16 = 200;

/// The client of webhooks.
#[derive(Clone)]
pub struct Webhooks(Option<Arc<Signing>>);

struct Signing {
    client: Client,
    secret: Vec<u8>,
}

/// The settings of webhooks.
#[derive(Debug, Clone, Default)]
pub struct WebhookConfig {
    /// File of the secret that signs questions. Without it no webhook is asked.
    pub secret: Option<std::path::PathBuf>,
    /// File of certificates of authorities, in place of those of the system.
    pub ca: Option<std::path::PathBuf>,
    /// Hosts that may have private addresses.
    pub allowed: BTreeSet<String>,
}

/// Why webhooks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSetupError {
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The secret is too short.
    #[error("the secret in {file} has fewer than {SECRET_BYTES_MIN} bytes")]
    ShortSecret {
        /// The file.
        file: String,
    },
    /// The client cannot be made.
    #[error(transparent)]
    Client(#[from] SetupError),
}

/// Why a webhook gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("the planner has no --webhook-secret, so it asks no webhook")]
    NoSecret,
    #[error(transparent)]
    Post(#[from] PostError),
    #[error("the answer has status {0}, not 200; redirects are not followed")]
    Status(u16),
}

impl Webhooks {
    /// A client by the settings.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(config: WebhookConfig) -> Result<Self, WebhookSetupError> {
        let WebhookConfig { secret, ca, allowed } = config;
        let Some(file) = secret else { return Ok(Self(None)) };
        let shown = file.display().to_string();
        let secret =
            std::fs::read(&file).map_err(|source| WebhookSetupError::Read { file: shown.clone(), source })?;
        let secret = secret.trim_ascii().to_vec();
        if secret.len() < SECRET_BYTES_MIN {
            return Err(WebhookSetupError::ShortSecret { file: shown });
        }
        let client = Client::new(AGENT, ca.as_deref(), allowed)?;
        Ok(Self(Some(Arc::new(Signing { client, secret }))))
    }

    /// Posts a question; the body of the answer, of at most `bytes_max`.
    ///
    /// # Errors
    /// There is no whole answer with status 200.
    pub(crate) async fn post(
        &self,
        url: &WebhookUrl,
        question: Bytes,
        bytes_max: usize,
    ) -> Result<Bytes, WebhookError> {
        let Signing { client, secret } = &**self.0.as_ref().ok_or(WebhookError::NoSecret)?;
        let headers = [
            ("content-type", "application/json".to_owned()),
            (SIGNATURE, format!("sha256={}", hex_hmac(secret, &[&question]))),
        ];
        let answer = client.post(url, &headers, question, bytes_max).await?;
        if answer.status == OK { Ok(answer.body) } else { Err(WebhookError::Status(answer.status)) }
    }
}

/// Shows no secret.
impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Webhooks").field(&self.0.as_ref().map(|signing| &signing.client)).finish()
    }
}

#[cfg(test)]
mod tests;
