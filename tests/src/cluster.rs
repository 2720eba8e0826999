//! Three real nats-servers with routes between them: one JetStream that outlives the loss of any one.

use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use serde_json::{Value, json};

use crate::server::{Server, Setup, free_port};
use crate::wait::within;

/// Servers of a cluster.
pub const SERVERS: usize = 3;
/// How long an election may take, and a server's way back to what the others have, on a loaded machine.
pub const ELECTION_DEADLINE: Duration = Duration::from_secs(90);
/// How long a server may take to answer a question about itself.
const ANSWER: Duration = Duration::from_secs(2);

/// A cluster that ends with this value.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    /// A cluster that lets everyone do everything. Its first leader may still be to be found.
    pub fn start() -> Self {
        Self::start_with(|_| String::new())
    }

    /// A cluster whose servers have this in their configuration as well, by their number from 0.
    pub fn start_with(more: impl Fn(usize) -> String) -> Self {
        let ports: Vec<u16> = std::iter::repeat_with(free_port).take(SERVERS).collect();
        let routes: Vec<String> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let server = |(number, port): (usize, &u16)| {
            let own = more(number);
            let more = format!(
                "cluster {{ name: muster-test, listen: \"127.0.0.1:{port}\", routes: {routes:?} }}\n{own}"
            );
            Server::start_with(Setup { more, ..Setup::default() })
        };
        Self { servers: ports.iter().enumerate().map(server).collect() }
    }

    /// Where its servers listen, separated by commas.
    pub fn url(&self) -> String {
        self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }

    /// The ports of its servers, by their number.
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(Server::port).collect()
    }

    /// The names of its servers, by their number.
    pub fn names(&self) -> Vec<String> {
        self.servers.iter().map(Server::name).collect()
    }

    /// The settings of a service that makes streams with a copy on each server, reconnecting fast.
    pub fn config(&self, name: &str) -> BusConfig {
        BusConfig {
            reconnect_max: Duration::from_millis(100),
            replicas: SERVERS,
            ..BusConfig::service(self.url(), name)
        }
    }

    /// Kills the server of this name (SIGKILL).
    pub fn kill(&mut self, name: &str) {
        self.server(name).kill();
    }

    /// Starts the server of this name again.
    pub fn restart(&mut self, name: &str) {
        self.server(name).restart();
    }

    fn server(&mut self, name: &str) -> &mut Server {
        let found = self.servers.iter_mut().find(|server| server.name() == name);
        found.unwrap_or_else(|| panic!("no server is named {name}"))
    }
}

/// The server that leads a stream, or (`STREAM.CONSUMER`) a consumer; waits until there is one.
pub async fn leader(bus: &Bus, asset: &str) -> String {
    let leader = || async { about(bus, asset).await["cluster"]["leader"].as_str().map(str::to_owned) };
    within(ELECTION_DEADLINE, &format!("a leader of {asset}"), leader, Option::is_some)
        .await
        .unwrap_or_default()
}

/// Waits until every server has all of a stream or a consumer.
pub async fn whole(bus: &Bus, asset: &str) {
    let current = || async {
        let about = about(bus, asset).await;
        let others = about["cluster"]["replicas"].as_array().cloned().unwrap_or_default();
        others
            .iter()
            .filter(|other| other["current"] == json!(true) && other["offline"] != json!(true))
            .count()
    };
    within(ELECTION_DEADLINE, &format!("every copy of {asset}"), current, |count| *count == SERVERS - 1)
        .await;
}

/// The cluster's information about a stream or a consumer; null while it has no leader.
async fn about(bus: &Bus, asset: &str) -> Value {
    let verb = match asset.split_once('.') {
        Some((stream, consumer)) => format!("CONSUMER.INFO.{stream}.{consumer}"),
        None => format!("STREAM.INFO.{asset}"),
    };
    let answer = bus.request(&format!("$JS.API.{verb}"), "{}".into(), ANSWER).await;
    answer.ok().and_then(|answer| serde_json::from_slice(&answer).ok()).unwrap_or_default()
}
