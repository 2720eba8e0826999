//! Applies the manifests of a unit and prunes the objects that they do not name any more. It writes the inventory before the
//! first object and completes it after the last, so a kill at any point leaves no object without an entry in the inventory.
//!
//! ```text
//! inventory: old and new, no version ─► apply by rank ─► delete the old objects ─► inventory: new, version
//! ```

use std::collections::HashMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, TryStreamExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{ApiError, CONCURRENT_MAX, JSON, METADATA};
use super::cluster::{ClusterError, ClusterView, group_path};
use super::discovery::{DiscoveryError, Resource};
use super::group::{self, Group, Member, OWNER_ANNOTATION};
use super::object::{ManifestError, ObjectRef, references};
use super::observation::OwnedObject;
use super::watch::WatchKey;

/// Objects of one kind and namespace from which on one list gives their owners, instead of a request for each.
const LISTED_FROM: usize = 16;
/// Time for which the API server may not serve a kind that was just defined.
const DEFINITION_MAX: Duration = Duration::from_secs(30);
/// Time between two polls for that kind.
const POLL: Duration = Duration::from_millis(200);
/// Kinds that others need, in the order of applying; every other kind comes after them.
const RANKS: [&[&str]; 4] = [
    &["Namespace", "CustomResourceDefinition", "PriorityClass", "StorageClass"],
    &["ServiceAccount", "Secret", "ConfigMap", "LimitRange", "ResourceQuota", "PersistentVolume"],
    &["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "PersistentVolumeClaim", "NetworkPolicy"],
    &["Service"],
];

/// The inventories that objects belong to, by the name of the object.
type Owners = HashMap<String, String>;

/// The error of applying manifests.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot apply {object}")]
    Object {
        object: String,
        #[source]
        source: ApiError,
    },
    #[error("{object} belongs to another deployment (inventory {owner}): give it another name or namespace")]
    Owned { object: String, owner: String },
}

/// Destination of objects that are applied.
pub(super) struct Target<'a> {
    /// The name and namespace of the inventory; namespaced objects without a namespace get this one.
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) labels: &'a [(String, String)],
}

impl ClusterView {
    /// Applies objects; returns them with their watches.
    pub(super) async fn apply_all(
        &self,
        target: &Target<'_>,
        mut objects: Vec<Value>,
    ) -> Result<Vec<OwnedObject>, ApplyError> {
        objects.sort_by_key(rank_of);
        let named = references(&objects)?;
        self.ensure_definition().await?;
        let path = group_path(target.namespace, target.name);
        let before = self.group(target.namespace, target.name).await?;
        // An object whose kind these manifests define gets its entry once the API server serves the kind.
        let mut planned = before.as_ref().map(Group::members_of).unwrap_or_default();
        for reference in named {
            let Ok(resource) = self.resource(&reference).await else { continue };
            let object = OwnedObject::new(reference, resource, target.namespace);
            add(&mut planned, Member::of(&object.reference));
        }
        let mut inventory =
            Group { name: target.name.into(), namespace: target.namespace.into(), members: planned };
        self.write(&path, &inventory, target, false).await?;
        let mut owned = Vec::new();
        for rank_objects in objects.chunk_by(|a, b| rank_of(a) == rank_of(b)) {
            let resolved = self.resolve(rank_objects, target.namespace).await?;
            let known = inventory.members.len();
            resolved
                .iter()
                .for_each(|(object, _)| add(&mut inventory.members, Member::of(&object.reference)));
            if inventory.members.len() > known {
                self.write(&path, &inventory, target, false).await?;
            }
            let (id, owners) = (inventory.id(), self.listed_owners(&resolved).await?);
            let mut applying = FuturesUnordered::new();
            for (object, document) in &resolved {
                if applying.len() >= CONCURRENT_MAX {
                    applying.try_next().await?;
                }
                applying.push(self.apply_one(object, document, &id, owners.get(&object.key)));
            }
            while applying.try_next().await?.is_some() {}
            drop(applying);
            owned.extend(resolved.into_iter().map(|(object, _)| object));
        }
        let current: Vec<_> = owned.iter().map(|object| Member::of(&object.reference)).collect();
        let obsolete: Vec<_> =
            inventory.members.iter().filter(|member| !current.contains(member)).cloned().collect();
        self.delete_members(&obsolete, &inventory.id()).await?;
        inventory.members = current;
        self.write(&path, &inventory, target, true).await?;
        Ok(owned)
    }

