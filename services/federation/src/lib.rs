//! The federation: several hubs in, each with a group of sites, views of all of them out.
//!
//! ```text
//! hub north ─► hub ─┐                   ┌─► write ─► KV views of the top
//! hub south ─► hub ─┼─► merged ─────────┤
//!    …              │  (the parts of    └─► desk  ─► muster.query.* of the top
//!                   │   every hub)              │
//!                   └◄── questions passed on ───┘
//! ```
//!
//! A hub counts its own devices, and says parts: counts that add. This process keeps the newest parts of every hub in memory
//! and nothing on disk. Everything shown is a function of those parts and of which hubs are heard, so that a second
//! process beside it shows the same. It decides nothing about a device, and writes to no hub.
//!
//! Reading order: [`config`], [`hub`] (what one hub says, followed) with [`pace`], [`merged`] (what all say together) with
//! [`lease`], [`mod@write`] and [`desk`] with [`route`], [`spread`], [`several`], [`reasons`] and [`past`] with [`then`] (who looks), [`app`] (how it is put together).

pub mod app;
pub mod config;
pub mod desk;
pub mod error;
pub mod hub;
pub mod lease;
pub mod merged;
pub mod metrics;
pub mod pace;
pub mod past;
pub mod reasons;
pub mod route;
pub mod several;
pub mod spread;
pub mod then;
pub mod write;
