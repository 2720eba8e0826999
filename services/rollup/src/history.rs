//! The past: what was known at a point in LEDGER, rebuilt beside the live fold and never in its way.
//!
//! ```text
//! snapshot ─► archive (checkpoints) ─┐
//!                                    ├─► recall ─► answers about a point, diff, verify
//! LEDGER ─► when (time ⇒ sequence) ──┘   (rebuild: nearest checkpoint + LEDGER up to the point)
//! ```
//!
//! Reading order: [`recall`] (one rebuild at a time, a bounded queue, the last few kept), [`point`] (what is asked for),
//! [`when`] (which fact a time stands for), [`rebuild`] with [`base`] and [`tail`], [`verify`]; [`archive`], [`store`],
//! [`pack`] and [`thinning`] are the checkpoints, [`fill`], [`gaps`] and [`leisure`] how those that are missing are made.

pub mod archive;
pub mod base;
pub mod fill;
pub mod gaps;
pub mod leisure;
pub mod pack;
pub mod point;
pub mod rebuild;
pub mod recall;
pub mod store;
pub mod tail;
pub mod thinning;
pub mod verify;
pub mod when;
