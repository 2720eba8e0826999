//! How to reach the server: flags before the environment, both before a nats context, that before the default.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_bus::{BusConfig, ClientCertificate, Login};
use muster_service::Problems;
use muster_service::config::NatsUrl;

use crate::context::{Context, ContextError, Folders};

const URL_DEFAULT: &str = "nats://127.0.0.1:4222";
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// How to reach the server, as typed by a person.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionArgs {
    /// NATS servers, several separated by commas [default: nats://127.0.0.1:4222]
    #[arg(long, global = true, env = "MUSTER_NATS_URL", value_name = "URL", hide_env_values = true)]
    pub nats_url: Option<String>,

    /// File with the NATS credentials (JWT and seed) to log in with
    #[arg(long, global = true, env = "MUSTER_CREDS", value_name = "FILE")]
    pub creds: Option<String>,

    /// File with the certificates (PEM) of the authority that vouches for the server
    #[arg(long, global = true, env = "MUSTER_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<String>,

    /// A context of the nats CLI to take these from; `-` is the selected one
    #[arg(long, global = true, env = "MUSTER_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,

    /// How long to wait for the server and for each answer
    #[arg(long, global = true, env = "MUSTER_TIMEOUT", value_name = "TIME", default_value = "5s")]
    pub timeout: String,

    /// Where the nats CLI keeps its contexts
    #[arg(long, global = true, env = "XDG_CONFIG_HOME", hide = true)]
    config_home: Option<PathBuf>,

    /// The home directory
    #[arg(long, global = true, env = "HOME", hide = true)]
    home: Option<PathBuf>,
}

/// How to reach the server, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The servers.
    pub url: NatsUrl,
    /// The credentials; the file existed when it was checked.
    pub creds: Option<PathBuf>,
    /// How to log in without credentials.
    pub login: Option<Login>,
    /// A certificate of our own.
    pub client_certificate: Option<ClientCertificate>,
    /// Certificates to trust besides the system's.
    pub tls_ca: Option<PathBuf>,
    /// Where replies arrive, if not at the library's own inbox.
    pub inbox_prefix: Option<String>,
    /// How long to wait for the server and for each answer.
    pub timeout: Duration,
}

/// Why the server cannot even be looked for.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Some values cannot be used.
    #[error("{0}")]
    Problems(Problems),
    /// The context cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
}

impl ConnectionArgs {
    /// The checked values.
    ///
    /// # Errors
    /// All bad values at once, or a context that cannot be used.
    pub fn check(&self) -> Result<Connection, ConnectionError> {
        let context = self.context()?;
        let mut problems = Problems::default();
        let url = self.nats_url.as_deref().or(context.url.as_deref()).unwrap_or(URL_DEFAULT);
        let url = problems.parse("--nats-url", url);
        let creds = match (&self.creds, context.creds) {
            (None, Some(path)) => problems.file("--creds", &path.to_string_lossy()).map(Some),
            (creds, _) => problems.optional("--creds", creds.as_deref(), Problems::file),
        };
        let timeout = problems.duration("--timeout", &self.timeout, TIMEOUT_MIN..=TIMEOUT_MAX);
        let tls_ca = match (&self.tls_ca, context.tls_ca) {
            (None, Some(path)) => problems.file("--tls-ca", &path.to_string_lossy()).map(Some),
            (tls_ca, _) => problems.optional("--tls-ca", tls_ca.as_deref(), Problems::file),
        };
        let inbox_prefix = context.inbox_prefix;
        let login = context.login.filter(|_| self.creds.is_none());
        let client_certificate = context.client_certificate;
        problems
            .finish(|| {
                Some(Connection {
                    url: url?,
                    creds: creds?,
                    login,
                    client_certificate,
                    tls_ca: tls_ca?,
                    inbox_prefix,
                    timeout: timeout?,
                })
            })
            .map_err(ConnectionError::Problems)
    }

    fn context(&self) -> Result<Context, ContextError> {
        let folders = Folders { config_home: self.config_home.clone(), home: self.home.clone() };
        self.context.as_deref().map_or_else(|| Ok(Context::default()), |name| folders.context(name))
    }
}

impl Connection {
    /// The bus's configuration. It is a viewer's: nothing is converged with it.
    pub fn bus(&self) -> BusConfig {
        BusConfig {
            creds: self.creds.clone(),
            login: self.login.clone(),
            client_certificate: self.client_certificate.clone(),
            tls_ca: self.tls_ca.clone(),
            inbox_prefix: self.inbox_prefix.clone(),
            ..BusConfig::service(self.url.as_str(), "muster")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ConnectionArgs {
        ConnectionArgs {
            nats_url: None,
            creds: None,
            tls_ca: None,
            context: None,
            timeout: "5s".to_owned(),
            config_home: None,
            home: None,
        }
    }

    #[test]
    fn a_flag_goes_before_a_context_and_that_before_the_default() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("nats/context");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("hub.json"), r#"{"url": "nats://hub:4222"}"#).unwrap();
        let with_context = || ConnectionArgs {
            context: Some("hub".to_owned()),
            config_home: Some(home.path().to_owned()),
            ..args()
        };
        assert_eq!(args().check().unwrap().url.as_str(), URL_DEFAULT);
        assert_eq!(with_context().check().unwrap().url.as_str(), "nats://hub:4222");
        let flag = ConnectionArgs { nats_url: Some("nats://flag".to_owned()), ..with_context() };
        assert_eq!(flag.check().unwrap().url.as_str(), "nats://flag");
    }

    #[test]
    fn all_bad_values_are_named_at_once() {
        let bad = ConnectionArgs {
            nats_url: Some("http://a".to_owned()),
            creds: Some("/no/such/file".to_owned()),
            timeout: "soon".to_owned(),
            ..args()
        };
        let shown = bad.check().unwrap_err().to_string();
        assert!(["--nats-url", "--creds", "--timeout"].iter().all(|flag| shown.contains(flag)), "{shown}");
    }
}
