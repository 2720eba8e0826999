//! Launches the process of a unit: directory, files, environment, arguments and process group. In two steps: the
//! first may wait for the disk; nothing may wait between the second and the registration of the process.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::{fs, io};

use muster_contract::profile::{Process, Readiness};
use rustix::io::Errno;
use tokio::process::{Child, Command};

use super::environment::{self, Environment};
use super::logs::Logs;
use super::paths::UnitPaths;
use crate::runtime::Unit;

/// The error of launching a unit.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// Its own directory cannot be created.
    #[error(
        "cannot create its working directory {path}: check the free space and the owner of the agent's --data-dir"
    )]
    MakeDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The directory in the document does not exist.
    #[error("its workingDir {path} does not exist: create it, or omit workingDir to get one")]
    NoDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Its readiness file exists from an earlier run and cannot be removed.
    #[error("cannot remove {path}, left by an earlier run")]
    StaleFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Its log cannot be opened.
    #[error("cannot open its log {path}: check the free space and the owner of the agent's --data-dir")]
    OpenLog {
        /// The log of its stderr.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The agent's own environment cannot be read.
    #[error(
        "cannot read the agent's environment from /proc: the process runtime needs Linux with /proc mounted"
    )]
    ReadEnvironment(#[source] io::Error),
    /// The operating system refused to start it.
    #[error("cannot start '{command}': {advice}")]
    Spawn {
        /// The program.
        command: String,
        /// The remedy.
        advice: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The thread that prepares the launch panicked.
    #[error("the thread that prepares its launch panicked")]
    CutShort(#[source] tokio::task::JoinError),
}

/// A launch that need not wait for the disk any more.
#[derive(Debug)]
pub(super) struct PreparedLaunch {
    command: Command,
    logs: Logs,
    program: String,
    directory: PathBuf,
    path: Option<String>,
}

/// The working directory of a unit: the one in the document, relative to the unit's own.
pub(super) fn directory(paths: &UnitPaths, unit: &Unit, process: &Process) -> PathBuf {
    let own = paths.work(&unit.name());
    process.working_dir.as_deref().map_or_else(|| own.clone(), |named| own.join(named))
}

/// Prepares the launch. Waits for the disk.
pub(super) fn prepare(
    paths: &UnitPaths,
    unit: &Unit,
    process: &Process,
) -> Result<PreparedLaunch, LaunchError> {
    let directory = directory(paths, unit, process);
    make_directory(paths, unit, &directory)?;
    remove_stale(paths, unit, process, &directory)?;
    let (logs, out, err) = Logs::open(paths, &unit.name()).map_err(|source| {
        let path = paths.log(&unit.name(), "err");
        LaunchError::OpenLog { path, source }
    })?;
    let passed_on = environment::passed_on().map_err(LaunchError::ReadEnvironment)?;
    let environment = environment::of(passed_on, unit, process, &paths.device, &paths.true_path());
    let path = search_path(&environment);
    let mut command = Command::new(&process.command);
    command
        .args(process.args.iter().map(|argument| environment::expand(argument, &environment)))
        .env_clear()
        .envs(environment)
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        // A group of its own: signals to the agent (Ctrl-C) do not reach it, and its children can be signalled with it.
        .process_group(0);
    Ok(PreparedLaunch { command, logs, program: process.command.clone(), directory, path })
}

impl PreparedLaunch {
    /// Starts the process.
    pub(super) fn spawn(mut self) -> Result<(Child, Logs), LaunchError> {
        match self.command.spawn() {
            Ok(child) => Ok((child, self.logs)),
            Err(source) => {
                let advice = self.advice(&source);
                Err(LaunchError::Spawn { command: self.program, advice, source })
            }
        }
    }

    /// The remedy for an error of the operating system.
    fn advice(&self, refusal: &io::Error) -> String {
        let is_path = self.program.contains('/');
        match Errno::from_io_error(refusal) {
            Some(Errno::NOENT) if is_path && self.directory.join(&self.program).exists() => {
                "the interpreter in its first line, or its loader, is not installed on this device".to_owned()
            }
            Some(Errno::NOENT) if is_path => {
                format!("no such file (a relative path starts at {})", self.directory.display())
            }
            Some(Errno::NOENT) => format!(
                "not found in PATH ({}); install it, give its full path, or set PATH in env",
                self.path.as_deref().unwrap_or("not set")
            ),
            Some(Errno::ACCESS | Errno::PERM) => format!(
                "check that the agent's user may execute it (chmod +x) and enter {}, and that its file system is not \
                 mounted noexec",
                self.directory.display()
            ),
            Some(Errno::NOEXEC) => {
                "neither a program for this machine nor a script that begins with #!".to_owned()
            }
            Some(Errno::AGAIN) => {
                "the limit of processes is reached (ulimit -u, TasksMax of the agent's service)".to_owned()
            }
            Some(Errno::TOOBIG) => "its arguments and environment together are too large".to_owned(),
            _ => "the operating system refuses to start it".to_owned(),
        }
    }
}

fn make_directory(paths: &UnitPaths, unit: &Unit, directory: &Path) -> Result<(), LaunchError> {
    if is_own(paths, unit, directory) {
        let failed = |source| LaunchError::MakeDirectory { path: directory.to_owned(), source };
        return fs::create_dir_all(directory).map_err(failed);
    }
    // A directory outside of the unit's own is not created: a typing error would become a directory.
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => {
            let source = io::ErrorKind::NotADirectory.into();
            Err(LaunchError::NoDirectory { path: directory.to_owned(), source })
        }
        Err(source) => Err(LaunchError::NoDirectory { path: directory.to_owned(), source }),
    }
}

/// Whether a path lies in the unit's own directory and does not leave it by `..`.
fn is_own(paths: &UnitPaths, unit: &Unit, path: &Path) -> bool {
    let below = path.strip_prefix(paths.work(&unit.name()));
    below.is_ok_and(|below| !below.components().any(|part| part == Component::ParentDir))
}

/// Removes the readiness file of an earlier run if it lies in the unit's own directory. One that lies elsewhere may
/// belong to another program and counts as it is.
fn remove_stale(
    paths: &UnitPaths,
    unit: &Unit,
    process: &Process,
    directory: &Path,
) -> Result<(), LaunchError> {
    let Readiness::File { path } = &process.readiness else { return Ok(()) };
    let path = directory.join(path);
    if !is_own(paths, unit, &path) {
        return Ok(());
    }
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LaunchError::StaleFile { path, source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn search_path(environment: &Environment) -> Option<String> {
    environment.get(OsStr::new("PATH")).map(|path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;
    use muster_contract::desired::{self, ProfileType};
    use muster_contract::profile::Workload;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_working_directory_is_made_within_the_units_own_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        // The path of a data directory may itself contain `..`.
        let data_dir = dir.path().join("other/../data");
        let paths = UnitPaths::new("plant/press".parse().unwrap(), &data_dir);
        let try_with = |named: &str| {
            let properties = json!({ "command": "true", "workingDir": named });
            let properties = serde_json::from_value(properties).unwrap();
            let component = desired::Component::new("web".parse().unwrap(), properties);
            let workload = Workload::of(ProfileType::Process, &component).unwrap();
            let Workload::Process(process) = workload.clone() else { panic!("a process") };
            let unit = Unit {
                device: "plant/press".parse().unwrap(),
                deployment: "line".parse().unwrap(),
                component: component.name,
                digest: Digest::of_bytes(b"x"),
                workload,
                is_job: false,
                environment: Default::default(),
                values: Default::default(),
                namespace: None,
                labels: Default::default(),
            };
            let directory = directory(&paths, &unit, &process);
            make_directory(&paths, &unit, &directory)
        };
        let work = dir.path().join("data/work/line");
        fs::create_dir_all(dir.path().join("other")).unwrap();
        try_with("a/b").unwrap();
        assert!(work.join("web/a/b").is_dir());
        for bad in ["../../x", "a/../../y", "../z"] {
            assert!(matches!(try_with(bad), Err(LaunchError::NoDirectory { .. })), "{bad}");
        }
        assert_eq!(fs::read_dir(&work).unwrap().count(), 1, "only its own");
        assert!(!dir.path().join("data/work/x").exists());
        fs::create_dir_all(work.join("shared")).unwrap();
        try_with("../shared").unwrap();
    }
}
