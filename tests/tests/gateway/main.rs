//! The gateway as a process before a whole system: REST, events, pages, changes, login, attacks, and a real browser.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is the test's result")]

mod attempts;
mod browser;
mod client;
mod emco;
mod emco_plans;
mod events;
mod grpc;
mod grpc_attempts;
mod grpc_client;
mod grpc_entries;
mod grpc_instances;
mod grpc_notify;
mod grpc_python;
mod login;
mod login_approver;
mod login_attempts;
mod login_oidc;
mod openapi;
mod packages;
mod pages;
mod plan_pages;
mod planning;
mod quarantine_page;
mod receiver;
mod refusals;
mod rest;
mod rollouts;
mod walk_through;
mod webhook_rules;
mod webhooks;

use std::net::SocketAddr;

use muster_simulator::child::Spec;
use muster_tests::server::free_port;
use muster_tests::story;
use muster_tests::system::{GATEWAY, System, program};

use client::get;

const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

/// A system with two devices that run `web`, and a gateway before it that serves.
async fn served() -> (System, SocketAddr) {
    let mut system = System::start().await;
    story::settled(&mut system, &DEVICES, "web").await;
    let addr = start_gateway(&mut system).await;
    (system, addr)
}

/// Starts a gateway, and waits until it shows the fleet.
async fn start_gateway(system: &mut System) -> SocketAddr {
    start_gateway_as(system, GATEWAY, &[]).await
}

/// The same under a process name and with more settings.
async fn start_gateway_as(system: &mut System, name: &str, more: &[&str]) -> SocketAddr {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (url, own) = (system.server.url(), addr.to_string());
    let args = ["--nats-url", &url, "--insecure-http", "--people-addr", &own];
    let args = args.iter().chain(more).map(|word| (*word).to_owned()).collect();
    system.start_own(Spec { name: name.to_owned(), program: program(GATEWAY), args });
    system
        .eventually("the gateway shows the fleet", async || match get(addr, "/").await {
            Ok(answer) if answer.status == 200 && answer.body.contains("/deployments/web") => Ok(()),
            Ok(answer) => Err(format!("{} {}", answer.status, answer.body)),
            Err(error) => Err(error.to_string()),
        })
        .await;
    addr
}
