//! The pure rules of Muster: facts and documents in, decisions and views out. No IO, no clock, no async, no
//! log.

pub mod abridged;
mod account;
pub mod aggregate;
pub mod chronicle;
pub mod connections;
mod deadline;
pub mod eligibility;
pub mod fold;
pub mod intake;
mod lease;
pub mod ledger_room;
pub mod plan;
pub mod plans;
pub mod rollout;
mod skew;
mod token_bucket;
pub mod trim;

mod message_identity;
mod recent;
