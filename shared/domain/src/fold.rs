//! The fold: LEDGER's facts in, what is true of every deployment, site and fleet out.
//!
//! Pure and total: [`Fleet::apply`] takes any fact at any time, never fails and never recounts. A fact changes the
//! share of one device in the counts, so the old share is taken out and the new one put in. What is shown is a
//! function of the facts alone:
//!
//! - Status and device facts are ordered by (epoch, seq), desired states and deadlines by generation, all by maximum;
//!   the numbers held of an epoch are a union. Neither cares for the order in which facts come, how often, or how late.
//! - Liveness speaks of hub time, so among the facts of one epoch the newest in LEDGER holds. It is compared with other
//!   liveness facts only. Incidents, and quarantined messages without a number, are counted as they come.
//! - What the hub listens to is the rollup's own word: of each partition the newest fact in LEDGER holds, and over whatever
//!   liveness says of its devices. A pulse says nothing here, and moves no position.
//! - A message in quarantine is told from others by when it came and by its number, and what a person decides of it
//!   names both: the two may come in any order where there is a number.
//!
//! Nothing here parses, stores, waits or asks a clock.

mod answer;
mod apply;
mod axes;
mod blueprint;
mod capture;
mod cast;
mod culprits;
mod device;
mod diff;
mod doubt;
mod fleet;
mod groups;
mod hearing;
mod held;
mod hindsight;
mod holdings;
mod index;
mod lens;
mod members;
mod merge;
mod moment;
mod narrow;
mod newest;
mod notify;
mod part;
mod record;
mod report;
mod shares;
mod shifts;
mod silence;
mod standing;
mod status;
mod tally;
mod totals;
mod view;
mod why;

pub use answer::Page;
pub use fleet::{Fleet, Outcome, Position};
pub use groups::NoGroups;
pub use hearing::HearingState;
pub use hindsight::Hindsight;
pub use lens::{Shown, Unsigned};
pub use merge::{
    DiffSum, Merge, OtherHub, Pages, Placed, StatusSum, Taken, WhyAsked, WhySum, all_unheard, hearing_of,
    moment_of,
};
pub use notify::{Changes, NothingToTell};
pub use record::DeviceRecord;
pub use shifts::Touched;
pub use status::{CursorError, StatusCursor, StatusRefusal};
pub use tally::BadPart;
