//! Answers as text for people. Pure but for the time zone ([`local`]): the time comes in, styled text goes out; the terminal decides about colours.
//!
//! If the width is known ([`frame`]), tables are cut to fit it; otherwise nothing is cut. Tables are aligned and
//! ordered; a dash is a count of zero; whatever is stale or not known is said to be; a percentage names its base; the last
//! lines say up to where the answer has read and how much is not known.

pub mod applications;
pub(crate) mod applied;
pub mod audit;
pub mod auth;
pub mod backup;
pub mod changes;
pub mod colour;
pub(crate) mod commit;
pub mod cut;
pub mod defined;
pub mod deployment;
pub mod device;
pub mod doubt;
mod evidence;
pub mod filtered;
pub mod format;
pub mod frame;
pub mod groups;
pub mod hearing;
pub mod history;
pub mod hubs;
pub mod incident;
pub mod inventory;
pub mod lag;
mod legend;
pub mod local;
mod manifests;
pub mod notice;
pub mod packages;
pub mod place;
pub mod plans;
pub mod publisher;
pub mod quarantine;
pub mod restore;
pub mod rollout;
pub mod silence;
pub mod streams;
pub mod subscriptions;
pub mod support;
pub mod table;
pub mod timeline;
pub mod watch;
pub mod webhooks;
pub mod why;
