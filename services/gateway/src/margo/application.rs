//! Writes a deployment as Margo's ApplicationDeployment (1.0.0-rc.3), or returns why Margo's schema cannot express it.
//!
//! The text is JSON with sorted keys, which is YAML 1.2 as well: the same content has the same bytes, and so the same digest, at
//! every gateway.

use std::time::Duration;

use muster_contract::desired::{Component, DesiredDeployment, ProfileType};
use muster_contract::profile::{Gate, Package, Workload};
use muster_contract::{DeploymentId, Namespace};
use serde_json::{Map, Value, json};

/// The namespace of a deployment that names none: Margo requires one.
const NAMESPACE: &str = "muster";
/// Longest `applicationId`, in characters.
const APPLICATION_ID_CHARS_MAX: usize = 200;

/// The reason why Margo's schema cannot express a deployment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {rule}")]
pub(crate) struct NotExpressible {
    /// The field of the contract.
    pub field: String,
    /// The rule of Margo that the field breaks.
    pub rule: &'static str,
}

fn not_expressible(field: impl Into<String>, rule: &'static str) -> NotExpressible {
    NotExpressible { field: field.into(), rule }
}

/// The document of a deployment for a device, under an id of Margo.
///
/// # Errors
/// Margo's schema cannot express it.
pub(crate) fn document(
    entry: &DesiredDeployment,
    id: &DeploymentId,
    device_id: &str,
) -> Result<String, NotExpressible> {
    let is_id = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let application = &entry.application_id;
    if application.is_empty()
        || application.len() > APPLICATION_ID_CHARS_MAX
        || !application.bytes().all(is_id)
    {
        return Err(not_expressible("applicationId", "must be 1 to 200 characters of a-z, 0-9 and '-'"));
    }
    if entry.stopped {
        return Err(not_expressible("stopped", "must be absent: this API has no stop"));
    }
    let profile = &entry.profile;
    if !matches!(profile.profile_type, ProfileType::Compose | ProfileType::Helm) {
        return Err(not_expressible("profile.type", "must be compose or helm"));
    }
    let components = profile.components.iter().map(|one| component(profile.profile_type, one));
    let components = components.collect::<Result<Vec<_>, _>>()?;
    let mut own_profile = json!({ "type": profile.profile_type.as_str(), "components": components });
    if let Some(constraints) = &profile.device_constraints {
        own_profile["deviceConstraints"] = json!(constraints);
    }
    let mut spec = json!({ "applicationId": application, "deploymentProfile": own_profile });
    if !entry.parameters.is_empty() {
        spec["parameters"] = json!(entry.parameters);
    }
    let namespace = entry.namespace.as_ref().map_or(NAMESPACE, Namespace::as_str);
    let mut metadata = json!({ "name": entry.name, "namespace": namespace, "deviceId": device_id });
    if !entry.labels.is_empty() {
        metadata["labels"] = json!(entry.labels);
    }
    let document = json!({ "id": id, "metadata": metadata, "spec": spec });
    // Cannot fail: the document is JSON already.
    Ok(serde_json::to_string_pretty(&sorted(document)).unwrap_or_default() + "\n")
}

fn component(profile: ProfileType, component: &Component) -> Result<Value, NotExpressible> {
    let field = |name: &str| format!("component '{}': {name}", component.name);
    if component.runs_at.is_some() {
        return Err(not_expressible(field("runsAt"), "must be absent: this API has no removal jobs"));
    }
    let package = match Workload::of(profile, component) {
        Ok(Workload::Compose(package) | Workload::Helm(package)) => package,
        Ok(_) | Err(_) => return Err(not_expressible(field("properties"), "must be those of a package")),
    };
    let Package { repository, revision, gate: Gate { wait, timeout, .. }, .. } = package;
    let repository = repository.filter(|url| url.len() > "oci://".len() && url.starts_with("oci://"));
    let repository = repository.ok_or_else(|| not_expressible(field("repository"), "must be oci://…"))?;
    let revision = revision.filter(|tag| is_version(tag));
    let revision =
        revision.ok_or_else(|| not_expressible(field("revision"), "must be a version such as 1.2.3"))?;
    let mut properties = json!({ "repository": repository, "revision": revision });
    if let Some(wait) = wait {
        properties["wait"] = json!(wait);
    }
    if let Some(timeout) = timeout {
        properties["timeout"] = json!(margo_duration(timeout));
    }
    let mut own = json!({ "name": component.name, "properties": properties });
    for (key, value) in component.properties.iter().filter(|(key, value)| is_extension(key, value)) {
        own[key] = value.clone();
    }
    Ok(own)
}

