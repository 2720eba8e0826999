//! Keeps plans: answers requests on `muster.planner.*`, writes PLANS, and sends the orders of approved operations to the publisher.
//!
//! ```text
//! muster.planner.* ─► responder ─┐                        ┌─► log ─► PLANS (one append at a time, for its last sequence)
//! PLANS ──► log ─────────────────┼─► keeper ─► domain::plans
//! hooks ─► asker ────────────────┤
//! LEDGER ─► ledger ─► evidence ──┘                        └─► orders ─► muster.publisher.{apply, remove}
//! PLANS ──► history ─► answers of change-list
//! ```
//!
//! The append to PLANS is the commit point of each decision. A planner that dies at any step repeats nothing that has an effect: the
//! next one folds PLANS and LEDGER, and decides the rest. Two planners may run: the append of one of them wins. A planner sends no
//! order unless it has read the ends of LEDGER and of PLANS lately. The rules are in `muster_domain::plans`.

mod call;
mod history;
mod hooks;
mod keeper;
mod ledger_evidence;
mod log;
mod orders;
mod refusal;
mod responder;
mod start;

pub(crate) use self::start::spawn;
