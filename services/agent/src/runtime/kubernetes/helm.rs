//! Runs the `helm` command: arguments, environment, time limits and errors. At most one process works on a release, also after
//! a kill of the agent ([`lock`]).
//!
//! Helm gets no credentials but those of the cluster: the agent has fetched the chart. Helm waits for hooks; the agent waits
//! for readiness.

mod arguments;
mod lock;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

pub(super) use self::arguments::{HelmCall, Release};
pub(super) use self::lock::{LockError, ReleaseLock};
use crate::runtime::error_output::last_lines;
use crate::runtime::process::environment;

/// Variables with the address of the cluster (in a pod) and a proxy.
const CLUSTER_VARIABLES: [&str; 7] =
    ["KUBERNETES_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];
/// Time beyond Helm's own `--timeout` after which the agent kills a run.
const SLACK: Duration = Duration::from_secs(30);
/// Time limit of reading a release's manifest.
const MANIFEST_LIMIT: Duration = Duration::from_secs(30);

/// The error of a run.
#[derive(Debug, thiserror::Error)]
pub(super) enum HelmError {
    #[error("there is no program '{}': install Helm, or name it with --helm", .0.display())]
    Missing(PathBuf),
    #[error("cannot start '{}'", .program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("helm {verb} failed: {stderr}")]
    Failed { verb: &'static str, stderr: String },
    #[error("helm {verb} has not ended within {limit:?}")]
    Late { verb: &'static str, limit: Duration },
}

/// The `helm` command of this device.
#[derive(Debug, Clone)]
pub(super) struct Helm {
    program: PathBuf,
    kubeconfig: Option<PathBuf>,
    home: PathBuf,
}

impl Helm {
    /// The command, with its own files in `home`.
    pub(super) fn new(program: PathBuf, kubeconfig: Option<PathBuf>, home: PathBuf) -> Self {
        Self { program, kubeconfig, home }
    }

    /// Runs it to its end and returns its output. Dropping the run kills the process.
    pub(super) async fn run(&self, call: &HelmCall<'_>, lock: &ReleaseLock) -> Result<String, HelmError> {
        let (verb, limit) = (call.verb(), call.timeout() + SLACK);
        let start = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => HelmError::Missing(self.program.clone()),
            _ => HelmError::Start { program: self.program.clone(), source },
        };
        let child = self.command(call, lock).map_err(start)?.spawn().map_err(start)?;
        lock.record_process(child.id());
        let ended = timeout(limit, child.wait_with_output()).await;
        let output = ended.map_err(|_| HelmError::Late { verb, limit })?.map_err(start)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(HelmError::Failed { verb, stderr: last_lines(&output.stderr, output.status) })
    }

    /// Reads the manifest of a release's newest revision.
    pub(super) async fn manifest(&self, release: &Release, lock: &ReleaseLock) -> Result<String, HelmError> {
        self.run(&HelmCall::Manifest { release, timeout: MANIFEST_LIMIT }, lock).await
    }

    fn command(&self, call: &HelmCall<'_>, lock: &ReleaseLock) -> std::io::Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(call.arguments()).env_clear().kill_on_drop(true);
        // Without /proc no variables are passed, and the program reports what it misses.
        command.envs(environment::passed_on_with(&CLUSTER_VARIABLES).unwrap_or_default());
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        command.env("HELM_DRIVER", "secret").env("NO_COLOR", "1");
        for (variable, folder) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(variable, self.home.join(folder));
        }
        // The standard input is the lock, an empty file: Helm holds the lock when the agent dies.
        command.stdin(Stdio::from(lock.file()?)).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// The folder of Helm's own files below that of the runtime.
pub(super) fn home(root: &Path) -> PathBuf {
    root.join(".helm")
}
