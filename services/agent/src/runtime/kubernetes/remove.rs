//! Removes units from the cluster: releases through Helm, manifests by their inventory; waits until their objects are gone;
//! then their namespace, if Muster has made it and nothing else of the device is there.

use std::path::PathBuf;
use std::time::Duration;

use super::Inner;
use super::cluster::{ClusterError, Installed, InstalledKind};
use super::helm::{HelmCall, HelmError, LockError, Release, ReleaseLock};
use super::object::{ManifestError, objects, references};
use super::observation::OwnedObject;
use crate::runtime::UnitName;

/// Time limit of Helm's removal, its hooks included.
const UNINSTALL_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of reading a release's manifest.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// The error of removing a unit: something of it may be left.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoveError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Helm(#[from] HelmError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("the manifest of its release cannot be read")]
    Manifest(#[from] ManifestError),
    #[error("its folder {} cannot be removed", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Inner {
    /// Removes a unit. It is no error if nothing is there.
    pub(super) async fn remove_unit(&self, name: &UnitName) -> Result<(), RemoveError> {
        // Removed from the table first: an intended end is not sent as an exit.
        self.forget(name);
        for installed in self.cluster.installed_as(name).await? {
            self.remove_installed(&installed).await?;
        }
        let path = self.home(name);
        match std::fs::remove_dir_all(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(RemoveError::Folder { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes what is there of a unit, and its namespace if it was the last.
    pub(super) async fn remove_installed(&self, installed: &Installed) -> Result<(), RemoveError> {
        match &installed.kind {
            InstalledKind::Release(release, _) => self.remove_release(&installed.unit, release).await?,
            InstalledKind::Group { name, .. } => {
                self.cluster.remove_group(&installed.namespace, name).await?;
            }
        }
        self.cluster.remove_namespace(&installed.namespace).await?;
        tracing::info!(
            deployment.id = %installed.unit.deployment, component.name = %installed.unit.component,
            namespace = installed.namespace, "removed from the cluster"
        );
        Ok(())
    }

    async fn remove_release(&self, unit: &UnitName, release: &Release) -> Result<(), RemoveError> {
        let lock = ReleaseLock::acquire(&self.home(unit), release).await?;
        let read = self.helm.run(&HelmCall::Manifest { release, timeout: READ_LIMIT }, &lock).await;
        // A release without a readable manifest is removed all the same.
        let found = read.ok().map(|text| objects(&text)).transpose()?.unwrap_or_default();
        self.helm.run(&HelmCall::Uninstall { release, timeout: UNINSTALL_LIMIT }, &lock).await?;
        for reference in references(&found)? {
            let Ok(resource) = self.cluster.resource(&reference).await else { continue };
            // Helm leaves what the chart asks it to keep.
            let is_kept = |object: &&serde_json::Value| {
                object.pointer("/metadata/annotations/helm.sh~1resource-policy") == Some(&"keep".into())
                    && object["metadata"]["name"] == reference.name.as_str()
                    && object["kind"] == reference.kind.as_str()
            };
            if found.iter().any(|object| is_kept(&object)) {
                continue;
            }
            let object = OwnedObject::new(reference, resource, &release.namespace);
            let path = object.key.resource.path(&object.reference);
            self.cluster.until_gone(&path, &object.reference.to_string()).await?;
        }
        Ok(())
    }
}
