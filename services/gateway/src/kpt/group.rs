//! Reads kpt's ResourceGroup (`kpt.dev/v1alpha1`), alone or in a list, as its CustomResourceDefinition has it. Unknown fields and
//! words are tolerated, as by kpt; a field of another type is refused by name.

use std::collections::BTreeMap;

use muster_contract::{ComponentName, DeploymentId, State};
use serde::{Deserialize, Deserializer};

use crate::margo::problems;
use crate::margo::status::parse;
use crate::problem::Problem;

/// The group of the kind's API.
const GROUP: &str = "kpt.dev/";
/// The kind.
const KIND: &str = "ResourceGroup";
/// The kinds of lists.
const LISTS: [&str; 2] = ["ResourceGroupList", "List"];

/// Members and statuses of one group. kpt's own groups have less: an object of Kubernetes has at most 1.5 MiB.
const MEMBERS_MAX: usize = 10_000;

/// Label or annotation with the deployment, if the group's name is another one.
pub(crate) const DEPLOYMENT: &str = "io.muster.deployment";
/// Label or annotation with the component that the group is, if it is not the whole deployment.
const COMPONENT: &str = "io.muster.component";
/// Annotation with the generation of the desired state whose content was applied.
pub(crate) const GENERATION: &str = "io.muster.generation";

/// The groups of a request or of an answer.
#[derive(Debug, PartialEq)]
pub(crate) struct ResourceGroups {
    /// The groups.
    pub groups: Vec<ResourceGroup>,
    /// They came in a list, which may have groups of others.
    pub is_list: bool,
    /// These are all groups of the cluster, so another one does not exist.
    pub is_whole: bool,
    /// The token of the next page of a list; empty on the last one.
    pub next: String,
}

/// The name of the content that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// A revision of the target.
    Revision(String),
    /// A generation of the desired state, as text.
    Generation(String),
}

/// A ResourceGroup.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceGroup {
    #[serde(deserialize_with = "or_default")]
    api_version: String,
    #[serde(deserialize_with = "or_default")]
    kind: String,
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: Spec,
    /// The status as the controller has seen it; none before it has.
    pub status: Option<GroupStatus>,
}

/// The metadata of an object, as far as it is needed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    pub generation: Option<i64>,
    pub deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

/// The members of a group.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    #[serde(deserialize_with = "or_default")]
    pub resources: Vec<Member>,
    #[serde(deserialize_with = "or_default")]
    pub subgroups: Vec<Member>,
    #[serde(deserialize_with = "or_default")]
    pub descriptor: Descriptor,
}

/// The package that the group is of.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Descriptor {
    #[serde(deserialize_with = "or_default")]
    pub revision: String,
}

/// A member: an object of the cluster, or a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Member {
    #[serde(deserialize_with = "or_default")]
    pub group: String,
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
}

/// The status of a group.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GroupStatus {
    #[serde(deserialize_with = "or_default")]
    pub observed_generation: i64,
    #[serde(deserialize_with = "or_default")]
    pub resource_statuses: Vec<MemberStatus>,
    #[serde(deserialize_with = "or_default")]
    pub subgroup_statuses: Vec<MemberStatus>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// The status of a member. Its words are kpt's, and any other.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MemberStatus {
    #[serde(flatten)]
    pub member: Member,
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    #[serde(deserialize_with = "or_default")]
    pub strategy: String,
    #[serde(deserialize_with = "or_default")]
    pub actuation: String,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// A condition of Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

/// The parts of a body that say what it is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    kind: String,
}

#[derive(Debug, Deserialize)]
struct GroupList {
    #[serde(default, deserialize_with = "or_default")]
    metadata: ListMetadata,
    #[serde(default, deserialize_with = "or_default")]
    items: Vec<ResourceGroup>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListMetadata {
    #[serde(rename = "continue", deserialize_with = "or_default")]
    next: String,
}

/// Reads `null` as absent, as Kubernetes does.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl ResourceGroups {
    /// Reads a group, or a list of groups.
    ///
    /// # Errors
    /// 400 if it is no JSON object, 422 with the field otherwise.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let Head { kind } = parse(bytes)?;
        if kind == KIND {
            let group: ResourceGroup = parse(bytes)?;
            group.check("")?;
            return Ok(Self { groups: vec![group], is_list: false, is_whole: false, next: String::new() });
        }
        if !LISTS.contains(&kind.as_str()) {
            let rule = format!("is '{kind}'; must be {KIND}, or a list of them ({})", LISTS.join(", "));
            return Err(problems::semantic_error("kind", rule));
        }
        let GroupList { metadata, items } = parse(bytes)?;
        for (at, group) in items.iter().enumerate() {
            group.check(&format!("items[{at}]."))?;
        }
        let is_whole = metadata.next.is_empty();
        Ok(Self { groups: items, is_list: true, is_whole, next: metadata.next })
    }
}

