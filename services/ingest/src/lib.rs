//! Ingest: the border between what devices say and what LEDGER holds.
//!
//! ```text
//!  UPLINK ──► intake ──┐                            ┌─► outlet ──► LEDGER
//!  PRESENCE ► presence ┼─► consume: domain's Border ┤
//!  DOWNLINK ► desired ─┘      ▲                     └─► receipts ► DOWNLINK
//!                             └── restore ◄── LEDGER
//! ```
//!
//! One task a partition owns all state of its devices; there are no locks. LEDGER is the only memory: the state is
//! rebuilt from it at the start, and read again from it whenever the fate of a publication is unknown. A report is
//! acknowledged last, when everything it led to is in LEDGER.
//!
//! Reading order: [`consume`] (the corridor), then [`intake`], [`presence`], [`desired`], [`elders`] (what comes in),
//! [`outlet`], [`letter`] (what goes out), [`ownership`] (whose a partition is), [`restore`], [`trim`], [`guard`], [`lag`],
//! [`room`], [`watcher`] (beside it), and [`app`] (how it is put together). The rules are
//! `muster_domain::border`.

pub mod app;
pub mod config;
pub mod consume;
pub mod desired;
pub mod elders;
pub mod error;
pub mod guard;
pub mod intake;
pub mod lag;
pub mod letter;
pub mod metrics;
pub mod outlet;
pub mod ownership;
pub mod partitions;
pub mod presence;
pub mod restore;
pub mod room;
pub mod trim;
pub mod watcher;
