//! How fast a long backlog goes up: from a device's outbox through the agent's own relay into UPLINK, beside two raw
//! pipelined publishes of the very same messages with the same window, which are in memory from the start: the one of the
//! client's library, which is what a program without Muster would do, and the agent's own window with nothing around it.
//! All run in turn on fresh servers, and a ratio is the middle one of the rounds, because machines are shared and noisy.
//! And what an agent costs: bytes on the wire for a report, and memory while nothing happens. It measures; it asserts only
//! that nothing was lost.
//!
//! `make bench`; `BENCH_BACKLOG=200000 BENCH_ROUNDS=5 make bench` for other sizes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod library;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_bus::{Bus, BusConfig, Outgoing, Start};
use muster_contract::limits::IN_FLIGHT_MAX;
use muster_contract::subjects::{self, stream};
use muster_contract::{State, Timestamp};
use muster_simulator::child::{Child, Spec};
use muster_tests::backlog::Backlog;
use muster_tests::bench::{self, HubKind, ratio, say, setting, thousands};
use muster_tests::load;
use muster_tests::server::{Server, device};
use muster_tests::streams::keep_all_of_uplink;
use muster_tests::system::program;
use muster_tests::thin::Thin;
use tokio_util::sync::CancellationToken;

/// Reports of one round.
const BACKLOG_DEFAULT: usize = 100_000;
/// Rounds of each side.
const ROUNDS_DEFAULT: usize = 5;
/// Deployments they are about.
const DEPLOYMENTS: usize = 8;
/// Reports by which the cost on the wire is measured, over a link that holds nobody up.
const WIRE_REPORTS: usize = 10_000;
const WIDE_BITS_A_SECOND: u64 = 1_000_000_000;
/// Reports sent alone, each after the answer to the one before.
const ALONE_REPORTS: usize = 100;
/// A link faster than most that devices have, and the reports that are sent over it.
const LINK_BITS_A_SECOND: u64 = 10_000_000;
const LINK_REPORTS: usize = 10_000;
/// Time until an agent that has started is idle.
const SETTLING: Duration = Duration::from_secs(3);
/// Time anything may take.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let backlog = setting("BENCH_BACKLOG", BACKLOG_DEFAULT);
    let rounds = setting("BENCH_ROUNDS", ROUNDS_DEFAULT).max(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let [mut loopback, mut link] = [Rates::default(), Rates::default()];
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}"));
        runtime.block_on(loopback.measure(backlog, None));
        runtime.block_on(link.measure(backlog.min(LINK_REPORTS), Some(LINK_BITS_A_SECOND)));
    }
    let table = table(backlog, rounds, &loopback, &link);
    let packed: Vec<f64> = (0..rounds).map(|_| runtime.block_on(packed(backlog))).collect();
    let packed = format!("In batches: {} reports a second over loopback.", thousands(&packed));
    let (single, batches) = runtime.block_on(async { (wire(false).await, wire(true).await) });
    let alone = runtime.block_on(async { [alone(false).await, alone(true).await].join("\n") });
    let memory = runtime.block_on(memory());
    let text = [table, String::new(), packed, single, batches, alone, memory].join("\n");
    bench::tell(HubKind::Open, &text)
}

/// Rates of all sides, in reports a second, round by round.
#[derive(Default)]
struct Rates {
    library: Vec<f64>,
    window: Vec<f64>,
    relayed: Vec<f64>,
}

impl Rates {
    async fn measure(&mut self, backlog: usize, bits_a_second: Option<u64>) {
        let (rate, messages) = replay(backlog, bits_a_second).await;
        self.relayed.push(rate);
        self.library.push(library::publish(messages.clone(), bits_a_second).await);
        self.window.push(publish(messages, bits_a_second).await);
    }

    fn line(&self, name: &str) -> String {
        let [library, window] = [&self.library, &self.window];
        let ratios = [library, window].map(|base| format!("{:.2}", ratio(&self.relayed, base)));
        let rates = [library, window, &self.relayed].map(|rates| thousands(rates));
        format!("| {name} | {} | {} |", rates.join(" | "), ratios.join(" | "))
    }
}

