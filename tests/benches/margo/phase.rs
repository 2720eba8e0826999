//! One measured phase of the bench: all devices send requests of one kind at once, each the next one as soon as it has the last
//! answer. It counts every request that was answered with success, and times those of the measured seconds alone.

use std::time::{Duration, Instant};

use muster_tests::load::Latency;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::device::{Device, RequestKind};
use crate::hub::{Hub, ProcessorTime};

/// Time before the measured seconds.
const WARM_UP: Duration = Duration::from_secs(2);
/// Delay before a request is sent again.
const REPEAT_DELAY: Duration = Duration::from_millis(20);

/// The figures of a phase.
pub(crate) struct Phase {
    /// Requests that were answered with success, with those before and after the measured seconds.
    pub(crate) answered: usize,
    /// Answers that asked for a repetition.
    pub(crate) repeated: usize,
    /// The measured seconds.
    pub(crate) seconds: f64,
    /// From a request to its success, repetitions included.
    pub(crate) latency: Latency,
    /// The cores that each process used.
    pub(crate) cores: ProcessorTime,
    /// Heartbeats that PRESENCE took in.
    pub(crate) heartbeats_a_second: f64,
}

impl Phase {
    /// Requests that were answered with success in a measured second.
    pub(crate) fn a_second(&self) -> f64 {
        self.latency.samples() as f64 / self.seconds
    }
}

/// Measures requests of one kind for so many seconds; the devices with their connections, and the figures.
pub(crate) async fn run(
    hub: &Hub,
    devices: Vec<Device>,
    kind: RequestKind,
    seconds: usize,
) -> (Vec<Device>, Phase) {
    let (measuring, stop) = (CancellationToken::new(), CancellationToken::new());
    let mut workers = JoinSet::new();
    for device in devices {
        workers.spawn(Worker { device, kind, measuring: measuring.clone(), stop: stop.clone() }.run());
    }
    sleep(WARM_UP).await;
    let heartbeats = hub.heartbeats().await;
    let (begin, before) = (Instant::now(), hub.processor_time());
    measuring.cancel();
    sleep(Duration::from_secs(seconds as u64)).await;
    stop.cancel();
    let seconds = begin.elapsed().as_secs_f64();
    let cores = hub.processor_time().cores_since(&before, seconds);
    let heartbeats = hub.heartbeats().await - heartbeats;
    let done = workers.join_all().await;
    let sum = |count: fn(&Done) -> usize| done.iter().map(count).sum::<usize>();
    let (answered, repeated) = (sum(|done| done.answered), sum(|done| done.repeated));
    let samples: Vec<Duration> = done.iter().flat_map(|done| done.took.iter().copied()).collect();
    assert!(!samples.is_empty(), "no request of {kind:?} was answered with success");
    let phase = Phase {
        answered,
        repeated,
        seconds,
        latency: Latency::of_samples(samples),
        cores,
        heartbeats_a_second: heartbeats as f64 / seconds,
    };
    (done.into_iter().map(|done| done.device).collect(), phase)
}

/// A device that sends requests until `stop`.
struct Worker {
    device: Device,
    kind: RequestKind,
    measuring: CancellationToken,
    stop: CancellationToken,
}

/// A device that has stopped, with its figures.
struct Done {
    device: Device,
    answered: usize,
    repeated: usize,
    /// The times of requests that were answered in the measured seconds.
    took: Vec<Duration>,
}

impl Worker {
    /// The last request is repeated until its success, also after `stop`: its report may be in UPLINK already.
    async fn run(self) -> Done {
        let Self { device, kind, measuring, stop } = self;
        let mut done = Done { device, answered: 0, repeated: 0, took: Vec::new() };
        while !stop.is_cancelled() {
            let begin = Instant::now();
            while !done.device.send(kind).await {
                done.repeated += 1;
                sleep(REPEAT_DELAY).await;
            }
            done.answered += 1;
            if measuring.is_cancelled() && !stop.is_cancelled() {
                done.took.push(begin.elapsed());
            }
        }
        done
    }
}
