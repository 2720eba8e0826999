//! Connects to NATS, with retries or in one attempt, and refuses a server that Muster cannot use.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerInfo};
use fastrand::Rng;
use muster_contract::limits::RECONNECT_MIN;
use muster_service::backoff::FullJitter;
use muster_service::clock::SystemClock;
use muster_service::error::chain;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::config::{BusConfig, SERVER_PAYLOAD_MIN};
use crate::creds;
use crate::link::{self, Link, Silence};
use crate::login::ClientCertificate;
use crate::renew::{InUse, Renewal};
use crate::replies::Replies;
use crate::requester::OwnReplies;
use crate::unacknowledged;
use crate::version::{SERVER_RULE, is_acceptable};
use crate::wire::Wire;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process is stopping.
    #[error("stopped while waiting for the NATS server at {url}")]
    Stopped {
        /// The address of the server.
        url: String,
    },
    /// A setting cannot be used.
    #[error("cannot connect to NATS with {what}")]
    Config {
        /// The setting.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server refuses the credentials. Only [`Bus::connect_once`] fails with it.
    #[error("{cause}: the NATS server at {url} refuses these credentials; are they right?")]
    Unauthorized {
        /// The address of the server.
        url: String,
        /// The server's refusal.
        cause: String,
    },
    /// The server cannot be reached. Only [`Bus::connect_once`] fails with it.
    #[error("cannot connect to the NATS server at {url}: {cause}")]
    Unreached {
        /// The address of the server.
        url: String,
        /// The failure.
        cause: String,
    },
    /// The server is too old.
    #[error("the NATS server at {url} is version {found}: {rule}")]
    TooOld {
        /// The address of the server.
        url: String,
        /// Its version.
        found: String,
        /// The accepted versions, and what to do.
        rule: &'static str,
    },
    /// The server runs without JetStream.
    #[error(
        "the NATS server at {url} runs without JetStream: start it with `nats-server -js` or a jetstream block"
    )]
    NoJetStream {
        /// The address of the server.
        url: String,
    },
    /// The server's limit of message size is below the contract's.
    #[error(
        "the NATS server at {url} accepts messages of at most {found} bytes: set its max_payload to {wanted} or more"
    )]
    PayloadTooSmall {
        /// The address of the server.
        url: String,
        /// Its limit, in bytes.
        found: usize,
        /// The least limit that Muster needs, in bytes.
        wanted: usize,
    },
}

impl Bus {
    /// Connects. Repeats failed attempts, with full jitter and a log line for each, until `stop`.
    ///
    /// # Errors
    /// `stop` is cancelled, a setting cannot be used, or Muster cannot use the server.
    pub async fn connect(config: BusConfig, stop: &CancellationToken) -> Result<Self, ConnectError> {
        let servers = check_settings(&config)?;
        let delay = ConnectDelay::new(config.reconnect_max);
        loop {
            let attempt = stop.run_until_cancelled(open(&config, &servers, &delay)).await;
            match attempt {
                None => return Err(ConnectError::Stopped { url: config.shown_url() }),
                Some(Ok(bus)) => return check_server(&bus.wire.client.server_info(), &config).map(|()| bus),
                Some(Err(FailedAttempt { cause, .. })) => {
                    let delay = delay.next();
                    tracing::warn!(nats.url = config.shown_url(), retry_in = ?delay, %cause, "cannot reach NATS yet");
                    stop.run_until_cancelled(tokio::time::sleep(delay)).await;
                }
            }
        }
    }
}

impl Bus {
    /// Connects in one attempt, for a person who waits. The caller limits the time. The bus reconnects by itself later, as
    /// with [`Bus::connect`].
    pub async fn connect_once(config: BusConfig) -> Result<Self, ConnectError> {
        let servers = check_settings(&config)?;
        let url = config.shown_url();
        match open(&config, &servers, &ConnectDelay::new(config.reconnect_max)).await {
            Ok(bus) => check_server(&bus.wire.client.server_info(), &config).map(|()| bus),
            Err(FailedAttempt { refused: true, cause }) => Err(ConnectError::Unauthorized { url, cause }),
            Err(FailedAttempt { refused: false, cause }) => Err(ConnectError::Unreached { url, cause }),
        }
    }
}

/// A failed attempt.
#[derive(Debug)]
struct FailedAttempt {
    /// The server refused the credentials.
    refused: bool,
    /// One line for a person.
    cause: String,
}

