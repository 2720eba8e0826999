//! Where this runtime keeps things under the agent's data directory. Names are DNS labels, so they are file names.
//!
//! ```text
//! <data-dir>/work/<deployment>/<component>/        working directory, where the document names none
//! <data-dir>/logs/<deployment>/<component>.out     what it wrote (and .err); .1 is the part before
//! <data-dir>/units/<deployment>/<component>.json   what this runtime has to remember: see `note`
//! ```
//!
//! Working directories and logs outlive the removal of a deployment: they are the workload's data and the only
//! evidence of how it ended. Whoever removes a deployment for good removes them by hand.

use std::fs;
use std::path::{Path, PathBuf};

use muster_contract::DeviceKey;

use crate::runtime::UnitName;

/// The device and its directory.
#[derive(Debug)]
pub(super) struct Home {
    /// The device whose units these are.
    pub(super) device: DeviceKey,
    data_dir: PathBuf,
}

impl Home {
    /// A home at a directory that need not exist yet.
    pub(super) fn new(device: DeviceKey, data_dir: &Path) -> Self {
        // A relative directory would mean another place to a process with another working directory.
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self { device, data_dir }
    }

    /// The directory under its one true name, by which units of this home are told from those of another agent.
    pub(super) fn true_path(&self) -> PathBuf {
        // Before it exists nothing has been started in it, and any name will do.
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

    /// Directory of all notes.
    pub(super) fn notes(&self) -> PathBuf {
        self.data_dir.join("units")
    }

    /// File of a unit's note.
    pub(super) fn note(&self, name: &UnitName) -> PathBuf {
        self.notes().join(name.deployment.as_str()).join(format!("{}.json", name.component))
    }
}
