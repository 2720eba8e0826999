//! Starts one unit: finds it running or has Compose create it, then waits until it is ready.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::profile::{Package, STOP_TIMEOUT_DEFAULT, UPTIME_DEFAULT, Workload};
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::command::CommandError;
use super::engine::Container;
use super::package::{self, ComposeFileError};
use super::project::{self, ProjectError};
use super::tool::{ComposeTool, Project};
use super::unit_state::{self, UnitProgress};
use super::{Inner, RemovalScope, RemoveError};
use crate::runtime::files::write_private;
use crate::runtime::{Started, Unit, code};

/// Time between two polls of a unit that is being started.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Compose's output for the package's file, as it is run. It may hold parameters, so only this user can read it.
const RESOLVED: &str = "muster.yaml";

/// The error of starting a unit.
#[derive(Debug, thiserror::Error)]
enum ComposeStartError {
    #[error("cannot find out whether it runs already")]
    List(#[source] CommandError),
    #[error("cannot remove what an earlier run of it left")]
    Clear(#[source] RemoveError),
    #[error(transparent)]
    File(#[from] ComposeFileError),
    #[error("its files cannot be written to {}", .path.display())]
    Files {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    ComposeTool(CommandError),
    #[error("Compose rejects its file: {0}")]
    InspectedConfig(#[source] CommandError),
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error("it could not be started: {0}")]
    Up(#[source] CommandError),
}

impl Inner {
    pub(super) async fn start_unit(
        self: Arc<Self>,
        unit: &Unit,
        cancel: &CancellationToken,
    ) -> Result<Started, StatusError> {
        let Workload::Compose(package) = &unit.workload else {
            let message = "the agent's runtime is 'compose' and runs no component of another type";
            return Err(StatusError::new(code::UNSUPPORTED_PROFILE, unit.component.as_str(), message));
        };
        let deadline = package.gate.timeout.map(|timeout| Instant::now() + timeout);
        let outcome = tokio::select! {
            biased;
            // A start that is cancelled within Compose is found again by the next one.
            () = cancel.cancelled() => return Ok(Started::Cancelled),
            outcome = self.until_ready(unit, package, deadline) => outcome,
        };
        match outcome {
            Ok((services, done)) => {
                self.paths.store_done(&unit.name(), &done);
                Self::watch_unit(&self, unit, services, done);
                Ok(Started::Ready)
            }
            Err(error) => Err(self.give_up(unit, error).await),
        }
    }

    /// Waits until the unit is ready; returns its number of services, and its completed jobs.
    async fn until_ready(
        &self,
        unit: &Unit,
        package: &Package,
        deadline: Option<Instant>,
    ) -> Result<(usize, BTreeSet<String>), StatusError> {
        let failed = |error| StatusError::new(error_code(&error), unit.component.as_str(), chain(&error));
        let making = self.make(unit, package);
        match deadline {
            None => making.await.map_err(failed)?,
            Some(deadline) => {
                let late = |_| {
                    late(
                        unit,
                        package,
                        "its package is being fetched, its images pulled, or its containers created",
                    )
                };
                timeout_at(deadline, making).await.map_err(late)?.map_err(failed)?;
            }
        }
        let mut seen = BTreeMap::new();
        loop {
            let containers = self.engine.containers_of(&unit.name()).await;
            let containers = containers.map_err(|error| failed(ComposeStartError::List(error)))?;
            track_first_seen(&mut seen, &containers);
            let progress = unit_state::start_progress(&containers, unit.is_job, |it| is_settled(&seen, it));
            let waits_for = match progress {
                UnitProgress::Ready(done) => return Ok((unit_state::services(&containers), done)),
                UnitProgress::Ended(end) => return Err(self.error_of(&unit.component, end).await),
                UnitProgress::Waiting(what) => what,
            };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(late(unit, package, &waits_for));
            }
            sleep(POLL_INTERVAL.min(UPTIME_DEFAULT)).await;
        }
    }

    /// Ensures that all containers of the unit exist, of this version.
    async fn make(&self, unit: &Unit, package: &Package) -> Result<(), ComposeStartError> {
        let name = unit.name();
        let there = self.engine.containers_of(&name).await.map_err(ComposeStartError::List)?;
        let whole = there.first().is_some_and(|it| there.len() >= it.services);
        if whole && unit_state::version(&there, &self.paths.done(&name)) == Some(unit.digest_prefix()) {
            return Ok(());
        }
        if !there.is_empty() {
            let cleared = self.stop_unit(&name, STOP_TIMEOUT_DEFAULT, RemovalScope::Containers).await;
            cleared.map_err(ComposeStartError::Clear)?;
        }
        let home = self.paths.home(&name);
        let created = tokio::fs::create_dir_all(&home).await;
        created.map_err(|source| ComposeStartError::Files { path: home.clone(), source })?;
        let file = package::resolve(package, &home, &self.packages).await?;
        let tool =
            *self.tool.get_or_try_init(ComposeTool::find).await.map_err(ComposeStartError::ComposeTool)?;
        let directory = file.parent().unwrap_or(&home);
        let project = self.project(unit).await.map_err(ComposeStartError::List)?;
        let given = Project { name: &project, file: &file, directory, variables: &unit.environment };
        let resolved = tool.config(given).await.map_err(ComposeStartError::InspectedConfig)?;
        let path = home.join(RESOLVED);
        write_private(&path, &project::labelled(&resolved, unit)?)
            .map_err(|source| ComposeStartError::Files { path: path.clone(), source })?;
        tool.up(Project { file: &path, ..given }).await.map_err(ComposeStartError::Up)?;
        tracing::info!(
            deployment.id = %unit.deployment, component.name = %unit.component, compose.project = project, "started"
        );
        Ok(())
    }

    /// The project of a unit. A unit that has named volumes in a project of another name keeps that name, because its data
    /// is there; not if another unit has volumes there too.
    async fn project(&self, unit: &Unit) -> Result<String, CommandError> {
        let (name, project) = (unit.name(), self.paths.project(&unit.name(), unit.namespace.as_ref()));
        let volumes = self.engine.volumes().await?;
        let is_own = |there: &str| volumes.iter().all(|(unit, of)| of != there || *unit == name);
        let mut own =
            volumes.iter().filter(|(unit, there)| *unit == name && is_own(there)).map(|(_, there)| there);
        Ok(own.next().cloned().unwrap_or(project))
    }

    /// Removes what was begun, and adds to the error what could not be removed.
    async fn give_up(&self, unit: &Unit, mut error: StatusError) -> StatusError {
        if let Err(left) = self.stop_unit(&unit.name(), STOP_TIMEOUT_DEFAULT, RemovalScope::Containers).await
        {
            // If the engine does not answer, both errors are the same.
            let left = chain(&left);
            if !error.message.contains(&left) {
                error.message = format!("{}; and something of it may be left: {left}", error.message);
            }
        }
        error
    }
}

const fn error_code(error: &ComposeStartError) -> &'static str {
    match error {
        ComposeStartError::File(_) => code::PACKAGE_FAILED,
        _ => code::START_FAILED,
    }
}

fn late(unit: &Unit, package: &Package, waits_for: &str) -> StatusError {
    let message = format!("not ready within {:?}: {waits_for}", package.gate.timeout.unwrap_or_default());
    StatusError::new(code::NOT_READY, unit.component.as_str(), message)
}

/// The start of each container, and when it was first seen since.
type FirstSeen = BTreeMap<String, (String, Instant)>;

fn track_first_seen(seen: &mut FirstSeen, containers: &[Container]) {
    let now = Instant::now();
    for Container { id, state, .. } in containers.iter().filter(|it| it.state.status == "running") {
        let entry = seen.entry(id.clone()).or_insert_with(|| (state.started_at.clone(), now));
        if entry.0 != state.started_at {
            *entry = (state.started_at.clone(), now);
        }
    }
}

fn is_settled(seen: &FirstSeen, container: &Container) -> bool {
    let since = seen.get(&container.id).filter(|(started, _)| *started == container.state.started_at);
    since.is_some_and(|(_, since)| since.elapsed() >= UPTIME_DEFAULT)
}
