//! The pure rules of Muster: facts and documents in, decisions and views out. No IO, no clock, no async, no
//! log.

pub mod abridged;
pub mod account;
pub mod aggregate;
pub mod chronicle;
pub mod connections;
pub mod deadline;
pub mod eligibility;
pub mod fold;
pub mod intake;
pub mod lease;
pub mod ledger_room;
pub mod plan;
pub mod plans;
pub mod rollout;
pub mod skew;
pub mod token_bucket;
pub mod trim;

mod message_identity;
mod recent;
