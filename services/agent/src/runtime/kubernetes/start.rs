//! Starts one unit: adopts its version in the cluster or installs it, then waits until every object is as desired. Rolls a
//! release whose new version fails back to the version that was ready.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::profile::{Package, Workload};
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::client::ApiError;
use super::cluster::{ClusterError, InstalledKind};
use super::discovery::DiscoveryError;
use super::health::UnitHealth;
use super::helm::{HelmCall, HelmError, LockError, Release, ReleaseLock};
use super::kstatus::Failure;
use super::manifests::{ApplyError, Target};
use super::object::{ManifestError, ObjectRef, labels_of, objects, references};
use super::observation::{Observation, OwnedObject};
use super::package::{self, PackageFilesError};
use super::release::{History, Recovery};
use super::remove::KubernetesRemoveError;
use super::values::{self, PointerError};
use super::{Inner, NamespaceError, labels};
use crate::runtime::files::write_private;
use crate::runtime::{Started, Unit, code};

/// Time to become ready, if the document has no `timeout`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10 * 60);
/// Time limit of a rollback, beyond the unit's own.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(120);
/// Pause after a change before the health is checked: changes come in bursts.
const BURST_PAUSE: Duration = Duration::from_millis(100);
/// The file of a chart's values. It may hold passwords, so only this user can read it.
const VALUES: &str = "values.json";
/// The file with the revision that was ready last.
const READY_REVISION: &str = "ready-revision";
/// The status code of a conflict: another manager owns a field.
const CONFLICT: u16 = 409;

