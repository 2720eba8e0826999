//! Locks a release: a locked file, which a `helm` process inherits. A `helm` process may outlive a killed agent; the next agent
//! ends it and waits for its end before it changes the release.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::Release;

const LOCK: &str = "helm.lock";
const PROCESS: &str = "helm.pid";
/// Time between two attempts to get a lock.
const POLL: Duration = Duration::from_millis(50);
/// Time that a former process has to end after SIGTERM; then it is killed. Helm records the release as failed meanwhile.
const GRACE: Duration = Duration::from_secs(5);
/// Time for which an agent waits for the lock.
const WAIT_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(GRACE.as_secs() < WAIT_MAX.as_secs());

/// The error of getting a lock.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("cannot lock {}", .path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a helm process of an earlier agent has not ended within {WAIT_MAX:?}")]
    Held,
}

/// The lock of a release. It is free once the agent has dropped it and its `helm` process has ended.
#[derive(Debug)]
pub(crate) struct ReleaseLock {
    file: File,
    process: PathBuf,
}

impl ReleaseLock {
    /// Acquires the lock of a release in the folder of its unit.
    pub(crate) async fn acquire(folder: &Path, release: &Release) -> Result<Self, LockError> {
        let path = folder.join(LOCK);
        let failed = |source| LockError::File { path: path.clone(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let file =
            File::options().create(true).truncate(true).write(true).read(true).open(&path).map_err(failed)?;
        let (process, started) = (folder.join(PROCESS), Instant::now());
        let mut signals = [(Duration::ZERO, Signal::TERM), (GRACE, Signal::KILL)].into_iter().peekable();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { file, process }),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if started.elapsed() > WAIT_MAX {
                return Err(LockError::Held);
            }
            if let Some((_, signal)) = signals.next_if(|(after, _)| started.elapsed() >= *after) {
                signal_former_process(&process, release, signal);
            }
            sleep(POLL).await;
        }
    }

    /// The locked file, for a process to inherit.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Stores the process that holds the lock now.
    pub(super) fn record_process(&self, id: Option<u32>) {
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        if let Err(error) = fs::write(&self.process, id) {
            tracing::warn!(path = %self.process.display(), %error, "cannot store the process id of helm");
        }
    }
}

/// Signals the `helm` process of an earlier agent, if it works on this release.
fn signal_former_process(path: &Path, release: &Release, signal: Signal) {
    let id = fs::read_to_string(path).ok().and_then(|id| id.parse::<i32>().ok());
    let Some((id, pid)) = id.and_then(|id| Some((id, Pid::from_raw(id)?))) else { return };
    let arguments = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let names = |word: &str| arguments.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes());
    // The id may belong to another process by now.
    if names(&release.name) && names(&release.namespace) {
        tracing::warn!(
            process.id = id,
            release = release.name,
            "ending helm, which an earlier agent started"
        );
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn release() -> Release {
        Release { name: "web-1".to_owned(), namespace: "line".to_owned() }
    }

    #[tokio::test]
    async fn a_process_that_outlives_its_agent_is_ended_before_another_writes() {
        let dir = tempfile::tempdir().unwrap();
        let lock = ReleaseLock::acquire(dir.path(), &release()).await.unwrap();
        // It ignores SIGTERM once it has written a byte, and has the arguments of a helm of this release.
        let mut helm = Command::new("sh")
            .args(["-c", "trap '' TERM; printf .; while :; do sleep 1; done", "helm", "web-1", "line"])
            .stdin(Stdio::from(lock.file().unwrap()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        helm.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        lock.record_process(Some(helm.id()));
        // A kill of the agent closes its file as well.
        drop(lock);
        let started = Instant::now();
        let reaped = tokio::task::spawn_blocking(move || helm.wait());
        let _lock = ReleaseLock::acquire(dir.path(), &release()).await.unwrap();
        assert!(started.elapsed() >= GRACE, "it was killed only after its time");
        assert!(!reaped.await.unwrap().unwrap().success());
    }

    #[tokio::test]
    async fn a_free_lock_is_acquired_at_once_and_other_processes_live_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        drop(ReleaseLock::acquire(dir.path(), &release()).await.unwrap());
        fs::write(dir.path().join(PROCESS), other.id().to_string()).unwrap();
        signal_former_process(&dir.path().join(PROCESS), &release(), Signal::KILL);
        assert!(other.try_wait().unwrap().is_none(), "it lives");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(ReleaseLock::acquire(dir.path(), &release()).await.is_ok());
    }
}