impl ResourceGroup {
    /// The group of a deployment of which only one state is known. A `content` names what was applied, as a group does.
    pub(crate) fn of_state(deployment: &str, content: Content, state: State, reason: &str) -> Self {
        let member =
            Member { kind: "deployment".to_owned(), name: deployment.to_owned(), ..Member::default() };
        let (status, actuation) = match state {
            State::Pending => ("NotFound", "Pending"),
            State::Installing => ("InProgress", ""),
            State::Installed => ("Current", ""),
            State::Failed => ("Failed", ""),
            State::Removing => ("Terminating", ""),
            State::Removed => ("NotFound", ""),
        };
        let condition =
            Condition { reason: reason.to_owned(), message: reason.to_owned(), ..Condition::default() };
        let status = MemberStatus {
            member: member.clone(),
            status: status.to_owned(),
            actuation: actuation.to_owned(),
            conditions: if reason.is_empty() { Vec::new() } else { vec![condition] },
            ..MemberStatus::default()
        };
        let mut group = Self {
            metadata: Metadata { name: deployment.to_owned(), ..Metadata::default() },
            spec: Spec { resources: vec![member], ..Spec::default() },
            status: Some(GroupStatus { resource_statuses: vec![status], ..GroupStatus::default() }),
            ..Self::default()
        };
        match content {
            Content::Revision(revision) => group.spec.descriptor.revision = revision,
            Content::Generation(text) => _ = group.metadata.annotations.insert(GENERATION.to_owned(), text),
        }
        group
    }

    /// Checks what every group has. An item of a list may leave out its version and kind.
    fn check(&self, prefix: &str) -> Result<(), Problem> {
        let refuse =
            |field: &str, rule: String| Err(problems::semantic_error(format!("{prefix}{field}"), rule));
        let is_item = !prefix.is_empty();
        if self.kind != KIND && !(is_item && self.kind.is_empty()) {
            return refuse("kind", format!("is '{}'; must be {KIND}", self.kind));
        }
        let has_version = self.api_version.starts_with(GROUP) || is_item && self.api_version.is_empty();
        if !has_version {
            return refuse("apiVersion", format!("is '{}'; must be {GROUP}v1alpha1", self.api_version));
        }
        if self.metadata.name.is_empty() {
            return refuse("metadata.name", "is missing".to_owned());
        }
        let members = self.spec.resources.len() + self.spec.subgroups.len() + self.statuses().count();
        if members > MEMBERS_MAX {
            let rule =
                format!("has {members} members and statuses; at most {MEMBERS_MAX}: split the package");
            return refuse("spec.resources", rule);
        }
        let members = self.spec.resources.iter().map(|member| ("resources", member.kind.is_empty(), member));
        let subgroups = self.spec.subgroups.iter().map(|member| ("subgroups", false, member));
        for (list, has_no_kind, member) in members.chain(subgroups) {
            if member.name.is_empty() || has_no_kind {
                return refuse(&format!("spec.{list}"), "has a member without a name or kind".to_owned());
            }
        }
        Ok(())
    }

    /// The deployment that the group is of, or part of.
    ///
    /// # Errors
    /// The name is no id of a deployment.
    pub(crate) fn deployment(&self) -> Result<DeploymentId, Problem> {
        let named = self.text(DEPLOYMENT);
        let field = if named.is_some() {
            format!("metadata.labels.{DEPLOYMENT}")
        } else {
            "metadata.name".to_owned()
        };
        let id = named.unwrap_or(&self.metadata.name);
        id.parse().map_err(|error| problems::semantic_error(field, format!("{error}")))
    }

    /// The component that the group is, if it is not the whole deployment.
    ///
    /// # Errors
    /// The name is no name of a component.
    pub(crate) fn component(&self) -> Result<Option<ComponentName>, Problem> {
        let named = self.text(COMPONENT).map(str::parse).transpose();
        named.map_err(|error| {
            problems::semantic_error(format!("metadata.labels.{COMPONENT}"), format!("{error}"))
        })
    }

