//! What the end-to-end tests share: [`server`], a real nats-server for one test, and
//! [`cluster`], three of them as one; [`system`], a whole system of processes; [`command`], `muster` in this one;
//! [`story`], what is told about one, and [`rollouts`] of one; [`guarded`], a hub with real rights over [`tls`], [`mod@hostile`], the same under
//! attack, and [`leaf`], a site with a server of its own; [`raw`], a client without scruples; [`answer`], an HTTP answer; [`containers`], the engine and a fleet on it; [`backlog`], a device with
//! much to tell, [`mod@ledger`], a fleet that has told it, [`envelope`], what its messages carry, [`facts`] for simulations, and
//! [`thin`], a link for it; [`reconnect`], a real agent that was offline for long;
//! [`wait`], waiting for facts; [`golden`] files; [`prometheus`], one that scrapes a fleet; [`oci`], a registry of packages; [`oidc`], a provider that people log in by; [`kubernetes`], clusters; [`mod@not_run`], what a test could not try; [`python`], examples in another language; [`schemas`], the documents of
//! `schemas/` as the code has them; [`streams`], changed behind the backs of those who use them; [`watching`], a watch that
//! runs beside a system; [`incidents`], what services report; [`later`], an ingest to which everything is old; and [`mod@bench`], what is measured and how it is told.
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
pub mod monitor;
pub mod not_run;
pub mod oci;
pub mod oidc;
pub mod older;
pub mod prometheus;
pub mod python;
pub mod raw;
pub mod reconnect;
pub mod rollouts;
pub mod schemas;
pub mod server;
pub mod story;
pub mod streams;
pub mod system;
pub mod thin;
pub mod tls;
pub mod wait;
pub mod watching;
