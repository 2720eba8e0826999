//! An ingest of a later time: to it everything that LEDGER holds is old, so it says again what still holds.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use muster_contract::Timestamp;
use muster_contract::limits::REASSERT_AFTER;
use muster_ingest::config::Cli;
use muster_service::clock::Clock;
use muster_service::supervisor::{Drained, Supervisor};

use crate::wait::soon;

/// Time it may take to drain.
const DRAIN: Duration = Duration::from_secs(20);

/// A clock that runs so far ahead that everything is old.
#[derive(Debug)]
pub struct Later;

impl Clock for Later {
    fn now(&self) -> Timestamp {
        Timestamp::now().checked_add(REASSERT_AFTER).unwrap()
    }
}

/// An ingest that goes by such a clock, in this process.
#[derive(Debug)]
pub struct LaterIngest(Supervisor);

impl LaterIngest {
    /// Starts it; there is no other.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub async fn start(url: &str) -> Self {
        let words = ["muster-ingest", "--nats-url", url, "--lease", "1s"];
        let (config, supervisor) = (Cli::try_parse_from(words).unwrap().check().unwrap(), Supervisor::new());
        soon("an ingest", muster_ingest::app::start_by(Arc::new(Later), config, &supervisor)).await.unwrap();
        Self(supervisor)
    }

    /// Ends it, with everything it has said in LEDGER.
    ///
    /// # Panics
    ///
    /// Where something is left.
    pub async fn end(self) {
        assert_eq!(self.0.drain(DRAIN).await, Drained::default());
    }
}
