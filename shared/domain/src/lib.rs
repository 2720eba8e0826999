//! The rules of Muster, pure: facts and documents in, decisions and views out. No IO, no clock, no async, no log.

pub mod abridged;
pub mod account;
pub mod aggregate;
pub mod border;
pub mod chronicle;
pub mod connections;
pub mod deadline;
pub mod eligibility;
pub mod fold;
pub mod lease;
pub mod ledger_room;
pub mod near;
pub mod plan;
pub mod skew;
pub mod token_bucket;
pub mod trim;

mod recent;
