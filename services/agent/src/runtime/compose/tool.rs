//! The Compose command of this device: Docker's plugin if it is installed, otherwise `docker-compose`. Both
//! understand the arguments used here.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use muster_contract::profile::DURATION_MAX;

use super::command::{CommandError, Run};

/// Time limit of `version` and `config`.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The Compose command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComposeTool {
    /// `docker compose`
    Plugin,
    /// `docker-compose`
    Standalone,
}

/// A project as arguments of Compose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Project<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Its file.
    pub(super) file: &'a Path,
    /// The directory of relative paths in it.
    pub(super) directory: &'a Path,
    /// The variables of its file.
    pub(super) variables: &'a BTreeMap<String, String>,
}

impl ComposeTool {
    /// Finds the command.
    ///
    /// # Errors
    /// Neither is installed.
    pub(super) async fn find() -> Result<Self, CommandError> {
        for tool in [Self::Plugin, Self::Standalone] {
            let asked = tool.run(["version".to_owned()]).output(None, ANSWER_LIMIT).await;
            if asked.is_ok_and(|output| output.status.success()) {
                return Ok(tool);
            }
        }
        Err(CommandError::NoCompose)
    }

    /// The project's file as Compose understands it: checked, with all variables set.
    pub(super) async fn config(self, project: Project<'_>) -> Result<String, CommandError> {
        self.of(project, &["config"]).stdout(Some(project.directory), ANSWER_LIMIT).await
    }

    /// Creates and starts the containers that do not exist yet. Images are pulled, which takes time: the caller sets the
    /// limit.
    pub(super) async fn up(self, project: Project<'_>) -> Result<(), CommandError> {
        let run = self.of(project, &["up", "--detach", "--remove-orphans"]);
        run.stdout(Some(project.directory), DURATION_MAX).await.map(drop)
    }

    fn of(self, project: Project<'_>, verb: &[&str]) -> Run {
        let (file, directory) = (project.file.display().to_string(), project.directory.display().to_string());
        let place = ["--project-name", project.name, "--file", &file, "--project-directory", &directory];
        let args: Vec<_> = place.iter().chain(verb).map(|&arg| arg.to_owned()).collect();
        self.run(args).with(project.variables)
    }

    fn run(self, args: impl IntoIterator<Item = String>) -> Run {
        match self {
            Self::Plugin => Run::of("docker", ["compose".to_owned()].into_iter().chain(args)),
            Self::Standalone => Run::of("docker-compose", args),
        }
    }
}
