//! The planner: releases the changes that rollouts hold, wave by wave, as far as the evidence allows.
//!
//! ```text
//! LEDGER ─► ledger ─► evidence ─┐
//! muster.publisher.{status, ────┴─► rollouts ─► muster_domain::rollout ─► step ─► muster.publisher.{release, decide}
//!   targets} ─► services ─┘                                      └─► checks ─► asker ─► muster.check.>, webhook
//! ```
//!
//! The planner stores nothing but a cache ([`checkpoint`]). DOWNLINK holds the decisions about each rollout, the repository the waves, and LEDGER the contents
//! of devices and the evidence. The planner folds LEDGER in memory and keeps a row for each target of a rollout. A fact changes
//! rows, and the planner judges the rollout by its counts at once. A planner that is killed between any two requests loses nothing
//! and repeats nothing: the publisher answers a repeated release or decision as done.
//!
//! Beside rollouts it keeps plans ([`plans`]), with a task and a reading of LEDGER of its own.
//!
//! Reading order: [`ledger`] (reads LEDGER), `evidence` (folds it, and checks with `read_end` that the fold is current), `rollouts` (rows of
//! rollouts), [`planner`] (the loop), [`step`] (pure: the effects of a step), [`services`] (requests), `checks`, [`asker`] and
//! [`webhook`] (checks of others), [`app`] (the wiring).

pub mod app;
pub mod asker;
pub mod checkpoint;
mod checks;
pub mod config;
mod error;
mod evidence;
pub mod ledger;
mod metrics;
mod plan_orders;
pub mod planner;
mod plans;
mod read_end;
mod rollouts;
pub mod services;
mod step;
pub mod webhook;
