//! The listener of programs that speak gRPC: MRDS's API over the planner, and EMCO's notification service, over TLS with client
//! certificates.
//!
//! ```text
//! program ─► caller: certificate to person, role ─► clusters, capabilities, nodes, plans, instances ─► planner ─► muster.planner.*
//!                                               └─► notify ─► the questions that people's event streams poll
//! ```
//!
//! A call names nobody: the certificate of the connection does, and a change carries a signed note with that person. The
//! gateway keeps only the open registrations of notifications, which end with their streams.
//!
//! Reading order: [`config`], [`start`] (the wiring), [`caller`], [`planner`], [`records`] and [`filters`], then a module for each
//! service; [`refusals`] has the status codes.

mod caller;
mod capabilities;
mod clusters;
pub(crate) mod config;
mod filters;
mod instances;
mod limits;
mod nodes;
mod notify;
mod planner;
mod plans;
mod records;
mod refusals;
pub(crate) mod start;
