//! Status of clusters without an agent: kpt's ResourceGroups, which a cluster pushes and which this gateway pulls, and states of
//! deployments in metrics.
//!
//! ```text
//! cluster ─► routes (its certificate names the device) ─┐
//! pull ◄── a Kubernetes API, or any address ────────────┤
//! Prometheus ─► remote_write ─► samples ────────────────┼─► group ─► condition ─► evidence ─► margo: numbers, UPLINK, PRESENCE
//! ```
//!
//! A ResourceGroup is a snapshot of a deployment on a device. It becomes a report of the contract with its `origin` and `fidelity`,
//! and counts for its period: heartbeats of the device name the rest of it. Numbers, epochs and their storage are those of devices
//! that speak Margo's API, so a report survives a gateway that dies.
//!
//! Reading order: [`group`] (the document), [`condition`] (the rules, pure), [`evidence`], [`routes`], [`config`] and [`pull`], [`samples`] and
//! [`remote_write`].

pub(crate) mod condition;
pub(crate) mod config;
pub(crate) mod evidence;
pub(crate) mod group;
pub(crate) mod period;
pub(crate) mod pull;
pub(crate) mod remote_write;
pub(crate) mod routes;
pub(crate) mod samples;
