//! Plans: the changes of the stream PLANS by requests and by evidence, and the orders of devices that follow. Pure: it reads no
//! stream and no clock.
//!
//! [`PlansState`] folds PLANS. [`decide`](PlansState::decide) answers a request with at most one document to append, and
//! [`advance`](PlansState::advance) makes the documents that follow by themselves: instances and operations of a revision,
//! placements, expiries, results. [`effects`](PlansState::effects) compares approved contents with LEDGER; the requests to the
//! publisher are the difference. Each document is appended for the sequence up to which PLANS is folded, so of two planners that decide at once
//! one wins, and the other folds its message and decides again. Between two documents nothing is lost: both functions are
//! level-triggered.
//!
//! Invariants: no dimension of a node's free resources is negative; a node has each payload and each port once; nothing runs or
//! stops before its operation is approved; of one instance one operation runs at a time.

mod advance;
mod complete;
mod content;
mod decide;
mod deploy;
mod document;
mod effects;
mod evidence;
mod hook_memory;
mod hooks;
mod image;
mod instance_requests;
mod inventory;
mod migrate;
mod naming;
mod operations;
mod read;
mod revise;
mod rollback;
mod rolling;
mod schedule;
mod state;
mod summary;
mod usage;
mod verdicts;

pub use self::content::{ContentError, application_id, content, is_of_plan, margo_document, order, plan_of};
pub use self::decide::{Decision, PlansRequest, REVISION_STOPPED};
pub use self::document::PlansDocument;
pub use self::effects::Effect;
pub use self::evidence::{PlacementEvidence, PlansEvidence, PlansTimes, WithdrawalEvidence};
pub use self::hooks::HookRun;
pub use self::read::PlansRead;
pub use self::state::PlansState;
pub use self::usage::Usage;

#[cfg(test)]
mod tests;
