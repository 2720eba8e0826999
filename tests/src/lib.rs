//! Shared parts of the end-to-end tests. Servers: [`server`], a real nats-server for one test; [`cluster`], three of them as
//! one; [`guarded`], a hub with real rights over [`tls`]; [`mod@hostile`], the same under attack; [`leaf`], a site with a
//! server of its own. Processes: [`system`], a whole system; [`command`], `muster` in this process; [`watching`], a watch
//! beside a system; [`reconnect`], a real agent that was offline for long; [`later`], an ingest whose clock is far ahead.
//! Data: [`story`], the content and awaited facts of whole systems, and their [`rollouts`]; [`backlog`], a device with many
//! waiting reports; [`mod@ledger`], a fleet whose reports are in LEDGER; [`envelope`], the headers of messages; [`facts`] for
//! simulations; [`thin`], a slow link; [`incidents`] that services report; [`schemas`], the documents of `schemas/` as the
//! code has them. Doubles: [`prometheus`], [`oci`] (a registry of packages), [`oidc`] (a login provider), [`kubernetes`]
//! (clusters), [`containers`] (the engine and a fleet on it), [`raw`], a client that keeps no rule. Tools: [`wait`],
//! [`golden`] files, [`answer`] (HTTP), [`streams`] changed behind their users, [`mod@not_run`], the tests that could not
//! run, [`python`] examples, [`schemathesis`], and [`mod@bench`], the measurements and their output, with their [`load`].
//!
//! Nothing here ships.

pub mod answer;
pub mod backlog;
pub mod bench;
pub mod cluster;
pub mod command;
pub mod containers;
pub mod envelope;
pub mod example;
pub mod facts;
pub mod golden;
pub mod guarded;
pub mod hostile;
pub mod incidents;
pub mod kubernetes;
pub mod later;
pub mod leaf;
pub mod ledger;
pub mod limits;
pub mod load;
pub mod monitor;
pub mod not_run;
pub mod oci;
pub mod oidc;
pub mod older;
pub mod plans;
pub mod prometheus;
pub mod python;
pub mod raw;
pub mod reconnect;
pub mod rollouts;
pub mod schemas;
pub mod schemathesis;
pub mod server;
pub mod story;
pub mod streams;
pub mod system;
pub mod thin;
pub mod tls;
pub mod wait;
pub mod watching;
