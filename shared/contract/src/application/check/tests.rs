//! Descriptions of both drafts, and deployments that keep and break them.

use serde_json::json;

use super::*;

/// A description as 1.0-rc.3 writes it.
fn description() -> Value {
    json!({
        "apiVersion": "application.margo.org/v1alpha1",
        "kind": "ApplicationDescription",
        "id": "line-historian",
        "metadata": {
            "name": "Line Historian", "version": "2.4.0", "description": "Keeps what a line did",
            "catalog": { "organization": [{ "name": "ACME" }], "application": { "tagline": "x" } },
        },
        "deploymentProfiles": [
            { "id": "small", "type": "compose", "components": [
                { "name": "store", "properties": { "repository": "oci://r.example/store", "revision": "1.0.0" } },
                { "name": "web", "properties": { "repository": "oci://r.example/web", "revision": "1.0.0" } },
            ]},
        ],
        "parameters": {
            "retentionDays": { "value": 30, "targets": [{ "pointer": "RETENTION_DAYS", "components": ["store"] }] },
            "mode": { "targets": [{ "pointer": "MODE", "components": ["web"] }] },
        },
        "configuration": {
            "sections": [{ "name": "Storage", "settings": [
                { "parameter": "retentionDays", "name": "Retention", "schema": "days" },
                { "parameter": "mode", "name": "Mode", "schema": "modes", "immutable": true },
            ]}],
            "schema": [
                { "name": "days", "dataType": "integer", "minValue": 1, "maxValue": 3650 },
                { "name": "modes", "dataType": "select", "options": ["fast", "safe"] },
            ],
        },
    })
}

/// A deployment with these components and parameters.
fn deployment(profile: &str, components: &[&str], parameters: &Value) -> DesiredDeployment {
    let components: Vec<Value> = components
        .iter()
        .map(|name| json!({ "name": name, "properties": { "repository": "oci://r/x", "revision": "1" } }))
        .collect();
    let parameters: serde_json::Map<String, Value> = parameters
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.clone(), json!({ "value": value, "targets": [] })))
        .collect();
    let digest = format!("sha256:{}", "0".repeat(64));
    serde_json::from_value(json!({
        "id": "web", "name": "web", "applicationId": "line-historian", "targetGeneration": 1, "digest": digest,
        "profile": { "type": profile, "components": components }, "parameters": parameters,
    }))
    .unwrap()
}

#[test]
fn app_1_a_description_of_both_drafts_is_read() {
    let newest = ApplicationDescription::read(&description()).unwrap();
    assert_eq!(
        (newest.id.as_str(), newest.organizations.as_slice()),
        ("line-historian", &["ACME".to_owned()][..])
    );
    assert!(newest.parameters["mode"].immutable && !newest.parameters["retentionDays"].immutable);
    let early = json!({
        "apiVersion": "margo.org/v1-alpha1", "kind": "application",
        "metadata": {
            "id": "line-historian", "name": "Line Historian", "version": "2.4.0",
            "catalog": { "organization": [{ "name": "ACME", "site": "https://acme.example" }] },
        },
        "deploymentProfiles": [
            { "type": "helm.v3", "components": [
                { "name": "tsdb", "properties": { "repository": "oci://r/tsdb", "revision": "5.1.2", "timeout": "6m0s" } },
            ]},
            { "type": "docker-compose", "components": [
                { "name": "all", "properties": { "packageLocation": "https://dl.example/h.tar.gz" } },
            ]},
        ],
        "x-acme-extensions": { "anything": 1 },
    });
    let early = ApplicationDescription::read(&early).unwrap();
    assert_eq!(early.profiles.len(), 2);
    assert_eq!(early.profiles[1].components, ["all"]);
}

