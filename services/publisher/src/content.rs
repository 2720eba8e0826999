//! The content of a deployment: everything but the generation at which a device got it. Devices share contents, which are
//! compared by digest and ordered by id.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, Source, SourceKind};
use muster_contract::labels::Labels;
use muster_contract::{DeploymentId, Generation};

/// The rule that an application id of a plan breaks if another than the planner deploys it.
pub(crate) const OF_A_PLAN: &str =
    "begins with 'muster-plan-', as only the planner's deployments of plans do: choose another id";

/// A deployment without a target generation, its digest computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    entry: DesiredDeployment,
    wire_bytes: usize,
}

impl Content {
    /// The content of an entry, without its target generation and with a newly computed digest.
    pub fn of(mut entry: DesiredDeployment) -> Self {
        entry.digest = entry.content_digest();
        // The longest generation, so that no later one makes the entry longer than measured.
        entry.target_generation = Generation::new(u64::MAX).unwrap_or(Generation::FIRST);
        let wire_bytes = serde_json::to_vec(&entry).map_or(usize::MAX, |json| json.len());
        Self { entry, wire_bytes }
    }

    /// The deployment's id.
    pub const fn id(&self) -> &DeploymentId {
        &self.entry.id
    }

    /// Digest of the content.
    pub const fn digest(&self) -> Digest {
        self.entry.digest
    }

    /// Its largest size in a document, in bytes, without a comma.
    pub const fn wire_bytes(&self) -> usize {
        self.wire_bytes
    }

    /// The id of its application.
    pub fn application_id(&self) -> &str {
        &self.entry.application_id
    }

    /// The entry, with a generation that means nothing.
    pub(crate) const fn entry(&self) -> &DesiredDeployment {
        &self.entry
    }

    /// True if it was applied by request (of a person or a plan), not from Git: it stays until a request removes it.
    pub fn is_requested(&self) -> bool {
        self.entry.source.as_ref().is_some_and(|source| source.kind != SourceKind::Git)
    }

    /// The same content, requested by `source`.
    #[must_use]
    pub fn requested_by(&self, source: Source) -> Self {
        Self::of(DesiredDeployment { source: Some(source), ..self.entry.clone() })
    }

    /// True if only the request differs.
    pub(crate) fn same_but_for_source(&self, other: &Self) -> bool {
        let plain =
            |content: &Self| DesiredDeployment { source: None, ..content.entry.clone() }.content_digest();
        plain(self) == plain(other)
    }

    /// The entry of a document that has this content since `generation`.
    pub fn targeting(&self, generation: Generation) -> DesiredDeployment {
        DesiredDeployment { target_generation: generation, ..self.entry.clone() }
    }
}

/// Stores equal contents once in memory: most documents of a fleet have the same deployments.
#[derive(Debug, Default)]
pub struct Interner {
    contents: HashMap<Digest, Arc<Content>>,
    labels: BTreeSet<Arc<Labels>>,
}

impl Interner {
    /// The shared content. The digest does not cover the requester, so a content of another requester is not shared.
    pub fn share(&mut self, content: Content) -> Arc<Content> {
        let known = self.contents.entry(content.digest()).or_insert_with(|| Arc::new(content.clone()));
        if **known == content { known.clone() } else { Arc::new(content) }
    }

    /// The shared labels.
    pub(crate) fn share_labels(&mut self, labels: Labels) -> Arc<Labels> {
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        let shared = Arc::new(labels);
        self.labels.insert(shared.clone());
        shared
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_contract::RequestedBy;
    use muster_contract::desired::{Component, Profile, ProfileType};
    use serde_json::json;

    use super::*;

    /// A deployment that runs `command`.
    pub(crate) fn content(id: &str, command: &str) -> Arc<Content> {
        let serde_json::Value::Object(properties) = json!({ "command": command }) else { unreachable!() };
        let components = vec![Component::new("main".parse().unwrap(), properties)];
        Arc::new(Content::of(DesiredDeployment {
            id: id.parse().unwrap(),
            name: id.to_owned(),
            application_id: "app".to_owned(),
            namespace: None,
            labels: Default::default(),
            target_generation: Generation::FIRST,
            digest: Digest::of_bytes(b""),
            profile: Profile { profile_type: ProfileType::Process, components, device_constraints: None },
            parameters: Default::default(),
            stopped: false,
            restart: 0,
            source: None,
        }))
    }

    /// A request's name.
    pub(crate) fn request(revision: &str) -> Source {
        Source::new(SourceKind::Api, revision.to_owned())
    }

    #[test]
    fn the_digest_is_that_of_the_contract() {
        let entry = content("web", "run").targeting(Generation::FIRST);
        assert_eq!(entry.digest, entry.content_digest());
    }

    #[test]
    fn a_request_is_part_of_the_digest_but_not_of_sameness() {
        let (git, one, two) = (content("web", "run"), request("one"), request("two"));
        let (one, two) = (git.requested_by(one), git.requested_by(two));
        assert_ne!(one.digest(), two.digest());
        assert!(one.same_but_for_source(&two) && one.same_but_for_source(&git));
        assert!(!git.is_requested() && one.is_requested());
        assert!(!one.same_but_for_source(&content("web", "other")));
    }

    #[test]
    fn equal_contents_are_stored_once() {
        let mut interner = Interner::default();
        let one = interner.share(Content::clone(&content("web", "run")));
        let two = interner.share(Content::clone(&content("web", "run")));
        assert!(Arc::ptr_eq(&one, &two));
    }

    #[test]
    fn the_requester_is_no_part_of_the_digest_and_is_kept() {
        let of = |name| {
            let requested_by = Some(RequestedBy::new("UA", name, None));
            content("web", "run").requested_by(Source { requested_by, ..request("one") })
        };
        let (anna, bert, mut interner) = (of("anna"), of("bert"), Interner::default());
        assert_eq!(anna.digest(), content("web", "run").requested_by(request("one")).digest());
        for content in [&anna, &bert, &anna] {
            assert_eq!(*interner.share(content.clone()), *content);
        }
    }

    #[test]
    fn no_generation_makes_an_entry_longer_than_measured() {
        let content = content("web", "run");
        for generation in [1, 77, u64::MAX] {
            let entry = content.targeting(Generation::new(generation).unwrap());
            assert!(serde_json::to_vec(&entry).unwrap().len() <= content.wire_bytes());
        }
    }
}
