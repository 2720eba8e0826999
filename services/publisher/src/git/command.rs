//! Runs git with a defined environment and a time limit. Git prompts for nothing, ignores variables that would redirect it,
//! and reads the token from its file, so that the token is neither in an argument nor in an environment variable.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use super::error::GitError;
use super::url::GitUrl;

/// Time limit of a run that uses only the mirror.
pub(super) const LOCAL_LIMIT: Duration = Duration::from_secs(60);
/// Time between SIGTERM, which lets git remove its lock files, and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// Bytes of git's error output that are kept.
const COMPLAINT_BYTES_MAX: u64 = 8 * 1024;
/// Largest output of one run, in bytes, such as the list of the files of a commit.
const OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Variables that would point git to another repository, make it log what it sends, or weaken TLS. Others may say how to
/// reach the repository, such as `GIT_SSH_COMMAND` with a key.
const UNWANTED: [&str; 19] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CONFIG_PARAMETERS",
    "GIT_TRACE",
    "GIT_TRACE_CURL",
    "GIT_TRACE_PACKET",
    "GIT_CURL_VERBOSE",
    "GIT_TRACE2",
    "GIT_TRACE2_EVENT",
    "GIT_TRACE2_PERF",
    "GIT_SSL_NO_VERIFY",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_QUARANTINE_PATH",
];

/// The variable with the path of the token file, for git's credential helper.
const TOKEN_PATH: &str = "MUSTER_PUBLISHER_TOKEN_PATH";
/// The user of a token if the address names none: the large hosts expect or ignore it.
const TOKEN_USER: &str = "x-access-token";

/// The settings of all runs.
#[derive(Debug, Clone)]
pub(super) struct Git {
    program: PathBuf,
    token_file: Option<PathBuf>,
    config: Vec<(String, String)>,
    /// A text that must not appear in errors.
    hidden: Option<Arc<str>>,
}

impl Git {
    /// Runs `program` for a repository; the token, if there is one, goes to its HTTP origin and nowhere else.
    pub(super) fn new(program: PathBuf, url: &GitUrl, token_file: Option<PathBuf>) -> Self {
        let mut config = settings();
        if let (Some(_), Some(origin)) = (&token_file, url.http_origin()) {
            // The empty value removes the user's own helpers.
            config.push(("credential.helper".to_owned(), String::new()));
            config.push((format!("credential.{origin}.helper"), token_helper(url)));
        }
        let hidden = url.http_user().map(Arc::from);
        Self { program, token_file, config, hidden }
    }

    /// Runs git to its end and returns its output. `what` is its purpose, for "git could not …".
    pub(super) async fn run<I, S>(&self, what: &str, limit: Duration, args: I) -> Result<Vec<u8>, GitError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut run = self.start(what, args, Stdio::null())?;
        let end = run.within(limit, async |child: &mut Child| {
            let (out, complaints) = (child.stdout.take(), child.stderr.take());
            tokio::try_join!(read_output(out), read_complaint(complaints), child.wait())
        });
        let (output, complaint, status) = end.await?;
        run.judge(status, &complaint)?;
        Ok(output)
    }

    /// Starts git with its output piped.
    pub(super) fn start<I, S>(&self, what: &str, args: I, stdin: Stdio) -> Result<Run, GitError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new(&self.program);
        command.args(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        UNWANTED.iter().for_each(|name| _ = command.env_remove(name));
        command.envs([("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0"), ("GIT_ASKPASS", "")]);
        command.env("GIT_CONFIG_COUNT", self.config.len().to_string());
        for (at, (key, value)) in self.config.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{at}"), key).env(format!("GIT_CONFIG_VALUE_{at}"), value);
        }
        if let Some(path) = &self.token_file {
            command.env(TOKEN_PATH, path);
        }
        let child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => GitError::NoGit { program: self.program.clone() },
            _ => GitError::Start { program: self.program.clone(), source },
        })?;
        Ok(Run {
            group: child.id().and_then(|id| Pid::from_raw(id.cast_signed())),
            child,
            what: what.to_owned(),
            hidden: self.hidden.clone(),
        })
    }

    /// Checks that the token can be read: git's own error for an empty token would not name the cause.
    pub(super) async fn check_token(&self) -> Result<(), GitError> {
        let Some(path) = &self.token_file else { return Ok(()) };
        let refuse = |source| GitError::Token { path: path.clone(), source };
        let text = tokio::fs::read(path).await.map_err(refuse)?;
        if text.trim_ascii().is_empty() {
            return Err(refuse(io::Error::new(io::ErrorKind::InvalidData, "it is empty")));
        }
        Ok(())
    }
}