impl From<async_nats::ConnectError> for FailedAttempt {
    fn from(error: async_nats::ConnectError) -> Self {
        match error.kind() {
            // Its source repeats the same words.
            kind @ ConnectErrorKind::AuthorizationViolation => {
                Self { refused: true, cause: kind.to_string() }
            }
            ConnectErrorKind::Authentication => Self { refused: true, cause: chain(&error) },
            _ => Self { refused: false, cause: chain(&error) },
        }
    }
}

fn check_settings(config: &BusConfig) -> Result<Vec<ServerAddr>, ConnectError> {
    let unusable = |what: String| |source| ConnectError::Config { what, source };
    let own = config.client_certificate.as_ref();
    let own = own.into_iter().flat_map(|own| [&own.certificate, &own.key]);
    for path in [&config.creds, &config.tls_ca].into_iter().flatten().chain(own) {
        std::fs::File::open(path).map_err(unusable(format!("the file {}", path.display())))?;
    }
    if let Some(path) = &config.creds {
        creds::read(path).map_err(unusable(format!("the credentials {}", path.display())))?;
    }
    if let Some(login) = &config.login {
        login.check().map_err(|(what, source)| ConnectError::Config { what, source })?;
    }
    let servers = config.url.split(',').map(|url| url.trim().parse::<ServerAddr>());
    servers.collect::<Result<_, _>>().map_err(unusable(format!("the address {}", config.shown_url())))
}

fn check_server(server: &ServerInfo, config: &BusConfig) -> Result<(), ConnectError> {
    let url = config.shown_url();
    if !is_acceptable(&server.version) {
        return Err(ConnectError::TooOld { url, found: server.version.clone(), rule: SERVER_RULE });
    }
    if !server.jetstream {
        return Err(ConnectError::NoJetStream { url });
    }
    if server.max_payload < SERVER_PAYLOAD_MIN {
        return Err(ConnectError::PayloadTooSmall {
            url,
            found: server.max_payload,
            wanted: SERVER_PAYLOAD_MIN,
        });
    }
    Ok(())
}

/// Connects in one attempt.
async fn open(
    config: &BusConfig,
    servers: &[ServerAddr],
    delay: &Arc<ConnectDelay>,
) -> Result<Bus, FailedAttempt> {
    let (events, heard) = mpsc::channel(link::EVENT_QUEUE_MAX);
    let in_use = Arc::new(InUse::default());
    let options = creds::from_address(options(config, delay, events, &in_use), servers);
    // Boxed: 28 KiB that would otherwise be part of every future that connects.
    let client = Box::pin(options.connect(servers.to_vec())).await?;
    delay.connected();
    let stop = delay.gone.clone();
    let lost = |error| FailedAttempt { refused: false, cause: chain(&error) };
    let replies = Replies::open(&client, stop.clone()).await.map_err(lost)?;
    let (link, refusal) = watch_link(&client, &config.name, heard, &stop);
    if let Some(path) = config.creds.clone() {
        let (client, check_interval, clock) =
            (client.clone(), config.creds_check_interval, Arc::new(SystemClock));
        tokio::spawn(Renewal { client, path, in_use, check_interval, clock }.run(stop.clone()));
    }
    if let Some(unacknowledged_max) = config.unacknowledged_max {
        let ports = servers.iter().map(ServerAddr::port).collect();
        tokio::spawn(unacknowledged::watch(client.clone(), ports, unacknowledged_max, stop.clone()));
    }
    let (silence, _tasks) = (Silence::new(), stop.drop_guard());
    let BusConfig { message_bytes_max, uplink_bytes_max, ledger_bytes_max, replicas, .. } = *config;
    let signers = config.creds.as_deref().map(creds::signers).unwrap_or_default();
    let wire = Wire {
        client,
        link,
        refusal,
        silence,
        replies,
        message_bytes_max,
        uplink_bytes_max,
        ledger_bytes_max,
        replicas,
        signers,
        own_replies: OwnReplies::of(config.creds.as_deref()),
        dropped_requests: OnceLock::new(),
        _tasks,
    };
    Ok(Bus { wire: Arc::new(wire) })
}

fn watch_link(
    client: &Client,
    name: &str,
    events: mpsc::Receiver<Event>,
    stop: &CancellationToken,
) -> (watch::Receiver<Link>, watch::Receiver<Option<String>>) {
    let (sender, link) = watch::channel(Link::now(client));
    let (refused, refusal) = watch::channel(None);
    tokio::spawn(link::follow(client.clone(), name.to_owned(), events, sender, refused, stop.clone()));
    (link, refusal)
}

