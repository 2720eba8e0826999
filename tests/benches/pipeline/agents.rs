//! Agents beside the load: real outboxes on a real disk, and the agent's own way up. Their clock starts before a report is
//! kept, so what they measure is the whole way from a change on a device to a view.

use std::time::{Duration, Instant};

use muster_bus::Bus;
use muster_contract::decode::to_bytes;
use muster_contract::{Timestamp, subjects};
use muster_tests::backlog::{Backlog, Sender};
use muster_tests::server::Server;

use muster_tests::load::{self, DEVICES, EVENTS_PER_SECOND, LATENCY_EVENTS};

/// Agents: as many as make every twentieth of all events.
pub(crate) const AGENTS: usize = DEVICES / 20;
/// Reports of each: as often as a device of the load, for as long.
const REPORTS: usize = LATENCY_EVENTS / DEVICES;
const EVERY: Duration = Duration::from_millis((DEVICES * 1000 / EVENTS_PER_SECOND) as u64);
/// Reports of all agents.
pub(crate) const EVENTS: usize = AGENTS * REPORTS;
/// The first of those, which are not counted.
pub(crate) const WARM_UP_EVENTS: usize = 2 * AGENTS;

/// An agent and its way up.
pub(crate) struct Agent {
    /// Its place after the devices of the load.
    at: usize,
    outbox: Backlog,
    sender: Sender,
}

/// Agents that are connected, with their desired states published.
pub(crate) async fn start(server: &Server, bus: &Bus) -> Vec<Agent> {
    let mut agents = Vec::with_capacity(AGENTS);
    for at in DEVICES..DEVICES + AGENTS {
        let outbox = Backlog::running(load::device(at), std::iter::once(format!("app-{at}"))).await;
        let desired = (subjects::desired(&outbox.device), to_bytes(&*outbox.desired).into());
        load::publish_desired(bus, vec![desired]).await;
        let mut sender = outbox.send(server.device_config(&outbox.device), None);
        let connected = sender.connected.wait_for(Option::is_some);
        tokio::time::timeout(load::PATIENCE, connected).await.expect("an agent connects").unwrap();
        agents.push(Agent { at, outbox, sender });
    }
    agents
}

impl Agent {
    /// Sends reports at an even rate and calls `note` just before each is stored. Returns when each store began, and how long it
    /// took.
    pub(crate) async fn report(self, mut note: impl FnMut(usize, usize)) -> Vec<(Instant, Duration)> {
        let mut kept = Vec::with_capacity(REPORTS);
        // Not all at the same moment.
        let lag = EVERY.mul_f64((self.at - DEVICES) as f64 / AGENTS as f64);
        let begin = tokio::time::Instant::now() + lag;
        for nth in 0..REPORTS {
            tokio::time::sleep_until(begin + EVERY * nth as u32).await;
            note(self.at, nth);
            let begin = Instant::now();
            self.outbox.tell(Timestamp::now(), [(0, load::state(nth))]).await;
            kept.push((begin, begin.elapsed()));
        }
        tokio::time::sleep(EVERY).await;
        self.sender.end().await;
        kept
    }
}
