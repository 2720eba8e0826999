//! The whole way: the real `muster-ingest` and `muster-rollup` as processes, from a report to a view.

use std::collections::BTreeMap;
use std::time::Instant;

use muster_bus::{Bus, BusConfig};
use muster_contract::State;
use muster_contract::query::DeviceLine;
use muster_contract::subjects::{ViewKey, stream};
use muster_contract::view::DeploymentView;
use muster_simulator::child::{Child, Spec};
use muster_simulator::hub::Hub;
use muster_tests::envelope::Carry;
use muster_tests::server::Server;
use muster_tests::system::{INGEST, ROLLUP, program};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::agents;
use super::raw::paced;
use muster_tests::load::{self, DEVICES, Fleet, LATENCY_EVENTS, Latency, PATIENCE};

pub(crate) const LOOK: std::time::Duration = std::time::Duration::from_millis(5);

struct Whole {
    bus: Bus,
    hub: Hub,
    _services: Vec<Child>,
    _dir: TempDir,
    server: Server,
}

/// A server, ingest and rollup, and a fleet in which every device has its desired state and has reported once.
async fn whole(fleet: Fleet) -> Whole {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("rollup").display().to_string();
    let services =
        [(INGEST, vec!["--lease", "10m"]), (ROLLUP, vec!["--data-dir", &data])].map(|(name, own)| {
            let url = server.url();
            let args = ["--nats-url", &url].into_iter().chain(own).map(str::to_owned).collect();
            Child::start(Spec { name: name.to_owned(), program: program(name), args }, dir.path()).unwrap()
        });
    let config = BusConfig::service(server.url(), "bench");
    let bus = Bus::connect(config, &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    load::publish_desired(&bus, (0..DEVICES).map(|at| load::desired(fleet, at)).collect()).await;
    load::publish(&bus, Carry::Everything, load::reports(fleet, 1, DEVICES)).await;
    let whole = Whole { hub: Hub::new(bus.clone()), bus, _services: services.into(), _dir: dir, server };
    whole.settled(DEVICES).await;
    whole
}

impl Whole {
    /// Waits until the rollup has folded so many reports and everything before the end of LEDGER.
    async fn settled(&self, reports: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let received = self.hub.devices().await.map_or(0, |lines| received(&lines));
            if received == reports as u64 {
                return;
            }
            assert!(Instant::now() < deadline, "{received} of {reports} reports are in after {PATIENCE:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn ledger_seq(&self) -> u64 {
        self.bus.stream_state(stream::LEDGER).await.unwrap().last_seq
    }

    async fn folded_through(&self) -> u64 {
        self.hub.fleet().await.map_or(0, |view| view.tally.as_of.ledger_seq)
    }
}

pub(crate) fn received(lines: &[DeviceLine]) -> u64 {
    lines.iter().map(|line| line.account.received).sum()
}

/// Events per second from publish until the last one is folded, while views are written.
pub(crate) async fn throughput(fleet: Fleet, reports: usize) -> f64 {
    let whole = whole(fleet).await;
    let base = whole.ledger_seq().await;
    let messages = load::reports(fleet, 2, reports);
    let begin = Instant::now();
    let publishing = tokio::spawn({
        let bus = whole.bus.clone();
        async move { load::publish(&bus, Carry::Everything, messages).await }
    });
    while whole.folded_through().await < base + reports as u64 {
        assert!(begin.elapsed() < PATIENCE, "the reports are not in after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    let rate = reports as f64 / begin.elapsed().as_secs_f64();
    publishing.await.unwrap();
    whole.settled(reports + DEVICES).await;
    rate
}

/// Latency until a watcher of the deployment's view sees the state that the report carries: from publish, and from before
/// an agent keeps it. The last is how long that keeping takes.
pub(crate) async fn latency() -> [Latency; 3] {
    let whole = whole(Fleet::Different).await;
    let agents = agents::start(&whole.server, &whole.bus).await;
    let mut watch = whole.bus.view_watch("deployment.*").await.unwrap();
    let (sent, mut sent_at) = tokio::sync::mpsc::unbounded_channel();
    let note = move |at, nth| sent.send((at, nth, Instant::now())).unwrap();
    let mut reporting = tokio::task::JoinSet::new();
    for agent in agents {
        reporting.spawn(agent.report(note.clone()));
    }
    let bus = whole.bus.clone();
    let sending = tokio::spawn(async move { paced(&bus, Carry::Everything, 2, note).await });
    // A view that skips a state tells of its report as well: with the next one.
    let mut waiting: BTreeMap<usize, (State, Vec<Instant>)> = BTreeMap::new();
    let (mut published, mut changed) =
        (Vec::with_capacity(LATENCY_EVENTS), Vec::with_capacity(agents::EVENTS));
    while published.len() < LATENCY_EVENTS || changed.len() < agents::EVENTS {
        let batch =
            tokio::time::timeout(PATIENCE, watch.next_batch(512)).await.expect("views change").unwrap();
        let now = Instant::now();
        while let Ok((at, nth, when)) = sent_at.try_recv() {
            let waits = waiting.entry(at).or_insert_with(|| (load::state(nth), Vec::new()));
            waits.0 = load::state(nth);
            waits.1.push(when);
        }
        for entry in batch {
            let Some((at, state)) = entry.value.and_then(|value| shown(&entry.key, &value)) else { continue };
            if waiting.get(&at).is_some_and(|waits| waits.0 == state)
                && let Some((_, sent)) = waiting.remove(&at)
            {
                let samples = if at < DEVICES { &mut published } else { &mut changed };
                samples.extend(sent.into_iter().map(|when| (when, now - when)));
            }
        }
    }
    sending.await.unwrap();
    let kept = reporting.join_all().await.concat();
    let of_agents = |events| Latency::of(events, agents::WARM_UP_EVENTS);
    [Latency::of(published, load::WARM_UP_EVENTS), of_agents(changed), of_agents(kept)]
}

/// The device behind a view of the load and the state that the view shows.
fn shown(key: &str, value: &[u8]) -> Option<(usize, State)> {
    let ViewKey::Deployment(id) = ViewKey::parse(key)? else { return None };
    let at = id.as_str().strip_prefix("app-")?.parse().ok()?;
    let view: DeploymentView = serde_json::from_slice(value).ok()?;
    let state = view.components.values().next()?.keys().next().copied()?;
    Some((at, state))
}
