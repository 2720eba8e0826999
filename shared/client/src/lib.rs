//! Requests to the services of a hub, as the command line and the gateway make them for people.
//!
//! [`ask`] sends a request and reads its answer; [`rollout`], [`quarantine`] and [`audit`] make the requests that one
//! question of a person takes. The crate holds no state of the fleet.

pub mod ask;
pub mod audit;
pub mod quarantine;
pub mod rollout;
