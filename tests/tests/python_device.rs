//! A device in another language: `schemas/examples/durable_device.py` speaks the contract, with a device's rights and nothing
//! of ours. These tests need no service: they play the hub.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::path::Path;

use muster_bus::{Bus, Outgoing, Start};
use muster_contract::decode::{self, Document, to_bytes};
use muster_contract::desired::DesiredState;
use muster_contract::presence::Heartbeat;
use muster_contract::receipt::Receipt;
use muster_contract::report::{Report, StatusReport};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Epoch, Generation, SeqRanges, State};
use muster_tests::example::{Example, Language};
use muster_tests::schemas;
use muster_tests::server::{Server, Setup, device};
use muster_tests::wait::{soon, until};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// A hub that is played by the test, and the device's only file.
struct Hub {
    server: Server,
    bus: Bus,
    key: DeviceKey,
    dir: TempDir,
}

#[tokio::test]
async fn it_reports_what_it_is_told_to_run_with_dense_numbers() {
    let hub = Hub::start().await;
    hub.publish(&subjects::desired(&hub.key), &desired(1, 2)).await;
    let device = hub.device();
    let reports = hub.reports(7).await;
    assert!(matches!(reports[0], Report::Capabilities(_)), "capabilities are the first thing of an epoch");
    hub.publish(&subjects::desired(&hub.key), &desired(2, 1)).await;
    let reports = hub.reports(9).await;
    let numbers: Vec<_> = reports.iter().map(|report| report.seq().get()).collect();
    assert_eq!(sorted(&numbers), (1..=9).collect::<Vec<_>>(), "no number is missing or given twice");
    assert!(reports.iter().all(|report| report.head() >= report.seq()));
    assert_eq!(
        newest(&reports),
        BTreeMap::from([("line-1".to_owned(), State::Installed), ("line-2".to_owned(), State::Removed)])
    );
    device.kill().await;
}

#[tokio::test]
async fn the_newest_report_of_each_deployment_is_sent_first_and_says_so() {
    let hub = Hub::start().await;
    hub.publish(&subjects::desired(&hub.key), &desired(1, 2)).await;
    let device = hub.device();
    // The capabilities went out before the desired state was read.
    let reports = hub.reports(7).await;
    let sent: Vec<_> = reports.iter().filter_map(status).collect();
    let current: Vec<_> = sent.iter().map(|report| report.current).collect();
    assert_eq!(current, [true, true, false, false, false, false]);
    assert!(sent[..2].iter().all(|report| report.status.state == State::Installed));
    device.kill().await;
}

#[tokio::test]
async fn a_kill_loses_no_number_and_begins_no_epoch() {
    let hub = Hub::start().await;
    hub.publish(&subjects::desired(&hub.key), &desired(1, 1)).await;
    let device = hub.device();
    let before = hub.reports(4).await;
    device.kill().await;
    hub.publish(&subjects::desired(&hub.key), &desired(2, 2)).await;
    let device = hub.device();
    let after = hub.reports_until(|reports| distinct(reports).len() == 7).await;
    assert!(after.iter().all(|report| report.epoch() == before[0].epoch()));
    assert_eq!(distinct(&after), (1..=7).collect::<Vec<_>>());
    device.kill().await;
}

#[tokio::test]
async fn a_receipt_lets_it_forget_and_has_it_send_again_what_is_missing() {
    let hub = Hub::start().await;
    hub.publish(&subjects::desired(&hub.key), &desired(1, 1)).await;
    let device = hub.device();
    let epoch = hub.reports(4).await[0].epoch();
    // The bus recognises the repeated report by its message id, so it is heard here and not stored again.
    let mut published = hub.bus.subscribe(&subjects::report(&hub.key)).await.unwrap();
    hub.receive(epoch, 4, SeqRanges::span(2, 2)).await;
    let again = soon("the report that is missing", published.next()).await.unwrap();
    assert_eq!(checked(&again.payload).seq().get(), 2);
    let file = hub.dir.path().join("state.json");
    until("one row kept", async || kept(&file), |kept| kept == &Some(1)).await;
    hub.receive(epoch, 4, SeqRanges::new()).await;
    until("an empty outbox", async || kept(&file), |kept| kept == &Some(0)).await;
    device.kill().await;
}

