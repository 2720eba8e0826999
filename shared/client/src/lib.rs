//! Requests to the services of a hub, as the command line and the gateway make them for people.
//!
//! [`ask`] sends a request and reads its answer, [`history`] repeats one about LEDGER's past until the point is rebuilt;
//! [`rollout`], [`quarantine`], [`audit`] and [`status`] make the requests that one question of a person takes, [`operations`]
//! reads the operations that wait for an approval, [`packages`] lists packages, [`webhooks`] lists and removes webhooks.
//! [`revision`] finds an older revision of a deployment, [`emco`] gives a status EMCO's shape and [`resource_group`] kpt's, [`text`]
//! makes texts of devices harmless, and [`time`] reads the times that people write.
//! The crate holds no state of the fleet.

pub mod ask;
pub mod audit;
pub mod emco;
pub mod history;
pub mod operations;
pub mod packages;
pub mod quarantine;
pub mod resource_group;
pub mod revision;
pub mod rollout;
pub mod status;
pub mod text;
pub mod time;
pub mod webhooks;
