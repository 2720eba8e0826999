//! The weather over the fleet: breaks and mends each link by its schedule, and measures after every cut how long the
//! hub takes to know the truth about the device behind it.
//!
//! Only cuts that left the hub in the dark are measured: where the first answer after the reconnect is complete
//! already, nothing happened meanwhile that the hub did not know, and there is no time to take. A measurement that does
//! not come to its end before the link breaks again is counted as well: only to leave it out would make the hub faster.

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

/// Time that a measurement gets when the weather ends: the link stays mended.
const CALM_PATIENCE: Duration = Duration::from_secs(5);

/// Weather that is blowing.
pub struct Weather {
    links: JoinSet<VecDeque<Sample>>,
    calm: CancellationToken,
    cuts: Arc<AtomicU64>,
    stalls: Arc<AtomicU64>,
}

/// What a cut showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sample {
    /// The hub had missed nothing.
    KnownAtOnce,
    /// It knew the truth this long after the reconnect.
    After(Duration),
    /// The link broke again before, or the device could not be asked.
    Unresolved,
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
        let (mut known_at_once, mut unresolved, mut samples) = (0, 0, Vec::new());
        while let Some(measured) = self.links.join_next().await {
            // A link whose task panicked has measured nothing that could be told.
            for sample in measured.unwrap_or_default() {
                match sample {
                    Sample::KnownAtOnce => known_at_once += 1,
                    Sample::After(time) => samples.push(time),
                    Sample::Unresolved => unresolved += 1,
                }
            }
        }
        let faults =
            Faults { cuts: self.cuts.load(Ordering::Relaxed), stalls: self.stalls.load(Ordering::Relaxed) };
        (faults, TimeToTruth::of(known_at_once, unresolved, samples))
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
                let sample = resolved(self.measure(before.1), until, &calm).await;
                samples.truncate(SAMPLES_MAX - 1);
                samples.push_front(sample);
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

/// What a measurement comes to before the link breaks again, or in a while if it never does any more.
async fn resolved(
    measure: impl Future<Output = Option<Sample>>,
    until: Instant,
    calm: &CancellationToken,
) -> Sample {
    let calmed = async {
        calm.cancelled().await;
        tokio::time::sleep(CALM_PATIENCE).await;
    };
    tokio::select! {
        biased;
        sample = measure => sample.unwrap_or(Sample::Unresolved),
        () = tokio::time::sleep_until(until) => Sample::Unresolved,
        () = calmed => Sample::Unresolved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_measurement_that_outlasts_its_time_is_counted_and_one_that_does_not_is_taken() {
        let (begin, calm) = (Instant::now(), CancellationToken::new());
        let until = begin + Duration::from_secs(60);
        let after = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Some(Sample::After(begin.elapsed()))
        };
        assert_eq!(resolved(after(59), until, &calm).await, Sample::After(Duration::from_secs(59)));
        assert_eq!(resolved(after(61), until, &calm).await, Sample::Unresolved);
        assert_eq!(resolved(async { None }, until, &calm).await, Sample::Unresolved);
        calm.cancel();
        let until = Instant::now() + Duration::from_secs(60);
        assert!(matches!(resolved(after(CALM_PATIENCE.as_secs() - 1), until, &calm).await, Sample::After(_)));
        assert_eq!(resolved(after(CALM_PATIENCE.as_secs() + 1), until, &calm).await, Sample::Unresolved);
    }
}
