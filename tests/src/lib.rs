//! Being built.

pub mod golden;
pub mod schemas;
