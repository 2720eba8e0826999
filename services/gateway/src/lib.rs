//! The gateway: the fleet over HTTP.
//!
//! ```text
//! browsers, programs ─► people ──► muster.query.*, muster.publisher.*, muster.ingest.quarantine.*
//!                          └─────► the bucket `views`, for pages and events that follow the fleet
//! webhooks ───────────► muster.notify.webhook-*, and https to receivers
//! gRPC clients ───────► grpc ────► muster.planner.*, muster.query.*
//! devices ────────────► margo ───► DOWNLINK, UPLINK, the bucket `http_devices`
//! clusters ───────────► kpt ─────► the same, through margo
//! ```
//!
//! It holds no truth and no state of its own: any number of gateways run side by side, and one that dies loses nothing. It
//! answers nothing from memory that it cannot vouch for: without NATS or the rollup it answers 503.
//!
//! Three listeners: [`people`] serves browsers and programs of people, [`margo`] devices, [`grpc`] gRPC clients; the last two ask
//! for client certificates. A [`listener`] with bounds serves each, over [`tls`]. HTTP errors are [`problem`] documents. [`openapi`] has
//! the parts that two OpenAPI documents share. [`login`] identifies people and checks the rights of their role.
//!
//! Reading order: [`config`], [`app`] (the wiring), [`listener`], [`people`], [`webhooks`], [`margo`], [`kpt`], [`grpc`].

pub mod app;
mod config;
mod error;
mod grpc;
mod kpt;
mod listener;
mod login;
mod margo;
mod metrics;
mod open_files;
mod openapi;
mod outbound;
mod people;
mod problem;
mod tls;
pub mod webhooks;
