//! The bare hops: the same streams, consumers and batches as Muster's, and nothing in between. Messages have
//! no headers, Muster's headers, or Muster's headers up to 0.1. The last hop reads LEDGER as the rollup does, without a filter.

use std::time::{Duration, Instant};

use fastrand::Rng;
use muster_bus::event::Trace;
use muster_bus::{Bus, BusConfig, Delivery, Outgoing, Replay, Start};
use muster_contract::limits::PARTITIONS;
use muster_contract::subjects::{LedgerSubject, origin, stream};
use muster_tests::envelope::{Carry, Fence};
use muster_tests::server::Server;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use muster_tests::load::{self, Fleet, LATENCY_EVENTS, Latency, PATIENCE, WINDOW};

const BATCH: usize = 512;

struct Hops {
    bus: Bus,
    facts: Replay,
    relays: JoinSet<()>,
    _server: Server,
}

async fn hops(carry: Carry) -> Hops {
    let server = Server::start();
    let config = BusConfig::service(server.url(), "bench");
    let bus = Bus::connect(config.clone(), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    let mut relays = JoinSet::new();
    // As Muster does, the relay has a connection of its own.
    let relay_bus = Bus::connect(config, &CancellationToken::new()).await.unwrap();
    for partition in 0..PARTITIONS {
        relays.spawn(Relay::new(relay_bus.clone(), partition, carry).await.run());
    }
    let facts = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    Hops { bus, facts, relays, _server: server }
}

/// One partition: consume, publish, acknowledge what is stored.
struct Relay {
    bus: Bus,
    partition: u16,
    carry: Carry,
    fence: Fence,
    chance: Rng,
}

impl Relay {
    async fn new(bus: Bus, partition: u16, carry: Carry) -> Self {
        let record = Outgoing::new(LedgerSubject::Owner { partition, fence: 0 }.to_string(), "bench");
        let sequence = bus.publish(record).await.unwrap().sequence;
        Self { bus, partition, carry, fence: Fence::of(partition, sequence), chance: Rng::new() }
    }

    async fn run(mut self) {
        let mut reports = self.bus.partition(self.partition).await.unwrap();
        let mut window = self.bus.window(WINDOW);
        loop {
            let batch = reports.next_batch(BATCH).await.unwrap();
            let Some(last) = batch.last().cloned() else { continue };
            for delivery in batch {
                window.send(self.fact(delivery), ()).await;
            }
            while let Some((_, stored)) = window.next().await {
                stored.unwrap();
            }
            last.ack_all().await;
        }
    }

    fn fact(&mut self, delivery: Delivery) -> Outgoing {
        let device = origin(&delivery.subject).unwrap().device.unwrap();
        let subject = format!("muster.status.{}.{}.bench", device.site, device.device);
        let with = (&self.fence, Trace::carried(&delivery.headers));
        self.carry.fact(subject, delivery.payload, with, &mut self.chance)
    }
}

/// Events per second over the hops.
pub(crate) async fn throughput(carry: Carry, reports: usize) -> f64 {
    let mut hops = hops(carry).await;
    let messages = load::reports(Fleet::Different, 1, reports);
    let begin = Instant::now();
    let publishing = tokio::spawn({
        let bus = hops.bus.clone();
        async move { load::publish(&bus, carry, messages).await }
    });
    let mut seen = 0;
    while seen < reports {
        let batch =
            tokio::time::timeout(PATIENCE, hops.facts.next_batch(BATCH)).await.expect("the hops carry");
        seen += batch.unwrap().iter().filter(|fact| is_status(fact)).count();
    }
    let rate = reports as f64 / begin.elapsed().as_secs_f64();
    publishing.await.unwrap();
    hops.relays.shutdown().await;
    rate
}

/// Latency from publish to the reader of the last hop.
pub(crate) async fn latency(carry: Carry) -> Latency {
    let mut hops = hops(carry).await;
    let (sent, mut sent_at) = tokio::sync::mpsc::unbounded_channel();
    let sending = tokio::spawn({
        let bus = hops.bus.clone();
        async move {
            paced(&bus, carry, 1, |_, _| sent.send(Instant::now()).unwrap()).await;
        }
    });
    let mut samples = Vec::with_capacity(LATENCY_EVENTS);
    // Facts come in the order of each partition, not of sending: the payload says which event it is.
    let mut begins = Vec::with_capacity(LATENCY_EVENTS);
    while samples.len() < LATENCY_EVENTS {
        let batch = tokio::time::timeout(PATIENCE, hops.facts.next_batch(BATCH))
            .await
            .expect("the hops carry")
            .unwrap();
        let now = Instant::now();
        while let Ok(at) = sent_at.try_recv() {
            begins.push(at);
        }
        let facts = batch.iter().filter(|fact| is_status(fact));
        let sent = facts.map(|fact| begins[event_of(&fact.subject, &fact.payload)]);
        samples.extend(sent.map(|at| (at, now - at)));
    }
    sending.await.unwrap();
    hops.relays.shutdown().await;
    Latency::of(samples, load::WARM_UP_EVENTS)
}

/// Whether a message is the fact of a status report: LEDGER also has records of owners.
fn is_status(delivery: &Delivery) -> bool {
    delivery.subject.starts_with("muster.status.")
}

fn event_of(subject: &str, payload: &[u8]) -> usize {
    let device = subject.split('.').nth(3).and_then(|token| token.strip_prefix("device-")).unwrap();
    let seq = muster_contract::decode::peek(payload).seq.unwrap();
    (seq as usize - 1) * load::DEVICES + device.parse::<usize>().unwrap()
}

/// Publishes the events of a latency measurement at an even rate, and calls `note` just before each.
pub(crate) async fn paced(bus: &Bus, carry: Carry, first: usize, mut note: impl FnMut(usize, usize)) {
    let (mut window, mut chance) = (bus.window(WINDOW), Rng::new());
    let begin = tokio::time::Instant::now();
    for event in 0..LATENCY_EVENTS {
        let due = begin + Duration::from_secs_f64(event as f64 / load::EVENTS_PER_SECOND as f64);
        tokio::time::sleep_until(due).await;
        let (at, nth) = (event % load::DEVICES, first + event / load::DEVICES);
        let (subject, payload) = load::report(Fleet::Different, at, nth);
        note(at, nth);
        window.send(carry.report(subject, payload, &mut chance), ()).await;
        while let Some((_, stored)) = window.try_next() {
            stored.unwrap();
        }
    }
    while let Some((_, stored)) = window.next().await {
        stored.unwrap();
    }
}
