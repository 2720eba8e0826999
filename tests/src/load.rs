//! The load of benches: reports as a fleet of devices would send them, made before the clock starts, and what is counted of it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{Bus, Outgoing};
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::desired::{
    Component, DesiredDeployment, DesiredState, Profile, ProfileType, Source, SourceKind,
};
use muster_contract::report::StatusReport;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::subjects;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Seq, SeqRanges, State, Timestamp};

use crate::envelope::Carry;

/// Devices over which the load is spread.
pub const DEVICES: usize = 1000;
/// Sites over which the devices are spread.
pub const SITES: usize = 20;
/// Messages under way at once.
pub const WINDOW: usize = 1024;
/// Deployments of a fleet whose devices run the same ones.
pub const SHARED_DEPLOYMENTS: usize = 10;
/// Rate at which latency is measured.
pub const EVENTS_PER_SECOND: usize = 2000;
/// Events of a latency measurement, the first ones included.
pub const LATENCY_EVENTS: usize = 40_000;
/// Events at the beginning that are sent and not counted: the views of a fleet that was made a moment ago are still being
/// written, each at most so often.
pub const WARM_UP_EVENTS: usize = EVENTS_PER_SECOND;
/// Time anything of a bench may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A device of the load.
pub fn device(at: usize) -> DeviceKey {
    DeviceKey {
        site: format!("site-{}", at % SITES).parse().unwrap(),
        device: format!("device-{at}").parse().unwrap(),
    }
}

/// Which devices run the same: each runs one deployment.
#[derive(Debug, Clone, Copy)]
pub enum Fleet {
    /// No two of them: each report changes a view of its own, as often as views are written.
    Different,
    /// Each of [`SHARED_DEPLOYMENTS`] runs on many of them.
    Alike,
}

impl Fleet {
    fn deployment(self, at: usize) -> DeploymentId {
        let number = match self {
            Self::Different => at,
            Self::Alike => at % SHARED_DEPLOYMENTS,
        };
        format!("app-{number}").parse().unwrap()
    }
}

/// Desired state of a device: its one deployment.
pub fn desired(fleet: Fleet, at: usize) -> (String, Bytes) {
    let id = fleet.deployment(at);
    let mut entry = DesiredDeployment {
        name: id.to_string(),
        id,
        application_id: "com-example-bench".to_owned(),
        namespace: None,
        labels: Default::default(),
        target_generation: Generation::FIRST,
        digest: Digest::of_bytes(b""),
        profile: Profile {
            profile_type: ProfileType::Simulated,
            components: ["web", "worker"]
                .map(|name| Component::new(name.parse().unwrap(), serde_json::Map::new()))
                .into(),
            device_constraints: None,
        },
        parameters: Default::default(),
        stopped: false,
        restart: 0,
        source: None,
    };
    entry.digest = entry.content_digest();
    let state = DesiredState {
        api_version: ApiVersion::V1,
        kind: kind::DesiredState::default(),
        generation: Generation::FIRST,
        issued_at: Timestamp::UNIX_EPOCH,
        retired: false,
        source: Source::new(SourceKind::Api, "bench".to_owned()),
        labels: Default::default(),
        retry: None,
        deployments: vec![entry],
    };
    (subjects::desired(&device(at)), to_bytes(&state).into())
}

/// The state that the `nth` report of a device carries: it changes with every report.
pub fn state(nth: usize) -> State {
    if nth.is_multiple_of(2) { State::Installed } else { State::Installing }
}

/// The `nth` report of a device, counted from 1, as its subject and bytes.
pub fn report(fleet: Fleet, at: usize, nth: usize) -> (String, Bytes) {
    let state = state(nth);
    let seq = Seq::new(nth as u64).unwrap();
    let component = |name: &str| ComponentStatus { name: name.parse().unwrap(), state, error: None };
    let report = StatusReport {
        api_version: ApiVersion::V1,
        kind: kind::StatusReport::default(),
        epoch: Epoch::FIRST,
        seq,
        head: seq,
        observed_at: Timestamp::now(),
        deployment: fleet.deployment(at),
        generation: Generation::FIRST,
        digest: Digest::of_bytes(b"bench"),
        status: DeploymentStatus { state, error: None, reason: None },
        components: vec![component("web"), component("worker")],
        retries: Vec::new(),
        current: true,
        coalesced: SeqRanges::new(),
        origin: Default::default(),
        fidelity: Default::default(),
    };
    (subjects::report(&device(at)), to_bytes(&report).into())
}

/// `count` reports of all devices in turn, from the `first`th of each on.
pub fn reports(fleet: Fleet, first: usize, count: usize) -> Vec<(String, Bytes)> {
    (0..count).map(|i| report(fleet, i % DEVICES, first + i / DEVICES)).collect()
}

/// Publishes desired states, and waits until all are stored.
pub async fn publish_desired(bus: &Bus, states: Vec<(String, Bytes)>) {
    send(bus, WINDOW, states.into_iter().map(|(subject, payload)| Outgoing::new(subject, payload))).await;
}

/// Publishes reports pipelined, and waits until all are stored.
pub async fn publish(bus: &Bus, carry: Carry, reports: Vec<(String, Bytes)>) {
    let mut chance = Rng::new();
    send(
        bus,
        WINDOW,
        reports.into_iter().map(|(subject, payload)| carry.report(subject, payload, &mut chance)),
    )
    .await;
}

/// Sends messages with so many under way, and waits until all are stored.
///
/// # Panics
/// One is not stored.
pub async fn send(bus: &Bus, under_way_max: usize, messages: impl IntoIterator<Item = Outgoing>) {
    let mut window = bus.window(under_way_max);
    for message in messages {
        window.send(message, ()).await;
        while let Some((_, stored)) = window.try_next() {
            stored.expect("a local server stores");
        }
    }
    while let Some((_, stored)) = window.next().await {
        stored.expect("a local server stores");
    }
}

/// Latencies of events.
pub struct Latency(Vec<Duration>);

impl Latency {
    /// The latencies of all events but the first ones, each with the moment it was sent at.
    pub fn of(mut events: Vec<(Instant, Duration)>, warm_up: usize) -> Self {
        events.sort_unstable();
        Self::of_samples(events.into_iter().skip(warm_up).map(|(_, took)| took).collect())
    }

    /// The latencies of all these samples.
    pub fn of_samples(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// How many samples.
    pub fn samples(&self) -> usize {
        self.0.len()
    }

    /// The latency that so many of a thousand do not exceed, in milliseconds.
    pub fn per_mille(&self, share: usize) -> f64 {
        let at = (self.0.len() * share).div_ceil(1000).max(1) - 1;
        self.0[at].as_secs_f64() * 1000.0
    }
}