#[test]
fn app_1_all_that_is_wrong_with_a_description_is_found_by_field() {
    for (pointer, value, path, words) in [
        ("/id", json!("Line_Historian"), "id", "a-z, 0-9"),
        ("/id", Value::Null, "id", "missing"),
        ("/kind", json!("Chart"), "kind", "allowed are"),
        ("/apiVersion", json!("v1"), "apiVersion", "allowed are"),
        ("/metadata/version", Value::Null, "metadata.version", "missing"),
        ("/metadata/version", json!(2.4), "metadata.version", "in quotes"),
        ("/metadata/catalog/organization", json!([]), "metadata.catalog.organization", "missing"),
        (
            "/metadata/catalog/organization/0/name",
            Value::Null,
            "metadata.catalog.organization[0].name",
            "missing",
        ),
        ("/deploymentProfiles", json!([]), "deploymentProfiles", "missing"),
        (
            "/deploymentProfiles/0/type",
            json!("quadlet"),
            "deploymentProfiles[0].type",
            "is not a type of profile",
        ),
        ("/deploymentProfiles/0/components", json!([]), "deploymentProfiles[0].components", "missing"),
        (
            "/deploymentProfiles/0/components/1/name",
            json!("store"),
            "deploymentProfiles[0].components[1].name",
            "another",
        ),
        (
            "/parameters/mode/targets/0/components/0",
            json!("other"),
            "parameters.mode.targets[0].components",
            "no profile",
        ),
        ("/parameters/retentionDays/value", json!(0), "parameters.retentionDays.value", "at least 1"),
        (
            "/configuration/sections/0/settings/0/schema",
            json!("other"),
            "configuration.sections[0].settings[0].schema",
            "no rule",
        ),
        (
            "/configuration/sections/0/settings/0/parameter",
            json!("x"),
            "configuration.sections[0].settings[0].parameter",
            "no parameter",
        ),
        ("/configuration/schema/0/dataType", json!("date"), "configuration.schema[0]", "unknown variant"),
        ("/configuration/schema/1/options", json!([]), "configuration.schema[1].options", "missing"),
    ] {
        let mut wrong = description();
        *wrong.pointer_mut(pointer).unwrap() = value;
        let found = ApplicationDescription::read(&wrong).unwrap_err();
        let hit = found.iter().any(|it| it.path == path && it.rule.contains(words));
        assert!(hit, "{pointer}: {found:?}");
    }
    let mut wrong = description();
    wrong["id"] = json!("A");
    wrong["parmeters"] = json!({});
    assert_eq!(ApplicationDescription::read(&wrong).unwrap_err().len(), 2, "all at once");
    assert!(ApplicationDescription::read(&json!([])).is_err());
}

#[test]
fn app_2_a_value_that_breaks_the_rule_of_its_parameter_is_refused() {
    let application = ApplicationDescription::read(&description()).unwrap();
    let checked =
        |parameters: &Value| application.check(&deployment("compose", &["store", "web"], parameters));
    assert_eq!(checked(&json!({ "retentionDays": 30, "mode": "fast" })), []);
    for (parameters, path, words) in [
        (json!({ "retentionDays": 0 }), "spec.parameters.retentionDays.value", "at least 1"),
        (json!({ "retentionDays": "30" }), "spec.parameters.retentionDays.value", "whole number"),
        (json!({ "mode": "other" }), "spec.parameters.mode.value", "none of the options"),
        (json!({ "retentionDay": 30 }), "spec.parameters.retentionDay", "did you mean retentionDays?"),
    ] {
        let found = checked(&parameters);
        assert!(found.len() == 1 && found[0].path == path && found[0].rule.contains(words), "{found:?}");
    }
}

#[test]
fn app_3_an_immutable_parameter_keeps_its_value() {
    let application = ApplicationDescription::read(&description()).unwrap();
    let with = |parameters: &Value| deployment("compose", &["store"], parameters);
    let before = with(&json!({ "retentionDays": 30, "mode": "fast" }));
    let allowed = with(&json!({ "retentionDays": 60, "mode": "fast" }));
    assert_eq!(application.check_change(&before, &allowed), []);
    let found = application.check_change(&before, &with(&json!({ "mode": "safe" })));
    assert_eq!(found[0].path, "spec.parameters.mode.value");
    assert!(found[0].rule.contains("must stay \"fast\""), "{found:?}");
    assert_eq!(application.check_change(&before, &with(&json!({}))).len(), 1, "left out");
}

#[test]
fn app_4_a_deployment_has_components_of_one_profile_in_its_order() {
    let application = ApplicationDescription::read(&description()).unwrap();
    let found =
        |profile, components: &[&str]| application.check(&deployment(profile, components, &json!({})));
    assert_eq!(found("compose", &["store", "web"]), []);
    assert_eq!(found("compose", &["web"]), []);
    assert!(found("compose", &["web", "store"])[0].rule.contains("in its order: store, web"));
    assert!(found("compose", &["other"])[0].path.ends_with("components"));
    assert!(found("helm", &["store"])[0].rule.contains("no profile of this type"));
}
