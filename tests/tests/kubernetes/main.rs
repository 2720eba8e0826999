//! The agent's runtime for clusters: `scripted` on an API server that is scripted, with faults that a real one rarely shows;
//! `real` on one that is built from Debian's sources, with its controllers and Helm's own library, and a test as the node.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod real;
mod scripted;
mod story;