/// The way to a server, over a link of so many bits a second if there is one; the link ends with what is given.
async fn way(server: &Server, bits_a_second: Option<u64>) -> (BusConfig, Option<Thin>) {
    let settings = server.device_config(&device("press-4"));
    let Some(bits) = bits_a_second else { return (settings, None) };
    let thin = Thin::open((Ipv4Addr::LOCALHOST, server.port()).into(), bits).await;
    (BusConfig { url: format!("nats://{}", thin.address()), ..settings }, Some(thin))
}

async fn converged(server: &Server) -> Bus {
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    // Nobody takes the reports here, so a device's share would be full soon.
    keep_all_of_uplink(&bus).await;
    bus
}

/// Messages a second from the outbox, and the messages.
async fn replay(backlog: usize, bits_a_second: Option<u64>) -> (f64, Vec<Outgoing>) {
    let server = Server::start();
    let bus = converged(&server).await;
    let device = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    device.tell_history(backlog).await;
    let reports = device.summary().await.unsent;
    let (settings, _link) = way(&server, bits_a_second).await;
    let begin = Instant::now();
    let sender = device.send(settings, None);
    stored(&bus, reports, begin).await;
    let rate = reports as f64 / begin.elapsed().as_secs_f64();
    sender.end().await;
    assert_eq!(device.summary().await.unsent, 0, "what is stored is noted");
    (rate, messages(&bus, &device, reports as usize).await)
}

/// Messages a second, made before the clock starts, over a window of the same size; all sides have yet to connect.
async fn publish(messages: Vec<Outgoing>, bits_a_second: Option<u64>) -> f64 {
    let server = Server::start();
    let bus = converged(&server).await;
    let count = messages.len();
    let (settings, _link) = way(&server, bits_a_second).await;
    let begin = Instant::now();
    let sender = Bus::connect(settings, &CancellationToken::new()).await.unwrap();
    load::send(&sender, IN_FLIGHT_MAX, messages).await;
    stored(&bus, count as u64, begin).await;
    count as f64 / begin.elapsed().as_secs_f64()
}

/// Reports a second from the outbox to a hub that reads batches.
async fn packed(backlog: usize) -> f64 {
    let server = Server::start();
    let _bus = converged(&server).await;
    let device = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    device.tell_history(backlog).await;
    device.hub_reads_batches().await;
    let reports = device.summary().await.unsent;
    let begin = Instant::now();
    let sender = device.send(way(&server, None).await.0, None);
    all_sent(&device, begin).await;
    let rate = reports as f64 / begin.elapsed().as_secs_f64();
    sender.end().await;
    rate
}

