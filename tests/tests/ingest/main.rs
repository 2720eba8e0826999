//! Tests the promises of ingest, as a process on a real nats-server. The tests themselves are the devices: they publish
//! the contract's raw documents. One program: it is linked once.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod batches;
mod cluster;
mod crash;
mod equivalence;
mod full;
mod losses;
mod owners;
mod quarantine;
mod quotas;
mod reassert;
mod receipts;
mod refused_agent;
mod reports;
mod room;
mod snapshots;
mod time;
mod window;

use std::collections::BTreeMap;
use std::process::ExitStatus;

use muster_bus::{Bus, BusConfig, Outgoing, Start};
use muster_contract::canonical::Digest;
use muster_contract::decode::parse;
use muster_contract::fact::{Fact, IncidentKind, Liveness, QuarantineFact, StatusFact};
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_contract::{DeviceKey, SeqRanges, Timestamp};
use muster_simulator::child::{Child, Spec};
use muster_tests::server::Server;
use muster_tests::streams::edit;
use muster_tests::system::{DEADLINE, Entry, INGEST, program};
use muster_tests::wait::{soon, until, within};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// A server, an ingest and a connection for the devices.
struct Hub {
    bus: Bus,
    url: String,
    /// `None` if the test has a cluster instead.
    server: Option<Server>,
    ingest: Option<Child>,
    spec: Spec,
    dir: TempDir,
}

impl Hub {
    /// An ingest with further arguments, as it is started for the first time.
    async fn start(more: &[&str]) -> Self {
        let server = Server::start();
        let mut hub = Self::at(server.config("devices"), server.url(), more).await;
        hub.server = Some(server);
        hub
    }

    /// An ingest on servers of the caller.
    async fn at(config: BusConfig, url: String, more: &[&str]) -> Self {
        let stop = CancellationToken::new();
        let bus = soon("a connection", Bus::connect(config, &stop)).await.unwrap();
        within(DEADLINE, "the topology", || bus.converge(), Result::is_ok).await.unwrap();
        let args = ["--nats-url", &url, "--log", "info,muster_ingest=debug"];
        let args = args.iter().chain(more).map(ToString::to_string).collect();
        let spec = Spec { name: INGEST.to_owned(), program: program(INGEST), args };
        let dir = tempfile::tempdir().unwrap();
        let mut hub = Self { bus, url, server: None, ingest: None, spec, dir };
        hub.start_ingest();
        hub
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("a server and no cluster")
    }

    fn start_ingest(&mut self) {
        assert!(self.ingest.is_none());
        self.ingest = Some(Child::start(self.spec.clone(), self.dir.path()).unwrap());
    }

    async fn kill_ingest(&mut self) {
        self.ingest.take().unwrap().kill().await.unwrap();
    }

    async fn stop_ingest(&mut self) -> ExitStatus {
        self.ingest.take().unwrap().stop().await.unwrap()
    }

    /// Waits until ingest has started this many times.
    async fn started(&self, times: usize) {
        let count = || async { self.log().matches("muster_service::run: started").count() };
        until("ingest starts", count, |count| *count >= times).await;
    }

