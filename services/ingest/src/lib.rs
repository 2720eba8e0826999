//! Ingest: the border between what devices say and what LEDGER holds.
//!
//! ```text
//!  UPLINK ──► intake ──┐                            ┌─► outlet ──► LEDGER
//!  PRESENCE ► presence ┼─► consume: domain's Border ┤
//!  DOWNLINK ► desired ─┘      ▲                     └─► receipts ► DOWNLINK
//!                             └── restore ◄── LEDGER
//! ```
//!
//! One task a partition owns all state of its devices; only what it has acknowledged is shared, under a lock, with the task
//! that removes it from UPLINK ([`trim`]). LEDGER is the only memory: the state is rebuilt from it at the start, sooner by a
//! snapshot, and read again from it whenever the fate of a publication is unknown. A report is acknowledged last, when
//! everything it led to is in LEDGER.
//!
//! Reading order: [`consume`] (the pipeline), then [`intake`], [`presence`], [`desired`], [`elders`] (what comes in),
//! [`outlet`], [`letter`] (what goes out), [`ownership`] (whose a partition is), [`trim`], [`restore`], [`follow`],
//! [`snapshot`], [`guard`], [`incidents`], [`room`], [`watcher`], [`lag`]
//! (beside it), and [`app`] (how it is put together). The rules are
//! `muster_domain::border`.

pub mod app;
pub mod config;
pub mod consume;
pub mod desired;
pub mod elders;
pub mod error;
pub mod follow;
pub mod guard;
pub mod incidents;
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
pub mod snapshot;
pub mod trim;
pub mod verify;
pub mod watcher;
