//! Publishes one validated desired state for each device, from Git and from requests.
//!
//! ```text
//! git ─► source ─► margo ─► content ─┐                              ┌─► downlink ─► muster.desired.<site>.<device>
//!   poll: the pipeline from Git      ├─► device_table: compose ─► plan
//! requests ─► margo ─► content ──────┘      published ◄── DOWNLINK ◄──┘
//!                                           presence: generations of devices
//!                                           ledger_copies: documents that LEDGER has copied
//!                                    announce: the one task that writes
//! ```
//!
//! DOWNLINK is the publisher's memory: at the start it reads generations, target generations and requested deployments
//! from there, and from LEDGER's copies where DOWNLINK has lost messages. Losing the mirror of the Git repository loses
//! nothing.
//!
//! Reading order: [`content`], [`margo`] and [`source`] (input); [`published`], [`compose`] and [`plan`] (pure: the next
//! document of a device); [`device_table`] and [`announce`] (publishing until every device has its document); [`git`],
//! [`poll`], `past_commits`, [`requests`], [`responder`], [`presence`] and [`ledger_copies`] (both over `stream_listener`), [`downlink`] and [`renew`]
//! (I/O); and [`app`] (wiring).

pub mod announce;
pub mod app;
mod clone_dir;
mod compose;
pub mod config;
mod content;
mod device_table;
pub mod downlink;
mod error;
mod foreign;
pub mod git;
mod ledger_copies;
pub mod margo;
mod metrics;
mod past_commits;
mod plan;
mod poll;
mod presence;
pub mod problems;
mod published;
pub mod renew;
pub mod requests;
pub mod responder;
pub mod source;
pub mod status;
mod stream_listener;
mod verify;
