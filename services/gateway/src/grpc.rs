//! Serves gRPC to programs: MRDS's API over the planner and EMCO's notification service, over TLS with client certificates.
//!
//! ```text
//! program ─► caller: certificate to person, role ─► clusters, capabilities, nodes, plans, instances ─► planner ─► muster.planner.*
//!                                               └─► notify ─► the status queries that people's event streams poll
//! ```
//!
//! No field of a call names the caller: the gateway reads person and role from the connection's certificate, and signs a note
//! with that person for each change. The gateway stores nothing but the open registrations of notifications, which end with their
//! streams.
//!
//! Reading order: [`config`], [`start`] (the wiring), [`caller`], [`planner`], [`records`], [`filters`] and [`lists`], then a module for each
//! service; [`refusals`] has the status codes.

mod caller;
mod capabilities;
mod clusters;
pub(crate) mod config;
mod filters;
mod instances;
mod limits;
mod lists;
mod nodes;
mod notify;
mod planner;
mod plans;
mod records;
mod refusals;
mod runtime_instances;
pub(crate) mod start;
