//! Corridor: outbox → what to send next ([`sending`]) → the bus → the outbox again, which notes what the bus holds. Hearts
//! beat here too, because a heartbeat says how far the outbox goes.
//!
//! Every connection begins with a heartbeat, then come the rows. An attempt ends with the link, with the first transient
//! failure, or with a new epoch; then everything under way is forgotten and the next one begins after a delay.
//! Nothing is ever queued behind a link that is down: the outbox is the queue. On a link with a limit the rows wait for
//! their turn in the [`budget`]; hearts do not.

mod attempt;
pub mod budget;
mod message;
pub mod sending;

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Link};
use muster_contract::limits::HEARTBEAT_JITTER;
use muster_contract::presence::Heartbeat;
use muster_contract::version::ApiVersion;
use muster_contract::{DeviceKey, Epoch};
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::attempt::{Attempt, Connection, End};
use self::budget::Budget;
use self::message::Letterhead;
use self::sending::Sending;
use crate::db;
use crate::metrics::Metrics;
use crate::observe::Trouble;
use crate::outbox::Outbox;
use crate::reconcile::Wanted;

/// Bounds of the delay before the next attempt over the same connection.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// A delay that is worth a word.
const LONG_DELAY: Duration = Duration::from_secs(5);
/// An attempt that lasts this long went well: the delay after it is the least again.
const GOOD_ATTEMPT: Duration = Duration::from_secs(10);

const _: () =
    assert!(RETRY.0.as_millis() < GOOD_ATTEMPT.as_millis() && LONG_DELAY.as_secs() < RETRY.1.as_secs());

/// What a relay works with.
pub struct Relay {
    /// The device it speaks for.
    pub device: DeviceKey,
    /// What to send.
    pub outbox: Outbox,
    /// What time it is, for the heartbeat and the outbox.
    pub clock: Arc<dyn Clock>,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// What the device shall run: its generation goes into the heartbeat; a retired device has none.
    pub desired: watch::Receiver<Wanted>,
    /// Whether the device can keep what it would report: heartbeats say so.
    pub trouble: watch::Receiver<Trouble>,
    /// True once the hub's last receipt has been asked for. No epoch may be fixed before.
    pub greeted: watch::Receiver<bool>,
    /// What is counted.
    pub metrics: Metrics,
    /// For jitter.
    pub chance: fastrand::Rng,
    /// What goes next.
    pub sending: Sending,
    /// What may go now.
    pub budget: Budget,
    /// One answer may stand for many rows of a long backlog. Not tried again over a link on which it failed.
    pub batches: bool,
}

impl Relay {
    /// Sends over one bus until `cut`; or until `stop`, and then what is left, if it goes quickly.
    pub async fn run(&mut self, bus: &Bus, cut: &CancellationToken, stop: &CancellationToken) {
        self.speak(bus, cut, stop).await;
        self.metrics.link(false);
    }

    async fn speak(&mut self, bus: &Bus, cut: &CancellationToken, stop: &CancellationToken) {
        let mut delays = FullJitter::new(RETRY.0, RETRY.1);
        let mut link = bus.link();
        let mut last = Link::Down;
        loop {
            let up = cut.run_until_cancelled(until_up(&mut link, stop)).await.flatten();
            let Some(over) = up else { return };
            if over != last {
                self.sending.reconnected();
                self.batches = true;
                last = over;
            }
            self.metrics.link(true);
            let begun = Instant::now();
            let connection = Connection { bus, link: link.clone(), over, cut, stop };
            let end = Attempt::begin(self, connection).run().await;
            if begun.elapsed() >= GOOD_ATTEMPT {
                delays.reset();
            }
            match end {
                End::Stopped | End::Cut => return,
                End::Failed if stop.is_cancelled() => return,
                End::Link => self.metrics.link(false),
                End::Failed => {
                    let delay = delays.next(&mut self.chance);
                    // Short troubles are everyday life on a thin link; long ones are somebody's business.
                    if delay >= LONG_DELAY {
                        tracing::warn!(
                            retry.seconds = delay.as_secs_f64(),
                            "reports do not get through although there is a connection: is UPLINK full, or a permission \
                             missing? They are kept here"
                        );
                    }
                    cut.run_until_cancelled(sleep(delay)).await;
                }
            }
        }
    }

    /// Lets the heart beat and gives the number of rows that wait.
    async fn beat(&mut self, bus: &Bus, epoch: Epoch, letterhead: &Letterhead) -> Result<u64, db::Error> {
        let summary = self.outbox.summary().await?;
        self.metrics.outbox(&summary);
        let (generation, retired) = match &*self.desired.borrow() {
            Some(document) => (document.generation.get(), document.retired),
            None => (0, false),
        };
        if retired {
            return Ok(summary.unsent);
        }
        let heartbeat = Heartbeat {
            api_version: ApiVersion::V1,
            kind: Default::default(),
            epoch,
            head: summary.head,
            unsent: summary.unsent.min(summary.head),
            oldest_unsent_at: summary.oldest_unsent_at,
            generation,
            agent_version: muster_service::VERSION.to_owned(),
            storing: self.trouble.borrow_and_update().is_none(),
        };
        let beat = letterhead.heartbeat(&heartbeat, self.clock.now());
        self.budget.charge(beat.wire_bytes(), Instant::now());
        // One that does not get through is made up for by the next; whether the link is up is known elsewhere.
        if let Err(error) = bus.publish_core(&beat.subject, beat.headers, beat.payload).await {
            tracing::debug!(error = chain(&error), "a heartbeat was not sent");
        }
        Ok(summary.unsent)
    }

    fn next_beat(&mut self) -> Instant {
        let spread = HEARTBEAT_JITTER * (2.0 * self.chance.f64() - 1.0);
        Instant::now() + self.heartbeat.mul_f64(1.0 + spread)
    }
}

/// The next connection; `None` when the agent stops.
async fn until_up(link: &mut watch::Receiver<Link>, stop: &CancellationToken) -> Option<Link> {
    if stop.is_cancelled() {
        // What is left goes out if that is possible at once.
        let now = *link.borrow();
        return now.is_up().then_some(now);
    }
    tokio::select! {
        () = stop.cancelled() => None,
        up = link.wait_for(|link| link.is_up()) => up.ok().map(|up| *up),
    }
}
