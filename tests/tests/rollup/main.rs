//! Tests the rollup's promises on a real nats-server: in this process where its counters matter, as a process
//! of its own where it is killed. The facts are the tests' own. All are one program, so that it is linked once.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod actions;
mod bucket;
mod groups;
mod hearing;
mod history;
mod ledger;
mod manifests;
mod notices;
mod proof;
mod restart;
mod spare;
mod timeline;
mod views;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use muster_bus::{Bus, Outgoing, Start};
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, QUERY_PREFIX, ViewKey, stream};
use muster_contract::view::FleetView;
use muster_domain::fold::{Fleet, Position, Timeline};
use muster_rollup::app::Handle;
use muster_rollup::config::Cli;
use muster_service::supervisor::{Drained, Supervisor};
use muster_tests::server::Server;
use muster_tests::wait::{soon, until};
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Time a rollup may take to drain.
const DRAIN: Duration = Duration::from_secs(10);
/// Time an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server with its streams, and a connection that may do everything.
struct Hub {
    server: Server,
    bus: Bus,
}

impl Hub {
    async fn start() -> Self {
        let server = Server::start();
        let stop = CancellationToken::new();
        let bus = soon("a connection", Bus::connect(server.config("test"), &stop)).await.unwrap();
        soon("the topology", bus.converge()).await.unwrap();
        Self { server, bus }
    }

    /// Puts a fact into LEDGER, as ingest would; a desired state goes to DOWNLINK, as the publisher's would.
    async fn put(&self, subject: &str, fact: &Value) {
        self.put_bytes(subject, fact.to_string()).await;
    }

    async fn put_bytes(&self, subject: &str, payload: String) {
        soon("the stream", self.bus.publish(Outgoing::new(subject, payload))).await.unwrap();
    }

    /// The result of reading all of LEDGER, by the rules alone.
    async fn folded(&self) -> Fleet {
        self.fold_while(|_| true).await.0
    }

    /// The result of reading LEDGER up to the first sequence that is not wanted.
    async fn fold_while(&self, wanted: impl Fn(u64) -> bool) -> (Fleet, Timeline) {
        let mut replay = self.bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
        let (mut fleet, mut timeline) = (Fleet::default(), Timeline::default());
        while let Some(batch) = soon("LEDGER", replay.next_present(1000)).await.unwrap() {
            for message in batch {
                if !wanted(message.stream_seq) {
                    return (fleet, timeline);
                }
                let at = Position { ledger_seq: message.stream_seq, stored_at: message.stored_at };
                let subject = LedgerSubject::parse(&message.subject);
                if !matches!(subject, Some(LedgerSubject::Hub(_))) {
                    timeline.advance(&fleet, at.stored_at);
                }
                match subject.and_then(|of| Fact::parse(&of, &message.payload).ok().map(|fact| (of, fact))) {
                    Some((subject, fact)) => drop(fleet.apply(at, &subject, fact)),
                    None => fleet.pass(at),
                }
            }
        }
        (fleet, timeline)
    }

    /// The views in the bucket: their digests by key, as far as they carry one.
    async fn bucket(&self) -> BTreeMap<String, Digest> {
        let mut watch = soon("views", self.bus.view_watch(">")).await.unwrap();
        let (mut read, mut digests) = (0, BTreeMap::new());
        while read < watch.waiting() {
            for entry in soon("views", watch.next_batch(1000)).await.unwrap() {
                read += 1;
                let value: Option<Value> = entry.value.map(|value| serde_json::from_slice(&value).unwrap());
                let digest =
                    value.and_then(|value| value["digest"].as_str().map(|text| text.parse().unwrap()));
                digests.extend(digest.map(|digest| (entry.key.clone(), digest)));
            }
        }
        digests
    }

    /// Waits until the bucket says exactly what LEDGER gives.
    async fn bucket_says_what_ledger_gives(&self) {
        let look = || async { (digests(&self.folded().await), self.bucket().await) };
        until("the views of LEDGER's end", look, |(wanted, seen)| seen == wanted).await;
    }

