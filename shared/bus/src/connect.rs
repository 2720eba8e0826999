//! Connecting: waits for a server, or tries once; refuses one that cannot serve.

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
use crate::version::{SERVER_RULE, is_acceptable};
use crate::wire::Wire;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process is stopping.
    #[error("stopped while waiting for the NATS server at {url}")]
    Stopped {
        /// Where it was looked for.
        url: String,
    },
    /// A setting cannot be used.
    #[error("cannot connect to NATS with {what}")]
    Config {
        /// Which setting.
        what: String,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// The server lets nobody in who comes like this. Only [`Bus::connect_once`] ends with it.
    #[error("{cause}: the NATS server at {url} does not let us in; are the credentials right?")]
    Unauthorized {
        /// Where.
        url: String,
        /// What it says.
        cause: String,
    },
    /// There is no way to the server. Only [`Bus::connect_once`] ends with it.
    #[error("cannot connect to the NATS server at {url}: {cause}")]
    Unreached {
        /// Where it was looked for.
        url: String,
        /// Why.
        cause: String,
    },
    /// The server is too old.
    #[error("the NATS server at {url} is version {found}: {rule}")]
    TooOld {
        /// Where.
        url: String,
        /// Its version.
        found: String,
        /// Which versions serve, and what to do.
        rule: &'static str,
    },
    /// The server runs without JetStream.
    #[error(
        "the NATS server at {url} runs without JetStream: start it with `nats-server -js` or a jetstream block"
    )]
    NoJetStream {
        /// Where.
        url: String,
    },
    /// The server takes smaller messages than the contract allows.
    #[error(
        "the NATS server at {url} takes messages of {found} bytes: set its max_payload to {wanted} or more"
    )]
    PayloadTooSmall {
        /// Where.
        url: String,
        /// Its limit.
        found: usize,
        /// The least that serves.
        wanted: usize,
    },
}

impl Bus {
    /// Connects. Waits for the server with full jitter until `stop`, telling the log; refuses one that cannot serve.
    pub async fn connect(config: BusConfig, stop: &CancellationToken) -> Result<Self, ConnectError> {
        let servers = check_settings(&config)?;
        let pace = Pace::new(config.reconnect_max);
        loop {
            let attempt = stop.run_until_cancelled(open(&config, &servers, &pace)).await;
            match attempt {
                None => return Err(ConnectError::Stopped { url: config.shown_url() }),
                Some(Ok(bus)) => return check_server(&bus.wire.client.server_info(), &config).map(|()| bus),
                Some(Err(Failed { cause, .. })) => {
                    let delay = pace.next();
                    tracing::warn!(nats.url = config.shown_url(), retry_in = ?delay, %cause, "waiting for NATS");
                    stop.run_until_cancelled(tokio::time::sleep(delay)).await;
                }
            }
        }
    }
}

impl Bus {
    /// Connects in one attempt, for a person who waits. How long that may take is the caller's; later cuts of the link
    /// are mended as with [`Bus::connect`].
    pub async fn connect_once(config: BusConfig) -> Result<Self, ConnectError> {
        let servers = check_settings(&config)?;
        let url = config.shown_url();
        match open(&config, &servers, &Pace::new(config.reconnect_max)).await {
            Ok(bus) => check_server(&bus.wire.client.server_info(), &config).map(|()| bus),
            Err(Failed { refused: true, cause }) => Err(ConnectError::Unauthorized { url, cause }),
            Err(Failed { refused: false, cause }) => Err(ConnectError::Unreached { url, cause }),
        }
    }
}

/// How an attempt failed.
#[derive(Debug)]
struct Failed {
    /// The server is there, but lets us not in.
    refused: bool,
    /// One line for a person.
    cause: String,
}

