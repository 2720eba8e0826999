//! Removes units from the cluster: releases through Helm, manifests by their inventory. Waits until their objects do not exist
//! any more, then removes their namespace, if Muster created it and the device has no other unit there.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::Inner;
use super::cluster::{ClusterError, Installed, InstalledKind};
use super::helm::{HelmCall, HelmError, LockError, Release, ReleaseLock};
use super::object::{ObjectRef, objects};
use super::observation::OwnedObject;
use crate::runtime::UnitName;

/// Time limit of Helm's removal, its hooks included.
const UNINSTALL_LIMIT: Duration = Duration::from_secs(120);
/// The annotation with which a chart has Helm keep an object, and its value.
const HELM_POLICY: &str = "helm.sh/resource-policy";
const KEEP: &str = "keep";

/// The error of removing a unit: something of it may be left.
#[derive(Debug, thiserror::Error)]
pub(super) enum KubernetesRemoveError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Helm(#[from] HelmError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("cannot remove its folder {}", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Inner {
    /// Removes a unit. A unit that is not installed is no error.
    pub(super) async fn remove_unit(&self, name: &UnitName) -> Result<(), KubernetesRemoveError> {
        // Removed from the table first: an intended end is not sent as an exit.
        self.unwatch_unit(name);
        for installed in self.cluster.installed_as(name).await? {
            self.remove_installed(&installed).await?;
        }
        let path = self.home(name);
        match std::fs::remove_dir_all(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(KubernetesRemoveError::Folder { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes a release or inventory of a unit, and its namespace if it was the last one there.
    pub(super) async fn remove_installed(&self, installed: &Installed) -> Result<(), KubernetesRemoveError> {
        match &installed.kind {
            InstalledKind::Release(release, _) => self.remove_release(&installed.unit, release).await?,
            InstalledKind::Group { name, .. } => {
                self.cluster.remove_group(&installed.namespace, name).await?;
            }
        }
        self.cluster.remove_namespace(&installed.namespace).await?;
        tracing::info!(
            deployment.id = %installed.unit.deployment, component.name = %installed.unit.component,
            namespace = installed.namespace, "removed unit from the cluster"
        );
        Ok(())
    }

    async fn remove_release(&self, unit: &UnitName, release: &Release) -> Result<(), KubernetesRemoveError> {
        let lock = ReleaseLock::acquire(&self.home(unit), release).await?;
        // A release without a readable manifest is uninstalled as well, only without the wait for its objects.
        let manifest = self.helm.manifest(release, &lock).await.ok();
        let found = manifest.and_then(|text| objects(&text).ok()).unwrap_or_default();
        self.helm.run(&HelmCall::Uninstall { release, timeout: UNINSTALL_LIMIT }, &lock).await?;
        let is_kept = |object: &&Value| object["metadata"]["annotations"][HELM_POLICY] == KEEP;
        let deleted: Vec<_> =
            found.iter().filter(|object| !is_kept(object)).filter_map(ObjectRef::of).collect();
        for reference in deleted {
            let Ok(resource) = self.cluster.resource(&reference).await else { continue };
            let object = OwnedObject::new(reference, resource, &release.namespace);
            let path = object.key.resource.path(&object.reference);
            self.cluster.await_deletion(&path, &object.reference.to_string()).await?;
        }
        Ok(())
    }
}
