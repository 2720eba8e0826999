//! Parses and checks the settings of the login.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_service::config::Problems;

use super::oidc::config::OidcConfig;
use crate::outbound::is_trusted;

/// Shortest and longest session.
const SESSION_BOUNDS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(7 * 24 * 60 * 60));

/// The settings of the login as text.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Login")]
pub(crate) struct LoginArgs {
    /// File with the key that seals sessions, the same for all gateways: 32 random bytes in base64 (`openssl rand -base64 32`),
    /// a line each; the first seals, all open. With it people must log in, and --creds must be of the role gateway
    #[arg(long, env = "MUSTER_SESSION_KEY", value_name = "FILE")]
    session_key: Option<String>,

    /// Longest time of a session and of a program's token, such as 8h
    #[arg(long, env = "MUSTER_SESSION", value_name = "TIME", default_value = "8h")]
    session: String,

    /// The nats-server.conf that `muster auth` writes, or a copy: people whom it revokes lose their sessions and webhooks. Without
    /// it a session of a revoked person lasts until its end
    #[arg(long, env = "MUSTER_REVOCATIONS", value_name = "FILE")]
    revocations: Option<String>,

    /// Issuer of an OpenID Connect provider, such as `https://id.example.com`; it sends people back to /callback
    #[arg(long, env = "MUSTER_OIDC_ISSUER", value_name = "URL", requires_all = ["session_key", "oidc_client_id"])]
    oidc_issuer: Option<String>,

    /// The client id of this gateway at the provider
    #[arg(long, env = "MUSTER_OIDC_CLIENT_ID", value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,

    /// File with the client's secret; a public client has none
    #[arg(long, env = "MUSTER_OIDC_SECRET_FILE", value_name = "FILE", requires = "oidc_issuer")]
    oidc_secret_file: Option<String>,

    /// The claim that names the role: viewer, approver, subscriber or operator, or a list with one of them; without it, viewer
    #[arg(long, env = "MUSTER_ROLE_CLAIM", value_name = "CLAIM", default_value = "muster_role")]
    role_claim: String,
}

/// The settings of the login, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginConfig {
    /// The key file.
    pub session_key: PathBuf,
    /// Longest time of a session.
    pub lifetime: Duration,
    /// The file with the accounts' tokens.
    pub revocations: Option<PathBuf>,
    /// The provider, if there is one.
    pub oidc: Option<OidcConfig>,
}

impl LoginArgs {
    /// Whether people log in.
    pub(crate) const fn is_set(&self) -> bool {
        self.session_key.is_some()
    }

    /// Whether people log in and nothing says whose right is revoked.
    pub(crate) const fn knows_no_revocations(&self) -> bool {
        self.is_set() && self.revocations.is_none()
    }

    /// The checked settings: `Some(None)` without a login, `None` if one was refused.
    pub(crate) fn check(
        &self,
        has_creds: bool,
        tls_ca: Option<&str>,
        problems: &mut Problems,
    ) -> Option<Option<LoginConfig>> {
        let (shortest, longest) = SESSION_BOUNDS;
        let key = problems.optional("--session-key", self.session_key.as_deref(), Problems::file);
        let lifetime = problems.duration("--session", &self.session, shortest..=longest);
        let revocations = problems.optional("--revocations", self.revocations.as_deref(), Problems::file);
        let oidc = self.provider(tls_ca, problems);
        if let (Some(file), false) = (&self.session_key, has_creds) {
            let rule = "needs --creds of the role gateway (`muster auth creds gateway`): its JWT names the keys of people's roles";
            problems.refuse("--session-key", file, rule);
        }
        let (Some(session_key), lifetime, revocations) = (key?, lifetime?, revocations?) else {
            return Some(None);
        };
        Some(Some(LoginConfig { session_key, lifetime, revocations, oidc: oidc? }))
    }

    /// The settings of the provider: `Some(None)` without one, `None` if one was refused.
    fn provider(&self, tls_ca: Option<&str>, problems: &mut Problems) -> Option<Option<OidcConfig>> {
        let secret =
            problems.optional("--oidc-secret-file", self.oidc_secret_file.as_deref(), Problems::file)?;
        let (Some(issuer), Some(client_id)) = (&self.oidc_issuer, &self.oidc_client_id) else {
            return Some(None);
        };
        if !is_trusted(issuer) {
            problems.refuse(
                "--oidc-issuer",
                issuer,
                "must begin with https:// (http:// only on this machine)",
            );
            return None;
        }
        Some(Some(OidcConfig {
            issuer: issuer.clone(),
            client_id: client_id.clone(),
            secret,
            role_claim: self.role_claim.clone(),
            tls_ca: tls_ca.map(PathBuf::from),
        }))
    }
}
