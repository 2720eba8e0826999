//! Keeps plans: answers requests on `muster.planner.*`, writes PLANS, and asks the publisher for what approved operations need.
//!
//! ```text
//! muster.planner.* ─► responder ─┐                        ┌─► log ─► PLANS (one append at a time, for its last sequence)
//! PLANS ──► log ─────────────────┼─► keeper ─► domain::plans
//! LEDGER ─► ledger ─► evidence ──┘                        └─► orders ─► muster.publisher.{apply, remove}
//! ```
//!
//! The append to PLANS is the commit point of each decision. A planner that dies at any step repeats nothing that has an effect: it
//! folds PLANS and LEDGER again, and decides the rest. Two planners may run: the append of one of them wins.
//! No order is sent unless the ends of LEDGER and of PLANS were read lately.

mod keeper;
mod ledger_evidence;
mod log;
mod log_end;
mod orders;
mod responder;
mod start;

pub use self::keeper::{PlansCall, PlansKeeper, PlansQuestion, PlansReply};
pub use self::log::{AppendError, BusLog, LogEvent, PlansLog};
pub use self::responder::PlansResponder;
pub use self::start::spawn;
