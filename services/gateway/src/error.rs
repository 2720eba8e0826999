//! Why the gateway cannot start.

use std::io;
use std::net::SocketAddr;

use muster_bus::ConnectError;

use crate::kpt::config::PullSetupError;
use crate::login::LoginSetupError;
use crate::tls::TlsError;
use crate::webhooks::WebhooksSetupError;

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No usable NATS server.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The login cannot be used.
    #[error(transparent)]
    Login(#[from] LoginSetupError),
    /// Webhooks cannot be served.
    #[error("cannot use the settings of webhooks")]
    Webhooks(#[from] WebhooksSetupError),
    /// Clusters cannot be pulled from.
    #[error("cannot use the file of --pull")]
    Pull(#[from] PullSetupError),
    /// Another process has the address, or this process may not use it.
    #[error("cannot listen on {addr}; free it or choose another with {flag}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}
