//! The simulation: agent, ingest and rollup cores over a simulated bus, disk, clock and network, in virtual time.
//!
//! One seed makes one world ([`world`]): some devices ([`device`], [`relay`], [`machine`], [`link`]), a hub ([`hub`],
//! [`ingest`], [`consume`], [`rollup`], [`publisher`]), and bad weather ([`weather`], [`hostile`]) for a while. The law ([`law`]) is
//! asked after every event, and when the weather has cleared everything must come right by itself ([`calm`]).
//!
//! Beside the seeds, ingest is stopped between every two of its steps, none left out ([`kills`]).
//!
//! `SIM_SEEDS=5000` runs more seeds, `SIM_SEED=1234` exactly one, with all that happens in it printed.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod agenda;
mod calm;
mod consume;
mod device;
mod hostile;
mod hub;
mod ingest;
mod kills;
mod law;
mod link;
mod machine;
mod profile;
mod publisher;
mod relay;
mod rollup;
mod rows;
mod sabotage;
mod seeds;
mod weather;
mod world;
