//! The planner: releases the changes that rollouts hold, wave by wave, as far as the evidence allows.
//!
//! ```text
//! muster.publisher.{status, targets} ─┐
//! muster.query.deployment ────────────┴─► services ─► muster_domain::rollout ─► step ─► muster.publisher.{release, decide}
//!                                                                              └─► checks ─► asker ─► muster.check.>, webhook
//! ```
//!
//! The planner keeps no state. DOWNLINK holds the released content of each device and the decisions about each rollout,
//! LEDGER the evidence, and the repository the waves; each round decides from these alone. So a planner that is killed
//! between any two requests loses nothing and repeats nothing: the publisher answers a repeated release or decision as done.
//!
//! Reading order: [`services`] (requests), [`step`] (pure: the effects of a step), [`planner`] (one round), `checks`, [`asker`] and
//! [`webhook`] (checks of others), [`app`] (the wiring).

pub mod app;
pub mod asker;
mod checks;
pub mod config;
pub mod error;
pub mod metrics;
pub mod planner;
pub mod services;
pub mod step;
pub mod webhook;
