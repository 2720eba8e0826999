//! The rollup: it folds LEDGER into the state of every deployment, site and fleet, and serves that state.
//!
//! ```text
//! LEDGER ─► consume ─► projection ─┬─► publish ─► KV views
//!              ▲       (the fold)  ├─► query   ─► muster.query.* ◄─┐
//!              │                   ├─► notices ─► NOTICES          │
//!     store ───┘                   └─► snapshot ─► store ─► history (the past)
//! ```
//!
//! [`monitor`] records in LEDGER which partitions the hub does not hear, and measures the rollup's [`lag`]. [`define`]
//! accepts view definitions into a bucket, and [`definitions`] follows them.
//!
//! Every view and answer is a function of LEDGER up to a sequence. The snapshot in the data directory only saves reading
//! LEDGER from its start; it may be lost at any time, and a snapshot that does not fit is not used.
//!
//! Reading order: [`consume`], [`projection`], [`publish`], [`query`] and [`notices`] (the readers), [`snapshot`] and
//! [`store`] (persistence), [`history`] (the past), [`app`] (the wiring).

pub mod app;
mod bucket;
pub mod config;
mod consume;
mod define;
mod definitions;
mod error;
pub mod history;
mod incidents;
mod lag;
mod ledger;
pub mod metrics;
pub mod monitor;
mod notices;
pub mod progress;
pub mod projection;
pub mod publish;
mod query;
mod restore;
mod restored;
mod snapshot;
pub mod store;
