//! Reads the status of a deployment that a device posts, checks it, and makes a report of the contract.

use muster_contract::canonical::Digest;
use muster_contract::decode::Document as _;
use muster_contract::limits::COMPONENTS_MAX;
use muster_contract::report::StatusReport;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, Timestamp};
use muster_domain::aggregate;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::problems;
use super::record::Numbered;
use crate::problem::Problem;

/// Margo's DeploymentStatusManifest, with the states of every draft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeploymentStatusManifest")]
pub(crate) struct StatusManifest {
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// The device; by default the client's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// The version of the manifest whose content of this deployment the device has begun to apply.
    pub adopted_manifest_version: Generation,
    /// The state of the whole.
    pub status: DeploymentStatus,
    /// The states of its components.
    #[schemars(length(max = COMPONENTS_MAX))]
    pub components: Vec<ComponentStatus>,
}

/// Parses a body: 400 if it is no JSON object, 422 if a field breaks a rule.
///
/// # Errors
/// The problem, with the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let value: serde_json::Value = serde_json::from_slice(bytes)
        .map_err(|error| problems::invalid_request(format!("the body is no JSON: {error}")))?;
    if !value.is_object() {
        return Err(problems::invalid_request("the body must be a JSON object"));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, rule) = (error.path().to_string(), error.inner().to_string());
        // The parser names the parent of a missing field.
        let missing = rule.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        let field = match (missing, &*path) {
            (Some(missing), ".") => missing.to_owned(),
            (Some(missing), parent) => format!("{parent}.{missing}"),
            (None, path) => path.to_owned(),
        };
        problems::semantic_error(field, rule)
    })
}

impl StatusManifest {
    /// Checks it against the path, and against the rules of a report.
    ///
    /// # Errors
    /// The first broken rule.
    pub(crate) fn check(&self, id: &DeploymentId) -> Result<(), Problem> {
        if self.deployment_id != *id {
            let rule = format!("is {}, the address names {id}", self.deployment_id);
            return Err(problems::semantic_error("deploymentId", rule));
        }
        let trial = self.numbered(Epoch::FIRST, Seq::FIRST, Seq::FIRST, Timestamp::UNIX_EPOCH);
        trial.check().map_err(problems::violation)?;
        aggregate::check(&self.status, &self.components).map_err(problems::violation)
    }

    /// The digest by which a repeated status is recognised.
    pub(crate) fn content(&self) -> Digest {
        Digest::of_value(self)
    }

    /// The report under its number.
    pub(crate) fn report(&self, numbered: &Numbered) -> StatusReport {
        let Numbered { open, epoch, head } = numbered;
        let report = self.numbered(*epoch, open.seq, *head, open.at);
        StatusReport {
            digest: open.target.unwrap_or(report.digest),
            coalesced: open.coalesced.clone(),
            ..report
        }
    }

    fn numbered(&self, epoch: Epoch, seq: Seq, head: Seq, observed_at: Timestamp) -> StatusReport {
        StatusReport {
            api_version: ApiVersion::V1,
            kind: kind::StatusReport::StatusReport,
            epoch,
            seq,
            head,
            observed_at,
            deployment: self.deployment_id.clone(),
            generation: self.adopted_manifest_version,
            digest: Digest::of_bytes(b""),
            status: self.status.clone(),
            components: self.components.clone(),
            retries: Vec::new(),
            current: true,
            coalesced: Default::default(),
            origin: Default::default(),
            fidelity: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn manifest() -> Value {
        json!({
            "deploymentId": "6F0B2A52-6C0E-4A4B-9A57-5C1D8F1E2A10", "deviceId": "press-4", "adoptedManifestVersion": 42,
            "status": {"state": "failed", "error": {"code": "X", "source": "web", "message": "m"}},
            "components": [{"name": "main", "state": "failed", "error": {"code": "P", "source": "main", "message": "m"}},
                           {"name": "side", "state": "Pending", "error": {"code": "", "message": ""}}],
        })
    }

    fn checked(manifest: &Value) -> Result<StatusManifest, Problem> {
        let manifest: StatusManifest = parse(manifest.to_string().as_bytes())?;
        manifest.check(&"6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10".parse().unwrap()).map(|()| manifest)
    }

    #[test]
    fn a_status_of_any_draft_is_read() {
        let status = checked(&manifest()).unwrap();
        assert_eq!(status.components[1].state, muster_contract::State::Pending);
        assert_eq!(status.components[1].error, None);
        assert_eq!(status.adopted_manifest_version.get(), 42);
        let mut old = manifest();
        old["apiVersion"] = json!("deployment.margo.org/v1alpha1");
        assert_eq!(checked(&old).unwrap().content(), status.content());
    }

    #[test]
    fn a_broken_rule_is_422_and_names_the_field() {
        let change = |pointer: &str, value: Value| {
            let mut manifest = manifest();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = manifest.pointer_mut(parent).unwrap();
            match value {
                Value::Null => _ = parent.as_object_mut().unwrap().remove(key),
                value => parent[key] = value,
            }
            let problem = checked(&manifest).unwrap_err();
            assert_eq!(problem.status, 422, "{pointer}: {problem:?}");
            format!("{} {}", problem.errors[0].field, problem.errors[0].message)
        };
        assert!(change("/adoptedManifestVersion", Value::Null).starts_with("adoptedManifestVersion "));
        assert!(change("/adoptedManifestVersion", json!(0)).starts_with("adoptedManifestVersion"));
        assert!(change("/adoptedManifestVersion", json!(1.5)).starts_with("adoptedManifestVersion"));
        assert!(change("/deploymentId", json!("web")).contains("the address names"));
        assert!(change("/status/state", json!("done")).starts_with("status.state"));
        assert!(
            change("/status/state", json!("installed")).starts_with("status.state"),
            "not the most severe"
        );
        assert!(change("/components", Value::Null).contains("components"));
        assert!(change("/components/0/name", Value::Null).starts_with("components[0].name "));
        for bad in ["", "{", "[]", "3", "\"a\""] {
            assert_eq!(parse::<StatusManifest>(bad.as_bytes()).unwrap_err().status, 400, "{bad}");
        }
    }
}
