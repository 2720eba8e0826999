//! The rollup: LEDGER in, what is true of every deployment, site and fleet out.
//!
//! ```text
//! LEDGER ─► consume ─► present ─┬─► publish ─► KV views
//!              ▲   (the fold)   ├─► query   ─► muster.query.* ◄─┐
//!              │                ├─► notify  ─► NOTICES          │
//!     store ───┘                └─► snapshot ─► store ─► history (the past)
//! ```
//!
//! [`monitor`] makes it a fact where the hub does not hear a partition, and tells how far the rollup is behind ([`lag`]).
//!
//! What people define themselves comes in by [`define`], lives in the bucket, and is followed by [`definitions`].
//!
//! Everything shown is a function of LEDGER up to a sequence. The snapshot in the data directory only saves reading
//! LEDGER from its start; it may be lost at any time, and is never believed when it does not fit.
//!
//! Reading order: [`consume`] (the corridor), [`present`] (what it leads to), [`publish`], [`query`] and [`notify`] (who
//! looks), [`snapshot`] and [`store`] (what survives a restart), [`history`] (what was true before), [`app`] (how it is put
//! together).

pub mod app;
mod bucket;
pub mod config;
pub mod consume;
pub mod define;
pub mod definitions;
pub mod error;
pub mod history;
mod incidents;
pub mod lag;
pub mod metrics;
pub mod monitor;
pub mod notify;
pub mod present;
pub mod progress;
pub mod publish;
pub mod query;
mod restore;
pub mod snapshot;
pub mod store;
