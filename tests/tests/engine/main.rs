//! Tests that need a Docker engine: the fleet in containers as `compose/` has it, and the agent's compose runtime. `make test`
//! runs them if an engine answers, and reports them as not run otherwise; `.ci/run` requires them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
#![allow(clippy::print_stdout, reason = "how long things took is shown at the end of `make test`")]

/// Tests are left out by this name where there is no engine.
mod on_an_engine {
    mod device;
    mod fleet;
    mod observe;
    mod plan;
    mod refusals;
    mod runtime;
    mod sites;
}