    /// A label, or an annotation of the same name.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let Metadata { labels, annotations, .. } = &self.metadata;
        labels.get(name).or_else(|| annotations.get(name)).map(String::as_str)
    }

    /// The statuses of its members.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = &MemberStatus> {
        let status = self.status.iter();
        status.flat_map(|status| status.resource_statuses.iter().chain(&status.subgroup_statuses))
    }

    /// A condition of the group that is true.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        let mut all = self.status.iter().flat_map(|status| &status.conditions);
        all.find(|condition| condition.kind == kind && condition.status == "True")
    }
}

impl Member {
    /// Whether two references name the same object; a subgroup has no kind.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let same = |one: &str, other: &str| one == other || one.is_empty() || other.is_empty();
        self.name == other.name
            && self.namespace == other.namespace
            && same(&self.kind, &other.kind)
            && same(&self.group, &other.group)
    }
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.kind.is_empty() { KIND } else { &self.kind };
        match self.namespace.as_str() {
            "" => write!(f, "{kind} {}", self.name),
            namespace => write!(f, "{kind} {namespace}/{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn group() -> Value {
        json!({
            "apiVersion": "kpt.dev/v1alpha1", "kind": "ResourceGroup",
            "metadata": {"name": "web", "namespace": "line", "labels": null, "uid": "u"},
            "spec": {"resources": [{"group": "apps", "kind": "Deployment", "namespace": "line", "name": "web"}]},
            "status": {"observedGeneration": 1, "resourceStatuses": null, "conditions": [], "more": {"x": 1}},
        })
    }

    fn refused(body: &Value) -> String {
        let problem = ResourceGroups::read(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(problem.status, 422, "{problem:?}");
        problem.errors[0].field.clone()
    }

    #[test]
    fn unknown_fields_and_null_are_tolerated_and_wrong_types_named() {
        let read = ResourceGroups::read(group().to_string().as_bytes()).unwrap();
        assert_eq!((read.groups.len(), read.is_whole), (1, false));
        assert_eq!(read.groups[0].deployment().unwrap().as_str(), "web");
        for (pointer, value, field) in [
            ("/metadata/name", json!(3), "metadata.name"),
            ("/spec/resources", json!({}), "spec.resources"),
            (
                "/spec/resources",
                json!(vec![json!({"kind": "Pod", "name": "a"}); MEMBERS_MAX + 1]),
                "spec.resources",
            ),
            ("/status/observedGeneration", json!("1"), "status.observedGeneration"),
            ("/status/conditions", json!([3]), "status.conditions[0]"),
            ("/kind", json!("Pod"), "kind"),
            ("/apiVersion", json!("v1"), "apiVersion"),
            ("/metadata/name", json!(""), "metadata.name"),
        ] {
            let mut body = group();
            *body.pointer_mut(pointer).unwrap() = value;
            assert_eq!(refused(&body), field);
        }
        assert_eq!(ResourceGroups::read(b"[]").unwrap_err().status, 400);
    }

    #[test]
    fn a_list_is_whole_on_its_last_page_and_names_a_bad_item() {
        let list = |next: &str, items: Value| json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": next}, "items": items});
        let read = |body: Value| ResourceGroups::read(body.to_string().as_bytes()).unwrap();
        let whole = read(list("", json!([group(), {"metadata": {"name": "b"}}])));
        assert_eq!((whole.groups.len(), whole.is_whole), (2, true));
        assert!(!read(list("page2", json!([]))).is_whole);
        assert_eq!(
            refused(&list("", json!([group(), {"kind": "Pod", "metadata": {"name": "b"}}]))),
            "items[1].kind"
        );
        assert_eq!(refused(&list("", json!([{"metadata": {"name": 3}}]))), "items[0].metadata.name");
    }

    #[test]
    fn a_label_names_another_deployment_than_the_group() {
        let mut body = group();
        body["metadata"]["labels"] = json!({DEPLOYMENT: "shop", COMPONENT: "db"});
        let read = ResourceGroups::read(body.to_string().as_bytes()).unwrap();
        let group = &read.groups[0];
        assert_eq!(group.deployment().unwrap().as_str(), "shop");
        assert_eq!(group.component().unwrap().unwrap().as_str(), "db");
        body["metadata"]["labels"] = json!({DEPLOYMENT: "Not an id"});
        let read = ResourceGroups::read(body.to_string().as_bytes()).unwrap();
        assert_eq!(read.groups[0].deployment().unwrap_err().status, 422);
    }
}
