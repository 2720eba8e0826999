//! The fold: it applies LEDGER's facts and derives the state of every deployment, site and fleet.
//!
//! The fold is pure and total: [`Fleet::apply`] accepts any fact at any time, never fails and never recounts. A fact
//! changes the contribution of one device to the counts: the old contribution is retracted and the new one added. The
//! result is a function of the facts alone:
//!
//! - Status and device facts are ordered by (epoch, seq), desired states and deadlines by generation, each by maximum;
//!   the numbers held of an epoch are a union. Neither depends on the order, repetition or delay of facts.
//! - Liveness facts are about hub time, so of one epoch the newest in LEDGER holds. They are compared only with other
//!   liveness facts. Incidents, and quarantined messages without a number, are counted as they come.
//! - Hearing facts come from the rollup itself: of each partition the newest in LEDGER holds, and it overrides the
//!   liveness of the partition's devices. A pulse changes nothing and moves no position.
//! - A quarantined message is identified by its time of arrival and its number, and an operator's decision names both:
//!   where there is a number, the two may come in either order.
//!
//! The fold does not parse, store or wait, and reads no clock.

mod answer;
mod app_spec;
mod apply;
mod axes;
mod capture;
mod change_log;
mod changes;
mod component_set;
mod counts_by_deployment;
mod delta;
mod device;
mod diff;
mod doubt;
mod error_index;
mod event_time;
mod evidence_table;
mod fleet;
mod groups;
mod hearing;
mod index;
mod last_changed;
mod last_heard;
mod max_by_deployment;
mod max_timestamp;
mod members;
mod merge;
mod notify;
mod packed_offset;
mod packed_timestamp;
mod part;
mod record;
mod refused;
mod report;
mod rollout_line;
mod seq_account;
mod seq_set;
mod silence;
mod silence_order;
mod silence_starts;
mod slots;
mod standing;
mod status;
mod tally;
mod timeline;
mod totals;
mod unsigned;
mod verdict;
mod view;
mod view_aggregate;
mod whole;
mod why;

pub use answer::Page;
pub use change_log::ChangedSince;
pub use changes::{ChangeRecord, TooManyChanges};
pub use event_time::EventTimeFold;
pub use fleet::{Fleet, Outcome, Position};
pub use groups::answer::NoGroups;
pub use hearing::HearingState;
pub use merge::deployments::DeploymentSum;
pub use merge::hearing::hearing_of;
pub use merge::notice::NoticeSum;
pub use merge::pages::{Pages, SilentDevice, SortedRow};
pub use merge::status::StatusSum;
pub use merge::view::all_unheard;
pub use merge::why::{WhyAsked, WhySum};
pub use merge::{AppliedPart, Merge, OtherHub};
pub use notify::{Changes, NothingToTell};
pub use record::DeviceRecord;
pub use record::packed::{BadRecord, PackedRecord, RecordPacker};
pub use rollout_line::{DeviceHearing, DeviceNumber};
pub use silence::SilentDevices;
pub use silence_order::{SilenceCursor, SilenceCursorError};
pub use status::{CursorError, StatusCursor, StatusRefusal, verdict_of};
pub use tally::BadPart;
pub use timeline::{Timeline, urgency_of_point};
pub use view_aggregate::view::{Shown, Unsigned};
