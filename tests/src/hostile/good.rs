//! Good devices: each reports at an even rate and repeats what is refused, as an agent does. Every report is recorded with
//! the time at which LEDGER and the device's view held it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use muster_bus::{Bus, Headers, Start};
use muster_contract::canonical::Digest;
use muster_contract::decode::{peek, to_bytes};
use muster_contract::desired::DesiredState;
use muster_contract::presence::Heartbeat;
use muster_contract::report::StatusReport;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::subjects::{self, stream};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::view::DeploymentView;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use tokio::task::JoinSet;

use super::hub::{GOOD_SITE, connect, deployment_of};
use super::outcome::Latency;
use crate::envelope::Carry;
use crate::guarded::Guarded;
use crate::wait::until;

/// Time between two heartbeats of a good device.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// Time until a refused report is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(250);
/// Time that reports may take which are under way at the end.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// Messages that an observer reads at once.
const BATCH: usize = 512;
/// Time between two looks at what is recorded.
const LOOK: Duration = Duration::from_millis(50);

/// A device that reports on its one deployment.
#[derive(Clone)]
pub struct Reporter {
    /// The device.
    pub key: DeviceKey,
    /// Its own connection.
    pub bus: Bus,
    /// Its one deployment.
    pub deployment: DeploymentId,
    epoch: Epoch,
    generation: Generation,
    digest: Digest,
}

impl Reporter {
    /// Connects the device and reads what it shall run.
    pub async fn connect(hub: &Guarded, inspector: &Bus, key: DeviceKey) -> Self {
        let bus = connect(hub.device_config(&key)).await;
        let subject = subjects::desired(&key);
        let read = async || inspector.last(stream::DOWNLINK, &subject).await.ok().flatten();
        let document = until("a desired state", read, Option::is_some).await.unwrap();
        let desired: DesiredState = serde_json::from_slice(&document.payload).unwrap();
        let entry = &desired.deployments[0];
        let epoch = Epoch::new(Timestamp::now().as_second().cast_unsigned()).unwrap();
        let deployment = deployment_of(&key).parse().unwrap();
        Self { key, bus, deployment, epoch, generation: entry.target_generation, digest: entry.digest }
    }

    /// A report of this number; it is the newest one. The state changes with every report, and is never `installed`.
    pub fn report(&self, seq: u64) -> StatusReport {
        self.report_of(seq, if seq.is_multiple_of(2) { State::Pending } else { State::Installing })
    }

    fn report_of(&self, seq: u64, state: State) -> StatusReport {
        let seq = Seq::new(seq).unwrap();
        StatusReport {
            api_version: ApiVersion::V1,
            kind: kind::StatusReport::default(),
            epoch: self.epoch,
            seq,
            head: seq,
            observed_at: Timestamp::now(),
            deployment: self.deployment.clone(),
            generation: self.generation,
            digest: self.digest,
            status: DeploymentStatus { state, error: None, reason: None },
            components: vec![ComponentStatus { name: "main".parse().unwrap(), state, error: None }],
            retries: Vec::new(),
            current: true,
            coalesced: SeqRanges::new(),
            origin: Default::default(),
            fidelity: Default::default(),
        }
    }

    /// A heartbeat of a device that has given this number and has so many reports unsent.
    pub fn heartbeat(&self, head: u64, unsent: u64) -> Heartbeat {
        Heartbeat {
            api_version: ApiVersion::V1,
            kind: kind::Heartbeat::default(),
            epoch: self.epoch,
            head,
            unsent,
            oldest_unsent_at: None,
            generation: self.generation.get(),
            agent_version: "test".to_owned(),
            storing: true,
            refused: None,
            token: None,
            lease_ms: None,
        }
    }

    /// Sends a report until it is stored; tells of each time that it is refused or not answered.
    pub async fn send(&self, seq: u64, refused: impl Fn()) {
        self.send_report(&self.report(seq), refused).await;
    }

