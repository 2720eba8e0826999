//! Objects of a cluster as YAML documents and as references. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize as _;
use serde_json::Value;

/// Objects of one unit.
const OBJECTS_MAX: usize = 2_000;
/// Bytes of the manifests of one unit.
pub(super) const MANIFEST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The error of reading manifests.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ManifestError {
    #[error("document {number} of its manifests is no valid YAML: {message}")]
    Syntax { number: usize, message: String },
    #[error("document {number} of its manifests has no {field}")]
    Incomplete { number: usize, field: &'static str },
    #[error("its manifests have {0} twice: remove one")]
    Twice(String),
    #[error("its manifests have more than {OBJECTS_MAX} objects or {MANIFEST_BYTES_MAX} bytes")]
    Large,
    #[error("its manifests have no object: name at least one")]
    Empty,
}

/// Identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectRef {
    /// Its group and version.
    pub(super) api_version: String,
    /// Its kind.
    pub(super) kind: String,
    /// Its namespace; none for a cluster-scoped kind.
    pub(super) namespace: Option<String>,
    /// Its name.
    pub(super) name: String,
}

impl ObjectRef {
    /// The reference of an object.
    pub(super) fn of(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer)?.as_str().filter(|text| !text.is_empty());
        Some(Self {
            api_version: text("/apiVersion")?.to_owned(),
            kind: text("/kind")?.to_owned(),
            namespace: text("/metadata/namespace").map(str::to_owned),
            name: text("/metadata/name")?.to_owned(),
        })
    }

    /// Its group: empty for the core.
    pub(super) fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// The objects of YAML documents, in their order; the items of a `List` are objects of their own.
///
/// # Errors
/// A document is no YAML or no object, or the text is too large. A text without objects is no error: a release may have none.
pub(super) fn objects(text: &str) -> Result<Vec<Value>, ManifestError> {
    if text.len() > MANIFEST_BYTES_MAX {
        return Err(ManifestError::Large);
    }
    let mut found = Vec::new();
    for (at, document) in serde_norway::Deserializer::from_str(text).enumerate() {
        let number = at + 1;
        let syntax =
            |error: serde_norway::Error| ManifestError::Syntax { number, message: error.to_string() };
        let value = Value::deserialize(document).map_err(syntax)?;
        let items = match value {
            Value::Null => continue,
            Value::Object(mut list) if list.get("kind") == Some(&Value::from("List")) => {
                match list.remove("items") {
                    Some(Value::Array(items)) => items,
                    _ => return Err(ManifestError::Incomplete { number, field: "items" }),
                }
            }
            value => vec![value],
        };
        for item in items {
            check(&item, number)?;
            found.push(item);
        }
    }
    if found.len() > OBJECTS_MAX { Err(ManifestError::Large) } else { Ok(found) }
}

/// The references of objects.
///
/// # Errors
/// Two objects have the same reference.
pub(super) fn references(objects: &[Value]) -> Result<Vec<ObjectRef>, ManifestError> {
    let references: Vec<ObjectRef> = objects.iter().filter_map(ObjectRef::of).collect();
    let mut seen = std::collections::HashSet::new();
    match references.iter().find(|it| !seen.insert((it.group(), &it.kind, &it.namespace, &it.name))) {
        Some(twice) => Err(ManifestError::Twice(twice.to_string())),
        None => Ok(references),
    }
}

/// The labels of an object.
pub(super) fn labels_of(object: &Value) -> BTreeMap<String, String> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let pairs = labels.into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

fn check(object: &Value, number: usize) -> Result<(), ManifestError> {
    let has =
        |pointer: &str| object.pointer(pointer).and_then(Value::as_str).is_some_and(|it| !it.is_empty());
    let fields = [("/apiVersion", "apiVersion"), ("/kind", "kind"), ("/metadata/name", "metadata.name")];
    match fields.into_iter().find(|(pointer, _)| !has(pointer)) {
        Some((_, field)) => Err(ManifestError::Incomplete { number, field }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

    #[test]
    fn documents_and_lists_become_objects_in_their_order() {
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: b}}\n";
        let found = objects(&format!("# only a comment\n---\n{MAP}---\n{list}")).unwrap();
        let names: Vec<String> = references(&found).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ConfigMap a", "Deployment b"]);
        assert_eq!(ObjectRef::of(&found[1]).unwrap().group(), "apps");
    }

    #[test]
    fn a_document_without_an_object_is_named_by_its_number() {
        let said = |text: &str| objects(text).unwrap_err().to_string();
        assert!(said("a: [").contains("document 1"));
        assert!(
            said(&format!("{MAP}---\nkind: Pod\n")).contains("document 2 of its manifests has no apiVersion")
        );
        assert!(said("apiVersion: v1\nkind: Pod\n").contains("metadata.name"));
        let twice = objects(&format!("{MAP}---\n{MAP}")).unwrap();
        assert_eq!(references(&twice), Err(ManifestError::Twice("ConfigMap a".to_owned())));
        assert_eq!(objects(&" ".repeat(MANIFEST_BYTES_MAX + 1)), Err(ManifestError::Large));
    }
}
