//! The parts that every Muster service shares around its own work.
//!
//! A service's `main` parses its arguments, checks them ([`config`]) and calls [`run()`], which sets up the log
//! ([`telemetry`]), serves [`health`], starts the service under its [`supervisor`], waits for a signal and drains. Other
//! modules: [`clock`] and [`backoff`], the only places where time and delays come from, [`mod@retry`], which repeats an
//! operation, [`error`], [`exit`], [`blocking`] for long work, [`fair`] shares by requester, and [`probe`], a program that asks another process for its health.
//!
//! This crate knows nothing of NATS, of documents or of any one service.

pub mod run;

pub mod config;
pub mod exit;
pub mod health;
mod health_server;
mod http_listener;
mod stage;
pub mod supervisor;
pub mod telemetry;

pub mod backoff;
pub mod blocking;
pub mod clock;
pub mod error;
pub mod fair;
pub mod probe;
pub mod retry;
pub mod version;

pub use config::{Common, CommonArgs, Problems};
pub use run::run;
pub use supervisor::{Stage, Supervisor};
pub use version::VERSION;
