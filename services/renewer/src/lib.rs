//! The renewer: signs the tokens of enrolled devices anew before they end, and hands them over by the hub.
//!
//! ```text
//! keys (roster, devices' signing key) ─► due ─► renew ─► muster.credential.<site>.<device>
//!                                                 └─► metrics, incidents: tokens that end and are not renewed
//! ```
//!
//! It alone of the services holds a signing key, and only that of devices: with it a thief lets in devices, and nobody
//! else. Whom an operator has revoked, or never enrolled, gets no token. Enrolling and revoking stay with `muster`.
//!
//! Reading order: [`due`] (whose token is due, pure), [`keys`] (the directory of keys), [`renew`] (one round), and [`app`]
//! (how it is put together).

pub mod app;
pub mod config;
pub mod due;
pub mod error;
pub mod keys;
pub mod metrics;
pub mod renew;