/// The error of starting a unit.
#[derive(Debug, thiserror::Error)]
pub(super) enum KubernetesStartError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Files(#[from] PackageFilesError),
    #[error(transparent)]
    Values(#[from] PointerError),
    #[error("cannot write its files to {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot remove its former release or manifests")]
    Remove(#[from] KubernetesRemoveError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Helm(#[from] HelmError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("cannot read the manifest of its release")]
    Manifest(#[from] ManifestError),
    #[error("{0}")]
    Watch(String),
    #[error("{}", .0.message)]
    Health(Failure),
    #[error("not ready within {limit:?}: {}", .failure.message)]
    Late { limit: Duration, failure: Failure },
}

impl KubernetesStartError {
    fn code(&self) -> &str {
        match self {
            Self::Files(_) => code::PACKAGE_FAILED,
            Self::Helm(_) | Self::Remove(KubernetesRemoveError::Helm(_)) => code::HELM_FAILED,
            Self::Apply(ApplyError::Object { source: ApiError::Refused { code: CONFLICT, .. }, .. })
            | Self::Apply(ApplyError::Owned { .. }) => code::APPLY_CONFLICT,
            Self::Apply(ApplyError::Object { .. } | ApplyError::Manifest(_)) => code::APPLY_FAILED,
            Self::Apply(ApplyError::Cluster(ClusterError::Discovery(DiscoveryError::NoKind { .. }))) => {
                code::APPLY_FAILED
            }
            Self::Health(failure) | Self::Late { failure, .. } => &failure.code,
            _ => code::START_FAILED,
        }
    }
}

impl From<DiscoveryError> for KubernetesStartError {
    fn from(error: DiscoveryError) -> Self {
        Self::Cluster(error.into())
    }
}

/// One start: the unit, its names in the cluster, and its time limit.
struct Start<'a> {
    unit: &'a Unit,
    package: &'a Package,
    namespace: String,
    name: String,
    limit: Duration,
    deadline: Instant,
}

impl Start<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn release(&self) -> Release {
        Release { name: self.name.clone(), namespace: self.namespace.clone() }
    }
}

impl Inner {
    pub(super) async fn start_unit(
        self: Arc<Self>,
        unit: &Unit,
        cancel: &CancellationToken,
    ) -> Result<Started, StatusError> {
        let (Workload::Helm(package) | Workload::Kubernetes(package)) = &unit.workload else {
            let message = "the agent's runtime is 'kubernetes' and runs no component of another type";
            return Err(StatusError::new(code::UNSUPPORTED_PROFILE, unit.component.as_str(), message));
        };
        let limit = package.gate.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let outcome = tokio::select! {
            biased;
            // The next start adopts the objects of a cancelled one.
            () = cancel.cancelled() => return Ok(Started::Cancelled),
            outcome = self.until_ready(unit, package, limit) => outcome,
        };
        let failed = |error: KubernetesStartError| {
            let (code, message) = (error.code().to_owned(), chain(&error));
            Failure { code, message }.error(&unit.component)
        };
        let observation = outcome.map_err(failed)?;
        tracing::info!(
            deployment.id = %unit.deployment, component.name = %unit.component, objects = observation.count(), "started unit"
        );
        Self::watch_unit(&self, unit, observation);
        Ok(Started::Ready)
    }

    async fn until_ready(
        &self,
        unit: &Unit,
        package: &Package,
        limit: Duration,
    ) -> Result<Observation, KubernetesStartError> {
        let start = Start {
            unit,
            package,
            namespace: self.namespace(unit, package)?,
            name: labels::object_name(&unit.device, &unit.name()),
            limit,
            deadline: Instant::now() + limit,
        };
        self.remove_from_other_namespaces(&start).await?;
        self.cluster.ensure_namespace(&start.namespace).await?;
        match &unit.workload {
            Workload::Helm(_) => self.release_until_ready(&start).await,
            _ => self.manifests_until_ready(&start).await,
        }
    }

    /// Removes the unit's objects of another namespace or another type, which an earlier version had.
    async fn remove_from_other_namespaces(&self, start: &Start<'_>) -> Result<(), KubernetesStartError> {
        let is_release = matches!(start.unit.workload, Workload::Helm(_));
        for installed in self.cluster.installed_as(&start.unit.name()).await? {
            let is_same = installed.namespace == start.namespace
                && matches!(installed.kind, InstalledKind::Release(..)) == is_release;
            if !is_same {
                self.remove_installed(&installed).await?;
            }
        }
        Ok(())
    }

    async fn manifests_until_ready(&self, start: &Start<'_>) -> Result<Observation, KubernetesStartError> {
        let group = self.cluster.group(&start.namespace, &start.name).await?;
        let is_version = group
            .as_ref()
            .is_some_and(|group| labels_of(group).get(labels::DIGEST) == Some(&start.unit.digest_prefix()));
        if let Some(group) = group.filter(|_| is_version) {
            let observation = self.observe(start, self.cluster.owned_by(&group).await?).await?;
            if !matches!(observation.health(), UnitHealth::Missing(_)) {
                wait(start, &observation).await?;
                return Ok(observation);
            }
        }
        let home = self.home(&start.unit.name());
        create(&home)?;
        let fetching = timeout_at(start.deadline, package::manifests(start.package, &home, &self.packages));
        let mut found = fetching.await.map_err(|_| late(start, "its manifests are being fetched"))??;
        labels::add(&mut found, &start.unit.labels);
        let labels = labels::of_unit(start.unit);
        let target = Target { name: &start.name, namespace: &start.namespace, labels: &labels };
        let observation = self.observe(start, self.cluster.apply_all(&target, found).await?).await?;
        wait(start, &observation).await?;
        Ok(observation)
    }

    async fn release_until_ready(&self, start: &Start<'_>) -> Result<Observation, KubernetesStartError> {
        let (release, home) = (start.release(), self.home(&start.unit.name()));
        create(&home)?;
        let lock = ReleaseLock::acquire(&home, &release).await?;
        let history = self.recover(start, &release, &lock).await?;
        if history.deployed_version() == start.unit.digest_prefix() {
            let observation = self.observe(start, self.owned_by_release(&release, &lock).await?).await?;
            if !matches!(observation.health(), UnitHealth::Missing(_)) {
                wait(start, &observation).await?;
                self.record_ready(start, &release).await?;
                return Ok(observation);
            }
        }
        match self.upgrade(start, &release, &lock).await {
            Ok(observation) => {
                self.record_ready(start, &release).await?;
                Ok(observation)
            }
            Err(error) => Err(self.roll_back(start, &release, &lock, error).await),
        }
    }

    /// Recovers a release that a killed `helm` left; returns its history.
    async fn recover(
        &self,
        start: &Start<'_>,
        release: &Release,
        lock: &ReleaseLock,
    ) -> Result<History, KubernetesStartError> {
        let history = self.cluster.history(release).await?;
        let Some(recovery) = history.recovery() else { return Ok(history) };
        tracing::warn!(release = release.name, ?recovery, "recovering a release that a killed helm left");
        let timeout = start.left();
        let call = match recovery {
            Recovery::Rollback(revision) => HelmCall::Rollback { release, revision, timeout },
            Recovery::Uninstall => HelmCall::Uninstall { release, timeout },
        };
        self.helm.run(&call, lock).await?;
        Ok(self.cluster.history(release).await?)
    }

    async fn upgrade(
        &self,
        start: &Start<'_>,
        release: &Release,
        lock: &ReleaseLock,
    ) -> Result<Observation, KubernetesStartError> {
        let home = self.home(&start.unit.name());
        let fetching = timeout_at(start.deadline, package::chart(start.package, &home, &self.packages));
        let chart = fetching.await.map_err(|_| late(start, "its chart is being fetched"))??;
        let (values, path) = (values::document(&start.unit.values)?, home.join(VALUES));
        let failed = |source| KubernetesStartError::Write { path: path.clone(), source };
        write_private(&path, &values.to_string()).map_err(failed)?;
        let labels = labels::of_unit(start.unit);
        let timeout = start.left();
        let call = HelmCall::Upgrade { release, chart: &chart, values: &path, labels: &labels, timeout };
        self.helm.run(&call, lock).await?;
        let observation = self.observe(start, self.owned_by_release(release, lock).await?).await?;
        wait(start, &observation).await?;
        Ok(observation)
    }

    /// The objects of a release's newest revision.
    async fn owned_by_release(
        &self,
        release: &Release,
        lock: &ReleaseLock,
    ) -> Result<Vec<OwnedObject>, KubernetesStartError> {
        let found = objects(&self.helm.manifest(release, lock).await?)?;
        let mut owned = Vec::new();
        for reference in references(&found)? {
            owned.push(self.owned(reference, &release.namespace).await?);
        }
        Ok(owned)
    }

    async fn owned(&self, reference: ObjectRef, namespace: &str) -> Result<OwnedObject, DiscoveryError> {
        let resource = self.cluster.resource(&reference).await?;
        Ok(OwnedObject::new(reference, resource, namespace))
    }

    /// Rolls back to the revision that was ready, if there is one; adds the outcome to the error.
    async fn roll_back(
        &self,
        start: &Start<'_>,
        release: &Release,
        lock: &ReleaseLock,
        error: KubernetesStartError,
    ) -> KubernetesStartError {
        let noted = std::fs::read_to_string(self.home(&start.unit.name()).join(READY_REVISION));
        let revision = noted.ok().and_then(|revision| revision.trim().parse::<u64>().ok());
        let Ok(history) = self.cluster.history(release).await else { return error };
        let newest = history.newest().map(|revision| revision.number);
        let Some(revision) = revision.filter(|it| history.has(*it) && newest != Some(*it)) else {
            return error;
        };
        let call = HelmCall::Rollback { release, revision, timeout: ROLLBACK_LIMIT };
        let done = match self.helm.run(&call, lock).await {
            Ok(_) => format!("rolled back to revision {revision}"),
            Err(failure) => format!("cannot roll back to revision {revision}: {failure}"),
        };
        let (code, message) = (error.code().to_owned(), format!("{}; {done}", chain(&error)));
        tracing::warn!(release = release.name, revision, "{done}");
        // The rollback made a new revision of the one that was ready.
        if let Ok(history) = self.cluster.history(release).await {
            self.write_ready(start, &history);
        }
        KubernetesStartError::Health(Failure { code, message })
    }

    async fn record_ready(&self, start: &Start<'_>, release: &Release) -> Result<(), KubernetesStartError> {
        let history = self.cluster.history(release).await?;
        self.write_ready(start, &history);
        Ok(())
    }

    fn write_ready(&self, start: &Start<'_>, history: &History) {
        let Some(newest) = history.newest() else { return };
        let path = self.home(&start.unit.name()).join(READY_REVISION);
        if let Err(error) = std::fs::write(&path, newest.number.to_string()) {
            tracing::warn!(path = %path.display(), %error, "cannot store the ready revision: there is no rollback to it");
        }
    }

    /// Observes objects, and lists them again, so that no status is older than the change.
    async fn observe(
        &self,
        start: &Start<'_>,
        owned: Vec<OwnedObject>,
    ) -> Result<Observation, KubernetesStartError> {
        let observation = self.watches.observe(owned);
        let listed = timeout_at(start.deadline, observation.resync()).await;
        let words =
            || observation.outage().map_or_else(|| "its objects are being listed".to_owned(), |it| it.1);
        listed.map_err(|_| late(start, &words()))?.map_err(KubernetesStartError::Watch)?;
        Ok(observation)
    }
}

/// Waits until every object is as desired.
async fn wait(start: &Start<'_>, observation: &Observation) -> Result<(), KubernetesStartError> {
    let mut changes = observation.changes();
    loop {
        changes.mark_unchanged();
        let failure = match observation.health() {
            UnitHealth::Ready => return Ok(()),
            UnitHealth::Failed(failure) => return Err(KubernetesStartError::Health(failure)),
            UnitHealth::Waiting(failure) | UnitHealth::Missing(failure) => failure,
        };
        if timeout_at(start.deadline, changes.changed()).await.is_err() {
            return Err(KubernetesStartError::Late { limit: start.limit, failure });
        }
        sleep(BURST_PAUSE).await;
    }
}

fn create(home: &Path) -> Result<(), KubernetesStartError> {
    let failed = |source| KubernetesStartError::Write { path: home.to_owned(), source };
    std::fs::create_dir_all(home).map_err(failed)
}

fn late(start: &Start<'_>, words: &str) -> KubernetesStartError {
    let failure = Failure { code: code::NOT_READY.to_owned(), message: words.to_owned() };
    KubernetesStartError::Late { limit: start.limit, failure }
}
