//! The life of the agent's connections, one after another. Who speaks over one is told which; what is said is
//! [`crate::relay`]'s and [`crate::follow`]'s.
//!
//! A link that breaks is mended by the bus itself. A connection is given up and replaced by a new one with a new client
//! in two cases: a downtime begins, or the server answers pings and nothing else, so that nobody can say which side is
//! stuck. Nothing is lost by that: whatever was not confirmed is still in the outbox, under the same message id.

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
use crate::schedule::Phase;

/// Bounds of the delay before a server that cannot serve is tried again: a person has to do something first.
const REFUSED_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A connection that lasted this long was a good one: the delay after it is the least again.
const GOOD_CONNECTION: Duration = Duration::from_secs(10 * 60);

const _: () = assert!(REFUSED_RETRY.1.as_secs() < GOOD_CONNECTION.as_secs());

/// Makes connections and hands them out.
pub struct Keeper {
    /// How to reach the hub.
    pub settings: BusConfig,
    /// What may be done now.
    pub phase: watch::Receiver<Phase>,
    /// Told of every connection, and of its end.
    pub connected: watch::Sender<Option<Bus>>,
    /// For jitter.
    pub chance: fastrand::Rng,
}

/// Why a connection was given up.
enum Over {
    Stopped,
    Downtime,
    Stalled,
}

impl Keeper {
    /// Keeps the relay connected until `stop`; while there is no connection, only until `asked`.
    pub async fn run(mut self, mut relay: Relay, asked: CancellationToken, stop: CancellationToken) {
        let mut delays = FullJitter::new(RECONNECT_MIN, self.settings.reconnect_max);
        while let Some(bus) = asked.run_until_cancelled(self.connect(&asked)).await.flatten() {
            let begun = Instant::now();
            self.connected.send_replace(Some(bus.clone()));
            let over = self.speak(&bus, &mut relay, &stop).await;
            self.connected.send_replace(None);
            drop(bus);
            if begun.elapsed() >= GOOD_CONNECTION {
                delays.reset();
            }
            match over {
                Over::Stopped => return,
                Over::Downtime => {}
                Over::Stalled => {
                    tracing::warn!("connected to NATS, but nothing is answered: making a new connection");
                    asked.run_until_cancelled(sleep(delays.next(&mut self.chance))).await;
                }
            }
        }
    }

    /// Lets the relay speak until one of the reasons to give the connection up.
    async fn speak(&mut self, bus: &Bus, relay: &mut Relay, stop: &CancellationToken) -> Over {
        let cut = CancellationToken::new();
        let mut speaking = pin!(relay.run(bus, &cut, stop));
        let over = tokio::select! {
            () = &mut speaking => return Over::Stopped,
            () = bus.stalled() => Over::Stalled,
            () = until(&mut self.phase, |phase| phase == Phase::Down) => Over::Downtime,
        };
        cut.cancel();
        speaking.await;
        over
    }

    /// The next connection, outside of downtimes; `None` when the agent is asked to stop before. A server that cannot
    /// serve is no reason to end: workloads need none, and somebody may set it right.
    async fn connect(&mut self, asked: &CancellationToken) -> Option<Bus> {
        let mut delays = FullJitter::new(REFUSED_RETRY.0, REFUSED_RETRY.1);
        loop {
            self.wait_out_downtime().await;
            let given_up = asked.child_token();
            let attempt = tokio::select! {
                attempt = Bus::connect(self.settings.clone(), &given_up) => attempt,
                () = until(&mut self.phase, |phase| phase == Phase::Down) => continue,
            };
            match attempt {
                Ok(bus) => return Some(bus),
                Err(ConnectError::Stopped { .. }) => return None,
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "this hub cannot serve; workloads go on without it"
                    );
                }
            }
            sleep(delays.next(&mut self.chance)).await;
        }
    }

    /// After a downtime a fleet must not come back all at once.
    async fn wait_out_downtime(&mut self) {
        while *self.phase.borrow_and_update() == Phase::Down {
            until(&mut self.phase, |phase| phase != Phase::Down).await;
            sleep(self.settings.reconnect_max.mul_f64(self.chance.f64())).await;
        }
    }
}

async fn until(phase: &mut watch::Receiver<Phase>, holds: impl Fn(Phase) -> bool) {
    // An error means that nobody looks at the clock any more: the agent ends.
    if phase.wait_for(|phase| holds(*phase)).await.is_err() {
        std::future::pending::<()>().await;
    }
}
