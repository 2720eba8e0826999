//! The simulation of rollouts: the real publisher and the real planner over a simulated hub, with people, commits, devices and
//! faults, in virtual time.
//!
//! One seed makes one world ([`world`]): the programs ([`programs`], [`tasks`]) whose calls go over a wire ([`wire`]) to the
//! streams ([`hub`]), a LEDGER that planners follow late ([`ledger`]), devices ([`device`]), a repository ([`repository`]),
//! people ([`people`]), and faults ([`fault_schedule`]). The law ([`law`], with the waves of a commit in [`members`] and its
//! own reading of LEDGER in [`oracle`]) is asked about every document and
//! every decision that DOWNLINK stores. After the last fault every rollout must end or say what it waits for ([`calm`]).
//!
//! Real are: the publisher's announcer, responder and reader of commits, the planner with its rules, and the fold. Simulated are
//! the bus, Git, ingest, agents, and time. A process dies at any await; [`kills`] lets it die at each of its writes in turn.
//!
//! `SIM_SEEDS=5000` runs more seeds, `SIM_SEED=1234` exactly one, with all that happens in it printed; `SIM_PARTS=1` counts all
//! in one summary.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod calm;
mod checks;
mod counts;
mod decisions;
mod device;
mod fault_schedule;
mod hub;
mod kills;
mod law;
mod ledger;
mod liveness;
mod members;
mod oracle;
mod order;
mod people;
mod policies;
mod programs;
mod releases;
mod repository;
mod seeds;
mod tasks;
mod wire;
mod world;
