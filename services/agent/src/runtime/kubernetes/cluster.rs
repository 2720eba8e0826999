//! Queries a cluster: kinds, namespaces, and the units of the device, by their labels. Changes nothing but namespaces.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::DeviceKey;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{ApiClient, ApiError, JSON, METADATA, METADATA_LIST, NOT_FOUND, PAGE_OBJECTS, next_page};
use super::discovery::{Discovery, DiscoveryError, Resource};
use super::group::{self, Member};
use super::helm::Release;
use super::labels;
use super::object::{ObjectRef, labels_of};
use super::release::History;
use crate::runtime::UnitName;

/// The label of namespaces that Muster created; it removes them with their last unit.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const MUSTER: &str = "muster";
/// Time for which the deletion of an object may last.
const DELETION_MAX: Duration = Duration::from_secs(90);
/// Time between two polls of an object that is being deleted.
const POLL: Duration = Duration::from_millis(250);

/// The error of a query, or of a change of a namespace.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("the namespace {0} is being deleted: the agent tries again once it is gone")]
    NamespaceTerminating(String),
    #[error("{what} still exists after {DELETION_MAX:?}{}", .finalizers)]
    NotDeleted { what: String, finalizers: String },
}

/// A unit in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installed {
    pub(super) unit: UnitName,
    pub(super) namespace: String,
    pub(super) kind: InstalledKind,
}

/// Form of a unit in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InstalledKind {
    /// A release of Helm.
    Release(Release, History),
    /// Manifests with an inventory.
    Group { name: String, digest_prefix: String },
}

impl Installed {
    /// The version that is installed; empty if none is complete.
    pub(super) fn version(&self) -> String {
        match &self.kind {
            InstalledKind::Release(_, history) => history.deployed_version(),
            InstalledKind::Group { digest_prefix, .. } => digest_prefix.clone(),
        }
    }
}

/// A cluster as one device sees it.
#[derive(Debug)]
pub(super) struct ClusterView {
    pub(super) client: std::sync::Arc<ApiClient>,
    pub(super) discovery: Discovery,
    pub(super) device: DeviceKey,
}

impl ClusterView {
    /// The kind of an object.
    pub(super) async fn resource(&self, object: &ObjectRef) -> Result<Resource, DiscoveryError> {
        self.discovery.resource(&self.client, &object.api_version, &object.kind).await
    }

    /// The kind of a member of an inventory, in the newest version that has it.
    pub(super) async fn member_resource(&self, member: &Member) -> Result<Resource, DiscoveryError> {
        let missing =
            || DiscoveryError::NoKind { kind: member.kind.clone(), api_version: member.group.clone() };
        if member.group.is_empty() {
            return self.discovery.resource(&self.client, "v1", &member.kind).await;
        }
        let group = self.client.find(&format!("/apis/{}", member.group), JSON).await;
        let group =
            group.map_err(|source| DiscoveryError::Read { api_version: member.group.clone(), source })?;
        let versions = group.as_ref().and_then(|it| it["versions"].as_array()).cloned().unwrap_or_default();
        for version in versions.iter().filter_map(|version| version["groupVersion"].as_str()) {
            match self.discovery.resource(&self.client, version, &member.kind).await {
                Err(DiscoveryError::NoKind { .. }) => {}
                outcome => return outcome,
            }
        }
        Err(missing())
    }

    /// All units of the device.
    pub(super) async fn installed(&self) -> Result<Vec<Installed>, ClusterError> {
        let mut found = self.releases().await?;
        found.extend(self.groups().await?);
        Ok(found)
    }

    /// The releases and inventories of a unit, in all namespaces.
    pub(super) async fn installed_as(&self, unit: &UnitName) -> Result<Vec<Installed>, ClusterError> {
        let mut found = self.installed().await?;
        found.retain(|installed| installed.unit == *unit);
        Ok(found)
    }

    /// The history of a release.
    pub(super) async fn history(&self, release: &Release) -> Result<History, ClusterError> {
        let path = format!(
            "/api/v1/namespaces/{}/secrets?labelSelector=owner%3Dhelm,name%3D{}",
            release.namespace, release.name
        );
        let revisions = self.list(&path).await?;
        Ok(History::of(&revisions.iter().map(labels_of).collect::<Vec<_>>()))
    }

    async fn releases(&self) -> Result<Vec<Installed>, ClusterError> {
        let path = format!("/api/v1/secrets?labelSelector=owner%3Dhelm,{}", labels::selector(&self.device));
        let mut found: BTreeMap<(UnitName, String, String), Vec<BTreeMap<String, String>>> = BTreeMap::new();
        for secret in self.list(&path).await? {
            let labels = labels_of(&secret);
            let name = labels.get("name").cloned();
            if let (Some(unit), Some(name), Some(namespace)) = (unit_of(&labels), name, namespace_of(&secret))
            {
                found.entry((unit, namespace, name)).or_default().push(labels);
            }
        }
        let installed = |((unit, namespace, name), labels): (_, Vec<_>)| {
            let release = Release { name, namespace: String::clone(&namespace) };
            Installed { unit, namespace, kind: InstalledKind::Release(release, History::of(&labels)) }
        };
        Ok(found.into_iter().map(installed).collect())
    }