#[tokio::test]
async fn a_lost_file_begins_an_epoch_above_the_one_that_the_hub_knows() {
    let hub = Hub::start().await;
    let far = Epoch::new(9_000_000_000).unwrap();
    hub.receive(far, 0, SeqRanges::new()).await;
    let device = hub.device();
    assert_eq!(hub.reports(1).await[0].epoch(), far.next());
    device.kill().await;
}

#[tokio::test]
async fn a_file_that_was_set_back_begins_an_epoch_and_loses_nothing_that_waits() {
    let hub = Hub::start().await;
    hub.publish(&subjects::desired(&hub.key), &desired(1, 1)).await;
    let device = hub.device();
    let epoch = hub.reports(4).await[0].epoch();
    let file = hub.dir.path().join("state.json");
    let backup = std::fs::read(&file).unwrap();
    hub.publish(&subjects::desired(&hub.key), &desired(2, 2)).await;
    hub.reports(7).await;
    device.kill().await;
    hub.receive(epoch, 7, SeqRanges::new()).await;
    std::fs::write(&file, backup).unwrap();
    hub.publish(&subjects::desired(&hub.key), &desired(3, 3)).await;
    let device = hub.device();
    let later =
        |reports: Vec<Report>| reports.into_iter().filter(|it| it.epoch() > epoch).collect::<Vec<_>>();
    // The newest of each deployment come first, the others after them.
    let enough = |reports: &[Report]| {
        let anew = later(reports.to_vec());
        let heads = anew.iter().map(|report| report.head().get()).max();
        newest_of(reports, epoch).len() == 3 && heads == Some(distinct(&anew).len() as u64)
    };
    let anew = later(hub.reports_until(enough).await);
    let numbers = distinct(&anew);
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "dense from 1, as in any epoch");
    assert!(matches!(first(&anew), Report::Capabilities(_)), "capabilities are the first thing of an epoch");
    device.kill().await;
}

#[tokio::test]
async fn its_heartbeats_tell_how_far_its_reports_go() {
    let hub = Hub::start().await;
    hub.publish(&subjects::desired(&hub.key), &desired(1, 1)).await;
    let device = hub.device();
    hub.reports(4).await;
    let beat = until(
        "a heartbeat after the last report",
        async || hub.heartbeat().await,
        |beat| beat.as_ref().is_some_and(|beat| beat.head == 4 && beat.unsent == 0),
    );
    assert_eq!(beat.await.unwrap().generation, 1);
    device.kill().await;
}

impl Hub {
    async fn start() -> Self {
        let key = device("foreign-1");
        let server = Server::start_with(Setup { devices: vec![key.clone()], ..Setup::default() });
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        bus.converge().await.unwrap();
        Self { server, bus, key, dir: tempfile::tempdir().unwrap() }
    }

    /// Starts the device with a heartbeat every 200 ms.
    fn device(&self) -> Example {
        let file = self.dir.path().join("state.json");
        let url = self.server.device_url(&self.key);
        let args = [&self.key.to_string(), file.to_str().unwrap(), "--url", &url, "--heartbeat", "0.2"];
        Example::start(Language::Python, "durable_device", &args)
    }

    async fn publish<T: Document>(&self, subject: &str, document: &T) {
        self.bus.publish(Outgoing::new(subject, to_bytes(document))).await.unwrap();
    }

    async fn receive(&self, epoch: Epoch, through: u64, missing: SeqRanges) {
        let (api_version, kind) = (Default::default(), Default::default());
        let receipt = Receipt {
            api_version,
            kind,
            epoch,
            through,
            missing,
            refused: Vec::new(),
            batches: Vec::new(),
            generation: None,
        };
        self.publish(&subjects::receipt(&self.key), &receipt).await;
    }

