//! What runs on this device: the only room that asks the world what is, or changes it. Here stands what the
//! rest of the agent may ask for; each way of running things is a module below.
//!
//! A runtime keeps no memory of its own that must survive the agent: it finds again what it started by looking.
//! It decides nothing (when to start, in which order, whether to try again) and reports nothing: that is
//! [`crate::reconcile`] and [`crate::observe`].
//!
//! ```text
//! reconcile ── start / stop / inventory ──► Runtime ── Exit ──► reconcile
//! ```
//!
//! Made by `app` with what they need and the sending half of the channel of exits:
//! `process::ProcessRuntime::new(device: DeviceKey, data_dir: &Path, exits: mpsc::Sender<Exit>)`, the same for
//! `compose::ComposeRuntime`, and
//! `simulated::SimulatedRuntime::new(device: DeviceKey, data_dir: &Path, clock: Arc<dyn Clock>, exits: mpsc::Sender<Exit>)`
//! (what it pretends to run outlives the agent too, and its clock says since when). None touches anything yet.

pub mod compose;
pub mod process;
pub mod simulated;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use muster_contract::canonical::Digest;
use muster_contract::desired::ProfileType;
use muster_contract::profile::Workload;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, DeviceKey};
use tokio_util::sync::CancellationToken;

/// Hex digits of a digest by which a running unit is told from another version of itself.
pub const DIGEST_PREFIX_CHARS: usize = 16;
/// Exits that may wait to be read. A runtime waits for room; it never drops one.
pub const EXITS_WAITING_MAX: usize = 64;

/// Codes of the errors that runtimes and the reconciler report: a word each, stable, for programs.
pub mod code {
    /// This agent's runtime does not run components of that type.
    pub const UNSUPPORTED_PROFILE: &str = "UnsupportedProfile";
    /// The device does not meet the deployment's `deviceConstraints`.
    pub const NOT_ELIGIBLE: &str = "DeviceNotEligible";
    /// The program could not be started at all (not found, not allowed, no working directory).
    pub const START_FAILED: &str = "StartFailed";
    /// It was not ready within its `timeout`.
    pub const NOT_READY: &str = "ReadinessTimeout";
    /// It ended by itself: before it was ready, or after.
    pub const EXITED: &str = "Exited";
    /// It was ended by a signal that the agent did not send.
    pub const KILLED: &str = "Killed";
    /// It would not stop, even when killed.
    pub const STOP_FAILED: &str = "StopFailed";
    /// Its health check says that it does not do its work.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The engine that runs it does not answer, so that nobody can say whether it runs.
    pub const ENGINE_LOST: &str = "EngineLost";
    /// What runs here could not be found out.
    pub const INVENTORY_FAILED: &str = "InventoryFailed";
}

/// What a runtime is asked to run: one component of one deployment with its environment resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// The device it runs on.
    pub device: DeviceKey,
    /// The deployment it is part of.
    pub deployment: DeploymentId,
    /// The component it is.
    pub component: ComponentName,
    /// Digest of what is to run: the component's properties and `environment`. A unit whose digest did not change
    /// keeps running when the rest of its deployment changes.
    pub digest: Digest,
    /// The component's properties, understood.
    pub workload: Workload,
    /// Environment variables from the deployment's parameters; they win over those of the workload.
    pub environment: BTreeMap<String, String>,
}

/// A unit's name: of one name, at most one may run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitName {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The component.
    pub component: ComponentName,
}

/// A unit of this device that runs now, whoever started it (this agent or an earlier life of it). A job that has
/// ended well counts as running until it is stopped: it holds its place, and does not run again for its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: UnitName,
    /// The first [`DIGEST_PREFIX_CHARS`] hex digits of its digest: see [`Unit::digest_prefix`]. Empty where only
    /// remains are left (children of a main process that is gone): no version of it, and to be stopped.
    pub digest_prefix: String,
}

/// How a start ended, if not with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// It runs (or, for a job, has ended with 0) and is ready.
    Ready,
    /// The caller took its wish back. What had been started is left as it is.
    Cancelled,
}

/// A unit that was ready ended without being asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Which one.
    pub name: UnitName,
    /// Its [`Unit::digest_prefix`], so that a late word about an older version is not taken for the newer.
    pub digest_prefix: String,
    /// How: [`code::EXITED`] or [`code::KILLED`], `source` the component, the message with the exit code or the
    /// signal and the last lines of stderr.
    pub error: StatusError,
}

/// A way of running units. Shared by all deployments at once; calls for one unit never overlap.
///
/// Unexpected ends are sent as [`Exit`] over the `tokio::sync::mpsc::Sender<Exit>` that the runtime is made with.
pub trait Runtime: Send + Sync + 'static {
    /// Whether it runs components of this type.
    fn supports(&self, profile: ProfileType) -> bool;

    /// Sees to it that the unit runs, and waits until it is ready, or not within its `timeout`.
    ///
    /// If the same unit (name and digest) runs already, it is taken over, never started twice; only what is left of
    /// its readiness is waited for. The caller has stopped another version of the same name before. From
    /// [`Started::Ready`] on, its end is an [`Exit`]; a job (readiness `exit`) has none.
    ///
    /// Dropping the future is as good as cancelling.
    ///
    /// # Errors
    /// [`code::START_FAILED`], [`code::NOT_READY`], [`code::EXITED`] or [`code::KILLED`], `source` the component's
    /// name. After an error nothing of the unit runs.
    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>>;

    /// Stops whatever runs under this name, of whichever digest: asks (SIGTERM to its process group), waits
    /// `timeout`, kills. Done when nothing of it runs; nothing running is success. No [`Exit`] is sent for it.
    ///
    /// # Errors
    /// [`code::STOP_FAILED`], `source` the component's name.
    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: std::time::Duration,
    ) -> BoxFuture<'a, Result<(), StatusError>>;

    /// Stops it like [`Runtime::stop`], and it does not come back: what a runtime keeps for another version of it may go
    /// as well. The compose runtime takes its named volumes and files away. The process runtime keeps its `work/` and
    /// `logs/`, which are the workload's data and the only evidence of how it ended; a person removes them.
    ///
    /// # Errors
    /// [`code::STOP_FAILED`], `source` the component's name.
    fn remove<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: std::time::Duration,
    ) -> BoxFuture<'a, Result<(), StatusError>> {
        self.stop(name, timeout)
    }

    /// Everything of this device that runs now, also what an earlier life of the agent started, whether wanted or
    /// not. The caller tells strangers from its own. Looking changes nothing: what an earlier life started is watched
    /// from its [`Runtime::start`] on, so a caller starts also what it finds here and wants.
    ///
    /// # Errors
    /// [`code::INVENTORY_FAILED`], `source` the device's name.
    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>>;
}

impl Unit {
    /// Its name.
    pub fn name(&self) -> UnitName {
        UnitName { deployment: self.deployment.clone(), component: self.component.clone() }
    }

    /// The first hex digits of its digest, by which it is recognised when it runs.
    pub fn digest_prefix(&self) -> String {
        self.digest
            .as_bytes()
            .iter()
            .take(DIGEST_PREFIX_CHARS / 2)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

const _: () = assert!(DIGEST_PREFIX_CHARS.is_multiple_of(2) && DIGEST_PREFIX_CHARS <= 64);
