//! The manifest of a deployment in an answer: an entry of a desired state without the fields of one device. Its digest is its
//! name, and one copy stands for all devices that should run it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::desired::{Component, DesiredDeployment, Parameter, Profile, Source};
use crate::ids::{ComponentName, DeploymentId, Namespace};
use crate::metadata::DeploymentLabels;
use crate::omit;

/// The content of an entry of a desired state. The digest of its canonical JSON is the entry's `digest`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The deployment.
    pub id: DeploymentId,
    /// Its name for people.
    pub name: String,
    /// The application it is an instance of.
    pub application_id: String,
    /// Margo's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Margo's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: DeploymentLabels,
    /// The profile to run.
    pub profile: Profile,
    /// Values and where they go.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Parameter>,
    /// No component runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Another number than before starts every component anew.
    #[serde(default, skip_serializing_if = "omit::is_zero")]
    pub restart: u64,
    /// Where the entry comes from, if not from where the document of its device does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

impl From<DesiredDeployment> for Manifest {
    fn from(entry: DesiredDeployment) -> Self {
        let DesiredDeployment {
            id,
            name,
            application_id,
            namespace,
            labels,
            target_generation: _,
            digest: _,
            profile,
            parameters,
            stopped,
            restart,
            source,
        } = entry;
        // Who asked is no part of the digest that is the manifest's name.
        let source = source.as_ref().map(Source::unsigned);
        Self { id, name, application_id, namespace, labels, profile, parameters, stopped, restart, source }
    }
}

impl Manifest {
    /// The digest of its content.
    pub fn digest(&self) -> Digest {
        Digest::of_value(self)
    }

    /// A component by its name.
    pub fn component(&self, name: &ComponentName) -> Option<&Component> {
        self.profile.components.iter().find(|component| component.name == *name)
    }

    /// The parameters that a component gets, by name.
    pub fn parameters_of(&self, name: &ComponentName) -> impl Iterator<Item = (&str, &Parameter)> {
        let aims_at = move |parameter: &Parameter| {
            parameter.targets.iter().any(|target| target.components.contains(name))
        };
        let named = self.parameters.iter().map(|(name, parameter)| (name.as_str(), parameter));
        named.filter(move |(_, parameter)| aims_at(parameter))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(extra: &serde_json::Value) -> DesiredDeployment {
        let mut entry = json!({
            "id": "web", "name": "Web", "applicationId": "com-example-web", "targetGeneration": 3,
            "digest": Digest::of_bytes(b"").to_string(),
            "profile": {"type": "simulated", "components": [{"name": "main", "properties": {"n": 1}}, {"name": "side"}]},
        });
        let fields = extra.as_object().into_iter().flatten();
        fields.for_each(|(key, value)| entry[key] = value.clone());
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn a_manifest_has_the_digest_of_the_entry_it_is_of() {
        let parameters =
            json!({"port": {"value": 80, "targets": [{"pointer": "PORT", "components": ["side"]}]}});
        for extra in [
            json!({}),
            json!({"parameters": parameters}),
            json!({"source": {"kind": "api", "revision": "r1"}}),
            json!({"source": {"kind": "api", "revision": "r1", "requestedBy": {"key": "UA", "name": "anna"}}}),
            json!({"targetGeneration": 9}),
            json!({"stopped": true, "restart": 2}),
            json!({"stopped": false, "restart": 0}),
        ] {
            let entry = entry(&extra);
            let digest = entry.content_digest();
            let manifest = Manifest::from(entry);
            assert_eq!(manifest.digest(), digest, "{extra}");
            let read: Manifest = serde_json::from_slice(&serde_json::to_vec(&manifest).unwrap()).unwrap();
            assert_eq!(read.digest(), digest, "the reader computes the same digest");
        }
    }

    #[test]
    fn a_component_gets_the_parameters_that_aim_at_it() {
        let parameters =
            json!({"port": {"value": 80, "targets": [{"pointer": "PORT", "components": ["side"]}]}});
        let manifest = Manifest::from(entry(&json!({"parameters": parameters})));
        let names = |component: &str| {
            let name: ComponentName = component.parse().unwrap();
            assert!(manifest.component(&name).is_some());
            manifest.parameters_of(&name).map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!((names("main"), names("side")), (vec![], vec!["port".to_owned()]));
        assert_eq!(manifest.component(&"other".parse().unwrap()), None);
    }
}