    /// Everything that UPLINK holds, once that is so many.
    async fn reports(&self, count: usize) -> Vec<Report> {
        self.reports_until(|reports| reports.len() == count).await
    }

    async fn reports_until(&self, enough: impl Fn(&[Report]) -> bool) -> Vec<Report> {
        let look = async || {
            let mut replay = self.bus.replay(stream::UPLINK, &[], Start::First).await.unwrap();
            let mut reports = Vec::new();
            while (reports.len() as u64) < replay.waiting() {
                let batch = replay.next_batch(100).await.unwrap();
                reports.extend(batch.iter().map(|delivery| checked(&delivery.payload)));
            }
            reports
        };
        until("enough reports", look, |reports| enough(reports)).await
    }

    async fn heartbeat(&self) -> Option<Heartbeat> {
        let mut replay = self.bus.replay(stream::PRESENCE, &[], Start::First).await.unwrap();
        if replay.waiting() == 0 {
            return None;
        }
        let batch = replay.next_batch(1).await.unwrap();
        Some(decode::parse(&batch[0].payload).unwrap())
    }
}

/// A report that passes our parser and its schema.
fn checked(bytes: &[u8]) -> Report {
    let report = Report::parse(bytes).unwrap_or_else(|no| panic!("{no}\n{}", String::from_utf8_lossy(bytes)));
    let name = match report {
        Report::Status(_) => StatusReport::KIND,
        Report::Capabilities(_) => "CapabilitiesReport",
    };
    let schema = schemas::json_schema::schema(schemas::catalogue::shape(name).unwrap());
    let value = serde_json::from_slice(bytes).unwrap();
    jsonschema::validate(schema.as_value(), &value).unwrap_or_else(|no| panic!("{name}: {no}"));
    report
}

/// A desired state with the deployments `line-1` to `line-<count>`.
fn desired(generation: u64, count: usize) -> DesiredState {
    let path = schemas::folder().join("examples/good/DesiredState.two-deployments.json");
    let mut desired: DesiredState = decode::parse(&std::fs::read(path).unwrap()).unwrap();
    desired.generation = Generation::new(generation).unwrap();
    let entry = desired.deployments.swap_remove(0);
    let named = |number: usize| {
        let mut entry = entry.clone();
        entry.id = format!("line-{number}").parse().unwrap();
        entry.target_generation = Generation::FIRST;
        entry.digest = entry.content_digest();
        entry
    };
    desired.deployments = (1..=count).map(named).collect();
    desired.check().unwrap();
    desired
}

const fn status(report: &Report) -> Option<&StatusReport> {
    match report {
        Report::Status(report) => Some(report),
        Report::Capabilities(_) => None,
    }
}

/// The state of each deployment in its report of the highest number.
fn newest(reports: &[Report]) -> BTreeMap<String, State> {
    let mut by_number: Vec<_> = reports.iter().filter_map(status).collect();
    by_number.sort_by_key(|report| report.seq);
    by_number.iter().map(|report| (report.deployment.to_string(), report.status.state)).collect()
}

/// The deployments that are installed by reports of epochs after this one.
fn newest_of(reports: &[Report], epoch: Epoch) -> Vec<String> {
    let later: Vec<_> = reports.iter().filter(|report| report.epoch() > epoch).cloned().collect();
    newest(&later).into_iter().filter(|(_, state)| *state == State::Installed).map(|(id, _)| id).collect()
}

fn first(reports: &[Report]) -> &Report {
    reports.iter().min_by_key(|report| report.seq()).unwrap()
}

fn distinct(reports: &[Report]) -> Vec<u64> {
    let mut numbers = sorted(&reports.iter().map(|report| report.seq().get()).collect::<Vec<_>>());
    numbers.dedup();
    numbers
}

fn sorted(numbers: &[u64]) -> Vec<u64> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers
}

/// Rows that the device keeps for the hub.
fn kept(file: &Path) -> Option<usize> {
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    state["outbox"].as_array().map(Vec::len)
}