    /// The objects that an inventory names.
    pub(super) async fn owned_by(&self, document: &Value) -> Result<Vec<OwnedObject>, ClusterError> {
        let mut owned = Vec::new();
        for member in Group::members_of(document) {
            let resource = self.member_resource(&member).await?;
            owned.push(object_of(&member, resource));
        }
        Ok(owned)
    }

    /// Deletes everything that an inventory names, then the inventory.
    pub(super) async fn remove_group(&self, namespace: &str, name: &str) -> Result<(), ClusterError> {
        let Some(document) = self.group(namespace, name).await? else { return Ok(()) };
        let group =
            Group { name: name.into(), namespace: namespace.into(), members: Group::members_of(&document) };
        self.delete_members(&group.members, &group.id()).await?;
        let path = group_path(namespace, name);
        self.client.delete(&path).await?;
        self.await_deletion(&path, &format!("the inventory {name}")).await
    }

    async fn write(
        &self,
        path: &str,
        group: &Group,
        target: &Target<'_>,
        is_complete: bool,
    ) -> Result<(), ApplyError> {
        let written = self.client.apply(path, &group.document(target.labels, is_complete)).await;
        let failed = |source| ApplyError::Object { object: format!("the inventory {}", group.name), source };
        written.map(drop).map_err(failed)
    }

