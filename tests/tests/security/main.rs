//! Attempts to exceed one's rights on the bus: each test is an attempt, against a real server with the rights that
//! `muster auth` gives. [`attempts`] by a device, by a site that has a server of its own ([`leaf`]), [`life`] of an
//! identity and its [`renewal`], [`command`] line, [`connections`] of one key and [`limits`] of accounts, every subject with
//! every reply ([`matrix`]) and with foreign [`replies`] to services, whom [`records`] of changes name, a whole [`fleet`], and
//! the mirrors that its [`keeper`] keeps, which the [`clients`] of people read in every way; foreign [`receipts`]; the same services
//! on a cluster ([`clustered`]) and on an [`open`] server; what one reader takes delays no other ([`shares`]); who may
//! decide about [`rollouts`], who puts and fetches [`packages`], who hears and answers [`checks`], who copies a hub ([`backup`]), and what is [`forbidden`] by a list written by hand.
//! Attempts over HTTP and gRPC need a gateway and are in `tests/tests/gateway` and `tests/tests/margo_api`; `tests/CLAIMS.md` lists all
//! attempts with their tests.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod attempts;
mod backup;
mod checks;
mod clients;
mod clustered;
mod command;
mod connections;
mod deliveries;
mod fleet;
mod forbidden;
mod headers;
mod keeper;
mod leaf;
mod life;
mod limits;
mod matrix;
mod mirrors;
mod open;
mod packages;
mod plans;
mod receipts;
mod records;
mod renewal;
mod renewer;
mod replies;
mod rollouts;
mod settings;
mod shares;
mod upgrade;

use muster_bus::{Bus, BusConfig};
use muster_tests::guarded::Guarded;
use muster_tests::wait::soon;
use tokio_util::sync::CancellationToken;

async fn connect(config: BusConfig) -> Bus {
    let stop = CancellationToken::new();
    soon("a connection", Box::pin(Bus::connect(config, &stop))).await.unwrap()
}

/// A connection of ingest, which sees to the streams, with PLANS, to which the planner's scheduler sees.
async fn ingest(hub: &Guarded) -> Bus {
    let scheduler = connect(hub.config(muster_identity::Role::Scheduler)).await;
    soon("PLANS", Box::pin(scheduler.converge_plans())).await.unwrap();
    let bus = connect(hub.config(muster_identity::Role::Ingest)).await;
    soon("the streams", Box::pin(bus.converge())).await.unwrap();
    bus
}
