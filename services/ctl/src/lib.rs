//! The `muster` command: what is true of a fleet, for people and for programs.
//!
//! [`config`] is the command line, [`context`] the nats CLI's settings, [`app`] goes from a command line to an exit code.
//! [`reach`] connects, [`ask`] puts questions to the services, [`notices`] follows what they tell, a [`session`] shows the
//! answers. The commands: [`status`], [`devices`], [`watch`], [`top`], [`history`], [`timeline`], [`audit`], [`quarantine`], [`publish`],
//! [`rollout`], [`plans`], [`packages`], [`applications`], [`groups`], [`defined`], [`subscriptions`], [`hubs`], [`webhooks`],
//! [`restore`], [`backup`], [`support`], and [`incidents`] above each answer. [`names`] resolves names to ids and keys,
//! [`complete`] completes names, [`suggestions`] adds near names to an error, [`yaml`] finds the line of a field. [`render`]
//! turns answers into text and is pure; [`terminal`] writes text. [`auth`] manages keys and credentials in a directory of
//! keys; [`login`] proves a key to a gateway. All other changes are requests to the services.

pub mod app;
pub mod config;
mod context;
mod error;

pub use muster_client::ask;
pub mod notices;
mod reach;
pub mod session;
pub mod terminal;
mod yaml;

pub mod applications;
pub mod audit;
mod auth;
pub mod backup;
mod complete;
mod defined;
mod devices;
mod groups;
mod history;
mod hubs;
mod incidents;
mod login;
mod names;
pub mod packages;
pub mod plans;
mod publish;
pub mod quarantine;
pub mod restore;
pub mod rollout;
mod status;
mod streams;
mod subscriptions;
mod suggestions;
mod support;
mod timeline;
pub mod top;
pub mod watch;
mod webhooks;
mod why;

pub mod render;
