//! Links that carry nothing, and the hours of the schedule.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use muster_agent::schedule::SchedulePhase;
use muster_contract::Timestamp;
use muster_service::clock::ManualClock;
use muster_simulator::link::{Condition, Direction, Link};

use super::mute::Mute;
use super::*;

/// A component that starts and crashes repeatedly: an endless source of reports.
fn restless() -> Value {
    json!({ "crashAfter": "20ms" })
}

impl Hub {
    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    /// The settings of an agent that reaches the server by another way.
    fn config_by(&self, way: SocketAddr, dir: &TempDir) -> Config {
        let mut config = self.config(dir);
        let direct = self.server.device_url(&self.device);
        let url = direct.replace(&self.address().to_string(), &way.to_string());
        config.common.nats_url = url.parse().unwrap();
        config
    }

    async fn agent_with(&self, config: Config, dir: TempDir, clock: Option<ManualClock>) -> Agent {
        let supervisor = Supervisor::new();
        let handle = match clock {
            Some(clock) => {
                muster_agent::app::start_with_clock(Arc::new(clock), config, &supervisor).await.unwrap()
            }
            None => muster_agent::start(config, &supervisor).await.unwrap(),
        };
        Agent { supervisor, handle, dir }
    }

    /// Every number is in UPLINK, each as one report, and only the first `head` of them.
    async fn holds_each(&self, head: u64) {
        let mut seqs: Vec<_> = self.uplink().await.iter().map(|report| report.seq().get()).collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
    }
}

async fn until_connected(agent: &Agent, connected: bool) {
    until("the link", async || agent.handle.is_connected(), |now| *now == connected).await;
}

async fn head(agent: &Agent) -> u64 {
    agent.handle.outbox().await.unwrap().head
}

async fn until_head(agent: &Agent, least: u64) {
    until("reports are written", async || head(agent).await, |head| *head >= least).await;
}

