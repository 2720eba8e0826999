//! The agent: runs what one device shall run and reports every change, also through outages and crashes.
//!
//! One event on its way up: [`runtime`] (what runs) → [`reconcile`] (what to do about it, by [`standing`] and its [`attempts`]) →
//! [`observe`] → [`outbox`] (standing, report and number in one transaction of [`db`]) → [`relay`] → the bus. On the way
//! down: [`follow`] → [`store`] → [`reconcile`].
//!
//! [`app`] wires it and says in which order it stops; [`config`] holds the settings; [`connection`] keeps the agent
//! connected when the [`schedule`] lets it; [`capabilities`] says what the device is, [`name`] what it is called where
//! nobody says so, [`identity`] who it is to the hub, [`join`] how it becomes somebody, [`metrics`] what there is to
//! count. The entry point is [`start`].

pub mod app;
pub mod config;
pub mod connection;
pub mod error;
pub mod identity;
pub mod join;
pub mod name;
pub mod schedule;

pub mod attempts;
pub mod follow;
pub mod reconcile;
pub mod runtime;
pub mod standing;

pub mod capabilities;
pub mod observe;
pub mod outbox;
pub mod relay;

pub mod db;
pub mod metrics;
pub mod store;

pub use app::{Handle, start};
pub use config::Config;
pub use error::StartError;
