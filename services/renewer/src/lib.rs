//! The renewer: renews the tokens of enrolled devices before they expire, and delivers them over the hub.
//!
//! ```text
//! keys (registry, devices' signing key) ─► due ─► renew ─► muster.credential.<site>.<device>
//!                                                 └─► metrics, incidents: tokens that expire soon
//! ```
//!
//! It is the only service with a signing key, and the key signs only tokens of devices: a thief of the key could enrol
//! devices and no other role. A device that was revoked or never enrolled gets no token. Only `muster` enrols and revokes.
//!
//! Reading order: [`due`] (which tokens are due, pure), [`keys`] (the directory of keys), [`renew`] (one round), and [`app`]
//! (the wiring).

pub mod app;
mod config;
mod due;
mod error;
mod keys;
mod metrics;
mod renew;
