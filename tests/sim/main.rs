//! The simulation: agent, ingest and rollup cores over a simulated bus, disk, clock and network, in virtual time.
//!
//! One seed makes one world ([`world`]): some devices ([`device`], [`relay`], [`machine`], [`link`]), a hub ([`hub`],
//! [`ingest`], [`consume`], [`session`], [`rollup`], [`monitor`], [`publisher`]), and faults ([`fault_schedule`], [`hostile`]) for
//! a while. In some worlds LEDGER is long at the beginning ([`history`]). The laws ([`law`], [`retries`], [`tallies`], [`verdicts`]) are checked after
//! every event; after the last fault every device and every view must recover by itself ([`calm`]).
//!
//! Real are: the agent's outbox and relay, ingest's session and intake, the rollup's fold, records and watch over pulses.
//! Simulated are the bus, disks, clocks, the network, and the drivers that carry out effects.
//!
//! Beside the seeds, two scripts end a process at every step ([`ends`]): ingest between every two effects of its session
//! ([`kills`]), and an agent between every two effects of its relay ([`agent_kills`]).
//!
//! `SIM_SEEDS=5000` runs more seeds, `SIM_SEED=1234` exactly one, with all that happens in it printed; `SIM_PARTS=1` counts all
//! in one summary.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod agenda;
mod agent_kills;
mod batches;
mod calm;
mod consume;
mod device;
mod ends;
mod fault_schedule;
mod former;
mod history;
mod hostile;
mod hub;
mod ingest;
mod kills;
mod law;
mod link;
mod machine;
mod monitor;
mod profile;
mod publisher;
mod quarantine;
mod relay;
mod restarts;
mod retries;
mod rollup;
mod rows;
mod sabotage;
mod seeds;
mod session;
mod snapshots;
mod tallies;
mod verdicts;
mod world;