fn options(
    config: &BusConfig,
    delay: &Arc<ConnectDelay>,
    events: mpsc::Sender<Event>,
    in_use: &Arc<InUse>,
) -> ConnectOptions {
    let mut options = match (&config.creds, &config.login) {
        (Some(path), _) => sign_with(path, in_use),
        (None, Some(login)) => login.options(),
        (None, None) => ConnectOptions::new(),
    };
    if let Some(ClientCertificate { certificate, key }) = config.client_certificate.clone() {
        options = options.add_client_certificate(certificate, key).require_tls(true);
    }
    if let Some(path) = &config.tls_ca {
        // Without this, an attacker who removes "TLS required" from the server's greeting would get everything in plain
        // text.
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    let inbox = config.inbox_prefix.clone().or_else(|| creds::inbox(config.creds.as_deref()?));
    if let Some(prefix) = inbox {
        options = options.custom_inbox_prefix(prefix);
    }
    let delay = Arc::clone(delay);
    options
        .name(&config.name)
        .client_capacity(config.client_capacity)
        .ping_interval(config.ping_interval)
        .reconnect_delay_callback(move |attempt| delay.before(attempt))
        .event_callback(move |event| {
            let events = events.clone();
            async move {
                // The receiver is gone once the bus is.
                let _ = events.send(event).await;
            }
        })
}

/// Credentials read at every connect, so that renewed ones are used without a restart.
fn sign_with(path: &Path, in_use: &Arc<InUse>) -> ConnectOptions {
    let (path, in_use) = (path.to_owned(), Arc::clone(in_use));
    ConnectOptions::with_auth_callback(move |nonce| {
        let auth = creds::sign(&path, &nonce);
        let token = auth.as_ref().ok().and_then(|auth| auth.jwt.as_deref());
        // The server judges credentials whose JWT cannot be read here; only their renewal is not watched.
        in_use.set(token.and_then(|token| muster_identity::jwt::read(token).ok()));
        async move { auth.map_err(async_nats::AuthError::new) }
    })
}

/// How long the library waits before it connects for a bus that was dropped. The library notices the drop only when it is
/// connected, and cannot be stopped before. So it sleeps and keeps some memory until then; that happens only to a bus that
/// is dropped while the link is down.
const GONE_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The delays between attempts to connect, except the first of the process.
#[derive(Debug)]
struct ConnectDelay {
    state: Mutex<ConnectDelayState>,
    /// Cancelled when the last handle of the bus is gone.
    gone: CancellationToken,
}

#[derive(Debug)]
struct ConnectDelayState {
    jitter: FullJitter,
    rng: Rng,
    connected: bool,
}

impl ConnectDelay {
    fn new(max: Duration) -> Arc<Self> {
        let state = ConnectDelayState {
            jitter: FullJitter::new(RECONNECT_MIN, max),
            rng: Rng::new(),
            connected: false,
        };
        Arc::new(Self { state: Mutex::new(state), gone: CancellationToken::new() })
    }

    fn next(&self) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ConnectDelayState { jitter, rng, .. } = &mut *state;
        jitter.next(rng)
    }

    fn connected(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.connected = true;
        state.jitter.reset();
    }

    /// The delay before an attempt of the library. The first connection is not delayed here, because [`Bus::connect`] delays
    /// its attempts.
    fn before(&self, attempt: usize) -> Duration {
        if self.gone.is_cancelled() {
            return GONE_DELAY;
        }
        let first = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Before the first connection every attempt is the first one of a new client, which must not reset the delays.
            if state.connected && attempt <= 1 {
                state.jitter.reset();
            }
            !state.connected
        };
        if first { Duration::ZERO } else { self.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SERVICE_RECONNECT_MAX;

    #[test]
    fn a_service_tries_again_within_seconds_however_long_the_hub_was_away() {
        let delay = ConnectDelay::new(BusConfig::service("nats://hub", "test").reconnect_max);
        delay.connected();
        let longest = (1..1_000).map(|attempt| delay.before(attempt)).max().unwrap();
        assert!(longest <= SERVICE_RECONNECT_MAX, "{longest:?}");
        assert!(
            longest > SERVICE_RECONNECT_MAX / 2,
            "several services do not come back at once: {longest:?}"
        );
    }

    #[test]
    fn delays_grow_until_a_connection_resets_them() {
        let delay = ConnectDelay::new(60 * RECONNECT_MIN);
        let attempt = || {
            assert_eq!(delay.before(1), Duration::ZERO, "the first attempt of a client is not delayed twice");
            delay.next()
        };
        let longest = (0..200).map(|_| attempt()).max().unwrap();
        assert!(longest > 8 * RECONNECT_MIN, "{longest:?}");
        delay.connected();
        assert!(delay.before(1) <= RECONNECT_MIN, "a connection resets the delays");
    }
}
