//! The rules of Muster, pure: facts and documents in, decisions and views out. No IO, no clock, no async, no log.

pub mod aggregate;
pub mod fold;
pub mod plan;
pub mod account;
pub mod border;
pub mod deadline;
pub mod lease;
pub mod skew;

mod recent;
