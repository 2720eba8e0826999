//! The publisher between a real Git repository and a real nats-server: what DOWNLINK holds after what was committed,
//! asked for, broken off and started again.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod commits;
mod crashes;
mod foreign;
mod hanging;
mod ledger;
mod recovery;
mod renewal;
mod requests;
mod stage;
