//! The agent: runs what one device shall run and reports every change, also through outages and crashes.
//!
//! Being built room by room.

pub mod db;
pub mod outbox;
pub mod runtime;
pub mod standing;
pub mod store;
