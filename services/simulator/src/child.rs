//! The processes of a fleet: each in a process group of its own, its output in a file, stopped in order.
//!
//! A child that does not end in time after SIGTERM is killed. If an earlier run was killed, this one finds the processes it
//! left by the fleet's directory in their environment, and kills them.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child as Process;

use crate::environment;
use crate::error::Error;

/// Names the fleet's directory in the environment of every process of a fleet.
pub(crate) const FLEET_DIR_VARIABLE: &str = "MUSTER_FLEET_DIR";
/// Names an agent's directory in the environment of its workloads.
pub const DATA_DIR_VARIABLE: &str = "MUSTER_DATA_DIR";
/// Time between SIGTERM and SIGKILL: above the drain deadline of every service.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(25);

/// How to start a process, so that it can be started again.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its name in logs and in the name of its log file.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// A running process.
#[derive(Debug)]
pub struct Child {
    spec: Spec,
    process: Process,
    log: PathBuf,
}

impl Child {
    /// Starts a process whose output is appended to `<dir>/logs/<name>.log`. It gets the caller's
    /// environment without the variables of Muster and of git.
    ///
    /// # Errors
    /// The log file or the process could not be made.
    pub fn start(spec: Spec, dir: &Path) -> Result<Self, Error> {
        let log = dir.join("logs").join(format!("{}.log", spec.name));
        let output = open_log(&log).map_err(|source| Error::Prepare { path: log.clone(), source })?;
        let errors = output.try_clone().map_err(|source| Error::Prepare { path: log.clone(), source })?;
        let process = environment::command(&spec.program)
            .args(&spec.args)
            .env(FLEET_DIR_VARIABLE, dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::Start { program: spec.program.clone(), source })?;
        Ok(Self { spec, process, log })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Fails if it has ended, which no process of a fleet does by itself.
    ///
    /// # Errors
    /// The exit status and where the output is.
    pub fn expect_running(&mut self) -> Result<(), Error> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(Error::Ended { name: self.spec.name.clone(), status, log: self.log.clone() }),
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.process.try_wait().map_err(|source| Error::Watch { name: self.spec.name.clone(), source })
    }

    /// Freezes it with SIGSTOP; its connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it with SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends it SIGTERM, and does not wait.
    pub(crate) fn dismiss(&self) {
        self.signal(Signal::TERM);
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<Pid> {
        self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()))
    }

    /// Asks it to end and waits; kills it when it takes too long.
    ///
    /// # Errors
    /// Its end could not be awaited.
    pub async fn stop(mut self) -> Result<ExitStatus, Error> {
        let name = self.spec.name.clone();
        self.signal(Signal::TERM);
        if tokio::time::timeout(STOP_PATIENCE, self.process.wait()).await.is_err() {
            tracing::warn!(process = name, log = %self.log.display(), "killing a process that did not end in time");
            self.signal(Signal::KILL);
        }
        self.process.wait().await.map_err(|source| Error::Watch { name, source })
    }

    /// Waits for its end without asking for it.
    ///
    /// # Errors
    /// Its end could not be awaited.
    pub async fn ended_by_itself(mut self) -> Result<ExitStatus, Error> {
        self.process.wait().await.map_err(|source| Error::Watch { name: self.spec.name, source })
    }

    /// Kills it with SIGKILL, and waits until it has ended.
    ///
    /// # Errors
    /// Its end could not be awaited.
    pub async fn kill(mut self) -> Result<(), Error> {
        self.signal(Signal::KILL);
        let name = self.spec.name.clone();
        self.process.wait().await.map(drop).map_err(|source| Error::Watch { name, source })
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.pid() {
            // Fails only if the group has ended already, which is what a signal here is for.
            kill_process_group(group, signal).unwrap_or_default();
        }
    }
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    File::options().create(true).append(true).open(path)
}

/// Kills the processes that an earlier run in this directory left, with the workloads of its agents; returns their number.
pub fn sweep(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| belongs(*pid, dir))
        .filter(|pid| rustix::process::kill_process(*pid, Signal::KILL).is_ok())
        .count()
}

