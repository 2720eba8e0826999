//! Wires the listener of devices: its certificate, its connection to NATS, its routes.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use muster_bus::{Bus, BusConfig};
use muster_service::clock::SystemClock;
use muster_service::config::Common;
use muster_service::supervisor::{Stage, Supervisor};
use tokio_util::sync::CancellationToken;

use super::Devices;
use super::caller::Guard;
use super::config::DevicesConfig;
use super::presence::Presence;
use super::routes;
use super::store::Store;
use super::svid;
use super::trust::TrustBundle;
use crate::error::StartError;
use crate::listener::{Limits, Listener};
use crate::metrics::Metrics;
use crate::tls::{self, KeyPair};

const NAME: &str = "muster-gateway for devices";

/// The trust bundle of the devices; `None` if an authority has no place in one.
///
/// # Errors
/// The file of the authorities cannot be read.
pub(crate) fn trust(config: &DevicesConfig) -> Result<Option<TrustBundle>, StartError> {
    let authorities = tls::certificates(&config.client_ca)?;
    let trust = TrustBundle::of(&config.realm.manager, &authorities, config.sequence);
    let trust = trust.inspect_err(|error| tracing::warn!(%error, "cannot serve a trust bundle"));
    Ok(trust.ok())
}

/// Serves devices under a supervisor, with more routes; returns the address of the listener, and the state of the routes.
///
/// # Errors
/// It cannot serve them; a person must act.
pub(crate) async fn serve(
    config: DevicesConfig,
    common: &Common,
    metrics: &Metrics,
    supervisor: &Supervisor,
    more: Router<Devices>,
) -> Result<(SocketAddr, Devices), StartError> {
    let DevicesConfig { addr, client_ca, pair: (certificate, key), realm, creds, heartbeat, .. } = config;
    let pair = KeyPair::read(&certificate, &key)?;
    let tls = svid::for_devices(pair, tls::certificates(&client_ca)?, realm.clone())?;
    let bind = |source| StartError::Bind { addr, flag: "--devices-addr", source };
    let listener = Listener::bind(addr, Some(tls), Limits::DEVICES, metrics.devices.clone()).await;
    let listener = listener.map_err(bind)?;
    let addr = listener.local_addr().map_err(bind)?;
    let bus = BusConfig {
        creds: creds.or_else(|| common.creds.clone()),
        tls_ca: common.tls_ca.clone(),
        ..BusConfig::service(common.nats_url.as_str(), NAME)
    };
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    let devices = Devices {
        store: Store::new(bus),
        presence: Arc::new(Presence::every(heartbeat)),
        manifests: Arc::default(),
        clock: Arc::new(SystemClock),
        metrics: metrics.clone(),
    };
    let manager = realm.manager.clone();
    let router = routes::router(Guard { devices: devices.clone(), realm: Arc::new(realm) }, more);
    let token = supervisor.token(Stage::Serve);
    supervisor.spawn(Stage::Serve, "devices", async move { listener.serve(router, token).await });
    tracing::info!(devices.url = format!("https://{addr}"), manager, "serving devices");
    Ok((addr, devices))
}