    async fn groups(&self) -> Result<Vec<Installed>, ClusterError> {
        let path = format!(
            "/apis/{}/resourcegroups?labelSelector={}",
            group::API_VERSION,
            labels::selector(&self.device)
        );
        let groups = match self.list(&path).await {
            // A cluster without the kind has no inventories.
            Err(ClusterError::Api(error)) if error.code() == Some(NOT_FOUND) => return Ok(Vec::new()),
            groups => groups?,
        };
        let installed = |group: &Value| {
            let labels = labels_of(group);
            let digest_prefix = labels.get(labels::DIGEST).cloned().unwrap_or_default();
            let name = group.pointer("/metadata/name")?.as_str()?.to_owned();
            let kind = InstalledKind::Group { name, digest_prefix };
            Some(Installed { unit: unit_of(&labels)?, namespace: namespace_of(group)?, kind })
        };
        Ok(groups.iter().filter_map(installed).collect())
    }

    /// The objects of a list without their content. `path` has a query.
    /// The metadata of all objects of a list, page by page; its path ends in `?`, or has a query.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<Value>, ClusterError> {
        let (mut items, mut token) = (Vec::new(), String::new());
        loop {
            let page = format!("{path}&limit={PAGE_OBJECTS}&continue={token}");
            let mut page = self.client.get(&page, METADATA_LIST).await?;
            if let Value::Array(found) = page["items"].take() {
                items.extend(found);
            }
            token = next_page(&page);
            if token.is_empty() {
                return Ok(items);
            }
        }
    }

    /// The inventory of a unit, if it has one.
    pub(super) async fn group(&self, namespace: &str, name: &str) -> Result<Option<Value>, ClusterError> {
        Ok(self.client.find(&group_path(namespace, name), JSON).await?)
    }

    /// Ensures that a namespace exists.
    pub(super) async fn ensure_namespace(&self, name: &str) -> Result<(), ClusterError> {
        let path = format!("/api/v1/namespaces/{name}");
        if let Some(found) = self.client.find(&path, JSON).await? {
            let phase = found.pointer("/status/phase").and_then(Value::as_str);
            return if phase == Some("Terminating") {
                Err(ClusterError::NamespaceTerminating(name.to_owned()))
            } else {
                Ok(())
            };
        }
        let labels = json!({ MANAGED_BY: MUSTER, labels::DEVICE: labels::device(&self.device) });
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.client.apply(&path, &namespace).await?;
        Ok(())
    }

    /// Removes a namespace that this device created, if it has no unit any more.
    pub(super) async fn remove_namespace(&self, name: &str) -> Result<(), ClusterError> {
        let path = format!("/api/v1/namespaces/{name}");
        let Some(found) = self.client.find(&path, METADATA).await? else { return Ok(()) };
        let labels = labels_of(&found);
        let is_own = labels.get(MANAGED_BY).is_some_and(|by| by == MUSTER)
            && labels.get(labels::DEVICE) == Some(&labels::device(&self.device));
        if !is_own || self.installed().await?.iter().any(|installed| installed.namespace == name) {
            return Ok(());
        }
        self.client.delete(&path).await?;
        self.await_deletion(&path, &format!("the namespace {name}")).await
    }

    /// Waits until an object does not exist any more. `what` names it in the error.
    pub(super) async fn await_deletion(&self, path: &str, what: &str) -> Result<(), ClusterError> {
        let deadline = Instant::now() + DELETION_MAX;
        loop {
            let Some(found) = self.client.find(path, METADATA).await? else { return Ok(()) };
            if Instant::now() >= deadline {
                let finalizers = found.pointer("/metadata/finalizers").and_then(Value::as_array);
                let names: Vec<_> = finalizers.into_iter().flatten().filter_map(Value::as_str).collect();
                let finalizers = if names.is_empty() {
                    String::new()
                } else {
                    format!(": remove its finalizers, if their controller is gone: {}", names.join(", "))
                };
                return Err(ClusterError::NotDeleted { what: what.to_owned(), finalizers });
            }
            sleep(POLL).await;
        }
    }
}

/// The path of an inventory.
pub(super) fn group_path(namespace: &str, name: &str) -> String {
    format!("/apis/{}/namespaces/{namespace}/resourcegroups/{name}", group::API_VERSION)
}

fn namespace_of(object: &Value) -> Option<String> {
    object.pointer("/metadata/namespace")?.as_str().map(str::to_owned)
}

fn unit_of(labels: &BTreeMap<String, String>) -> Option<UnitName> {
    Some(UnitName {
        deployment: labels.get(labels::DEPLOYMENT)?.parse().ok()?,
        component: labels.get(labels::COMPONENT)?.parse().ok()?,
    })
}