/// The fleet's own processes name its directory; a workload, which gets a clean environment, its agent's directory.
fn belongs(pid: Pid, dir: &Path) -> bool {
    let Ok(environment) = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        return false;
    };
    is_of(&environment, dir)
}

/// Whether an environment, as `/proc` shows it, is of a process of the fleet in a directory.
pub(crate) fn is_of(environment: &[u8], dir: &Path) -> bool {
    let variable = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let path = |value: &[u8]| Path::new(std::ffi::OsStr::from_bytes(value)).starts_with(dir);
    variable(FLEET_DIR_VARIABLE).is_some_and(|value| value == dir.as_os_str().as_bytes())
        || variable(DATA_DIR_VARIABLE).is_some_and(path)
}

#[cfg(test)]
mod tests {
    use tokio::process::Command;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn sleeper(dir: &Path) -> Child {
        let spec = Spec { name: "sleeper".to_owned(), program: "sleep".into(), args: vec!["600".to_owned()] };
        Child::start(spec, dir).unwrap()
    }

    /// Waits until a process shows an environment: `spawn` returns as soon as the program is found, and the
    /// system lays its environment out a moment later. On a busy machine that moment can be seen.
    async fn has_begun(process: &Process, dir: &Path) {
        let pid = Pid::from_raw(process.id().unwrap().cast_signed()).unwrap();
        let begun = std::time::Instant::now();
        while !belongs(pid, dir) {
            assert!(begun.elapsed() < TIMEOUT, "process {pid:?} shows no environment of {}", dir.display());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_child_is_stopped_by_a_signal() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sleeper(dir.path());
        child.expect_running().unwrap();
        let status = child.stop().await.unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    }

    #[tokio::test]
    async fn an_end_nobody_asked_for_names_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let spec = Spec { name: "short".to_owned(), program: "false".into(), args: Vec::new() };
        let mut child = Child::start(spec, dir.path()).unwrap();
        child.process.wait().await.unwrap();
        let message = child.expect_running().unwrap_err().to_string();
        assert!(message.contains("short") && message.contains("logs/short.log"), "{message}");
    }

    #[test]
    fn a_workload_belongs_to_the_fleet_whose_agent_started_it() {
        let dir = Path::new("/run/fleet");
        for (environment, expected) in [
            (&b"A=1\0MUSTER_FLEET_DIR=/run/fleet\0"[..], true),
            (b"A=1\0MUSTER_DATA_DIR=/run/fleet/devices/a/b\0B=2", true),
            (b"MUSTER_DATA_DIR=/run/fleet-2/devices/a/b", false),
            (b"MUSTER_FLEET_DIR=/run/fleet/x", false),
            (b"XMUSTER_FLEET_DIR=/run/fleet", false),
        ] {
            assert_eq!(is_of(environment, dir), expected, "{}", String::from_utf8_lossy(environment));
        }
    }

    #[tokio::test]
    async fn a_workload_that_outlived_its_agent_is_swept_away() {
        let (mine, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let workload = |dir: &Path| {
            let data = dir.join("devices/plant7/press-4");
            Command::new("sleep").arg("600").env(DATA_DIR_VARIABLE, data).kill_on_drop(true).spawn().unwrap()
        };
        let (mut gone, mut kept) = (workload(mine.path()), workload(other.path()));
        has_begun(&gone, mine.path()).await;
        has_begun(&kept, other.path()).await;
        assert_eq!(sweep(mine.path()), 1);
        gone.wait().await.unwrap();
        assert!(kept.try_wait().unwrap().is_none());
    }

    #[tokio::test]
    async fn what_an_earlier_run_left_is_swept_away_and_nothing_else() {
        let (mine, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut left = sleeper(mine.path());
        let mut stranger = sleeper(other.path());
        has_begun(&left.process, mine.path()).await;
        has_begun(&stranger.process, other.path()).await;
        assert_eq!(sweep(mine.path()), 1);
        left.process.wait().await.unwrap();
        stranger.expect_running().unwrap();
    }
}
