//! Tests of the fold through its public functions. They are one test program, so that the helpers that they share are compiled once.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod changed;
mod changes;
mod doubt;
mod event_time;
mod failures;
mod fleets;
mod groups;
mod hearing;
mod history;
mod laws;
mod ledger;
mod lists;
mod merge;
mod moments;
mod naive;
mod notify;
mod retries;
mod scenarios;
mod silence;
mod situations;
mod status;
mod status_laws;
mod status_queries;
mod targets;
mod timeline;
mod tokens;
mod vectors;
mod why;