    /// Waits until it owns every partition.
    async fn owns_all(&self) {
        let owned = || async { self.log().matches("took the partition").count() };
        until("ingest owns every partition", owned, |count| *count >= 16).await;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("logs/muster-ingest.log")).unwrap_or_default()
    }

    /// Publishes a report's bytes and waits until UPLINK has them.
    async fn send_bytes(&self, subject: &str, payload: impl Into<bytes::Bytes>) {
        soon("the connection", self.bus.link().wait_for(|link| link.is_up())).await.unwrap();
        soon("UPLINK", self.bus.publish(Outgoing::new(subject, payload))).await.unwrap();
    }

    async fn send(&self, key: &DeviceKey, report: &Value) {
        self.send_bytes(&subjects::report(key), report.to_string()).await;
    }

    /// Publishes one heartbeat of a device. PRESENCE may be missing after a restart of the server until ingest creates it again.
    async fn beat(&self, key: &DeviceKey, epoch: u64, head: u64) {
        let beat = || async {
            let beat = Outgoing::new(subjects::presence(key), heartbeat(epoch, head));
            self.bus.publish(beat).await.is_ok()
        };
        until("a heartbeat", beat, |heard| *heard).await;
    }

    /// All facts of LEDGER but the pulses, which come all the time and are about no device.
    async fn ledger(&self) -> Vec<Entry> {
        let state = || async { self.bus.stream_state(stream::LEDGER).await.ok() };
        let state = until("the state of LEDGER", state, Option::is_some).await.unwrap();
        let mut replay = self.bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
        let (mut entries, mut read) = (Vec::new(), 0);
        while read < state.messages {
            let batch = soon("LEDGER", replay.next_batch(1000)).await.unwrap();
            read += batch.len() as u64;
            entries.extend(batch.iter().map(|delivery| {
                let subject = LedgerSubject::parse(&delivery.subject).expect("a subject of LEDGER");
                let fact = Fact::parse(&subject, &delivery.payload).expect("LEDGER holds facts alone");
                Entry { seq: delivery.stream_seq, stored_at: delivery.stored_at, subject, fact }
            }));
        }
        entries.retain(|entry| !matches!(entry.subject, LedgerSubject::Hub(_)));
        entries
    }

    /// The facts of a device that `pick` selects.
    async fn facts<T>(&self, key: &DeviceKey, pick: impl Fn(Fact) -> Option<T>) -> Vec<T> {
        let ledger = self.ledger().await.into_iter();
        ledger
            .filter(|entry| entry.subject.device() == Some(key))
            .filter_map(|entry| pick(entry.fact))
            .collect()
    }

    async fn statuses(&self, key: &DeviceKey) -> Vec<StatusFact> {
        self.facts(key, |fact| if let Fact::Status(fact) = fact { Some(fact) } else { None }).await
    }

    async fn quarantine(&self, key: &DeviceKey) -> Vec<QuarantineFact> {
        self.facts(key, |fact| if let Fact::Quarantine(fact) = fact { Some(fact) } else { None }).await
    }

    async fn incidents(&self, key: &DeviceKey) -> Vec<IncidentKind> {
        self.facts(key, |fact| if let Fact::Incident(fact) = fact { Some(fact.what) } else { None }).await
    }

    async fn liveness(&self, key: &DeviceKey) -> Vec<Liveness> {
        self.facts(key, |fact| if let Fact::Liveness(fact) = fact { Some(fact.state) } else { None }).await
    }

    /// The newest receipt of a device.
    async fn receipt(&self, key: &DeviceKey) -> Option<Receipt> {
        let last = soon("DOWNLINK", self.bus.last(stream::DOWNLINK, &subjects::receipt(key))).await.unwrap();
        last.map(|delivery| parse(&delivery.payload).unwrap())
    }

    /// Waits until the newest receipt of a device says this.
    async fn receipt_is(&self, key: &DeviceKey, epoch: u64, through: u64, missing: &str) {
        let said = || async {
            let receipt = self.receipt(key).await;
            receipt.map(|said| (said.epoch.get(), said.through, said.missing.to_string()))
        };
        until("the receipt", said, |said| *said == Some((epoch, through, missing.to_owned()))).await;
    }

    /// Publishes a heartbeat of a device and waits for the receipt that follows, with no number missing.
    async fn receipt_after_a_beat(&self, key: &DeviceKey, epoch: u64, through: u64) {
        self.beat(key, epoch, through).await;
        self.receipt_is(key, epoch, through, "").await;
    }

    /// Waits until LEDGER holds this many statuses of a device.
    async fn statuses_are(&self, key: &DeviceKey, count: usize) -> Vec<StatusFact> {
        until("statuses in LEDGER", || self.statuses(key), |found| found.len() == count).await
    }
}

/// A status report as a foreign client would write it.
fn status(epoch: u64, seq: u64, head: u64) -> Value {
    json!({
        "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": epoch, "seq": seq, "head": head,
        "observedAt": Timestamp::now().to_string(), "deployment": "web", "generation": 1,
        "digest": Digest::of_bytes(b"web").to_string(),
        "status": {"state": "installing"}, "components": [{"name": "main", "state": "installing"}],
        "current": seq == head,
    })
}

/// A heartbeat of a device that has sent all its reports.
fn heartbeat(epoch: u64, head: u64) -> String {
    json!({
        "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": epoch, "head": head, "unsent": 0,
        "generation": 0, "agentVersion": "test",
    })
    .to_string()
}

fn with(mut report: Value, field: &str, value: Value) -> Value {
    report[field] = value;
    report
}

/// The numbers of each device that LEDGER holds: as facts, coalesced, or in quarantine.
fn held(ledger: &[Entry]) -> BTreeMap<DeviceKey, Vec<u64>> {
    let mut held: BTreeMap<DeviceKey, Vec<u64>> = BTreeMap::new();
    for entry in ledger {
        let one = |seq: u64| SeqRanges::span(seq, seq);
        let seqs = match &entry.fact {
            Fact::Status(fact) => one(fact.seq.get()),
            Fact::Device(fact) => one(fact.seq.get()),
            Fact::Quarantine(fact) => fact.numbers().map(|(_, seqs)| seqs).unwrap_or_default(),
            _ => SeqRanges::new(),
        };
        if let Some(key) = entry.subject.device() {
            held.entry(key.clone()).or_default().extend(seqs.iter().flat_map(|(from, to)| from..=to));
        }
    }
    held.values_mut().for_each(|numbers| numbers.sort_unstable());
    held
}
