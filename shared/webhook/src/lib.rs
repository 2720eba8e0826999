//! Posts to https addresses that others choose: the checks of waves (muster-planner) and webhooks (muster-gateway).
//!
//! [`client`] connects only to addresses that it has judged itself (`address`), follows no redirect, and reads a bounded answer.
//! [`signature`] computes what a receiver verifies. The crate decides neither what is posted nor when.

mod address;
pub mod client;
pub mod signature;

pub use client::{Answer, Client, PostError, SetupError};
