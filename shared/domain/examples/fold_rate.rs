//! Measures how fast facts are parsed and folded, and how much memory a standing takes. Run it by hand: `cargo
//! run --release -p muster-domain --example fold_rate [DEVICES [DEPLOYMENTS [DEVICES_PER_SITE]]]`.
//!
//! It is no benchmark of the bus: messages are made in memory, and one thread parses and folds them. Time is
//! this thread's time on a processor, so that a busy machine does not change it much (it still shares its
//! caches).

// Its numbers go to standard output.
#![allow(clippy::print_stdout)]

use std::fmt::Write;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::fold::{Fleet, Position};
use rustix::time::{ClockId, clock_gettime};

const DEVICES: usize = 100_000;
/// Devices of a site, if nothing else is said.
const SITE_DEVICES: usize = 250;
/// Deployments of each device, if nothing else is said.
const DEPLOYMENTS: usize = 3;
/// Messages that are made, parsed and folded at once: about as many as muster-rollup takes.
const CHUNK: usize = 1_000;
const VIEWS: u32 = 1_000;
/// As in muster-rollup.
const SITES_NAMED: usize = 20;

// As in muster-rollup.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A message of LEDGER.
type Message = (String, String);

/// The fleet that is made.
#[derive(Clone, Copy)]
struct Shape {
    devices: usize,
    deployments_each: usize,
    site_devices: usize,
}

struct Bench {
    fleet: Fleet,
    ledger_seq: u64,
    chunk: Vec<Message>,
    parsed: Vec<(LedgerSubject, Fact)>,
    shape: Shape,
}

/// The nth round of reports: all of this state.
fn reporting(round: usize, state: &'static str) -> impl FnMut(Shape, usize, &mut Vec<Message>) {
    move |shape, device, out| shape.reports(device, round, state, out)
}

/// The device that is the nth of so many to be heard.
type Order = fn(usize, usize) -> usize;

fn in_order(nth: usize, _: usize) -> usize {
    nth
}

/// Steps that visit every device once, far from the one before, so that no cache holds it.
fn all_over(nth: usize, devices: usize) -> usize {
    const PRIME: usize = 15_485_863;
    nth * PRIME % devices
}

fn main() {
    let setting =
        |at, default| std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let shape = Shape {
        devices: setting(1, DEVICES),
        deployments_each: setting(2, DEPLOYMENTS),
        site_devices: setting(3, SITE_DEVICES).max(1),
    };
    let mut bench =
        Bench { fleet: Fleet::default(), ledger_seq: 0, chunk: Vec::new(), parsed: Vec::new(), shape };
    bench.warm_up();
    let before = resident_bytes();
    bench.pass("desired states", in_order, Shape::desired);
    bench.pass("liveness", in_order, |shape, device, out| out.push(shape.liveness(device)));
    bench.pass("first reports", in_order, reporting(1, "installing"));
    let standings = (shape.devices * shape.deployments_each) as u64;
    let bytes = resident_bytes().saturating_sub(before);
    println!("{bytes} bytes resident, {} a standing (device and counts included)", bytes / standings);
    bench.pass("second reports", in_order, reporting(2, "installed"));
    bench.pass("third, from all over the fleet", all_over, reporting(3, "installing"));
    bench.pass("fourth, from all over the fleet", all_over, reporting(4, "installed"));
    bench.pass("fifth, failed", in_order, reporting(5, "failed"));
    bench.views();
    bench.pass("silence", in_order, Shape::silence);
    bench.gauges();
}

impl Bench {
    fn chunk_devices(&self) -> usize {
        (CHUNK / self.shape.deployments_each).clamp(1, self.shape.devices)
    }

    /// Takes the memory that chunks need, before any is measured.
    fn warm_up(&mut self) {
        (0..self.chunk_devices())
            .for_each(|device| self.shape.reports(device, 1, "pending", &mut self.chunk));
        self.parsed.extend(self.chunk.iter().filter_map(parse));
        self.parsed.clear();
    }

