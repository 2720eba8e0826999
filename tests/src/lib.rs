//! What the end-to-end tests share: [`server`], a real nats-server for one test; [`wait`], waiting for facts;
//! [`golden`] files; and [`schemas`], the documents of `schemas/` as the code has them.
//!
//! Nothing here ships.

pub mod golden;
pub mod schemas;
pub mod server;
pub mod wait;