/// Settings of every run, which override those of the machine and the user.
fn settings() -> Vec<(String, String)> {
    let settings = [
        // Within the run and its time limit, instead of a background process.
        ("gc.autoDetach", "false"),
        ("maintenance.autoDetach", "false"),
        // A stalled transfer must fail.
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", "30"),
        ("core.sshCommand", "ssh -o BatchMode=yes -o ConnectTimeout=20"),
        ("init.defaultBranch", "main"),
    ];
    settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// The credential helper: a shell function that reads the token file when git asks for a password.
fn token_helper(url: &GitUrl) -> String {
    let user = if url.names_user() { String::new() } else { format!("echo username={TOKEN_USER}; ") };
    format!(
        "!f() {{ test \"$1\" = get || exit 0; {user}printf 'password=%s\\n' \"$(cat \"${TOKEN_PATH}\")\"; }}; f"
    )
}

/// Reads git's whole output. More than the limit is an error: half a listing would look like a commit that removes files.
pub(super) async fn read_output(from: Option<ChildStdout>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > OUTPUT_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("its output has more than {OUTPUT_BYTES_MAX} bytes"),
        ));
    }
    Ok(bytes)
}

/// Reads the beginning of git's error output. The rest is read and dropped, or git would block.
pub(super) async fn read_complaint(from: Option<ChildStderr>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let mut from = from.take(COMPLAINT_BYTES_MAX);
        from.read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut from.into_inner(), &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

/// A running git. Dropping it terminates git and its child processes.
pub(super) struct Run {
    pub(super) child: Child,
    group: Option<Pid>,
    what: String,
    hidden: Option<Arc<str>>,
}

impl Run {
    /// Runs `work` on the process within a time limit; terminates the process when the limit is reached.
    pub(super) async fn within<T>(
        &mut self,
        limit: Duration,
        work: impl AsyncFnOnce(&mut Child) -> io::Result<T>,
    ) -> Result<T, GitError> {
        match tokio::time::timeout(limit, work(&mut self.child)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(GitError::Talk { what: self.what.clone(), source }),
            Err(_) => {
                self.end().await;
                Err(GitError::Slow { what: self.what.clone(), limit })
            }
        }
    }

    /// Turns its exit status into a result.
    pub(super) fn judge(&mut self, status: ExitStatus, complaint: &[u8]) -> Result<(), GitError> {
        // Its process id may belong to another process from now on.
        self.group = None;
        if status.success() {
            return Ok(());
        }
        let mut complaint = String::from_utf8_lossy(complaint).into_owned();
        if let Some(hidden) = self.hidden.as_deref() {
            complaint = complaint.replace(hidden, "…");
        }
        let lines: Vec<_> = complaint.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Err(GitError::Failed { what: self.what.clone(), status, complaint: lines.join("; ") })
    }

    async fn end(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(TERM_GRACE, self.child.wait()).await.is_err() {
            self.signal(Signal::KILL);
            // A killed process ends; its status does not matter.
            let _ = self.child.wait().await;
        }
        self.group = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Fails only if the group has ended already.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// Arguments that make git work on a mirror.
pub(super) fn in_mirror(mirror: &Path) -> String {
    format!("--git-dir={}", mirror.display())
}

#[cfg(test)]
mod tests;
