//! Clusters for tests of the agent's runtime: [`double`], an API server that is scripted, and [`real`], one that is built from
//! Debian's sources; [`device`], a runtime on either; and [`charts`] to install.
//!
//! The scripted one shows faults that a real one rarely has. It checks nothing that a real one checks: no defaults, no
//! admission, no field managers beside the names of conflicts that a test sets.

pub mod charts;
pub mod device;
pub mod double;
pub mod real;

use std::time::Duration;

/// Time in which every fact of these tests has long come true.
pub const DEADLINE: Duration = Duration::from_secs(60);