    async fn ask(&self, what: &str, query: &(impl Serialize + Sync)) -> Value {
        let question = serde_json::to_vec(query).unwrap();
        let subject = format!("{QUERY_PREFIX}.{what}");
        let answer = self.bus.request(&subject, question.into(), PATIENCE).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// Waits until the query service has read to LEDGER's end and says of the fleet what LEDGER gives.
    async fn answers_say_what_ledger_gives(&self) {
        let look = || async {
            let fleet = self.folded().await;
            let subject = format!("{QUERY_PREFIX}.fleet");
            let answer = self.bus.request(&subject, bytes::Bytes::new(), PATIENCE).await.ok()?;
            let view: FleetView = serde_json::from_slice(&answer).ok()?;
            let wanted = (fleet.as_of().ledger_seq, fleet.fleet_view().tally.digest);
            Some((wanted, (view.tally.as_of.ledger_seq, view.tally.digest)))
        };
        let same = |seen: &Option<_>| seen.as_ref().is_some_and(|(wanted, seen)| seen == wanted);
        until("the answer of LEDGER's end", look, same).await;
    }
}

/// The digests of all views of a fleet.
fn digests(fleet: &Fleet) -> BTreeMap<String, Digest> {
    let page = muster_domain::fold::Page { after: None, limit: usize::MAX };
    let deployments = fleet.deployments_answer(&Default::default(), &page).unwrap().deployments;
    let deployments = deployments.into_iter().map(|view| (ViewKey::Deployment(view.deployment), view.digest));
    let page = muster_domain::fold::Page { after: None, limit: usize::MAX };
    let devices = fleet.devices_answer(&Default::default(), &page).unwrap().devices;
    let sites = devices.into_iter().filter_map(|line| fleet.site_view(&line.key.site));
    let sites = sites.map(|view| (ViewKey::Site(view.site), view.tally.digest));
    let whole = (ViewKey::Fleet, fleet.fleet_view().tally.digest);
    deployments.chain(sites).chain([whole]).map(|(key, digest)| (key.to_string(), digest)).collect()
}

/// A rollup in this process.
struct Rollup {
    supervisor: Supervisor,
    handle: Handle,
}

impl Rollup {
    async fn start(hub: &Hub, data_dir: &Path) -> Self {
        Self::start_with(hub, data_dir, &[]).await
    }

    async fn start_with(hub: &Hub, data_dir: &Path, more: &[&str]) -> Self {
        Self::start_at(&hub.server.hub_url(), data_dir, more).await
    }

    /// One that reaches the server at this address.
    async fn start_at(url: &str, data_dir: &Path, more: &[&str]) -> Self {
        let data_dir = data_dir.to_str().unwrap();
        let words = ["muster-rollup", "--nats-url", url, "--data-dir", data_dir];
        let config = Cli::try_parse_from(words.iter().chain(more)).unwrap().check().unwrap();
        let supervisor = Supervisor::new();
        let handle = soon("a rollup", muster_rollup::app::start(config, &supervisor)).await.unwrap();
        Self { supervisor, handle }
    }

    /// Waits until it says that it is ready.
    async fn ready(&self) {
        let missing = || async { self.supervisor.health().missing() };
        until("a ready rollup", missing, Vec::is_empty).await;
    }

    /// Facts read since it was started.
    fn facts_read(&self) -> u64 {
        self.handle.metrics.facts_read()
    }

    fn digests(&self) -> BTreeMap<String, Digest> {
        self.handle.projection.read(|now| digests(&now.fleet))
    }

    /// Waits until it has read so far.
    async fn reads_to(&self, ledger_seq: u64) {
        let read_to = || async { self.handle.projection.read(|now| now.fleet.as_of().ledger_seq) };
        until("the rollup to read on", read_to, |seq| *seq >= ledger_seq).await;
    }

    /// Ends it in good order.
    async fn drain(self) {
        assert_eq!(self.supervisor.drain(DRAIN).await, Drained::default());
        assert!(self.supervisor.failure().is_none(), "{:?}", self.supervisor.failure());
    }

    /// Ends it as a crash does.
    async fn crash(self) {
        self.supervisor.abandon().await;
    }
}
