//! The past: it rebuilds the state at any point of LEDGER beside the live fold, without delaying it.
//!
//! ```text
//! snapshot ─► archive (checkpoints) ───────┐
//!                                          ├─► point_in_time ─► answers about a point, diff, verify
//! LEDGER ─► time_index (time ⇒ sequence) ──┘   (rebuild: nearest checkpoint + LEDGER up to the point)
//! ```
//!
//! Reading order: [`point_in_time`] (one rebuild at a time, a bounded queue, a small cache), [`point`] (the request),
//! [`time_index`] (the fact for a time), [`rebuild`] with [`base`] and [`tail`], [`verify`]. The checkpoints are
//! [`archive`], [`store`], [`pack`] and [`checkpoint_retention`]; [`backfill`], [`gaps`] and [`throttle`] make missing ones.

pub mod archive;
pub mod backfill;
pub mod base;
pub mod checkpoint_retention;
pub mod gaps;
pub mod pack;
pub mod point;
pub mod point_in_time;
pub mod progress;
pub mod rebuild;
pub mod store;
pub mod tail;
pub mod throttle;
pub mod time_index;
pub mod verify;