/// A duration as Margo writes it: `8m30s`, rounded up to a whole second.
fn margo_duration(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    format!("{}m{}s", seconds / 60, seconds % 60)
}

/// Whether a member is an extension: an object under a key such as `x-acme-extensions`.
pub(super) fn is_extension(key: &str, value: &Value) -> bool {
    let name = key.strip_prefix("x-").and_then(|rest| rest.strip_suffix("-extensions"));
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    value.is_object() && name.is_some_and(is_name)
}

/// Whether a tag is a SemVer version, with `_` for the `+` before the build and without a `v`.
fn is_version(tag: &str) -> bool {
    let (rest, build) = tag.split_once('_').map_or((tag, None), |(rest, build)| (rest, Some(build)));
    let (core, before) = rest.split_once('-').map_or((rest, None), |(core, before)| (core, Some(before)));
    let is_number = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'))
    };
    let is_word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_before =
        |text: &str| is_word(text) && (is_number(text) || !text.bytes().all(|b| b.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && before.is_none_or(|before| before.split('.').all(is_before))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

/// The same value with the keys of every object sorted, also if the JSON library keeps another order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(members.into_iter().map(|(key, value)| (key, sorted(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::margo::manifest::tests::entry;

    fn read(entry: &DesiredDeployment) -> Value {
        serde_json::from_str(&document(entry, &entry.id, "press-4").unwrap()).unwrap()
    }

    #[test]
    fn a_package_becomes_margos_document() {
        let properties = json!({
            "repository": "oci://registry.example/web", "revision": "1.2.3", "timeout": "90s", "wait": "true",
            "x-acme-extensions": {"a": 1}, "packageLocation": "https://old.example/a.tgz",
        });
        let mut web = entry("web", "helm", &properties);
        web.parameters.insert(
            "port".to_owned(),
            serde_json::from_value(
                json!({"value": 80, "targets": [{"pointer": "p", "components": ["main"]}]}),
            )
            .unwrap(),
        );
        let component = json!({
            "name": "main", "x-acme-extensions": {"a": 1},
            "properties": {"repository": "oci://registry.example/web", "revision": "1.2.3", "timeout": "1m30s", "wait": true},
        });
        let expected = json!({
            "id": "web", "metadata": {"name": "Web", "namespace": "muster", "deviceId": "press-4"},
            "spec": {
                "applicationId": "com-example-web",
                "deploymentProfile": {"type": "helm", "components": [component]},
                "parameters": {"port": {"value": 80, "targets": [{"pointer": "p", "components": ["main"]}]}},
            },
        });
        assert_eq!(read(&web), expected);
        (web.namespace, web.labels) =
            (Some("apps".parse().unwrap()), [("line".into(), "press".into())].into());
        assert_eq!(
            read(&web)["metadata"],
            json!({"name": "Web", "namespace": "apps", "labels": {"line": "press"}, "deviceId": "press-4"})
        );
        assert!(
            document(&web, &web.id, "press-4").unwrap().starts_with("{\n  \"id\": \"web\",\n  \"metadata\"")
        );
    }

    #[test]
    fn what_margo_has_no_place_for_is_named() {
        let package = json!({"repository": "oci://a/b", "revision": "1.0.0"});
        let refused = |entry: &DesiredDeployment| document(entry, &entry.id, "d").unwrap_err().to_string();
        let with = |key: &str, value: &str| {
            let mut properties = package.clone();
            properties[key] = json!(value);
            refused(&entry("web", "compose", &properties))
        };
        assert!(refused(&entry("web", "process", &json!({"command": "x"}))).contains("compose or helm"));
        let mut job = entry("web", "compose", &package);
        job.profile.components[0].runs_at = Some(muster_contract::desired::RemovalPhase::PreDelete);
        assert!(refused(&job).contains("removal jobs"));
        assert!(with("repository", "https://a/b").contains("oci://"));
        assert!(
            refused(&entry("web", "compose", &json!({"composeFile": "services: {}"}))).contains("oci://")
        );
        for bad in ["latest", "v1.0.0", "1.0", "01.0.0", "1.0.0+a", "1.0.0-01", "1.0.0_"] {
            assert!(with("revision", bad).contains("revision"), "{bad}");
        }
        for good in ["0.1.2", "1.0.0-rc.1", "1.0.0-a-b_c.1"] {
            assert!(is_version(good), "{good}");
        }
        let mut upper = entry("web", "compose", &package);
        upper.application_id = "Web".to_owned();
        assert!(refused(&upper).contains("applicationId"));
    }
}
