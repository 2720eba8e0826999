//! Finds the path of a kind. Reads the kinds of a group's version once, and again if a kind is missing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::client::{ApiClient, ApiError, JSON};
use super::object::ObjectRef;

/// The error of finding a kind.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiscoveryError {
    #[error(
        "the API server has no kind {kind} in {api_version}: install its CustomResourceDefinition, or use an API version that this server has"
    )]
    NoKind { kind: String, api_version: String },
    #[error("cannot read the kinds of {api_version}")]
    Read {
        api_version: String,
        #[source]
        source: ApiError,
    },
}

/// A kind of the API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Resource {
    /// Its group and version.
    pub(super) api_version: String,
    /// Its kind.
    pub(super) kind: String,
    /// Its name in paths.
    pub(super) plural: String,
    /// Whether its objects are in namespaces.
    pub(super) is_namespaced: bool,
}

#[derive(Debug, Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ListedResource>,
}

#[derive(Debug, Deserialize)]
struct ListedResource {
    name: String,
    #[serde(default)]
    namespaced: bool,
    kind: String,
}

/// A cache of the API server's kinds.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    known: Mutex<HashMap<String, Arc<Vec<Resource>>>>,
}

impl Discovery {
    /// The kind of an object.
    pub(super) async fn resource(
        &self,
        client: &ApiClient,
        api_version: &str,
        kind: &str,
    ) -> Result<Resource, DiscoveryError> {
        let find = |known: &[Resource]| known.iter().find(|it| it.kind == kind).cloned();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(api_version).cloned();
        if let Some(found) = known.as_deref().and_then(|known| find(known)) {
            return Ok(found);
        }
        let read = read(client, api_version).await?;
        let found = find(&read);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(api_version.to_owned(), Arc::new(read));
        found.ok_or_else(|| DiscoveryError::NoKind {
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
        })
    }
}

async fn read(client: &ApiClient, api_version: &str) -> Result<Vec<Resource>, DiscoveryError> {
    let failed = |source| DiscoveryError::Read { api_version: api_version.to_owned(), source };
    let list = client.find(&group_path(api_version), JSON).await.map_err(failed)?;
    // A missing group has no kinds.
    let Some(list) = list else { return Ok(Vec::new()) };
    let list: ResourceList =
        serde_json::from_value(list).map_err(|source| failed(ApiError::Garbled(source)))?;
    // A name such as `pods/log` is a subresource of another kind.
    let own = list.resources.into_iter().filter(|it| !it.name.contains('/'));
    let resource = |it: ListedResource| Resource {
        api_version: api_version.to_owned(),
        kind: it.kind,
        plural: it.name,
        is_namespaced: it.namespaced,
    };
    Ok(own.map(resource).collect())
}

fn group_path(api_version: &str) -> String {
    if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
}

impl Resource {
    /// The path of its objects, of one namespace or of the cluster.
    pub(super) fn collection(&self, namespace: Option<&str>) -> String {
        let group = group_path(&self.api_version);
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => format!("{group}/namespaces/{namespace}/{}", self.plural),
            None => format!("{group}/{}", self.plural),
        }
    }

    /// The path of an object.
    pub(super) fn path(&self, object: &ObjectRef) -> String {
        format!("{}/{}", self.collection(object.namespace.as_deref()), object.name)
    }
}