    async fn send_report(&self, report: &StatusReport, refused: impl Fn()) {
        let subject = subjects::report(&self.key);
        let message = Carry::Everything.report(subject, to_bytes(report), &mut Rng::new());
        while self.bus.publish(message.clone()).await.is_err() {
            refused();
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
}

/// The outcome of one report.
#[derive(Debug, Clone)]
struct Sent {
    at: Instant,
    in_ledger: Option<(u64, Instant)>,
}

#[derive(Default)]
struct Record {
    /// By number.
    sent: BTreeMap<u64, Sent>,
    refused: u64,
    /// Up to which fact the view was at which time.
    views: Vec<(u64, Instant)>,
}

/// Good devices that report, and the observers of LEDGER and of the views.
pub struct GoodFleet {
    reporters: Vec<Reporter>,
    records: Arc<Vec<Mutex<Record>>>,
    observers: JoinSet<String>,
    numbers: Vec<u64>,
}

/// The outcome of all reports of a time.
#[derive(Debug, Default)]
pub struct GoodOutcome {
    /// Reports.
    pub reports: u64,
    /// Publishes that were refused or not answered.
    pub refused: u64,
    /// Reports that LEDGER holds.
    pub in_ledger: u64,
    /// Reports that the view shows.
    pub in_view: u64,
    /// To LEDGER.
    pub ledger: Latency,
    /// To the view.
    pub view: Latency,
    /// Why an observer ended: LEDGER or the bucket is not what it was.
    pub lost: Vec<String>,
}

impl GoodFleet {
    /// Begins to observe the devices' facts and views with a service's credentials.
    pub async fn observe(inspector: &Bus, views: &Bus, reporters: Vec<Reporter>) -> Self {
        let records: Arc<Vec<_>> = Arc::new(reporters.iter().map(|_| Mutex::default()).collect());
        let at: BTreeMap<_, _> =
            reporters.iter().enumerate().map(|(at, it)| (it.key.device.to_string(), at)).collect();
        let mut observers = JoinSet::new();
        let filter = format!("muster.status.{GOOD_SITE}.>");
        let mut ledger = inspector.replay(stream::LEDGER, &[&filter], Start::New).await.unwrap();
        let facts = Arc::clone(&records);
        observers.spawn(async move {
            loop {
                let batch = match ledger.next_batch(BATCH).await {
                    Ok(batch) => batch,
                    Err(error) => return format!("LEDGER: {error}"),
                };
                let now = Instant::now();
                for fact in batch {
                    let device = fact.subject.split('.').nth(3).and_then(|device| at.get(device));
                    let (Some(&at), Some(seq)) = (device, peek(&fact.payload).seq) else { continue };
                    if let Some(sent) = lock(&facts[at]).sent.get_mut(&seq) {
                        sent.in_ledger.get_or_insert((fact.stream_seq, now));
                    }
                }
            }
        });
        for (at, reporter) in reporters.iter().enumerate() {
            let mut watch = views.view_watch(&format!("deployment.{}", reporter.deployment)).await.unwrap();
            let records = Arc::clone(&records);
            observers.spawn(async move {
                loop {
                    let batch = match watch.next_batch(BATCH).await {
                        Ok(batch) => batch,
                        Err(error) => return format!("the views: {error}"),
                    };
                    let now = Instant::now();
                    let values = batch.into_iter().filter_map(|entry| entry.value);
                    let shown =
                        values.filter_map(|value| serde_json::from_slice::<DeploymentView>(&value).ok());
                    let as_of = shown.map(|view| (view.as_of.ledger_seq, now));
                    lock(&records[at]).views.extend(as_of);
                }
            });
        }
        let numbers = vec![0; reporters.len()];
        Self { reporters, records, observers, numbers }
    }

    /// Lets every device report for a time, and waits until LEDGER and the views hold everything or patience ends. A last
    /// report of each device, which is not counted, says `installed`: it changes the view even where the rollup saw several
    /// reports at once that changed nothing together.
    pub async fn report(&mut self, per_second: u32, time: Duration, patience: Duration) -> GoodOutcome {
        self.records.iter().for_each(|record| {
            let mut record = lock(record);
            (record.sent, record.refused) = (BTreeMap::new(), 0);
        });
        let mut sending = JoinSet::new();
        let count = (time.as_secs_f64() * f64::from(per_second)).round() as u64;
        let every = Duration::from_secs(1) / per_second;
        for (at, reporter) in self.reporters.iter().enumerate() {
            let (reporter, records, first) =
                (reporter.clone(), Arc::clone(&self.records), self.numbers[at] + 1);
            // Not all at the same moment.
            let lag = every.mul_f64(at as f64 / self.reporters.len() as f64);
            sending.spawn(report_evenly(reporter, records, at, first..first + count, every, lag));
        }
        self.numbers.iter_mut().for_each(|number| *number += count);
        let all = count * self.reporters.len() as u64;
        tokio::time::sleep(time).await;
        let deadline = Instant::now() + patience;
        let mut is_closed = false;
        loop {
            let outcome = self.outcome();
            if !is_closed && (outcome.in_ledger == all || Instant::now() > deadline) {
                is_closed = true;
                self.close(&mut sending);
            }
            if outcome.in_view == all || Instant::now() > deadline {
                // Repetitions after that end with the time.
                let _ = tokio::time::timeout(CLOSE_PATIENCE, sending.join_all()).await;
                return outcome;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends the last report of each device.
    fn close(&mut self, sending: &mut JoinSet<()>) {
        for (reporter, number) in self.reporters.iter().zip(&mut self.numbers) {
            *number += 1;
            let (reporter, number) = (reporter.clone(), *number);
            sending.spawn(async move {
                reporter.send_report(&reporter.report_of(number, State::Installed), || ()).await;
            });
        }
    }

    /// The outcome of the reports so far.
    fn outcome(&mut self) -> GoodOutcome {
        let (mut ledger, mut view) = (Vec::new(), Vec::new());
        let mut outcome = GoodOutcome::default();
        for record in self.records.iter() {
            let record = lock(record);
            outcome.refused += record.refused;
            outcome.reports += record.sent.len() as u64;
            for sent in record.sent.values() {
                let Some((seq, at)) = sent.in_ledger else { continue };
                ledger.push(at.saturating_duration_since(sent.at));
                let shown = record.views.iter().find(|(as_of, _)| *as_of >= seq);
                view.extend(shown.map(|(_, at)| at.saturating_duration_since(sent.at)));
            }
        }
        (outcome.in_ledger, outcome.in_view) = (ledger.len() as u64, view.len() as u64);
        (outcome.ledger, outcome.view) = (Latency::of(ledger), Latency::of(view));
        while let Some(end) = self.observers.try_join_next() {
            outcome.lost.extend(end.ok());
        }
        outcome
    }
}

async fn report_evenly(
    reporter: Reporter,
    records: Arc<Vec<Mutex<Record>>>,
    at: usize,
    numbers: std::ops::Range<u64>,
    every: Duration,
    lag: Duration,
) {
    let mut under_way = JoinSet::new();
    let begin = tokio::time::Instant::now() + lag;
    let mut next_beat = begin;
    for (nth, number) in (0_u32..).zip(numbers) {
        tokio::time::sleep_until(begin + every * nth).await;
        let (reporter, records) = (reporter.clone(), Arc::clone(&records));
        if tokio::time::Instant::now() >= next_beat {
            next_beat += HEARTBEAT_EVERY;
            let beat = to_bytes(&reporter.heartbeat(number.saturating_sub(1), 0)).into();
            // The next one comes soon.
            let _ = reporter.bus.publish_core(&subjects::presence(&reporter.key), Headers::new(), beat).await;
        }
        lock(&records[at]).sent.insert(number, Sent { at: Instant::now(), in_ledger: None });
        under_way.spawn(async move { reporter.send(number, || lock(&records[at]).refused += 1).await });
    }
    under_way.join_all().await;
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}