    /// Parses and folds the messages of all devices; their making is not timed.
    fn pass(&mut self, what: &str, order: Order, mut make: impl FnMut(Shape, usize, &mut Vec<Message>)) {
        let (shape, devices) = (self.shape, self.shape.devices);
        let (mut facts, mut bytes) = (0, 0);
        let (mut parsing, mut folding) = (Duration::ZERO, Duration::ZERO);
        for from in (0..devices).step_by(self.chunk_devices()) {
            self.chunk.clear();
            let chunk = from..devices.min(from + self.chunk_devices());
            chunk.for_each(|nth| make(shape, order(nth, devices), &mut self.chunk));
            let begun = processor_time();
            self.parsed.extend(self.chunk.iter().filter_map(parse));
            parsing += processor_time() - begun;
            let begun = processor_time();
            for (subject, fact) in self.parsed.drain(..) {
                self.ledger_seq += 1;
                let at = Position { ledger_seq: self.ledger_seq, stored_at: Timestamp::UNIX_EPOCH };
                self.fleet.apply(at, &subject, fact);
            }
            folding += processor_time() - begun;
            facts += self.chunk.len();
            bytes += self.chunk.iter().map(|(_, body)| body.len()).sum::<usize>();
        }
        let rate = |time: Duration| facts as f64 / time.as_secs_f64() / 1000.0;
        println!(
            "{what}: {facts} facts of {} bytes; parse {:.0} k/s, fold {:.0} k/s, both {:.0} k/s",
            bytes / facts,
            rate(parsing),
            rate(folding),
            rate(parsing + folding)
        );
    }

    fn views(&self) {
        let id: DeploymentId = deployment(0).parse().expect("an identifier");
        let begun = processor_time();
        let views = (0..VIEWS).filter_map(|_| self.fleet.deployment_view(&id)).count();
        println!("{views} views of a deployment with digest: {:?} each", (processor_time() - begun) / VIEWS);
    }

    /// Reads the silence of the fleet, as muster-rollup does once a second for `/metrics`.
    fn gauges(&self) {
        let begun = processor_time();
        let silent = (0..VIEWS).map(|_| self.fleet.silent_devices(SITES_NAMED).first.len()).max();
        let each = (processor_time() - begun) / VIEWS;
        let oldest = self.fleet.oldest_silence();
        println!(
            "silent devices by site: {each:?} each, {silent:?} named; the oldest silence since {oldest:?}"
        );
    }
}

fn parse((subject, body): &Message) -> Option<(LedgerSubject, Fact)> {
    let subject = LedgerSubject::parse(subject)?;
    Some((subject.clone(), Fact::parse(&subject, body.as_bytes()).ok()?))
}

fn deployment(at: usize) -> String {
    ["web", "db", "log"].get(at).map_or_else(|| format!("app-{at}"), |name| (*name).to_owned())
}

impl Shape {
    fn name(self, device: usize) -> String {
        format!("site-{:04}.device-{device:07}", device / self.site_devices)
    }

    fn desired(self, device: usize, out: &mut Vec<Message>) {
        let mut entries = Vec::new();
        for id in (0..self.deployments_each).map(deployment) {
            let mut entry = serde_json::json!({
                "id": id, "name": id, "applicationId": "com.example.app",
                "profile": {"type": "simulated", "components": [
                    {"name": "main", "properties": {}}, {"name": "side", "properties": {}}]},
            });
            entry["digest"] = Digest::of_value(&entry).to_string().into();
            entry["targetGeneration"] = 1.into();
            entries.push(entry);
        }
        let body = serde_json::json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1,
            "issuedAt": "2026-11-20T08:00:00Z", "source": {"kind": "git", "revision": "c1"},
            "deployments": entries,
        });
        out.push((format!("muster.desired.{}", self.name(device)), body.to_string()));
    }

    fn liveness(self, device: usize) -> Message {
        let body = r#"{"apiVersion":"muster/v1","kind":"LivenessFact","state":"fresh","lastHeardAt":"2026-11-20T08:00:00Z","epoch":1,"head":0}"#;
        (format!("muster.liveness.{}", self.name(device)), body.to_owned())
    }

    /// Every third device is silent.
    fn silence(self, device: usize, out: &mut Vec<Message>) {
        let (subject, body) = self.liveness(device);
        if device.is_multiple_of(3) {
            out.push((subject, body.replace("fresh", "stale")));
        }
    }

    fn reports(self, device: usize, round: usize, state: &str, out: &mut Vec<Message>) {
        for (at, id) in (0..self.deployments_each).map(deployment).enumerate() {
            let seq = (round - 1) * self.deployments_each + at + 1;
            let mut body = String::new();
            // Writing into a string does not fail.
            let _ = write!(
                body,
                r#"{{"apiVersion":"muster/v1","kind":"StatusFact","epoch":1,"seq":{seq},"head":{seq},"observedAt":"2026-11-20T08:00:00.123456Z","deployment":"{id}","generation":1,"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","status":{{"state":"{state}"}},"components":[{{"name":"main","state":"{state}"}},{{"name":"side","state":"{state}"}}],"current":true,"receivedAt":"2026-11-20T08:00:00.223456Z","origin":"push","fidelity":"event"}}"#
            );
            out.push((format!("muster.status.{}.{id}", self.name(device)), body));
        }
    }
}

/// Time this thread has spent on a processor.
fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec.unsigned_abs() as u32)
}

/// Memory of this process that is in use, as the kernel counts it; 0 where it does not say.
fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}
