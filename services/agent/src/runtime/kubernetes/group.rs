//! kpt's ResourceGroup as the inventory of a unit's manifests: the document, which kpt's own tools read, and the references in
//! it. Pure.

use serde_json::{Value, json};

use super::labels::DIGEST;
use super::object::ObjectRef;

/// The version of the kind.
pub(super) const API_VERSION: &str = "kpt.dev/v1alpha1";
/// The kind.
pub(super) const KIND: &str = "ResourceGroup";
/// The name of its definition.
pub(super) const DEFINITION: &str = "resourcegroups.kpt.dev";
/// kpt's label with the identity of an inventory.
const INVENTORY_LABEL: &str = "cli-utils.sigs.k8s.io/inventory-id";
/// kpt's annotation of an object with the identity of the inventory that owns it.
pub(super) const OWNER_ANNOTATION: &str = "config.k8s.io/owning-inventory";

/// An object in an inventory, which names no version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Member {
    /// An object with its namespace set.
    pub(super) fn of(reference: &ObjectRef) -> Self {
        Self {
            group: reference.group().to_owned(),
            kind: reference.kind.clone(),
            namespace: reference.namespace.clone().unwrap_or_default(),
            name: reference.name.clone(),
        }
    }

    fn document(&self) -> Value {
        let Self { group, kind, namespace, name } = self;
        json!({"group": group, "kind": kind, "namespace": namespace, "name": name})
    }
}

/// The inventory of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) members: Vec<Member>,
}

impl Group {
    /// The identity of the inventory.
    pub(super) fn id(&self) -> String {
        format!("{}-{}", self.namespace, self.name)
    }

    /// The document. It has no version until every object is applied (`is_complete`), so a killed change never looks complete.
    pub(super) fn document(&self, labels: &[(String, String)], is_complete: bool) -> Value {
        let mut all = json!({});
        for (name, value) in labels {
            let value = if name == DIGEST && !is_complete { "" } else { value.as_str() };
            all[name] = Value::from(value);
        }
        all[INVENTORY_LABEL] = Value::from(self.id());
        let members: Vec<_> = self.members.iter().map(Member::document).collect();
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": all},
            "spec": {"resources": members},
        })
    }

    /// The members of a document.
    pub(super) fn members_of(document: &Value) -> Vec<Member> {
        let listed = document.pointer("/spec/resources").and_then(Value::as_array);
        let member = |it: &Value| {
            let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
            Some(Member {
                group: text("group"),
                kind: it["kind"].as_str()?.to_owned(),
                namespace: text("namespace"),
                name: it["name"].as_str()?.to_owned(),
            })
        };
        listed.into_iter().flatten().filter_map(member).collect()
    }
}

/// The definition of the kind, for clusters without kpt.
pub(super) fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION, "labels": {"app.kubernetes.io/managed-by": "muster"}},
        "spec": {
            "group": "kpt.dev",
            "names": {"kind": KIND, "listKind": "ResourceGroupList", "plural": "resourcegroups", "singular": "resourcegroup"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_is_read_as_it_was_written() {
        let member = |namespace: &str, name: &str| Member {
            group: "apps".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let members = vec![member("line", "web"), member("", "all")];
        let group =
            Group { name: "web-1".to_owned(), namespace: "line".to_owned(), members: members.clone() };
        let labels = [(DIGEST.to_owned(), "00ff".to_owned())];
        let document = group.document(&labels, true);
        assert_eq!(Group::members_of(&document), members);
        assert_eq!(document["metadata"]["labels"][DIGEST], "00ff");
        assert_eq!(group.document(&labels, false)["metadata"]["labels"][DIGEST], "");
        assert!(Group::members_of(&json!({})).is_empty());
    }
}
