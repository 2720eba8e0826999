//! The settings of a connection to NATS.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::limits::{DEVICE_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, RECONNECT_MAX};

use crate::login::{ClientCertificate, Login};
/// Time between two checks of the credentials file.
const CREDS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Commands a service may have queued for the connection.
pub const SERVICE_CLIENT_CAPACITY: usize = 2048;
/// Commands a device may have queued. Commands queued while the link is down are sent when it is up again, so a device
/// keeps this small: its outbox is the queue.
pub const DEVICE_CLIENT_CAPACITY: usize = 64;
/// Longest reconnect delay of a service. Services are few, so they need not spread as far as devices; and while one waits, views
/// age, rollouts stand still, and a standby cannot take over.
pub const SERVICE_RECONNECT_MAX: Duration = Duration::from_secs(5);
/// Time between two pings of a quiet link.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Pings without an answer after which the link counts as lost: a half-open link is found within as many
/// [`BusConfig::ping_interval`]s.
pub const PINGS_UNTIL_LOST: u32 = 3;
/// Bytes of headers that may accompany a document of the largest size.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// The least `max_payload` a server must have: a document of the largest size with its headers.
pub const SERVER_PAYLOAD_MIN: usize = MESSAGE_BYTES_MAX + HEADER_BYTES_MAX;
/// Bytes UPLINK may hold before the server refuses reports and outboxes keep them.
pub const UPLINK_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Bytes of LEDGER unless a setting says otherwise: some ten million facts.
pub const LEDGER_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// The settings of a connection.
#[derive(Clone)]
pub struct BusConfig {
    /// `nats://` or `tls://` addresses, separated by commas; each may carry `user:password@`.
    pub url: String,
    /// A `.creds` file with JWT and seed, or a folder with the files `seed` and `user.jwt`; read again at every connect,
    /// and when it changes.
    pub creds: Option<PathBuf>,
    /// Time between two checks of `creds` for a newer JWT.
    pub creds_check_interval: Duration,
    /// The login without `creds`.
    pub login: Option<Login>,
    /// The client's certificate, for a server that asks for one. With it, TLS is required.
    pub client_certificate: Option<ClientCertificate>,
    /// Certificates (PEM) to trust besides the system's. With these, TLS is required.
    pub tls_ca: Option<PathBuf>,
    /// The client's name in the server's monitoring.
    pub name: String,
    /// The first token of the reply subjects, `_INBOX_<site>_<device>` for a device; if unset, that of the role in
    /// `creds`, else the library's own.
    pub inbox_prefix: Option<String>,
    /// Longest delay between two attempts to connect.
    pub reconnect_max: Duration,
    /// Commands that may be queued for the connection.
    pub client_capacity: usize,
    /// Bytes of one message, headers included. A larger one is refused here: the server would close the connection.
    pub message_bytes_max: usize,
    /// Time between two pings.
    pub ping_interval: Duration,
    /// How long sent bytes may stay without the kernel's acknowledgement before a new connection is made; `None`: only pings find
    /// a half-open link. For a process with one connection to its servers.
    pub unacknowledged_max: Option<Duration>,
    /// `max_bytes` of UPLINK if `converge` creates it; smaller on small disks.
    pub uplink_bytes_max: u64,
    /// `max_bytes` of LEDGER if `converge` creates it.
    pub ledger_bytes_max: u64,
    /// Replicas of each stream that `converge` creates.
    pub replicas: usize,
}

impl BusConfig {
    /// A service's configuration.
    pub fn service(url: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            creds: None,
            creds_check_interval: CREDS_CHECK_INTERVAL,
            login: None,
            client_certificate: None,
            tls_ca: None,
            name: name.into(),
            inbox_prefix: None,
            reconnect_max: SERVICE_RECONNECT_MAX,
            client_capacity: SERVICE_CLIENT_CAPACITY,
            message_bytes_max: SERVER_PAYLOAD_MIN,
            ping_interval: PING_INTERVAL,
            unacknowledged_max: None,
            uplink_bytes_max: UPLINK_BYTES_MAX,
            ledger_bytes_max: LEDGER_BYTES_MAX,
            replicas: 1,
        }
    }

    /// A device's configuration: its own inbox prefix, a small queue, long reconnect delays, and messages of the size that its token
    /// allows.
    pub fn device(url: impl Into<String>, key: &DeviceKey) -> Self {
        Self {
            inbox_prefix: Some(format!("_INBOX_{}_{}", key.site, key.device)),
            reconnect_max: RECONNECT_MAX,
            client_capacity: DEVICE_CLIENT_CAPACITY,
            message_bytes_max: DEVICE_MESSAGE_BYTES_MAX,
            ..Self::service(url, format!("muster-agent {key}"))
        }
    }
}

impl BusConfig {
    /// The address without passwords, for logs and messages.
    pub(crate) fn shown_url(&self) -> String {
        let shown = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
            (None, Some((_, host))) => host.to_owned(),
            _ => url.to_owned(),
        };
        self.url.split(',').map(|url| shown(url.trim())).collect::<Vec<_>>().join(",")
    }
}

/// Without the passwords of the address.
impl fmt::Debug for BusConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { creds, tls_ca, name, .. } = self;
        let url = self.shown_url();
        write!(f, "BusConfig {{ url: {url:?}, creds: {creds:?}, tls_ca: {tls_ca:?}, name: {name:?}, .. }}")
    }
}

const _: () = {
    // Each server takes what a device may send.
    assert!(DEVICE_MESSAGE_BYTES_MAX <= SERVER_PAYLOAD_MIN);
    assert!(DEVICE_CLIENT_CAPACITY < SERVICE_CLIENT_CAPACITY);
    // A reconnect delay adds less than the time in which a lost link is found.
    assert!(SERVICE_RECONNECT_MAX.as_secs() < PING_INTERVAL.as_secs());
    assert!(SERVICE_RECONNECT_MAX.as_secs() < RECONNECT_MAX.as_secs());
    // A half-open link must be found before the device counts as silent.
    assert!(PINGS_UNTIL_LOST as u64 * PING_INTERVAL.as_secs() < muster_contract::limits::LEASE.as_secs());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_a_log_holds_no_password() {
        for (url, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://ingest:s3cr@t@hub:4222", "nats://hub:4222"),
            ("ingest:secret@hub", "hub"),
            ("tls://a:b@hub-1, nats://c:d@hub-2", "tls://hub-1,nats://hub-2"),
        ] {
            let config = BusConfig::service(url, "test");
            assert_eq!(config.shown_url(), shown);
            assert!(!format!("{config:?}").contains("cret"), "{config:?}");
        }
    }
}
