//! The errors of a login to a gateway.

use std::io;
use std::path::PathBuf;

/// Why a login failed.
#[derive(Debug, thiserror::Error)]
pub enum LoginFailure {
    /// The address cannot be one of a gateway.
    #[error("'{0}' must be https://HOST or https://HOST:PORT; http:// only on this machine itself")]
    Url(String),
    /// No credentials are named.
    #[error("no credentials: name them with --creds FILE")]
    NoCreds,
    /// The credentials cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file of credentials is malformed.
    #[error("{} has no {wanted}: name a file that `muster auth creds` wrote", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The missing part.
        wanted: &'static str,
    },
    /// The gateway does not answer.
    #[error("cannot reach the gateway {url}")]
    Unreachable {
        /// Its address.
        url: String,
        /// The cause.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The gateway refuses the proof.
    #[error("the gateway refuses: {0}")]
    Refused(String),
    /// The answer is not that of a login.
    #[error("the answer of {0} is not that of a login: is it a muster-gateway with --session-key?")]
    Garbled(String),
    /// The key cannot sign.
    #[error("cannot sign: {0}")]
    Sign(String),
}
