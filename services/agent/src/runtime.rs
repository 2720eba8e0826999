//! The runtimes: they start, stop and list what runs on this device. This module defines their interface; each child
//! module is one runtime.
//!
//! A runtime stores nothing that must survive the agent, but finds what it started by listing it. It decides nothing
//! (when to start, in which order, whether to retry) and reports nothing: that is the task of [`crate::reconcile`]
//! and `crate::report_writer`.
//!
//! ```text
//! reconcile ── start / stop / inventory ──► Runtime ── Exit ──► reconcile
//! ```
//!
//! `app` creates them with the sending half of the channel of exits. Creating one writes nothing, and reads nothing but a
//! kubeconfig.

pub mod compose;
mod error_output;
mod files;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod process;
pub mod simulated;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use muster_contract::canonical::Digest;
use muster_contract::desired::ProfileType;
use muster_contract::metadata::DeploymentLabels;
use muster_contract::profile::Workload;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, DeviceKey, Namespace};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Hex digits of a digest that distinguish the versions of a unit.
pub(crate) const DIGEST_PREFIX_CHARS: usize = 16;
/// Exits that may wait to be read. A runtime waits for room; it never drops one.
pub(crate) const EXITS_WAITING_MAX: usize = 64;

/// Codes of the errors that runtimes and the reconciler report: one word each, stable, for programs.
pub mod code {
    pub use muster_contract::incident::UNSUPPORTED_PROFILE;
    /// This agent's runtime cannot stop or restart a deployment without removing it.
    pub(crate) const UNSUPPORTED_OPERATION: &str = "UnsupportedOperation";
    /// The device does not meet the deployment's `deviceConstraints`.
    pub(crate) const NOT_ELIGIBLE: &str = "DeviceNotEligible";
    /// Codes of a target that the device cannot run at all: no retry helps.
    pub const REFUSALS: [&str; 3] = [UNSUPPORTED_PROFILE, UNSUPPORTED_OPERATION, NOT_ELIGIBLE];
    /// The program could not be started (not found, not permitted, no working directory).
    pub const START_FAILED: &str = "StartFailed";
    /// Its package cannot be fetched, verified or unpacked.
    pub const PACKAGE_FAILED: &str = "PackageFailed";
    /// It was not ready within its `timeout`.
    pub const NOT_READY: &str = "ReadinessTimeout";
    /// It ended by itself, before or after it was ready.
    pub const EXITED: &str = "Exited";
    /// A signal ended it that the agent did not send.
    pub const KILLED: &str = "Killed";
    /// It did not stop, even when killed.
    pub(crate) const STOP_FAILED: &str = "StopFailed";
    /// Its health check fails.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The engine that runs it does not answer, so it is unknown whether it runs.
    pub const ENGINE_LOST: &str = "EngineLost";
    /// The running units could not be listed.
    pub const INVENTORY_FAILED: &str = "InventoryFailed";
    /// The cluster refuses an object.
    pub const APPLY_FAILED: &str = "ApplyFailed";
    /// Another field manager owns a field of an object, or another deployment owns the object.
    pub const APPLY_CONFLICT: &str = "ApplyConflict";
    /// The `helm` command failed.
    pub const HELM_FAILED: &str = "HelmFailed";
    /// An object of the unit does not exist in the cluster.
    pub const OBJECT_MISSING: &str = "ObjectMissing";
    /// A Deployment has exceeded its `progressDeadlineSeconds`.
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// A job has failed without a reason of its own (`BackoffLimitExceeded`, `DeadlineExceeded`).
    pub const JOB_FAILED: &str = "JobFailed";
    /// A pod has failed without a reason of its own.
    pub const POD_FAILED: &str = "PodFailed";
    /// An image cannot be pulled.
    pub const IMAGE_PULL: &str = "ImagePullBackOff";
    /// A container crashes again and again.
    pub const CRASH_LOOP: &str = "CrashLoopBackOff";
    /// A container reached its memory limit.
    pub const OOM_KILLED: &str = "OOMKilled";
    /// The scheduler finds no node for a pod.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
}

/// One component of one deployment to run, with its environment resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// The device it runs on.
    pub device: DeviceKey,
    /// The deployment it is part of.
    pub deployment: DeploymentId,
    /// The component.
    pub component: ComponentName,
    /// The namespace that its author chose. Only components with packages have one.
    pub namespace: Option<Namespace>,
    /// Labels for what the runtime creates. Only components with packages have some.
    pub labels: DeploymentLabels,
    /// Digest of the component's properties, `environment`, namespace and labels. A unit with the same digest keeps running when
    /// the rest of its deployment changes.
    pub digest: Digest,
    /// The component's parsed properties.
    pub workload: Workload,
    /// Whether it is a removal job, which is ready once it has ended well. A process also declares that by its readiness.
    pub is_job: bool,
    /// Environment variables from the deployment's parameters; they override those of the workload.
    pub environment: BTreeMap<String, String>,
    /// Values of its chart from the deployment's parameters, by pointer. Only charts have values.
    pub values: BTreeMap<String, Value>,
}

