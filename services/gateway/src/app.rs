//! Wires the gateway: one connection to NATS, a listener of people, and the deliverer of webhooks.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use muster_bus::{Bus, BusConfig, LinkHealth};
use muster_client::ask::Hub;
use muster_client::packages::bucket::PackageBucket;
use muster_service::clock::SystemClock;
use muster_service::error::chain;
use muster_service::exit;
use muster_service::supervisor::{Stage, Supervisor};
use tokio::sync::watch::{self, Receiver};
use tokio_util::sync::CancellationToken;

use crate::config::{Cli, Config, PeopleConfig};
use crate::error::StartError;
use crate::grpc::start::GrpcListener;
use crate::kpt;
use crate::listener::{Limits, Listener};
use crate::login::Login;
use crate::margo;
use crate::metrics::Metrics;
use crate::open_files;
use crate::people::People;
use crate::people::hosts::people_url;
use crate::people::live::Feed;
use crate::people::router::router;
use crate::tls::{self, KeyPair};
use crate::webhooks::Webhooks;
use crate::webhooks::deliverer::{ANSWER_WITHIN, Deliverer};
use crate::webhooks::revocations::RevocationReporter;

const NAME: &str = "muster-gateway";

/// A gateway that serves.
#[derive(Debug)]
pub struct Gateway {
    /// The address of the listener of people.
    pub people_addr: SocketAddr,
    /// The address of the listener of devices, if they are served.
    pub devices_addr: Option<SocketAddr>,
    /// The address of the listener of gRPC, if it is served.
    pub grpc_addr: Option<SocketAddr>,
    /// Its metrics.
    pub metrics: Metrics,
}

/// Runs the gateway until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => muster_service::run(NAME, &config.common.clone(), |supervisor| async move {
            start(config, &supervisor).await
        }),
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the gateway under a supervisor. It is ready when its listeners are.
///
/// # Errors
/// Why it cannot run; a person must act.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Gateway, StartError> {
    open_files::raise_limit();
    let Config { common, people, login, devices, grpc, webhooks, packages_creds } = config;
    let webhooks = webhooks.map(Webhooks::open).transpose()?.map(Arc::new);
    let revocations = login.as_ref().and_then(|login| login.revocations.clone());
    let login = login.zip(common.creds.clone()).map(|(login, creds)| Login::open(login, creds));
    let login = login.transpose()?.map(Arc::new);
    let metrics = Metrics::register(supervisor.health());
    // Before the wait for NATS: an address in use is found at once.
    let listener = listen(&people, &metrics).await?;
    let grpc = match grpc {
        Some(grpc) => {
            Some(GrpcListener::bind(grpc, common.creds.as_deref(), revocations.as_deref(), &metrics).await?)
        }
        None => None,
    };
    let trust = devices.as_ref().map(margo::start::trust).transpose()?.flatten();
    let devices_addr = match devices {
        Some(devices) => {
            let (pull, more) = (devices.pull.clone(), kpt::routes::routes());
            let (addr, devices) = margo::start::serve(devices, &common, &metrics, supervisor, more).await?;
            pull.map(|file| kpt::pull::start(&file, &devices, supervisor)).transpose()?;
            Some(addr)
        }
        None => None,
    };
    let has_creds = common.creds.is_some();
    let bus = BusConfig {
        creds: common.creds,
        tls_ca: common.tls_ca,
        ..BusConfig::service(common.nats_url.as_str(), NAME)
    };
    let bucket_config = packages_creds.map(|creds| BusConfig { creds: Some(creds), ..bus.clone() });
    // The caller drops an interrupted start, so this one needs no token.
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    LinkHealth::register(supervisor.health()).follow(&bus);
    let bucket = bucket(&bus, bucket_config, has_creds, supervisor);
    let people_addr = listener.local_addr().map_err(|source| bind(&people, source))?;
    let is_secure = people.tls.is_some();
    let token = supervisor.token(Stage::Serve);
    let clock = Arc::new(SystemClock);
    let feed = Feed::new(clock.clone());
    let hub = Hub::new(bus.clone(), ANSWER_WITHIN);
    let (host, reach) = (people.public_host, people.reach);
    let url = people_url(host.as_deref(), reach, people_addr, is_secure);
    if let Some(webhooks) = webhooks.clone() {
        let deliverer = Deliverer::new(hub.clone(), webhooks, clock.clone(), metrics.clone(), host.clone());
        supervisor.spawn(Stage::Serve, "webhooks", deliverer.run(token.clone()));
        if let Some(login) = login.clone() {
            let reporter = RevocationReporter::new(hub.clone(), login, clock.clone());
            supervisor.spawn(Stage::Serve, "revocations", reporter.run(token.clone()));
        }
    }
    let grpc_hub = hub.clone();
    let people = People::new(hub, feed.clone(), clock, host, metrics.clone(), token.clone());
    let people = people
        .with_login(login, is_secure)
        .with_reach(reach)
        .with_trust(trust)
        .with_webhooks(webhooks)
        .with_bucket(bucket);
    supervisor.spawn(Stage::Serve, "views", feed.follow(bus, token.clone()));
    let grpc = grpc.map(|grpc| grpc.serve(grpc_hub, people.clone(), &metrics, supervisor));
    let grpc_addr = grpc.transpose()?;
    let router = router(people);
    supervisor.spawn(Stage::Serve, "people", async move { listener.serve(router, token).await });
    tracing::info!(people.url = url, people.addr = %people_addr, "serving people");
    Ok(Gateway { people_addr, devices_addr, grpc_addr, metrics })
}

/// The hub's bucket of packages: over a connection with separate credentials, or on a hub without any over the gateway's. Nothing
/// else waits for that connection, because its credentials may be revoked.
fn bucket(
    bus: &Bus,
    own: Option<BusConfig>,
    has_creds: bool,
    supervisor: &Supervisor,
) -> Option<Receiver<Option<PackageBucket>>> {
    let Some(own) = own else {
        return (!has_creds).then(|| watch::channel(Some(PackageBucket::new(bus.clone()))).1);
    };
    let (sender, receiver) = watch::channel(None);
    let token = supervisor.token(Stage::Serve);
    supervisor.spawn(Stage::Serve, "packages", async move {
        match Bus::connect(own, &token).await {
            Ok(bus) => _ = sender.send_replace(Some(PackageBucket::new(bus))),
            Err(error) => tracing::error!(error = chain(&error), "cannot use --packages-creds"),
        }
        token.cancelled().await;
    });
    Some(receiver)
}

async fn listen(people: &PeopleConfig, metrics: &Metrics) -> Result<Listener, StartError> {
    let pair = people.tls.as_ref().map(|(certificate, key)| KeyPair::read(certificate, key)).transpose()?;
    let tls = pair.map(tls::for_people).transpose()?;
    let listener = Listener::bind(people.addr, tls, Limits::PEOPLE, metrics.people.clone()).await;
    listener.map_err(|source| bind(people, source))
}

fn bind(people: &PeopleConfig, source: std::io::Error) -> StartError {
    StartError::Bind { addr: people.addr, flag: "--people-addr", source }
}
