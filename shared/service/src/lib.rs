//! The life of a process: what every Muster service has around its own work.
//!
//! A service's `main` parses its arguments, checks them ([`config`]) and calls [`run()`], which sets up the log
//! ([`telemetry`]), serves [`health`], starts the service with its [`life`], waits for a signal and drains. Beside
//! that: [`clock`] and [`backoff`], the only places where time and delays come from, [`error`] and [`exit`], [`aside`] for
//! long stretches of work, [`fair`] shares by requester, and [`probe`], a program that asks another process for its health.
//!
//! This crate knows nothing of NATS, of documents or of any one service.

pub mod run;

pub mod config;
pub mod exit;
pub mod health;
mod http_listener;
pub mod life;
pub mod telemetry;

pub mod aside;
pub mod backoff;
pub mod clock;
pub mod error;
pub mod fair;
pub mod probe;
pub mod version;

pub use config::{Common, CommonArgs, Problems};
pub use life::{Life, Stage};
pub use run::run;
pub use version::VERSION;
