//! The Compose command of this device: Docker's plugin if it is there, else `docker-compose`. Both understand what is
//! asked of them here.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use muster_contract::profile::DURATION_MAX;

use super::command::{CommandError, Run};

/// Time that Compose may take to say that it is there, or what it understands.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// How Compose is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// `docker compose`
    Plugin,
    /// `docker-compose`
    Standalone,
}

/// A project as Compose is told of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Project<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Its file.
    pub(super) file: &'a Path,
    /// What relative paths in it count from.
    pub(super) directory: &'a Path,
    /// The parameters.
    pub(super) variables: &'a BTreeMap<String, String>,
}

impl Tool {
    /// The one that is there.
    ///
    /// # Errors
    /// Neither is.
    pub(super) async fn find() -> Result<Self, CommandError> {
        for tool in [Self::Plugin, Self::Standalone] {
            let asked = tool.run(["version".to_owned()]).output(None, ANSWER_LIMIT).await;
            if asked.is_ok_and(|output| output.status.success()) {
                return Ok(tool);
            }
        }
        Err(CommandError::NoCompose)
    }

    /// What Compose makes of a project's file: checked, with everything filled in.
    pub(super) async fn config(self, project: Project<'_>) -> Result<String, CommandError> {
        self.of(project, &["config"]).said(Some(project.directory), ANSWER_LIMIT).await
    }

    /// Makes and starts what the project has and what is not there yet. Images are pulled, which takes its time: whoever
    /// waits says for how long.
    pub(super) async fn up(self, project: Project<'_>) -> Result<(), CommandError> {
        let run = self.of(project, &["up", "--detach", "--remove-orphans"]);
        run.said(Some(project.directory), DURATION_MAX).await.map(drop)
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
