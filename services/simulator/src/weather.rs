//! The weather over the fleet: breaks and mends each link by its schedule, and measures after every cut how long the
//! hub takes to know the truth about the device behind it.
//!
//! Only cuts that left the hub in the dark are measured: where the first answer after the reconnect is complete
//! already, nothing happened meanwhile that the hub did not know, and there is no time to take.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_contract::view::Freshness;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::flap::{Flapping, Turn};
use crate::fleet::Device;
use crate::http;
use crate::hub::Hub;
use crate::link::{Fault, Profile, Setting};
use crate::tally::{Faults, TimeToTruth};

/// Time between two looks at the hub's answer: the resolution of the measurement.
const LOOK: Duration = Duration::from_millis(10);
/// The agent's metric for the highest report number it has given.
pub(crate) const HEAD_METRIC: &str = "muster_agent_head";
/// Measurements kept of one link: the last so many, when a demo runs for days.
const SAMPLES_MAX: usize = 1000;

/// Weather that is blowing.
pub struct Weather {
    links: JoinSet<VecDeque<Sample>>,
    calm: CancellationToken,
    cuts: Arc<AtomicU64>,
    stalls: Arc<AtomicU64>,
}

/// What a cut showed.
#[derive(Debug, Clone, Copy)]
enum Sample {
    /// The hub had missed nothing.
    KnownAtOnce,
    /// It knew the truth this long after the reconnect.
    After(Duration),
}

impl Weather {
    /// Begins to break links. The devices live as long as the weather.
    pub fn begin(devices: &Arc<Vec<Device>>, hub: &Hub, seed: u64) -> Self {
        let mut weather = Self {
            links: JoinSet::new(),
            calm: CancellationToken::new(),
            cuts: Arc::default(),
            stalls: Arc::default(),
        };
        for at in 0..devices.len() {
            let over = Over {
                devices: Arc::clone(devices),
                at,
                hub: hub.clone(),
                cuts: Arc::clone(&weather.cuts),
                stalls: Arc::clone(&weather.stalls),
            };
            let flapping = Flapping::new(Profile::FLAPPING, seed, at);
            weather.links.spawn(over.blow(flapping, weather.calm.clone()));
        }
        weather
    }

    /// Mends every link for good and says what was done to them.
    pub async fn end(mut self) -> (Faults, TimeToTruth) {
        self.calm.cancel();
        let (mut known_at_once, mut samples) = (0, Vec::new());
        while let Some(measured) = self.links.join_next().await {
            // A link whose task panicked has measured nothing that could be told.
            for sample in measured.unwrap_or_default() {
                match sample {
                    Sample::KnownAtOnce => known_at_once += 1,
                    Sample::After(time) => samples.push(time),
                }
            }
        }
        let faults =
            Faults { cuts: self.cuts.load(Ordering::Relaxed), stalls: self.stalls.load(Ordering::Relaxed) };
        (faults, TimeToTruth::of(known_at_once, samples))
    }
}

/// The weather over one link.
struct Over {
    devices: Arc<Vec<Device>>,
    at: usize,
    hub: Hub,
    cuts: Arc<AtomicU64>,
    stalls: Arc<AtomicU64>,
}

impl Over {
    async fn blow(self, mut flapping: Flapping, calm: CancellationToken) -> VecDeque<Sample> {
        let device = &self.devices[self.at];
        let mut samples = VecDeque::new();
        let mut before = (None, device.link.connections());
        loop {
            let Turn { fault, setting, lasts } = flapping.turn();
            device.link.turn(setting);
            match fault {
                Some(Fault::Cut) => _ = self.cuts.fetch_add(1, Ordering::Relaxed),
                Some(_) => _ = self.stalls.fetch_add(1, Ordering::Relaxed),
                None => {}
            }
            let until = Instant::now() + lasts;
            if fault.is_none() && before.0 == Some(Fault::Cut) {
                let measured = tokio::time::timeout_at(until, self.measure(before.1));
                if let Some(Ok(Some(sample))) = calm.run_until_cancelled(measured).await {
                    samples.truncate(SAMPLES_MAX - 1);
                    samples.push_front(sample);
                }
            }
            before = (fault, device.link.connections());
            if calm.run_until_cancelled(tokio::time::sleep_until(until)).await.is_none() {
                device.link.turn(Setting::default());
                return samples;
            }
        }
    }

    /// Time from the first connection after the cut until the hub's answer is complete and fresh; `None` where the
    /// device cannot be asked for its own head.
    async fn measure(&self, connections_before: u64) -> Option<Sample> {
        let device = &self.devices[self.at];
        while device.link.connections() == connections_before {
            tokio::time::sleep(LOOK).await;
        }
        let connected = Instant::now();
        let metrics = http::get(device.http, "/metrics").await.ok()?;
        let head = http::metric(&metrics.body, HEAD_METRIC)? as u64;
        if self.knows_all(head).await {
            return Some(Sample::KnownAtOnce);
        }
        while !self.knows_all(head).await {
            tokio::time::sleep(LOOK).await;
        }
        Some(Sample::After(connected.elapsed()))
    }

    async fn knows_all(&self, head: u64) -> bool {
        let Ok(answer) = self.hub.device(&self.devices[self.at].key).await else { return false };
        let line = answer.device;
        line.freshness == Freshness::Fresh && line.head >= head && line.account.missing.is_empty()
    }
}
