//! The publisher: Git and requests in, one validated desired state for each device out.
//!
//! ```text
//! git ─► source ─► margo ─► content ─┐                       ┌─► downlink ─► muster.desired.<site>.<device>
//!   poll: the corridor from Git      ├─► roster: compose ─► plan
//! requests ─► margo ─► content ──────┘      held ◄── what DOWNLINK holds ◄──┘
//!                                            presence: how far the devices are
//!                                            copies: what LEDGER holds of it
//!                                    announce: the one task that writes
//! ```
//!
//! DOWNLINK is the memory: generations, target generations and what was asked for by request are read from it at the
//! start, and from LEDGER's copy where DOWNLINK has lost something. The mirror of the Git repository can be lost at any time.
//!
//! Reading order: [`content`], [`margo`] and [`source`] (what is asked for), [`held`], [`compose`] and [`plan`] (what
//! follows from it, pure), [`roster`] and [`announce`] (until every device has it), then [`git`], [`poll`],
//! [`requests`], [`presence`] and [`copies`] (what `listening` hears), [`downlink`] and [`renew`] (the outside), and [`app`]
//! (how it is put together).

pub mod announce;
pub mod app;
mod clone_dir;
pub mod compose;
pub mod config;
pub mod content;
pub mod copies;
pub mod downlink;
pub mod error;
pub mod foreign;
pub mod git;
pub mod held;
mod listening;
pub mod margo;
pub mod metrics;
pub mod plan;
pub mod poll;
pub mod presence;
pub mod problems;
pub mod renew;
pub mod requests;
pub mod roster;
pub mod source;
pub mod status;
mod verify;
