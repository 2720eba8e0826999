//! Connecting, for a person who waits: what cannot work is said at once, not after minutes of trying.

use std::io;
use std::time::Duration;

use muster_bus::{Bus, ConnectError};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::Connection;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// Nothing listens there.
    #[error("no NATS server can be reached at {url}; is it running, and is --nats-url right?")]
    Nobody {
        /// The addresses that were tried, without passwords.
        url: String,
        /// The error of the last address.
        #[source]
        source: io::Error,
    },
    /// Something listens, but says nothing, or not to the end.
    #[error("{url} takes the connection but does not answer within {waited:?}; is it a NATS server?")]
    Silent {
        /// The address, without its password.
        url: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The server refuses, or cannot serve.
    #[error(transparent)]
    Refused(#[from] ConnectError),
}

/// Connects within the connection's timeout.
///
/// # Errors
/// When no server can be reached, or none lets us in.
pub(crate) async fn connect(connection: &Connection) -> Result<Bus, ReachError> {
    let url = connection.url.to_string();
    knock(connection).await.map_err(|source| ReachError::Nobody { url: url.clone(), source })?;
    match timeout(connection.timeout, Bus::connect_once(connection.bus())).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(ReachError::Silent { url, waited: connection.timeout }),
    }
}

/// Finds out whether anything listens at any of the addresses: the bus itself would go on trying for ever.
async fn knock(connection: &Connection) -> io::Result<()> {
    let mut outcome = Err(io::Error::other("no address was given"));
    for address in connection.url.as_str().split(',').map(address) {
        let attempt = timeout(connection.timeout, TcpStream::connect(&address)).await;
        outcome = attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// `HOST:PORT` of a URL.
fn address(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = match scheme {
        "ws" => 80,
        "wss" => 443,
        _ => 4222,
    };
    if has_port { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_urls_host_and_port() {
        for (url, expected) in [
            ("nats://127.0.0.1:4333", "127.0.0.1:4333"),
            ("nats://hub", "hub:4222"),
            ("tls://me:pass@hub:4443", "hub:4443"),
            ("wss://hub", "hub:443"),
            ("nats://[::1]", "[::1]:4222"),
            ("nats://[::1]:4333", "[::1]:4333"),
        ] {
            assert_eq!(address(url), expected);
        }
    }
}
