//! Tests of the agent's runtime for clusters: `scripted` on a scripted API server, with faults that a real one rarely has; `real` on
//! one that is built from Debian's sources, with its controllers and Helm's own library; `story` and `porch` in a whole system.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failure here is the test's result, and so are times"
)]

mod porch;
mod real;
mod scripted;
mod story;
