//! The Git source against real repositories and the real git command.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod mirror;
mod repository;
mod token;
