//! Clusters for tests of the agent's runtime: [`double`], a scripted API server, and [`real`], one that is built from Debian's
//! sources; [`device`], a runtime on either; and [`charts`] to install.
//!
//! The scripted server has faults that a real one rarely has. It lacks the checks of a real one: no defaults, no admission, no
//! field managers except the conflicts that a test sets.

pub mod charts;
pub mod device;
pub mod double;
pub mod real;

use std::time::Duration;

/// Time limit of every wait in these tests, far above the expected time.
pub const DEADLINE: Duration = Duration::from_secs(60);