/// Waits until UPLINK has confirmed every report. The outbox learns of it at most a tenth of a second later.
async fn all_sent(device: &Backlog, begin: Instant) {
    while device.summary().await.unsent > 0 {
        assert!(begin.elapsed() < PATIENCE, "the reports are not sent after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Writes reports of all deployments in turn, each round 37 ms after the one before: on the wire times differ as on a device.
async fn tell_over_time(device: &Backlog, reports: usize) {
    let begin = Timestamp::now();
    for round in 0..reports / DEPLOYMENTS {
        let at = begin.checked_add(Duration::from_millis(37 * round as u64)).unwrap();
        let state = [State::Installing, State::Failed][round % 2];
        device.tell(at, (0..DEPLOYMENTS).map(|deployment| (deployment, state))).await;
    }
}

/// The cost of a report on the wire, connecting included, alone or in batches.
async fn wire(in_batches: bool) -> String {
    let server = Server::start();
    let bus = converged(&server).await;
    let device = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    tell_over_time(&device, WIRE_REPORTS).await;
    let reports = device.summary().await.unsent;
    let (settings, thin) = way(&server, Some(WIDE_BITS_A_SECOND)).await;
    let thin = thin.expect("a link was asked for");
    if in_batches {
        device.hub_reads_batches().await;
    }
    let sender = device.send(settings, None);
    all_sent(&device, Instant::now()).await;
    sender.end().await;
    let count = bus.stream_state(stream::UPLINK).await.unwrap().messages;
    let payload: usize =
        messages(&bus, &device, count as usize).await.iter().map(|sent| sent.payload.len()).sum();
    let each = |bytes: u64| bytes as f64 / reports as f64;
    let (up, down) = thin.bytes();
    format!(
        "On the wire a report of a long backlog in {count} messages costs {:.1} bytes up, {:.1} of them its payload, and \
         {:.1} down.",
        each(up),
        each(payload as u64),
        each(down)
    )
}

/// The bytes on the wire of a report sent alone, without those of connecting.
async fn alone(hub_has_dictionary: bool) -> String {
    let server = Server::start();
    let bus = converged(&server).await;
    let device = Backlog::new(device("press-4"), DEPLOYMENTS).await;
    let (settings, thin) = way(&server, Some(WIDE_BITS_A_SECOND)).await;
    let thin = thin.expect("a link was asked for");
    if hub_has_dictionary {
        device.hub_reads_batches().await;
    }
    let sender = device.send(settings, None);
    all_sent(&device, Instant::now()).await;
    let (before, begin) = (thin.bytes(), Timestamp::now());
    for at in 0..ALONE_REPORTS {
        let observed = begin.checked_add(Duration::from_millis(37_137 * at as u64)).unwrap();
        let state = [State::Installing, State::Installed, State::Failed][at % 3];
        device.tell(observed, [(at % DEPLOYMENTS, state)]).await;
        all_sent(&device, Instant::now()).await;
    }
    let after = thin.bytes();
    sender.end().await;
    let count = bus.stream_state(stream::UPLINK).await.unwrap().messages;
    let payload: usize =
        messages(&bus, &device, count as usize).await.iter().map(|sent| sent.payload.len()).sum();
    let each = |bytes: u64| bytes as f64 / ALONE_REPORTS as f64;
    format!(
        "On the wire a report that goes alone to a hub {} the dictionary costs {:.1} bytes up and {:.1} down; its payload has {:.1}.",
        if hub_has_dictionary { "with" } else { "without" },
        each(after.0 - before.0),
        each(after.1 - before.1),
        payload as f64 / count as f64
    )
}

/// Resident memory of an agent that is connected and has nothing to do.
async fn memory() -> String {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let bus = converged(&server).await;
    let (url, data) = (server.url(), dir.path().join("agent").display().to_string());
    let args = ["--nats-url", &url, "--data-dir", &data, "--site", "plant7", "--device", "press-4"];
    let args =
        args.into_iter().chain(["--runtime", "simulated", "--heartbeat", "1s"]).map(str::to_owned).collect();
    let spec = Spec { name: "muster-agent".to_owned(), program: program("muster-agent"), args };
    let _agent = Child::start(spec, dir.path()).unwrap();
    stored(&bus, 1, Instant::now()).await;
    tokio::time::sleep(SETTLING).await;
    // The lock says which process holds it.
    let pid = std::fs::read_to_string(dir.path().join("agent/agent.lock")).unwrap_or_default();
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("unknown").trim();
    format!("An idle agent has {resident} of resident memory.")
}

async fn stored(bus: &Bus, reports: u64, begin: Instant) {
    while bus.stream_state(stream::UPLINK).await.unwrap().messages < reports {
        assert!(begin.elapsed() < PATIENCE, "the reports are not in after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The messages of UPLINK, as they were sent.
async fn messages(bus: &Bus, backlog: &Backlog, count: usize) -> Vec<Outgoing> {
    let subject = subjects::report(&backlog.device);
    let mut replay = bus.replay(stream::UPLINK, &[], Start::First).await.unwrap();
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        let batch = tokio::time::timeout(PATIENCE, replay.next_batch(1_000)).await.expect("UPLINK goes on");
        messages.extend(batch.unwrap().into_iter().map(|delivery| Outgoing {
            headers: delivery.headers,
            ..Outgoing::new(subject.clone(), delivery.payload)
        }));
    }
    messages
}

fn table(backlog: usize, rounds: usize, loopback: &Rates, link: &Rates) -> String {
    let of_link = format!("{} over {} Mbit/s", backlog.min(LINK_REPORTS), LINK_BITS_A_SECOND / 1_000_000);
    [
        format!(
            "{IN_FLIGHT_MAX} reports under way; median of {rounds} rounds (spread = (max - min) / median)"
        ),
        String::new(),
        "| reports/s into UPLINK | the library's publish | the window alone | outbox and relay | of the library | of the window |"
            .to_owned(),
        "|---|---:|---:|---:|---:|---:|".to_owned(),
        loopback.line(&format!("{backlog} over loopback, server and device on the same cores")),
        link.line(&of_link),
    ]
    .join("\n")
}
