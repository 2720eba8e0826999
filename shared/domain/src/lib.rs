//! The rules of Muster, pure: facts and documents in, decisions and views out. No IO, no clock, no async, no log.

pub mod aggregate;
pub mod plan;
