//! Runs units in a Kubernetes cluster: charts as Helm releases (`helm`), and manifests by server-side apply with an inventory
//! (`kubernetes`). One agent for a cluster is one device.
//!
//! ```text
//! start ─► namespace ─► installed? ─┬─ helm upgrade --install ─┬─► list again ─► health ─► Ready
//!                                   └─ apply, prune ───────────┘         └─► failed ─► roll back (helm)
//! watches, one for each kind and namespace ─► health ─► Exit
//! ```
//!
//! The cluster stores which units run: releases and inventories carry the unit's identity and version as labels, so an agent
//! without its files finds them. [`kstatus`] judges one object, [`health`] a unit; [`release`] decides how to recover a release
//! that a killed process left. A new version replaces the old one in place. Units keep running when the agent ends.

mod client;
mod cluster;
mod discovery;
mod group;
mod health;
mod helm;
mod kstatus;
mod kubeconfig;
mod labels;
mod manifests;
mod object;
mod observation;
mod package;
mod ready;
mod release;
mod remove;
mod start;
mod values;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_contract::DeviceKey;
use muster_contract::desired::ProfileType;
use muster_contract::profile::Package;
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::sync::{OnceCell, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::client::ApiClient;
use self::cluster::ClusterView;
use self::discovery::Discovery;
use self::helm::Helm;
use self::kubeconfig::ClusterAccess;
pub(crate) use self::kubeconfig::KubeconfigError;
use self::observation::WatchPool;
use self::ready::WatchedUnit;
use super::{Exit, Running, Runtime, Started, Stopped, Unit, UnitName, code};
use crate::package::PackageStore;

/// The folder of the runtime's files below the data directory.
const FOLDER: &str = "kubernetes";
/// The default of the `helm` command.
pub(crate) const HELM_DEFAULT: &str = "helm";
/// The default of the prefix of namespaces.
pub(crate) const NAMESPACE_PREFIX_DEFAULT: &str = "muster-";
/// Characters of the longest namespace.
const NAMESPACE_CHARS_MAX: usize = 63;
/// Namespaces of the cluster itself, in which no unit may be.
const RESERVED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The settings of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The kubeconfig; without one, the service account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    /// The `helm` command.
    pub helm: PathBuf,
    /// The prefix of the namespace of a deployment, for components that name none.
    pub namespace_prefix: String,
}

/// The runtime of profile types `helm` and `kubernetes`. Dropping it ends its watches and leaves everything in the cluster.
#[derive(Debug)]
pub struct KubernetesRuntime {
    inner: Arc<Inner>,
    _leaves_on_drop: DropGuard,
}

/// The state shared by starts and watches.
#[derive(Debug)]
struct Inner {
    cluster: ClusterView,
    watches: WatchPool,
    helm: Helm,
    namespace_prefix: String,
    root: PathBuf,
    packages: PackageStore,
    exits: mpsc::Sender<Exit>,
    ready: Mutex<BTreeMap<UnitName, WatchedUnit>>,
    watching: OnceCell<()>,
    leave: CancellationToken,
}

impl Runtime for KubernetesRuntime {
    fn profiles(&self) -> &'static [ProfileType] {
        &[ProfileType::Helm, ProfileType::Kubernetes]
    }

    fn replaces_versions(&self) -> bool {
        true
    }

    fn start_progress(&self, name: &UnitName) -> Option<String> {
        Some(self.inner.packages.progress(&self.inner.home(name))?.to_string())
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(Arc::clone(&self.inner).start_unit(unit, cancel))
    }

    /// Removes the unit: its objects run as long as they exist.
    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        let failed = |error: remove::KubernetesRemoveError| {
            StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error))
        };
        Box::pin(async move { self.inner.remove_unit(name).await.map(|()| Stopped::InTime).map_err(failed) })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let device = self.inner.cluster.device.device.as_str();
        let failed = move |error| StatusError::new(code::INVENTORY_FAILED, device, chain(&error));
        Box::pin(async move {
            let installed = self.inner.cluster.installed().await.map_err(failed)?;
            let running = |it: cluster::Installed| Running { digest_prefix: it.version(), name: it.unit };
            Ok(installed.into_iter().map(running).collect())
        })
    }
}

impl KubernetesRuntime {
    /// A runtime for the units of a device. Reads the kubeconfig and sends no request.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub fn new(
        device: DeviceKey,
        data_dir: &Path,
        settings: KubernetesSettings,
        packages: PackageStore,
        exits: mpsc::Sender<Exit>,
    ) -> Result<Self, KubeconfigError> {
        let access = ClusterAccess::read(settings.kubeconfig.as_deref())?;
        let client = Arc::new(ApiClient::new(access));
        let (leave, root) = (CancellationToken::new(), data_dir.join(FOLDER));
        let inner = Inner {
            watches: WatchPool::new(Arc::clone(&client)),
            cluster: ClusterView { client, discovery: Discovery::default(), device },
            helm: Helm::new(settings.helm, settings.kubeconfig, helm::home(&root)),
            namespace_prefix: settings.namespace_prefix,
            root,
            packages,
            exits,
            ready: Mutex::default(),
            watching: OnceCell::new(),
            leave: leave.clone(),
        };
        Ok(Self { inner: Arc::new(inner), _leaves_on_drop: leave.drop_guard() })
    }
}

impl Inner {
    /// The folder of a unit.
    fn home(&self, name: &UnitName) -> PathBuf {
        self.root.join(name.deployment.as_str()).join(name.component.as_str())
    }

    /// The namespace of a unit: the one that its component names, that of its deployment, or one made from the deployment's id.
    fn namespace(&self, unit: &Unit, package: &Package) -> Result<String, NamespaceError> {
        let named = package.namespace.clone().or_else(|| unit.namespace.as_ref().map(ToString::to_string));
        let name = match named {
            Some(name) => name,
            None => {
                let name = format!("{}{}", self.namespace_prefix, unit.deployment);
                name.chars().take(NAMESPACE_CHARS_MAX).collect::<String>().trim_end_matches('-').to_owned()
            }
        };
        check_namespace(&name)?;
        Ok(name)
    }

    /// Entries are always whole, so a panic of another thread leaves none incomplete.
    fn table(&self) -> MutexGuard<'_, BTreeMap<UnitName, WatchedUnit>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a namespace that a unit cannot use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NamespaceError {
    #[error(
        "'{0}' is no valid namespace: use 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
    )]
    Invalid(String),
    #[error("the namespace {0} is reserved for the cluster itself: use another one")]
    Reserved(String),
}

/// Checks a namespace before it becomes part of a path or an argument.
fn check_namespace(name: &str) -> Result<(), NamespaceError> {
    let is_end =
        |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_name = name.len() <= NAMESPACE_CHARS_MAX
        && name.bytes().all(|byte| byte == b'-' || is_end(Some(byte)))
        && is_end(name.bytes().next())
        && is_end(name.bytes().last());
    if !is_name {
        Err(NamespaceError::Invalid(name.to_owned()))
    } else if RESERVED.contains(&name) {
        Err(NamespaceError::Reserved(name.to_owned()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_one_of_the_clusters_users() {
        assert_eq!(check_namespace("margo-apps"), Ok(()));
        for name in ["", "-a", "a-", "A", "a/b", "a b", "--all", &"a".repeat(64)] {
            assert!(matches!(check_namespace(name), Err(NamespaceError::Invalid(_))), "{name}");
        }
        for name in RESERVED {
            assert!(matches!(check_namespace(name), Err(NamespaceError::Reserved(_))), "{name}");
        }
    }
}
