//! Supervises the connection to the hub: connects, hands each connection to [`crate::relay`] and [`crate::follow`],
//! and replaces it.
//!
//! The bus reconnects a broken link by itself. A connection is replaced by one with a new client in two cases: a
//! downtime begins, or the server answers pings and nothing else, so that either side may hang. Nothing is lost:
//! every report without a confirmation is still in the outbox, under the same message id.

use std::pin::pin;
use std::time::Duration;

use muster_bus::{Bus, BusConfig, ConnectError};
use muster_contract::limits::RECONNECT_MIN;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::relay::Relay;
use crate::schedule::SchedulePhase;

/// Bounds of the delay before the agent tries a hub again that cannot serve it: a person must correct the hub first.
const REFUSED_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// After a connection that lasted this long, the delays begin anew.
const GOOD_CONNECTION: Duration = Duration::from_secs(10 * 60);

const _: () = assert!(REFUSED_RETRY.1.as_secs() < GOOD_CONNECTION.as_secs());

/// Connects, and replaces connections.
pub struct ConnectionSupervisor {
    /// The address and the credentials of the hub.
    pub settings: BusConfig,
    /// The phase of the schedule.
    pub phase: watch::Receiver<SchedulePhase>,
    /// Publishes each connection, and its end.
    pub connected: watch::Sender<Option<Bus>>,
    /// The random source for jitter.
    pub rng: fastrand::Rng,
}

/// The reason for the end of a connection.
enum ConnectionEnd {
    Stopped,
    Downtime,
    Stalled,
}

impl ConnectionSupervisor {
    /// Keeps the relay connected until `stop`; after `stop_requested` it makes no new connection.
    pub async fn run(mut self, mut relay: Relay, stop_requested: CancellationToken, stop: CancellationToken) {
        let mut delays = FullJitter::new(RECONNECT_MIN, self.settings.reconnect_max);
        while let Some(bus) =
            stop_requested.run_until_cancelled(self.connect(&stop_requested)).await.flatten()
        {
            let begun = Instant::now();
            self.connected.send_replace(Some(bus.clone()));
            let end = self.run_relay(&bus, &mut relay, &stop).await;
            self.connected.send_replace(None);
            drop(bus);
            if begun.elapsed() >= GOOD_CONNECTION {
                delays.reset();
            }
            match end {
                ConnectionEnd::Stopped => return,
                ConnectionEnd::Downtime => {}
                ConnectionEnd::Stalled => {
                    tracing::warn!(
                        "connected to NATS, but requests are not answered: making a new connection"
                    );
                    stop_requested.run_until_cancelled(sleep(delays.next(&mut self.rng))).await;
                }
            }
        }
    }

    /// Runs the relay until there is a reason to end the connection.
    async fn run_relay(&mut self, bus: &Bus, relay: &mut Relay, stop: &CancellationToken) -> ConnectionEnd {
        let cut = CancellationToken::new();
        let mut running = pin!(relay.run(bus, &cut, stop));
        let end = tokio::select! {
            () = &mut running => return ConnectionEnd::Stopped,
            () = bus.stalled() => ConnectionEnd::Stalled,
            () = wait_for_phase(&mut self.phase, |phase| phase == SchedulePhase::Down) => ConnectionEnd::Downtime,
        };
        cut.cancel();
        running.await;
        end
    }

    /// The next connection, outside of downtimes; `None` if the agent stops before. A hub that cannot
    /// serve does not end the agent: workloads need no hub, and a person may correct it.
    async fn connect(&mut self, stop_requested: &CancellationToken) -> Option<Bus> {
        let mut delays = FullJitter::new(REFUSED_RETRY.0, REFUSED_RETRY.1);
        loop {
            self.wait_out_downtime().await;
            let given_up = stop_requested.child_token();
            let attempt = tokio::select! {
                attempt = Bus::connect(self.settings.clone(), &given_up) => attempt,
                () = wait_for_phase(&mut self.phase, |phase| phase == SchedulePhase::Down) => continue,
            };
            match attempt {
                Ok(bus) => return Some(bus),
                Err(ConnectError::Stopped { .. }) => return None,
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "this hub cannot serve the agent; workloads keep running"
                    );
                }
            }
            sleep(delays.next(&mut self.rng)).await;
        }
    }

    /// Spreads the connects of a fleet after a downtime.
    async fn wait_out_downtime(&mut self) {
        while *self.phase.borrow_and_update() == SchedulePhase::Down {
            wait_for_phase(&mut self.phase, |phase| phase != SchedulePhase::Down).await;
            sleep(self.settings.reconnect_max.mul_f64(self.rng.f64())).await;
        }
    }
}

async fn wait_for_phase(phase: &mut watch::Receiver<SchedulePhase>, holds: impl Fn(SchedulePhase) -> bool) {
    // An error means that the schedule is no longer evaluated: the agent ends.
    if phase.wait_for(|phase| holds(*phase)).await.is_err() {
        std::future::pending::<()>().await;
    }
}
