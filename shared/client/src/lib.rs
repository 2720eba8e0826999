//! Requests to the services of a hub, as the command line and the gateway make them for people.
//!
//! [`ask`] sends a request and reads its answer. It decides nothing and holds no state of the fleet.

pub mod ask;
