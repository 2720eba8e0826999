//! Parses and checks the settings of webhooks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use muster_service::config::Problems;

/// The settings of webhooks as text.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Webhooks")]
pub(crate) struct WebhooksArgs {
    /// File with the key that seals addresses and secrets of webhooks, the same for all gateways: 32 random bytes in base64
    /// (`openssl rand -base64 32`), up to four keys, a line each; the first seals, all open. With it this gateway registers
    /// webhooks, and delivers to those that one of its keys has sealed. If people log in, it needs --revocations
    #[arg(long, env = "MUSTER_WEBHOOK_KEY", value_name = "FILE")]
    webhook_key: Option<String>,

    /// File with certificates of the authorities of receivers, in place of those of the system
    #[arg(long, env = "MUSTER_WEBHOOK_CA", value_name = "FILE", requires = "webhook_key")]
    webhook_ca: Option<String>,

    /// Host of receivers, as HOST or HOST:PORT, that may have a private address; may be repeated
    #[arg(
        long,
        env = "MUSTER_WEBHOOK_ALLOW",
        value_name = "HOST",
        value_delimiter = ',',
        requires = "webhook_key"
    )]
    webhook_allow: Vec<String>,
}

/// The settings of webhooks, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhooksConfig {
    /// The key file.
    pub key: PathBuf,
    /// Authorities of receivers.
    pub ca: Option<PathBuf>,
    /// Hosts that may have private addresses.
    pub allowed: BTreeSet<String>,
}

impl WebhooksArgs {
    /// The checked settings: `Some(None)` without webhooks, `None` if one was refused. A gateway with a login that knows no
    /// revocations would post to revoked people for ever.
    pub(crate) fn check(
        &self,
        knows_no_revocations: bool,
        problems: &mut Problems,
    ) -> Option<Option<WebhooksConfig>> {
        let key = problems.optional("--webhook-key", self.webhook_key.as_deref(), Problems::file);
        let ca = problems.optional("--webhook-ca", self.webhook_ca.as_deref(), Problems::file);
        if let Some(file) = self.webhook_key.as_deref().filter(|_| knows_no_revocations) {
            let rule = "needs --revocations if people log in: the webhooks of a revoked person must end";
            problems.refuse("--webhook-key", file, rule);
        }
        let allowed = self.webhook_allow.iter().map(|host| host.to_ascii_lowercase()).collect();
        let (key, ca) = (key?, ca?);
        Some(key.map(|key| WebhooksConfig { key, ca, allowed }))
    }
}
