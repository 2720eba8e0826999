//! Runs `docker` and the Compose command once: environment, time limit and output. Dropping a run kills its process.
//!
//! These programs get the variables that every workload gets, and those by which they find the engine: no credential
//! of the agent reaches a Compose file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::runtime::error_output::last_lines;
use crate::runtime::process::environment;

/// Variables with the address of the engine, its registries and a proxy.
const ENGINE_VARIABLES: [&str; 7] =
    ["DOCKER_", "XDG_RUNTIME_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy"];

/// The error of a run.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The program is not installed.
    #[error("there is no program '{program}' on the PATH: install the Docker engine's command line")]
    Missing { program: String },
    /// Neither Compose command is installed.
    #[error("there is no Compose command on this device: install docker-compose, or Docker's compose plugin")]
    NoCompose,
    /// The program could not be started.
    #[error("'{program}' could not be started")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    /// The program failed.
    #[error("{said}")]
    Failed {
        /// Its error output.
        said: String,
    },
    /// The program succeeded, but something is left.
    #[error("the engine still has {count} {kind} of it after removing them")]
    Left { kind: &'static str, count: usize },
    /// The program exceeded its time limit.
    #[error("'{what}' has not ended within {limit:?}")]
    Late { what: String, limit: Duration },
    /// The output cannot be parsed.
    #[error("cannot parse the output of '{what}'")]
    Garbled {
        what: String,
        #[source]
        source: serde_json::Error,
    },
}

/// A run of a program.
#[derive(Debug, Clone)]
pub(super) struct Run {
    program: String,
    args: Vec<String>,
    variables: BTreeMap<String, String>,
}
impl Run {
    /// A run of `program` with these arguments.
    pub(super) fn of<S: Into<String>>(program: &str, args: impl IntoIterator<Item = S>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.to_owned(), args, variables: BTreeMap::new() }
    }

    /// Adds variables.
    #[must_use]
    pub(super) fn with(self, variables: &BTreeMap<String, String>) -> Self {
        Self { variables: variables.clone(), ..self }
    }

    /// The command, without the agent's own environment.
    pub(super) fn command(&self, directory: Option<&Path>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().kill_on_drop(true);
        // Without /proc no variables are passed, and the program reports what it misses.
        let passed_on = environment::passed_on_with(&ENGINE_VARIABLES).unwrap_or_default();
        command.envs(passed_on).envs(&self.variables);
        // Plain lines instead of a redrawn screen.
        command.envs([("COMPOSE_ANSI", "never"), ("COMPOSE_PROGRESS", "plain"), ("NO_COLOR", "1")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = directory {
            command.current_dir(directory);
        }
        command
    }

    /// Runs it to its end and returns its standard output.
    pub(super) async fn stdout(
        &self,
        directory: Option<&Path>,
        limit: Duration,
    ) -> Result<String, CommandError> {
        let output = self.output(directory, limit).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(CommandError::Failed { said: last_lines(&output.stderr, output.status) })
    }

    /// Runs it to its end, successful or not.
    pub(super) async fn output(
        &self,
        directory: Option<&Path>,
        limit: Duration,
    ) -> Result<Output, CommandError> {
        let ended = timeout(limit, self.command(directory).output()).await;
        let ended = ended.map_err(|_| CommandError::Late { what: self.to_string(), limit })?;
        ended.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CommandError::Missing { program: self.program.clone() },
            _ => CommandError::Start { program: self.program.clone(), source },
        })
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.args.iter().map(OsStr::new).find(|arg| !arg.to_string_lossy().starts_with('-'));
        write!(f, "{} {}", self.program, first.unwrap_or_default().to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn sh(script: &str) -> Run {
        Run::of("sh", ["-c", script])
    }

    #[tokio::test]
    async fn a_run_returns_its_output_or_its_error_output() {
        assert_eq!(
            sh("echo $A").with(&[("A".into(), "b".into())].into()).stdout(None, SOON).await.unwrap(),
            "b\n"
        );
        let failed = sh("echo one >&2; echo >&2; echo two >&2; exit 3").stdout(None, SOON).await.unwrap_err();
        assert_eq!(failed.to_string(), "one; two");
        let silent = sh("exit 3").stdout(None, SOON).await.unwrap_err().to_string();
        assert!(silent.contains("exit status: 3"), "{silent}");
    }

    #[tokio::test]
    async fn a_missing_or_late_program_is_named() {
        let missing = Run::of("muster-no-such-program", ["x"]).stdout(None, SOON).await.unwrap_err();
        assert!(missing.to_string().contains("muster-no-such-program"), "{missing}");
        let late = sh("sleep 60").stdout(None, Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(late, CommandError::Late { .. }), "{late}");
    }
}
