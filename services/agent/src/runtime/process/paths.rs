//! The paths of this runtime under the agent's data directory. Names are DNS labels, so they are valid file names.
//!
//! ```text
//! <data-dir>/work/<deployment>/<component>/        working directory, unless the document names one
//! <data-dir>/logs/<deployment>/<component>.out     its stdout (and .err its stderr); .1 is the part before
//! <data-dir>/units/<deployment>/<component>.json   its state file (`state_file`)
//! ```
//!
//! Working directories and logs outlive the removal of a deployment: they are the workload's data and the only
//! evidence of its end. An operator removes them by hand.

use std::fs;
use std::path::{Path, PathBuf};

use muster_contract::DeviceKey;

use crate::runtime::UnitName;

/// The device and its data directory.
#[derive(Debug)]
pub(super) struct UnitPaths {
    /// The device.
    pub(super) device: DeviceKey,
    data_dir: PathBuf,
}

impl UnitPaths {
    /// The paths in a directory that need not exist yet.
    pub(super) fn new(device: DeviceKey, data_dir: &Path) -> Self {
        // A relative path would name another directory in a process with another working directory.
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self { device, data_dir }
    }

    /// The canonical data directory, which tells this agent's units from another's.
    pub(super) fn true_path(&self) -> PathBuf {
        // Before the directory exists nothing was started in it, and any path will do.
        fs::canonicalize(&self.data_dir).unwrap_or_else(|_| self.data_dir.clone())
    }

    /// Working directory of a unit.
    pub(super) fn work(&self, name: &UnitName) -> PathBuf {
        self.data_dir.join("work").join(name.deployment.as_str()).join(name.component.as_str())
    }

    /// File of a unit's stdout or stderr.
    pub(super) fn log(&self, name: &UnitName, stream: &str) -> PathBuf {
        let file = format!("{}.{stream}", name.component);
        self.data_dir.join("logs").join(name.deployment.as_str()).join(file)
    }

    /// The directory of all state files.
    pub(super) fn state_files(&self) -> PathBuf {
        self.data_dir.join("units")
    }

    /// The state file of a unit.
    pub(super) fn state_file(&self, name: &UnitName) -> PathBuf {
        self.state_files().join(name.deployment.as_str()).join(format!("{}.json", name.component))
    }
}
