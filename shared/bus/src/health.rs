//! Reports the link in the health of a process: a line in the body of `/ready` and the metrics `muster_link_up` and
//! `muster_requests_dropped_total`. It does not decide whether the process is ready: the bus reconnects by itself.

use std::sync::{Arc, Mutex, PoisonError};

use muster_service::clock::{Clock, SystemClock};
use muster_service::health::Health;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::bus::Bus;
use crate::link::Link;

/// The first word of the line.
const PART: &str = "NATS";

/// Reports whether a process is connected.
#[derive(Debug, Clone)]
pub struct LinkHealth {
    health: Health,
    up: Gauge,
    dropped_requests: Counter,
    following: Arc<Mutex<Option<AbortHandle>>>,
}

impl LinkHealth {
    /// Registers the metrics. Call it once in a process.
    pub fn register(health: &Health) -> Self {
        let (up, dropped_requests) = (Gauge::default(), Counter::default());
        health.metrics(|registry| {
            let help = "1 while there is a connection to NATS, else 0";
            registry.register("link_up", help, up.clone());
            let help = "Requests dropped because their reply subject was no inbox";
            registry.register("requests_dropped", help, dropped_requests.clone());
        });
        Self { health: health.clone(), up, dropped_requests, following: Arc::default() }
    }

    /// Reports the link of this bus from now on, instead of the bus before it.
    pub fn follow(&self, bus: &Bus) {
        // An error means that this bus was followed before and has the counter.
        let _ = bus.wire.dropped_requests.set(self.dropped_requests.clone());
        let (own, mut link) = (self.clone(), bus.link());
        let reporting = tokio::spawn(async move {
            loop {
                let now = *link.borrow_and_update();
                own.report(now);
                // An error means that the bus is gone, and its connection with it.
                if link.changed().await.is_err() {
                    if now.is_up() {
                        own.report(Link::Down);
                    }
                    return;
                }
            }
        });
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = following.replace(reporting.abort_handle()) {
            before.abort();
        }
    }

    /// Reports one bus after another, until the sender of `connected` is gone.
    pub fn follow_each(self, mut connected: watch::Receiver<Option<Bus>>) {
        tokio::spawn(async move {
            loop {
                if let Some(bus) = connected.borrow_and_update().as_ref() {
                    self.follow(bus);
                }
                if connected.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    fn report(&self, link: Link) {
        self.up.set(i64::from(link.is_up()));
        self.health.note(PART, describe(link, &SystemClock));
    }
}

fn describe(link: Link, clock: &dyn Clock) -> String {
    match link {
        Link::Up { .. } => "up".to_owned(),
        Link::Down => format!("down since {:.0}; reconnecting", clock.now()),
    }
}
