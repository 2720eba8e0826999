//! A disk that can be full: a small file system of its own for one device, filled to the last byte and emptied again.
//!
//! Only root may mount one. Without that right, the agent's file size limit is set below the size of its files: writes fail
//! as well, but with another error of the system (EFBIG instead of ENOSPC), and the run logs that.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Size of a device's file system: room for its database, its log of changes and little more.
const SIZE: &str = "size=16m";
/// The file that fills it.
const BALLAST: &str = "ballast";
/// Bytes of ballast written at once.
const LUMP: usize = 64 * 1024;
/// With which a process starts that shall meet a file size limit as an error, not as its end by SIGXFSZ.
pub const IGNORE_SIGXFSZ: [&str; 3] = ["sh", "-c", r#"trap "" XFSZ; exec "$0" "$@""#];

/// A device's disk.
#[derive(Debug)]
pub enum Disk {
    /// A file system of its own.
    Mounted(PathBuf),
    /// The file size limit of its agent.
    Limited,
}

impl Disk {
    /// A disk for what is kept in `dir`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn small(dir: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", SIZE, "tmpfs"])
            .arg(dir)
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success());
        Ok(if mounted { Self::Mounted(dir.to_owned()) } else { Self::Limited })
    }

    /// Fills it: the next write that needs room fails. `agent` is the process that writes to it, if one runs.
    ///
    /// # Errors
    /// It cannot be filled.
    pub fn fill(&self, agent: Option<Pid>) -> std::io::Result<()> {
        match self {
            Self::Mounted(dir) => ballast(&dir.join(BALLAST)),
            Self::Limited => limit(agent, Some(0)),
        }
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// The ballast cannot be removed.
    pub fn clear(&self, agent: Option<Pid>) -> std::io::Result<()> {
        match self {
            Self::Mounted(dir) => match std::fs::remove_file(dir.join(BALLAST)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            Self::Limited => limit(agent, None),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Self::Mounted(dir) = self {
            unmount(dir);
        }
    }
}

/// Writes until there is no room for a single byte.
fn ballast(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let mut lump = LUMP;
    while lump > 0 {
        match file.write(&vec![0; lump]) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => lump /= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn limit(agent: Option<Pid>, bytes: Option<u64>) -> std::io::Result<()> {
    let Some(agent) = agent else { return Ok(()) };
    // The soft limit alone: a process without rights could not raise the hard one again.
    prlimit(Some(agent), Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
    Ok(())
}

/// Gives back the file systems that an earlier run left mounted in its directory.
pub fn unmount_below(dir: &Path) {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else { return };
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    places.filter(|place| place.starts_with(dir)).for_each(unmount);
}

/// Unmounts at once, also while a process still uses it.
fn unmount(dir: &Path) {
    let ended = Command::new("umount").arg("--lazy").arg(dir).stdin(Stdio::null()).output();
    if !ended.is_ok_and(|output| output.status.success()) {
        tracing::warn!(dir = %dir.display(), "cannot unmount the disk of a device; `umount` it");
    }
}
