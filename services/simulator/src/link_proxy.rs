//! `muster-simulator link`: a link as a process of its own, between clients and a server of any network. It serves health
//! and metrics like every service.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_service::health::Health;
use muster_service::supervisor::{Stage, Supervisor};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::link_proxy::LinkProxyConfig;
use crate::error::Error;
use crate::line_cuts;
use crate::link::{Direction, Fault, Link, OnLink, Sharing, Switch};
use crate::link_schedule::{self, LinkSchedule};

/// Time between two updates of the metrics; each reads the cuts made by hand as well.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The metrics of the process.
#[derive(Debug, Clone, Default)]
struct Metrics {
    faults: Family<FaultLabel, Counter>,
    links: Gauge,
    connections: Gauge,
    up: Gauge,
    down: Gauge,
    swallowed: Gauge,
}

/// A kind of fault.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabel {
    fault: &'static str,
}

/// Carries until it is asked to stop.
///
/// # Errors
/// The address cannot be listened on.
pub(crate) async fn start(config: LinkProxyConfig, supervisor: Supervisor) -> Result<(), Error> {
    let ready = supervisor.health().latch("the link");
    let metrics = Metrics::register(supervisor.health());
    let on_link = link_faults(&config, &metrics, &supervisor);
    let switch = Switch::open(config.listen, &config.to.0, config.seed, config.sharing, on_link).await;
    let what = format!("{} (--listen)", config.listen);
    let switch = switch.map_err(|source| Error::Network { what, source })?;
    tracing::info!(
        link.address = %switch.address(),
        link.to = config.to.0,
        link.profile = config.profile.name,
        link.each = config.sharing == Sharing::Each,
        seed = config.seed,
        "started the link: {}",
        config.profile.about
    );
    supervisor.spawn(
        Stage::Work,
        "figures",
        metrics.follow(switch, config.cuts, supervisor.token(Stage::Work)),
    );
    ready.release();
    Ok(())
}

/// Starts the fault schedule of every new link, from the profile, the seed and the number of the link.
fn link_faults(config: &LinkProxyConfig, metrics: &Metrics, supervisor: &Supervisor) -> OnLink {
    let (profile, seed, sharing) = (config.profile.clone(), config.seed, config.sharing);
    let (faults, supervisor) = (metrics.faults.clone(), supervisor.clone());
    Box::new(move |link: Arc<Link>, client, number| {
        let (faults, stop) = (faults.clone(), supervisor.token(Stage::Intake));
        let schedule = LinkSchedule::new(profile.clone(), seed, number);
        let who = if sharing == Sharing::Each { client.to_string() } else { "all".to_owned() };
        supervisor.spawn(Stage::Intake, "link-faults", async move {
            let on_fault = |fault: Fault, lasts: Duration| {
                tracing::info!(link.client = who, link.fault = fault.name(), ?lasts, "injected a fault");
                faults.get_or_create(&FaultLabel { fault: fault.name() }).inc();
            };
            link_schedule::follow(&link, schedule, &stop, on_fault).await;
        });
    })
}

impl Metrics {
    fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| {
            registry.register("link_faults", "Faults begun, by kind", metrics.faults.clone());
            let gauges = [
                ("link_links", "Links there are: one, or one for each client", &metrics.links),
                ("link_connections", "Connections carried to the server so far", &metrics.connections),
                ("link_up_bytes", "Bytes handed to the server so far", &metrics.up),
                ("link_down_bytes", "Bytes handed to clients so far", &metrics.down),
                ("link_swallowed_bytes", "Bytes thrown away so far, while half open", &metrics.swallowed),
            ];
            for (name, help, gauge) in gauges {
                registry.register(name, help, gauge.clone());
            }
        });
        metrics
    }

    /// Updates the metrics and applies the cuts made by hand until `stop`; keeps the links open up to then.
    async fn follow(self, link: Switch, cuts: PathBuf, stop: tokio_util::sync::CancellationToken) {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        loop {
            link.cut_off(&line_cuts::read(&cuts));
            self.links.set(signed(link.links() as u64));
            self.connections.set(signed(link.connections()));
            self.up.set(signed(link.carried(Direction::Up)));
            self.down.set(signed(link.carried(Direction::Down)));
            self.swallowed.set(signed(link.swallowed()));
            if stop.run_until_cancelled(tokio::time::sleep(COUNT_EVERY)).await.is_none() {
                return;
            }
        }
    }
}
