//! The facts of the bench `start`: a fleet that reported long ago, facts at an even rate, and one report for each partition
//! that shows whether ingest works. Facts are written straight into LEDGER, past ingest, and desired states into DOWNLINK, from
//! which LEDGER has them; reports go through UPLINK. It measures nothing.

#![allow(clippy::unwrap_used, reason = "a failure here is the bench's result")]

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Outgoing};
use muster_contract::canonical::Digest;
use muster_contract::decode::{self, to_bytes};
use muster_contract::fact::StatusFact;
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::report::StatusReport;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use muster_tests::bench::say;
use muster_tests::envelope::Carry;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::mix::{Mix, Templates};

/// Facts under way at once.
const UNDER_WAY: usize = 1_024;
/// Sites of the fleet.
const SITES: u64 = 100;
/// Site of the devices whose reports show that ingest works.
const PROBE_SITE: &str = "probe";
/// The one deployment of every device.
pub(crate) const DEPLOYMENT: &str = "app-start";
/// A number that no report of the bench has: its digits are replaced in a template.
pub(crate) const NUMBER_IN_TEMPLATE: u64 = 1_234_567_890;
/// Facts between two lines of progress.
const PROGRESS_EVERY: u64 = 250_000;
/// Time between two portions of an even rate.
const PORTION_EVERY: Duration = Duration::from_millis(10);
/// Time between two reads of a device's newest fact.
const READ_EVERY: Duration = Duration::from_millis(20);
/// Time that ingest may take until a report is a fact: far above every bound.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Facts of a fleet, in the order of their numbers: each device in turn.
pub(crate) struct Fleet {
    devices: u64,
    mix: Mix,
    templates: Templates,
    written: u64,
}

impl Fleet {
    /// A fleet of so many devices that have not reported yet.
    pub(crate) fn new(devices: u64, mix: Mix) -> Self {
        Self { devices, mix, templates: Templates::new(), written: 0 }
    }

    /// The next fact.
    fn next(&mut self) -> Outgoing {
        let (device, round) = (self.written % self.devices, self.written / self.devices);
        self.written += 1;
        let key = DeviceKey {
            site: format!("site-{}", device % SITES).parse().unwrap(),
            device: format!("device-{device}").parse().unwrap(),
        };
        let (subject, fact) = self.templates.fact(key, self.mix.at(device, round));
        Outgoing::new(subject.to_string(), fact)
    }

    /// Writes so many facts, as fast as LEDGER takes them, and waits until LEDGER has all of them.
    pub(crate) async fn fill(&mut self, bus: &Bus, facts: u64) {
        let end = async || bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
        let wanted = end().await + facts;
        let mut window = bus.window(UNDER_WAY);
        for at in 0..facts {
            if at > 0 && at.is_multiple_of(PROGRESS_EVERY) {
                say(&format!("{at} facts written"));
            }
            window.send(self.next(), ()).await;
            while let Some(((), answer)) = window.try_next() {
                answer.unwrap();
            }
        }
        while let Some(((), answer)) = window.next().await {
            answer.unwrap();
        }
        let sourced = async {
            while end().await < wanted {
                sleep(READ_EVERY).await;
            }
        };
        timeout(PATIENCE, sourced).await.unwrap();
    }

    /// Writes facts at an even rate until `stop`; how many a second LEDGER took.
    pub(crate) async fn write_evenly(mut self, bus: Bus, per_second: u64, stop: CancellationToken) -> f64 {
        let begin = Instant::now();
        let (mut window, mut sent, mut stored) = (bus.window(UNDER_WAY), 0_u64, 0_u64);
        while !stop.is_cancelled() {
            let due = (begin.elapsed().as_secs_f64() * per_second as f64) as u64;
            while sent < due && !stop.is_cancelled() {
                window.send(self.next(), ()).await;
                sent += 1;
                while let Some(((), answer)) = window.try_next() {
                    answer.unwrap();
                    stored += 1;
                }
            }
            sleep(PORTION_EVERY).await;
        }
        stored as f64 / begin.elapsed().as_secs_f64()
    }
}

/// A device for each partition, whose reports show that the partition has an owner who works.
pub(crate) struct Probes {
    bus: Bus,
    devices: BTreeMap<u16, DeviceKey>,
    sent: u64,
}

impl Probes {
    /// Devices that have not reported yet.
    pub(crate) fn new(bus: Bus) -> Self {
        let key = |at: u64| DeviceKey {
            site: PROBE_SITE.parse().unwrap(),
            device: format!("probe-{at}").parse().unwrap(),
        };
        let mut devices = BTreeMap::new();
        for key in (0..).map(key) {
            devices.entry(partition_of(&key)).or_insert(key);
            if devices.len() == usize::from(PARTITIONS) {
                break;
            }
        }
        Self { bus, devices, sent: 0 }
    }

    /// Sends the next report of each.
    pub(crate) async fn send(&mut self) {
        self.sent += 1;
        let mut rng = Rng::new();
        for key in self.devices.values() {
            let payload = to_bytes(&report(self.sent));
            self.bus
                .publish(Carry::Everything.report(subjects::report(key), payload, &mut rng))
                .await
                .unwrap();
        }
    }

    /// Waits until the last reports are facts.
    pub(crate) async fn wait_until_facts(&self) {
        let all = async {
            for key in self.devices.values() {
                while self.newest(key).await < self.sent {
                    sleep(READ_EVERY).await;
                }
            }
        };
        timeout(PATIENCE, all).await.unwrap();
    }

    /// The number of the newest fact of a device; 0 where there is none.
    async fn newest(&self, key: &DeviceKey) -> u64 {
        let subject = LedgerSubject::Status(key.clone(), DEPLOYMENT.parse().unwrap()).to_string();
        let last = self.bus.last(stream::LEDGER, &subject).await.unwrap();
        last.map_or(0, |last| decode::parse::<StatusFact>(&last.payload).unwrap().seq.get())
    }
}

pub(crate) fn report(seq: u64) -> StatusReport {
    let seq = Seq::new(seq).unwrap();
    let state = State::Installed;
    StatusReport {
        api_version: ApiVersion::V1,
        kind: kind::StatusReport::default(),
        epoch: Epoch::new(1).unwrap(),
        seq,
        head: seq,
        observed_at: Timestamp::now(),
        deployment: DEPLOYMENT.parse().unwrap(),
        generation: Generation::new(1).unwrap(),
        digest: Digest::of_bytes(b"a manifest"),
        status: DeploymentStatus { state, error: None, reason: None },
        components: vec![ComponentStatus { name: "main".parse().unwrap(), state, error: None }],
        retries: Vec::new(),
        current: true,
        coalesced: SeqRanges::new(),
        origin: Default::default(),
        fidelity: Default::default(),
    }
}
