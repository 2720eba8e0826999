//! The secured hub under test: keys, accounts and credentials by `muster auth` and `muster enroll`, a certificate for TLS,
//! and the settings with which the server, services, agents and the checker use them. It starts no process.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_bus::BusConfig;
use muster_contract::DeviceKey;
use muster_identity::Role;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use crate::error::Error;
use crate::lab::{self, files};
use crate::run_paths::RunPaths;

/// How long a device is enrolled: longer than any run.
const VALID: &str = "30d";
/// Room that the server may promise to streams and their mirrors. Nothing of it is taken in advance.
const STORE_BYTES_MAX: &str = "32GB";
/// Longest delay before the checker's own connection is tried again.
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// Time in which a server greets a new connection.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// The beginning of nats-server's greeting.
const GREETING_PREFIX: &str = "INFO ";

/// The keys and certificates of a hub.
#[derive(Debug, Clone)]
pub(super) struct SecuredHub {
    /// Where the server listens, not behind any link.
    pub(super) address: SocketAddr,
    auth: PathBuf,
    tls: PathBuf,
    devices: PathBuf,
}

/// Whether a hub demands credentials and TLS, as its greeting says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HubSecurity {
    /// No server was asked.
    #[default]
    Unknown,
    /// It demands credentials and TLS.
    Secured,
    /// It accepts clients without one of these.
    Open,
}

impl fmt::Display for HubSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "not asked",
            Self::Secured => "secured: credentials and TLS are required",
            Self::Open => "OPEN: credentials or TLS are not required",
        })
    }
}

/// The fields of the greeting that say how clients log in.
#[derive(Debug, Deserialize)]
struct Greeting {
    #[serde(default)]
    auth_required: bool,
    #[serde(default)]
    tls_required: bool,
}

impl SecuredHub {
    /// Makes the operator's keys, the accounts, everybody's credentials and a certificate for 127.0.0.1.
    ///
    /// # Errors
    /// `muster auth` refuses, or the disk does.
    pub(super) async fn prepare(paths: &RunPaths, address: SocketAddr) -> Result<Self, Error> {
        let path = |name: &str| paths.dir.join(name);
        let hub = Self { address, auth: path("auth"), tls: path("tls"), devices: path("credentials") };
        let (auth, resolver) = (hub.auth.display().to_string(), path("accounts").display().to_string());
        lab::muster(&["auth", "init", "--dir", &auth, "--resolver-dir", &resolver]).await?;
        for dir in [&hub.tls, &hub.devices] {
            lab::folder(dir)?;
        }
        files::certify(&[address.ip().to_string()], &hub.tls, &hub.authority())?;
        Ok(hub)
    }

    /// Enrols a device with a key of its own; the file with its credentials.
    ///
    /// # Errors
    /// `muster enroll` refuses.
    pub(super) async fn enroll(&self, key: &DeviceKey) -> Result<PathBuf, Error> {
        let file = self.devices.join(format!("{}_{}.creds", key.site, key.device));
        let (name, auth, creds) =
            (key.to_string(), self.auth.display().to_string(), file.display().to_string());
        lab::muster(&["enroll", &name, "--valid", VALID, "--dir", &auth, "--creds-file", &creds]).await?;
        Ok(file)
    }

    /// The server's configuration, which lies in `dir`.
    pub(super) fn server_config(&self, dir: &Path) -> String {
        let (address, tls, store) = (self.address, self.tls.display(), dir.join("nats"));
        format!(
            "server_name: muster-chaos\nlisten: \"{address}\"\n\
             jetstream {{ store_dir: \"{}\", max_file_store: {STORE_BYTES_MAX} }}\n\
             tls {{ cert_file: \"{tls}/cert.pem\", key_file: \"{tls}/key.pem\" }}\n\
             include \"auth/{}\"\n",
            store.display(),
            files::ACCOUNTS
        )
    }

    /// The credentials of a role.
    pub(super) fn credentials(&self, role: Role) -> PathBuf {
        self.auth.join(format!("creds/{}.creds", role.as_str()))
    }

    /// The credentials of the user that counts connections.
    pub(super) fn watcher_credentials(&self) -> PathBuf {
        self.auth.join("creds/watcher.creds")
    }

    /// The arguments with which a program reaches the hub at `address` (the server, or a link to it).
    pub(super) fn arguments(&self, credentials: &Path, address: SocketAddr) -> Vec<String> {
        let url = url(address);
        let (creds, authority) = (credentials.display().to_string(), self.authority().display().to_string());
        ["--nats-url", &url, "--creds", &creds, "--tls-ca", &authority].map(str::to_owned).to_vec()
    }

    /// The settings of a connection with the credentials of a role, not by way of any link.
    pub(super) fn bus_config(&self, role: Role) -> BusConfig {
        BusConfig {
            creds: Some(self.credentials(role)),
            tls_ca: Some(self.authority()),
            reconnect_max: RECONNECT_MAX,
            ..BusConfig::service(url(self.address), "muster-simulator")
        }
    }

    /// How the running server lets clients in.
    ///
    /// # Errors
    /// It does not greet.
    pub(super) async fn security(&self) -> Result<HubSecurity, Error> {
        let greeting = tokio::time::timeout(GREETING_PATIENCE, greeting(self.address)).await;
        let greeting = greeting.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        greeting
            .map(|greeting| greeting.security())
            .map_err(|source| Error::Network { what: "the server's greeting".to_owned(), source })
    }

    fn authority(&self) -> PathBuf {
        self.tls.join("ca.pem")
    }
}

impl Greeting {
    const fn security(&self) -> HubSecurity {
        if self.auth_required && self.tls_required { HubSecurity::Secured } else { HubSecurity::Open }
    }
}

fn url(address: SocketAddr) -> String {
    format!("tls://{address}")
}

async fn greeting(address: SocketAddr) -> std::io::Result<Greeting> {
    let mut line = String::new();
    BufReader::new(TcpStream::connect(address).await?).read_line(&mut line).await?;
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let text = line.strip_prefix(GREETING_PREFIX).ok_or_else(invalid)?;
    serde_json::from_str(text).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_is_secured_only_with_credentials_and_tls() {
        let security = |text: &str| serde_json::from_str::<Greeting>(text).unwrap().security();
        assert_eq!(security(r#"{"auth_required":true,"tls_required":true}"#), HubSecurity::Secured);
        for open in [r#"{"auth_required":true}"#, r#"{"tls_required":true}"#, "{}"] {
            assert_eq!(security(open), HubSecurity::Open, "{open}");
        }
    }
}
