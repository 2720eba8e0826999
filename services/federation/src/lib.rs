//! The federation: it merges several hubs, each with its own sites, into views of all of them.
//!
//! ```text
//! hub north ─► hub ─┐                   ┌─► write   ─► KV views of the top
//! hub south ─► hub ─┼─► merged ─────────┤
//!    …              │  (the parts of    ├─► handler ─► muster.query.* of the top
//!                   │   every hub)      └─► notices ─► NOTICES of the top
//!                   │                           │
//!                   └◄── questions passed on ───┘
//! ```
//!
//! A hub counts its own devices and publishes parts: counts that add up. This process keeps the newest parts of every hub
//! in memory and nothing on disk; subscriptions are in a stream of the top. Every view is a function of those parts and of
//! which hubs are heard, so a second process shows the same. The federation decides nothing about a device and writes to no
//! hub.
//!
//! Reading order: [`config`], [`hub`] (following one hub) with [`timing`], [`merged`] (the sums) with [`lease`],
//! [`mod@write`], [`handler`] with [`route`] and [`places`], [`scatter`], [`gather`] and [`why`] (the answers), [`notices`], [`app`] (the wiring).

pub mod app;
pub mod config;
mod error;
pub mod gather;
pub mod handler;
mod hub;
mod lease;
pub mod merged;
mod metrics;
mod notices;
mod places;
pub mod route;
mod scatter;
mod timing;
pub mod why;
mod write;
