//! Breaks and opens each link by its schedule, and measures after every cut how long the hub takes to know the state of the
//! device behind it.
//!
//! It measures only cuts after which the hub lacked reports: if the first answer after the reconnect is complete, there is
//! no time to measure. A measurement that does not end before the link breaks again is counted as unresolved: omitting it
//! would make the hub look faster.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_contract::view::Freshness;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fleet::Device;
use crate::http;
use crate::hub::Hub;
use crate::link::{Fault, Profile, Setting};
use crate::link_schedule::{LinkSchedule, Phase};
use crate::result::{Faults, TimeToTruth};

/// Interval of requests to the hub, which is the resolution of the measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The agent's metric for the highest report number it has given.
pub(crate) const HEAD_METRIC: &str = "muster_agent_head";
/// The most measurements of one link that are kept; older ones are dropped.
const SAMPLES_MAX: usize = 1000;

/// Time that a measurement gets after the last fault: the link stays open.
const LAST_MEASUREMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The tasks that break the links of all devices.
pub(crate) struct LinkFaults {
    links: JoinSet<VecDeque<Sample>>,
    stop: CancellationToken,
    cuts: Arc<AtomicU64>,
    stalls: Arc<AtomicU64>,
}

/// The result of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sample {
    /// The hub had missed nothing.
    KnownAtOnce,
    /// It knew the truth this long after the reconnect.
    After(Duration),
    /// The link broke again before, or the device could not be asked.
    Unresolved,
}

impl LinkFaults {
    /// Begins to break the links of the devices.
    pub(crate) fn start(devices: &Arc<Vec<Device>>, hub: &Hub, seed: u64) -> Self {
        let mut link_faults = Self {
            links: JoinSet::new(),
            stop: CancellationToken::new(),
            cuts: Arc::default(),
            stalls: Arc::default(),
        };
        for at in 0..devices.len() {
            let task = LinkTask {
                devices: Arc::clone(devices),
                at,
                hub: hub.clone(),
                cuts: Arc::clone(&link_faults.cuts),
                stalls: Arc::clone(&link_faults.stalls),
            };
            let schedule = LinkSchedule::new(Profile::FLAPPING, seed, at);
            link_faults.links.spawn(task.run(schedule, link_faults.stop.clone()));
        }
        link_faults
    }

    /// Opens every link for good; returns the counts of faults and the measured times.
    pub(crate) async fn end(mut self) -> (Faults, TimeToTruth) {
        self.stop.cancel();
        let (mut known_at_once, mut unresolved, mut samples) = (0, 0, Vec::new());
        while let Some(measured) = self.links.join_next().await {
            // A task that panicked has no measurements.
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

/// The task that breaks one link and measures after each cut.
struct LinkTask {
    devices: Arc<Vec<Device>>,
    at: usize,
    hub: Hub,
    cuts: Arc<AtomicU64>,
    stalls: Arc<AtomicU64>,
}

impl LinkTask {
    async fn run(self, mut schedule: LinkSchedule, stop: CancellationToken) -> VecDeque<Sample> {
        let device = &self.devices[self.at];
        let mut samples = VecDeque::new();
        let mut before = (None, device.link.connections());
        loop {
            let Phase { fault, setting, lasts } = schedule.next_phase();
            device.link.apply_setting(setting);
            match fault {
                Some(Fault::Cut) => _ = self.cuts.fetch_add(1, Ordering::Relaxed),
                Some(_) => _ = self.stalls.fetch_add(1, Ordering::Relaxed),
                None => {}
            }
            let until = Instant::now() + lasts;
            if fault.is_none() && before.0 == Some(Fault::Cut) {
                let sample = resolved(self.measure(before.1), until, &stop).await;
                samples.truncate(SAMPLES_MAX - 1);
                samples.push_front(sample);
            }
            before = (fault, device.link.connections());
            if stop.run_until_cancelled(tokio::time::sleep_until(until)).await.is_none() {
                device.link.apply_setting(Setting::default());
                return samples;
            }
        }
    }

    /// Time from the first connection after the cut until the hub's answer is complete and fresh; `None` where the
    /// device cannot be asked for its own head.
    async fn measure(&self, connections_before: u64) -> Option<Sample> {
        let device = &self.devices[self.at];
        while device.link.connections() == connections_before {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let connected = Instant::now();
        let metrics = http::get(device.http, "/metrics").await.ok()?;
        let head = http::metric(&metrics.body, HEAD_METRIC)? as u64;
        if self.knows_all(head).await {
            return Some(Sample::KnownAtOnce);
        }
        while !self.knows_all(head).await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Some(Sample::After(connected.elapsed()))
    }

    async fn knows_all(&self, head: u64) -> bool {
        let Ok(answer) = self.hub.device(&self.devices[self.at].key).await else { return false };
        let line = answer.device;
        line.freshness == Freshness::Fresh && line.head >= head && line.account.missing.is_empty()
    }
}

/// The result of a measurement that ends before the link breaks again or at a timeout.
async fn resolved(
    measure: impl Future<Output = Option<Sample>>,
    until: Instant,
    stop: &CancellationToken,
) -> Sample {
    let faults_ended = async {
        stop.cancelled().await;
        tokio::time::sleep(LAST_MEASUREMENT_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        sample = measure => sample.unwrap_or(Sample::Unresolved),
        () = tokio::time::sleep_until(until) => Sample::Unresolved,
        () = faults_ended => Sample::Unresolved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_measurement_over_its_time_is_counted_and_another_is_recorded() {
        let (begin, stop) = (Instant::now(), CancellationToken::new());
        let until = begin + Duration::from_secs(60);
        let after = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Some(Sample::After(begin.elapsed()))
        };
        assert_eq!(resolved(after(59), until, &stop).await, Sample::After(Duration::from_secs(59)));
        assert_eq!(resolved(after(61), until, &stop).await, Sample::Unresolved);
        assert_eq!(resolved(async { None }, until, &stop).await, Sample::Unresolved);
        stop.cancel();
        let until = Instant::now() + Duration::from_secs(60);
        assert!(matches!(
            resolved(after(LAST_MEASUREMENT_TIMEOUT.as_secs() - 1), until, &stop).await,
            Sample::After(_)
        ));
        assert_eq!(
            resolved(after(LAST_MEASUREMENT_TIMEOUT.as_secs() + 1), until, &stop).await,
            Sample::Unresolved
        );
    }
}