impl From<async_nats::ConnectError> for Failed {
    fn from(error: async_nats::ConnectError) -> Self {
        match error.kind() {
            // Its source says the same once more.
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

/// One attempt.
async fn open(config: &BusConfig, servers: &[ServerAddr], pace: &Arc<Pace>) -> Result<Bus, Failed> {
    let (events, heard) = mpsc::channel(link::EVENTS_WAITING);
    let in_use = Arc::new(InUse::default());
    let options = creds::from_address(options(config, pace, events, &in_use), servers);
    // Boxed: 28 KiB that would otherwise be part of every future that connects.
    let client = Box::pin(options.connect(servers.to_vec())).await?;
    pace.connected();
    let stop = pace.gone.clone();
    let lost = |error| Failed { refused: false, cause: chain(&error) };
    let replies = Replies::open(&client, stop.clone()).await.map_err(lost)?;
    let (link, refusal) = watch_link(&client, heard, &stop);
    if let Some(path) = config.creds.clone() {
        let (client, look, clock) = (client.clone(), config.creds_look, Arc::new(SystemClock));
        tokio::spawn(Renewal { client, path, in_use, look, clock }.run(stop.clone()));
    }
    let (silence, _tasks) = (Silence::new(), stop.drop_guard());
    let BusConfig { uplink_bytes_max, ledger_bytes_max, replicas, .. } = *config;
    let signers = config.creds.as_deref().map(creds::signers).unwrap_or_default();
    let wire = Wire {
        client,
        link,
        refusal,
        silence,
        replies,
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
    events: mpsc::Receiver<Event>,
    stop: &CancellationToken,
) -> (watch::Receiver<Link>, watch::Receiver<Option<String>>) {
    let (sender, link) = watch::channel(Link::now(client));
    let (refused, refusal) = watch::channel(None);
    tokio::spawn(link::follow(client.clone(), events, sender, refused, stop.clone()));
    (link, refusal)
}

fn options(
    config: &BusConfig,
    pace: &Arc<Pace>,
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
        // Whoever names an authority wants it asked: without this, somebody in between who leaves "TLS required" out
        // of the server's greeting would get everything in plain text.
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    let inbox = config.inbox_prefix.clone().or_else(|| creds::inbox(config.creds.as_deref()?));
    if let Some(prefix) = inbox {
        options = options.custom_inbox_prefix(prefix);
    }
    let pace = Arc::clone(pace);
    options
        .name(&config.name)
        .client_capacity(config.client_capacity)
        .ping_interval(config.ping_interval)
        .reconnect_delay_callback(move |attempt| pace.before(attempt))
        .event_callback(move |event| {
            let events = events.clone();
            async move {
                // Nobody listens once the bus is gone.
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
        // Of foreign credentials that cannot be read the server is the judge; only renewal does without.
        in_use.set(token.and_then(|token| muster_identity::jwt::read(token).ok()));
        async move { auth.map_err(async_nats::AuthError::new) }
    })
}

/// How long the library waits before it tries to connect for a bus that nobody holds any more. It cannot be told to give
/// up: it notices only when it is connected. So it is made to sleep, and costs some memory until it wakes; only a bus
/// that is given up while the link is down leaves one behind.
const GONE_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Delays between attempts to connect, the first of the process excepted.
#[derive(Debug)]
struct Pace {
    state: Mutex<PaceState>,
    /// Cancelled when the last handle of the bus is gone.
    gone: CancellationToken,
}

#[derive(Debug)]
struct PaceState {
    jitter: FullJitter,
    chance: Rng,
    connected: bool,
}

impl Pace {
    fn new(max: Duration) -> Arc<Self> {
        let state =
            PaceState { jitter: FullJitter::new(RECONNECT_MIN, max), chance: Rng::new(), connected: false };
        Arc::new(Self { state: Mutex::new(state), gone: CancellationToken::new() })
    }

    fn next(&self) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let PaceState { jitter, chance, .. } = &mut *state;
        jitter.next(chance)
    }

    fn connected(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.connected = true;
        state.jitter.reset();
    }

    /// The library asks before every attempt, also the first one, which [`Bus::connect`] paces itself.
    fn before(&self, attempt: usize) -> Duration {
        if self.gone.is_cancelled() {
            return GONE_DELAY;
        }
        let first = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Before the first connection every attempt is a client's first: that must not start the delays again.
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

    #[test]
    fn delays_grow_from_the_first_attempt_on_until_there_is_a_connection() {
        let pace = Pace::new(60 * RECONNECT_MIN);
        let attempt = || {
            assert_eq!(pace.before(1), Duration::ZERO, "the first attempt of a client is not delayed twice");
            pace.next()
        };
        let longest = (0..200).map(|_| attempt()).max().unwrap();
        assert!(longest > 8 * RECONNECT_MIN, "{longest:?}");
        pace.connected();
        assert!(pace.before(1) <= RECONNECT_MIN, "after a connection the delays start again");
    }
}
