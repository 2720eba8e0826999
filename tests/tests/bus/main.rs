//! The promises of `shared/bus`, tested on a real nats-server. One program, so that it is linked once.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod batch;
mod connect;
mod credentials;
mod partition;
mod publish;
mod replay;
mod rights;
mod serve;
mod topology;
mod views;

use muster_bus::{Bus, BusConfig, Delivery, Outgoing};
use muster_contract::DeviceKey;
use muster_contract::subjects;
use muster_tests::server::Server;
use muster_tests::streams::keep_all_of_uplink;
use muster_tests::wait::soon;
use tokio_util::sync::CancellationToken;

/// A connection; fails the test without one.
async fn connect(config: BusConfig) -> Bus {
    soon("a connection", Bus::connect(config, &CancellationToken::new())).await.unwrap()
}

/// A server with the contract's streams, and a service connected to it.
async fn converged(server: &Server) -> Bus {
    let bus = connect(server.config("test")).await;
    soon("the topology", bus.converge()).await.unwrap();
    bus
}

/// The same with an UPLINK that keeps everything, for tests of publishing.
async fn keeping_all(server: &Server) -> Bus {
    let bus = converged(server).await;
    keep_all_of_uplink(&bus).await;
    bus
}

/// Kills the server and starts it again; returns when the bus is connected to the new one.
async fn crash(server: &mut Server, bus: &Bus) {
    let mut link = bus.link();
    let before = *link.borrow_and_update();
    server.kill();
    server.restart();
    soon("another connection", link.wait_for(|now| now.is_up() && *now != before)).await.unwrap();
}

/// A numbered report of a device.
fn report(key: &DeviceKey, number: u64) -> Outgoing {
    Outgoing::new(subjects::report(key), number.to_string())
}

/// The number in a report.
fn number(delivery: &Delivery) -> u64 {
    std::str::from_utf8(&delivery.payload).unwrap().parse().unwrap()
}
