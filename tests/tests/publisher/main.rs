//! The publisher between a real Git repository and a real nats-server: the documents in DOWNLINK after
//! commits, requests, crashes and restarts.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod commits;
mod crashes;
mod foreign;
mod hanging;
mod ledger;
mod recovery;
mod renewal;
mod requests;
mod rollouts;
mod stage;
