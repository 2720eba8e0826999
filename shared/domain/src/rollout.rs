//! The rules of a rollout: the wave of each device, the gate behind each wave, and the next step. Pure.
//!
//! A gate opens on confirmed devices alone. A device that is not heard, or whose reports are missing, counts neither for
//! nor against; it keeps its place in flight until it is heard. Membership depends on the rollout and the device alone, so
//! every program gets the same waves. Recorded decisions come first: no evidence continues a rollout that is paused.

mod approvals;
mod clock;
mod gate;
mod judgement;
mod line;
mod lines;
mod live;
mod outlook;
mod policy;
mod progress;
mod recompute;
mod sentence;
mod state;
mod steps;
mod target;
mod waves;
mod windows;

pub use self::approvals::ApprovalCount;
pub use self::gate::{Gate, Tally};
pub use self::judgement::state;
pub use self::line::Line;
pub(crate) use self::line::missed;
pub use self::lines::Lines;
pub use self::live::{Content, LiveRollout, LiveTarget, TargetDevice};
pub use self::outlook::{BudgetClash, DarkDevice, End, Outlook, outlook};
pub use self::policy::group;
pub use self::progress::{Known, RolloutProgress, progress};
pub use self::recompute::{
    NotRecomputable, PastLines, Recomputed, past_progress, recomputable, recompute, rests_on_evidence,
};
pub use self::sentence::listed;
pub use self::state::{Blocked, Failure, RolloutState, Step, WaveState};
pub use self::target::{Evidence, Target};
pub use self::waves::{RolloutId, matches, waves_of};
pub use self::windows::is_zone;

#[cfg(test)]
mod tests;
