//! The agent: runs the workloads assigned to one device and reports every change, also after outages and crashes.
//!
//! An event on its way up: [`runtime`] (what runs) → [`reconcile`] (what to do, given each [`deployment
//! record`](record) and its [`attempts`]) → `report_writer` → [`outbox`] (record, report and number in one
//! transaction of [`db`]) → [`relay`] → the bus. A desired state on its way down: [`follow`] → [`store`] →
//! [`reconcile`].
//!
//! [`app`] wires the parts and orders their stop; [`config`] holds the settings, [`commands`] the other commands of
//! the program; [`connection`] keeps the agent connected while the [`schedule`] allows it. [`report`]: the content of
//! reports; `capabilities`: what the device is; `name`: default device name; `identity`: credentials; `join`:
//! enrolment; [`token`]: when its token ends; [`metrics`] and `status`: figures. The entry point is [`start`].

pub mod app;
pub mod commands;
pub mod config;
pub mod connection;
mod error;
mod identity;
mod join;
mod link_check;
mod name;
pub mod package;
pub mod schedule;

pub mod attempts;
pub mod follow;
pub mod reconcile;
pub mod record;
pub mod runtime;

mod capabilities;
pub mod outbox;
pub mod relay;
pub mod report;
mod report_writer;

pub mod db;
pub mod metrics;
mod status;
pub mod store;
pub mod token;

pub use app::{Handle, start};
pub use config::Config;
pub use error::StartError;