    /// Resolves the kinds and namespaces of objects; waits for kinds that were just defined.
    async fn resolve<'a>(
        &self,
        objects: &'a [Value],
        namespace: &str,
    ) -> Result<Vec<(OwnedObject, &'a Value)>, ApplyError> {
        let mut resolved = Vec::new();
        for object in objects {
            let Some(reference) = ObjectRef::of(object) else { continue };
            let resource = self.await_kind(&reference).await?;
            resolved.push((OwnedObject::new(reference, resource, namespace), object));
        }
        Ok(resolved)
    }

    async fn await_kind(&self, reference: &ObjectRef) -> Result<Resource, ClusterError> {
        // The group of a defined kind has a dot.
        let may_be_defined = reference.group().contains('.');
        let deadline = Instant::now() + if may_be_defined { DEFINITION_MAX } else { Duration::ZERO };
        loop {
            match self.resource(reference).await {
                Err(DiscoveryError::NoKind { .. }) if Instant::now() < deadline => sleep(POLL).await,
                outcome => return Ok(outcome?),
            }
        }
    }

    /// The owners of the objects that are there, of each kind and namespace with many of these.
    async fn listed_owners(
        &self,
        objects: &[(OwnedObject, &Value)],
    ) -> Result<HashMap<WatchKey, Owners>, ClusterError> {
        let mut counts: HashMap<&WatchKey, usize> = HashMap::new();
        objects.iter().for_each(|(object, _)| *counts.entry(&object.key).or_default() += 1);
        let mut owners = HashMap::new();
        for (key, _) in counts.into_iter().filter(|(_, count)| *count >= LISTED_FROM) {
            let found = self.list(&format!("{}?", key.resource.collection(key.namespace.as_deref()))).await?;
            let name = |object: &Value| Some(object["metadata"]["name"].as_str()?.to_owned());
            let owned = found.iter().filter_map(|object| Some((name(object)?, owner_of(object)?.to_owned())));
            owners.insert(key.clone(), owned.collect());
        }
        Ok(owners)
    }

    async fn apply_one(
        &self,
        object: &OwnedObject,
        document: &Value,
        inventory: &str,
        listed: Option<&Owners>,
    ) -> Result<(), ApplyError> {
        let (reference, path) = (&object.reference, object.key.resource.path(&object.reference));
        let failed = |source| ApplyError::Object { object: reference.to_string(), source };
        let owner = match listed {
            Some(owners) => owners.get(&reference.name).cloned(),
            None => {
                let found = self.client.find(&path, METADATA).await.map_err(failed)?;
                found.as_ref().and_then(owner_of).map(str::to_owned)
            }
        };
        if let Some(owner) = owner.filter(|owner| owner != inventory) {
            return Err(ApplyError::Owned { object: reference.to_string(), owner });
        }
        let mut document = document.clone();
        if let Some(namespace) = &reference.namespace {
            document["metadata"]["namespace"] = Value::from(namespace.as_str());
        }
        if !document["metadata"]["annotations"].is_object() {
            document["metadata"]["annotations"] = json!({});
        }
        document["metadata"]["annotations"][OWNER_ANNOTATION] = Value::from(inventory);
        self.client.apply(&path, &document).await.map(drop).map_err(failed)
    }

    /// Deletes objects in the reverse order of applying, and waits until they do not exist any more. It leaves an object that
    /// belongs to another inventory by now.
    async fn delete_members(&self, members: &[Member], inventory: &str) -> Result<(), ClusterError> {
        let mut members: Vec<_> = members.iter().collect();
        members.sort_by_key(|member| std::cmp::Reverse(rank(&member.kind)));
        let mut deleted = Vec::new();
        for member in members {
            let resource = match self.member_resource(member).await {
                // The objects of a definition are deleted with it.
                Err(DiscoveryError::NoKind { .. }) => continue,
                resource => resource?,
            };
            let object = object_of(member, resource);
            let path = object.key.resource.path(&object.reference);
            let Some(found) = self.client.find(&path, METADATA).await? else { continue };
            if owner_of(&found).is_some_and(|owner| owner == inventory) && self.client.delete(&path).await? {
                deleted.push((path, object.reference.to_string()));
            }
        }
        for (path, what) in deleted {
            self.await_deletion(&path, &what).await?;
        }
        Ok(())
    }

    /// Ensures that the kind of inventories is defined.
    async fn ensure_definition(&self) -> Result<(), ClusterError> {
        let kind = ObjectRef {
            api_version: group::API_VERSION.to_owned(),
            kind: group::KIND.to_owned(),
            namespace: None,
            name: String::new(),
        };
        if self.resource(&kind).await.is_ok() {
            return Ok(());
        }
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", group::DEFINITION);
        if self.client.find(&path, JSON).await?.is_none() {
            self.client.apply(&path, &group::definition()).await?;
        }
        self.await_kind(&kind).await.map(drop)
    }
}

fn object_of(member: &Member, resource: Resource) -> OwnedObject {
    let reference = ObjectRef {
        api_version: resource.api_version.clone(),
        kind: member.kind.clone(),
        namespace: Some(member.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        name: member.name.clone(),
    };
    OwnedObject::new(reference, resource, &member.namespace)
}

fn add(members: &mut Vec<Member>, member: Member) {
    if !members.contains(&member) {
        members.push(member);
    }
}

fn owner_of(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][OWNER_ANNOTATION].as_str()
}

fn rank_of(object: &Value) -> usize {
    rank(object["kind"].as_str().unwrap_or_default())
}

/// The position of a kind in the order of applying.
fn rank(kind: &str) -> usize {
    RANKS.iter().position(|kinds| kinds.contains(&kind)).unwrap_or(RANKS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_others_need_are_applied_first() {
        let kinds = ["CustomResourceDefinition", "ConfigMap", "Role", "Service", "Deployment"];
        assert!(kinds.is_sorted_by_key(|kind| rank(kind)));
        assert_eq!(rank("Press"), rank("Deployment"));
    }
}