/// A device behind a proxy, with pings for that, finds within two heartbeats that the link goes silent, and keeps storing reports;
/// once the link is whole, UPLINK has every number.
async fn found_within_two_heartbeats(silence: Condition) {
    const HEARTBEAT: Duration = Duration::from_secs(4);
    let hub = Hub::start().await;
    let link = Link::open(hub.address()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The link answers at the device's end whatever it does with the bytes, as a proxy would: only pings find that.
    let config =
        Config { heartbeat: HEARTBEAT, ping: Some(HEARTBEAT / 2), ..hub.config_by(link.address(), &dir) };
    let agent = hub.agent_with(config, dir, None).await;
    hub.desire(&document(1, &[("a", 1, restless())])).await;
    hub.until("a", 1, State::Failed).await;

    link.set(silence);
    let broken = Instant::now();
    let written = head(&agent).await;
    until_connected(&agent, false).await;
    let found = broken.elapsed();
    assert!(found <= 2 * HEARTBEAT, "found after {found:?}");
    // Reports written since then arrived if, and only if, the way up was whole.
    let newest = hub.uplink().await.iter().map(|report| report.seq().get()).max();
    let arrives = silence == Condition::HalfOpen(Direction::Down);
    assert_eq!(newest > Some(written), arrives, "{newest:?} has arrived, {written} were written before");
    assert_eq!(link.swallowed() > 0, matches!(silence, Condition::HalfOpen(_)));

    until_head(&agent, head(&agent).await + 10).await;
    link.set(Condition::Open);
    until_connected(&agent, true).await;
    hub.desire(&document(2, &[])).await;
    hub.until("a", 2, State::Removed).await;
    let head = head(&agent).await;
    agent.until_all_sent(head).await;
    hub.holds_each(head).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_link_is_found_within_two_heartbeats_and_loses_nothing() {
    found_within_two_heartbeats(Condition::Stalled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_drops_a_devices_messages_is_found_within_two_heartbeats() {
    found_within_two_heartbeats(Condition::HalfOpen(Direction::Up)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_drops_the_hubs_answers_is_found_within_two_heartbeats() {
    found_within_two_heartbeats(Condition::HalfOpen(Direction::Down)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_only_pings_gets_a_new_client_and_no_loss() {
    let hub = Hub::start().await;
    let way = Mute::open(hub.address()).await;
    let dir = tempfile::tempdir().unwrap();
    // Reads often, so that the silence is soon found.
    let config = Config { poll: Some(Duration::from_millis(100)), ..hub.config_by(way.address, &dir) };
    let agent = hub.agent_with(config, dir, None).await;
    hub.desire(&document(1, &[("a", 1, restless())])).await;
    hub.until("a", 1, State::Failed).await;
    assert_eq!(way.connections(), 1);

    way.mute();
    // Reports under way and later ones are stored, but the agent gets no answer.
    let before = hub.uplink().await.len();
    until("reports get through", || hub.uplink(), |reports: &Vec<Report>| reports.len() > before).await;
    let message =
        Outgoing::new(subjects::desired(&hub.device), serde_json::to_vec(&document(2, &[])).unwrap());
    soon("a stored document", hub.bus.publish(message)).await.unwrap();
    until("another connection", async || way.connections(), |count| *count == 2).await;
    hub.until("a", 2, State::Removed).await;
    let head = head(&agent).await;
    agent.until_all_sent(head).await;
    hub.holds_each(head).await;
    agent.end().await;
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_downtime_nothing_is_sent_and_afterwards_everything() {
    let hub = Hub::start().await;
    let link = Link::open(hub.address()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = hub.config_by(link.address(), &dir);
    // Short enough that nothing counts as unconfirmed for too long.
    config.schedule.downtime.push("02:00-02:05 UTC".parse().unwrap());
    let clock = ManualClock::at(at("2026-11-21T01:59:00Z"));
    let agent = hub.agent_with(config, dir, Some(clock.clone())).await;
    hub.desire(&document(1, &[("a", 1, restless())])).await;
    hub.until("a", 1, State::Failed).await;

    clock.set(at("2026-11-21T02:00:00Z"));
    until_connected(&agent, false).await;
    let (connections, stored) = (link.connections(), hub.uplink().await.len());
    until_head(&agent, head(&agent).await + 20).await;
    assert_eq!(link.connections(), connections, "no connection attempt");
    assert_eq!(hub.uplink().await.len(), stored);
    assert!(agent.supervisor.failure().is_none());

    clock.set(at("2026-11-21T02:05:00Z"));
    hub.desire(&document(2, &[])).await;
    hub.until("a", 2, State::Removed).await;
    let head = head(&agent).await;
    agent.until_all_sent(head).await;
    hub.holds_each(head).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_started_offline_runs_its_last_accepted_state() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(1, &[("a", 1, restless())])).await;
    hub.until("a", 1, State::Failed).await;
    let dir = agent.end().await;
    let mut config = hub.config(&dir);
    config.schedule.downtime.push("02:00-03:00 UTC".parse().unwrap());
    let clock = ManualClock::at(at("2026-11-21T02:30:00Z"));
    let agent = hub.agent_with(config, dir, Some(clock)).await;
    let before = head(&agent).await;
    until_head(&agent, before + 10).await;
    assert!(!agent.handle.is_connected());
    soon("an end in order", agent.end()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_polling_hours_reports_flow_and_no_desired_state_is_accepted() {
    let hub = Hub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = hub.config(&dir);
    config.poll = Some(Duration::from_millis(200));
    config.schedule.polling.push("22:00-06:00 UTC".parse().unwrap());
    let clock = ManualClock::at(at("2026-11-21T23:00:00Z"));
    let agent = hub.agent_with(config, dir, Some(clock.clone())).await;
    hub.desire(&document(1, &[("a", 1, restless())])).await;
    hub.until("a", 1, State::Failed).await;

    clock.set(at("2026-11-22T06:00:00Z"));
    until("the hours are over", async || agent.handle.phase(), |phase| *phase == SchedulePhase::Quiet).await;
    hub.desire(&document(2, &[])).await;
    // Several reads later, by the reports meanwhile.
    let seen = hub.uplink().await.len();
    until("reports flow", || hub.uplink(), |reports: &Vec<Report>| reports.len() >= seen + 60).await;
    assert_eq!(agent.handle.generation(), 1, "nothing new is taken");

    clock.set(at("2026-11-22T22:00:00Z"));
    hub.until("a", 2, State::Removed).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_poll_interval_says_how_often_a_device_asks_for_what_it_shall_run() {
    /// Reads that pushed documents cause.
    const PUSHED_READS_MAX: usize = 5;
    for (poll, often) in [(Duration::from_millis(100), true), (Duration::from_secs(60 * 60), false)] {
        let hub = Hub::start().await;
        let asked = format!("$JS.API.DIRECT.GET.DOWNLINK.{}", subjects::desired(&hub.device));
        let mut requests = hub.bus.subscribe(&asked).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = Config { poll: Some(poll), ..hub.config(&dir) };
        let agent = hub.agent_with(config, dir, None).await;
        soon("the first read", requests.next()).await.unwrap();
        hub.desire(&document(1, &[("a", 1, restless())])).await;
        hub.until("a", 1, State::Failed).await;
        // A pushed document causes one more read; from here on only the interval does.
        let seen = hub.uplink().await.len();
        until("reports flow", || hub.uplink(), |reports: &Vec<Report>| reports.len() >= seen + 60).await;
        if often {
            for _ in 0..=PUSHED_READS_MAX {
                soon("another read", requests.next()).await.unwrap();
            }
        } else {
            let mut reads = 0;
            while let Ok(read) = tokio::time::timeout(Duration::from_millis(1), requests.next()).await {
                assert!(read.is_some());
                reads += 1;
            }
            assert!(reads <= PUSHED_READS_MAX, "{reads} reads at an interval of {poll:?}");
        }
        agent.end().await;
    }
}