/// The name of a unit: at most one unit of a name runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitName {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The component.
    pub component: ComponentName,
}

/// A running unit of this device, started by this agent or an earlier one. A job that has ended well counts as
/// running until it is stopped, and does not run again for its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: UnitName,
    /// Its [`Unit::digest_prefix`]. Empty if only remaining processes of an ended main process are left: they are no
    /// version of the unit, and must be stopped.
    pub digest_prefix: String,
}

/// How a unit has ended that was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Within its time, or nothing ran. Also if the runtime does not know.
    InTime,
    /// It was killed after its time.
    Killed,
}

impl Stopped {
    /// Killed if `is_killed`.
    pub(crate) const fn killed_if(is_killed: bool) -> Self {
        if is_killed { Self::Killed } else { Self::InTime }
    }
}

/// The outcome of a start without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// It runs (or, for a job, has ended with 0) and is ready.
    Ready,
    /// The caller cancelled it. What had been started is left as it is.
    Cancelled,
}

/// A unit that was ready ended although no one stopped it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The unit.
    pub name: UnitName,
    /// Its [`Unit::digest_prefix`], so that a late exit of an older version is not taken for one of the newer.
    pub digest_prefix: String,
    /// [`code::EXITED`] or [`code::KILLED`]; `source` is the component; the message has the exit code or the signal
    /// and the last lines of stderr.
    pub error: StatusError,
}

/// A runtime of units. All deployments share it; calls for one unit never overlap.
///
/// It sends unexpected ends as [`Exit`] over the channel that it is created with.
pub trait Runtime: Send + Sync + 'static {
    /// The types of components that it runs, which the device reports.
    fn profiles(&self) -> &'static [ProfileType];

    /// Whether [`Runtime::start`] replaces a running version of the unit in place. Then the caller does not stop that
    /// version first.
    fn replaces_versions(&self) -> bool {
        false
    }

    /// Why a start of this unit takes its time, as a predicate of the component (`fetches its package: …`); none if the runtime
    /// does not know.
    fn start_progress(&self, _name: &UnitName) -> Option<String> {
        None
    }

    /// Ensures that the unit runs, and waits until it is ready, at most for its `timeout`.
    ///
    /// A running unit with the same name and digest is adopted, never started twice; only the rest of its readiness
    /// is waited for. The caller has stopped any other version of the name before, unless
    /// [`Runtime::replaces_versions`]. After [`Started::Ready`] its end
    /// is an [`Exit`]; a job (readiness `exit`) has none.
    ///
    /// Dropping the future is the same as cancelling.
    ///
    /// # Errors
    /// [`code::START_FAILED`], [`code::NOT_READY`], [`code::EXITED`] or [`code::KILLED`]; `source` is the component's
    /// name. After an error nothing of the unit runs, except an older version in a runtime that replaces versions.
    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>>;

    /// Stops every version that runs under this name: sends SIGTERM to its process group, waits `timeout`, kills it.
    /// Returns after nothing of it runs; it is no error if nothing ran. No [`Exit`] is sent for it.
    ///
    /// # Errors
    /// [`code::STOP_FAILED`]; `source` is the component's name.
    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: std::time::Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>>;

    /// Stops it like [`Runtime::stop`] for good: data kept for another version of it may be removed too. The compose
    /// runtime removes its named volumes and files. The process runtime keeps its `work/` and `logs/`, which are the
    /// workload's data and the only evidence of its end; an operator removes them.
    ///
    /// # Errors
    /// [`code::STOP_FAILED`]; `source` is the component's name.
    fn remove<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: std::time::Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        self.stop(name, timeout)
    }

    /// All running units of this device, desired or not, also those that an earlier agent started. The caller
    /// distinguishes orphans. Listing changes nothing: a unit of an earlier agent is watched from its
    /// [`Runtime::start`] on, so the caller also starts the desired units that it finds running.
    ///
    /// # Errors
    /// [`code::INVENTORY_FAILED`]; `source` is the device's name.
    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>>;
}

impl Unit {
    /// Its name.
    pub fn name(&self) -> UnitName {
        UnitName { deployment: self.deployment.clone(), component: self.component.clone() }
    }

    /// The first hex digits of its digest, which identify its version while it runs.
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
