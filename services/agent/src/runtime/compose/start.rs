//! Brings one unit up: finds it running or has Compose make it, then waits until it is ready.

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
use super::judge::{self, Progress};
use super::package::{self, PackageError};
use super::project::{self, ProjectError};
use super::tool::{Project, Tool};
use super::{ClearError, Clearing, Inner};
use crate::runtime::{Started, Unit, UnitName, code};

/// Time between two looks at a unit that is being started.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What Compose made of the package's file, as it is run. It may hold parameters, so it is this user's alone.
const RESOLVED: &str = "muster.yaml";

/// Why a unit could not be brought up.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot see whether it runs already")]
    Look(#[source] CommandError),
    #[error("what is left of an earlier run of it does not end")]
    Clear(#[source] ClearError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("its files cannot be written to {}", .path.display())]
    Files {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("writing its files was cut short")]
    CutShort(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Tool(CommandError),
    #[error("Compose does not take its file: {0}")]
    Config(#[source] CommandError),
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error("it could not be started: {0}")]
    Up(#[source] CommandError),
}

impl Inner {
    pub(super) async fn bring_up(
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
            // What Compose is at when it is ended is found again by the next start.
            () = cancel.cancelled() => return Ok(Started::Cancelled),
            outcome = self.until_ready(unit, package, deadline) => outcome,
        };
        match outcome {
            Ok((services, done)) => {
                self.places.note(&unit.name(), &done);
                Self::keep_watch(&self, unit, services, done);
                Ok(Started::Ready)
            }
            Err(error) => Err(self.give_up(unit, error).await),
        }
    }

    /// Waits until the unit is ready; how many services it has, and the jobs among its containers.
    async fn until_ready(
        &self,
        unit: &Unit,
        package: &Package,
        deadline: Option<Instant>,
    ) -> Result<(usize, BTreeSet<String>), StatusError> {
        let failed = |error| StatusError::new(code::START_FAILED, unit.component.as_str(), chain(&error));
        let making = self.make(unit, package);
        match deadline {
            None => making.await.map_err(failed)?,
            Some(deadline) => {
                let late = |_| late(unit, package, "its images are being fetched, or its containers made");
                timeout_at(deadline, making).await.map_err(late)?.map_err(failed)?;
            }
        }
        let mut seen = BTreeMap::new();
        loop {
            let containers = self.engine.containers_of(&unit.name()).await;
            let containers = containers.map_err(|error| failed(StartError::Look(error)))?;
            note(&mut seen, &containers);
            let waits_for = match judge::starting(&containers, |it| is_settled(&seen, it)) {
                Progress::Ready(done) => return Ok((judge::services(&containers), done)),
                Progress::Ended(end) => return Err(self.told(&unit.component, end).await),
                Progress::Waiting(what) => what,
            };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(late(unit, package, &waits_for));
            }
            sleep(LOOK_EVERY.min(UPTIME_DEFAULT)).await;
        }
    }

    /// Sees to it that all containers of the unit are there, of this version.
    async fn make(&self, unit: &Unit, package: &Package) -> Result<(), StartError> {
        let name = unit.name();
        let there = self.engine.containers_of(&name).await.map_err(StartError::Look)?;
        let whole = there.first().is_some_and(|it| there.len() >= it.services);
        if whole && judge::version(&there, &self.places.done(&name)) == Some(unit.digest_prefix()) {
            return Ok(());
        }
        if !there.is_empty() {
            let cleared = self.put_down(&name, STOP_TIMEOUT_DEFAULT, Clearing::Runs).await;
            cleared.map_err(StartError::Clear)?;
        }
        let home = self.places.home(&name);
        let (package, at) = (package.clone(), home.clone());
        let placed = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&at).map_err(|source| StartError::Files { path: at.clone(), source })?;
            Ok::<_, StartError>(package::place(&package, &at)?)
        });
        let file = placed.await??;
        let tool = *self.tool.get_or_try_init(Tool::find).await.map_err(StartError::Tool)?;
        let directory = file.parent().unwrap_or(&home);
        let project = self.project(&name).await.map_err(StartError::Look)?;
        let given = Project { name: &project, file: &file, directory, variables: &unit.environment };
        let resolved = tool.config(given).await.map_err(StartError::Config)?;
        let path = home.join(RESOLVED);
        package::keep(&path, &project::labelled(&resolved, unit)?)
            .map_err(|source| StartError::Files { path: path.clone(), source })?;
        tool.up(Project { file: &path, ..given }).await.map_err(StartError::Up)?;
        tracing::info!(
            deployment.id = %unit.deployment, component.name = %unit.component, compose.project = project, "started"
        );
        Ok(())
    }

    /// The project of a unit. One that has named volumes under its former name keeps that, to find them again, unless
    /// another unit has some there too.
    async fn project(&self, name: &UnitName) -> Result<String, CommandError> {
        let former = self.places.former_project(name);
        let there = self.engine.volumes_in(&former).await?;
        let own = !there.is_empty() && there.iter().all(|unit| unit == name);
        Ok(if own { former } else { self.places.project(name) })
    }

    /// Takes away what was begun, and says if that is not all gone.
    async fn give_up(&self, unit: &Unit, mut error: StatusError) -> StatusError {
        if let Err(left) = self.put_down(&unit.name(), STOP_TIMEOUT_DEFAULT, Clearing::Runs).await {
            // Where the engine does not answer, the same is said twice otherwise.
            let left = chain(&left);
            if !error.message.contains(&left) {
                error.message = format!("{}; and something of it may be left: {left}", error.message);
            }
        }
        error
    }
}

fn late(unit: &Unit, package: &Package, waits_for: &str) -> StatusError {
    let message = format!("not ready within {:?}: {waits_for}", package.gate.timeout.unwrap_or_default());
    StatusError::new(code::NOT_READY, unit.component.as_str(), message)
}

/// Since when each container was seen in its present run.
type Seen = BTreeMap<String, (String, Instant)>;

fn note(seen: &mut Seen, containers: &[Container]) {
    let now = Instant::now();
    for Container { id, state, .. } in containers.iter().filter(|it| it.state.status == "running") {
        let entry = seen.entry(id.clone()).or_insert_with(|| (state.started_at.clone(), now));
        if entry.0 != state.started_at {
            *entry = (state.started_at.clone(), now);
        }
    }
}

fn is_settled(seen: &Seen, container: &Container) -> bool {
    let since = seen.get(&container.id).filter(|(started, _)| *started == container.state.started_at);
    since.is_some_and(|(_, since)| since.elapsed() >= UPTIME_DEFAULT)
}
