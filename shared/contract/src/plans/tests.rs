//! Rules of plans that a schema cannot express.

use serde_json::json;

use super::*;

fn spec(extra: &serde_json::Value) -> Result<PlanSpec, String> {
    let mut value = json!({
        "name": "web", "namespace": "demo", "serviceName": "Web",
        "applications": [{ "payloadName": "main", "resources": { "cores": 2, "memory": 4 } }],
    });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    let spec: PlanSpec = serde_json::from_value(value).map_err(|error| error.to_string())?;
    spec.check().map_err(|broken| broken.to_string())?;
    Ok(spec)
}

#[test]
fn a_comparator_is_read_in_each_spelling_and_no_other_word() {
    for (text, comparator) in [
        ("in", Comparator::In),
        ("EQ", Comparator::In),
        ("NOT_IN", Comparator::NotIn),
        ("notIn", Comparator::NotIn),
        ("gte", Comparator::Gte),
        ("LTE", Comparator::Lte),
    ] {
        assert_eq!(text.parse(), Ok(comparator), "{text}");
    }
    for other in ["", "gt", "like", "==", "not"] {
        let refused = other.parse::<Comparator>().unwrap_err().to_string();
        assert!(refused.contains("notIn") && refused.contains("lte"), "{refused}");
    }
}

#[test]
fn a_plan_without_a_name_or_an_application_is_refused() {
    assert!(spec(&json!({})).is_ok());
    for (extra, words) in [
        (json!({ "namespace": " " }), "namespace: is empty"),
        (json!({ "serviceName": "" }), "serviceName: is empty"),
        (json!({ "applications": [] }), "applications: is empty"),
        (json!({ "applications": [{ "payloadName": "", "resources": {} }] }), "not a valid component"),
        (
            json!({ "applications": [
                { "payloadName": "a", "resources": {} }, { "payloadName": "a", "resources": {} }] }),
            "'a' is there twice",
        ),
        (
            json!({ "applications": [
                { "payloadName": "a", "resources": {}, "ports": [{ "protocol": "tcp", "port": 80 }] },
                { "payloadName": "b", "resources": {}, "ports": [{ "protocol": "TCP", "port": 80 }] }] }),
            "TCP 80 twice",
        ),
        (
            json!({ "matchingComputeCapabilities": [
                { "capabilityType": "GPU", "comparator": "like", "capabilityNames": ["a"] }] }),
            "'like' is not a comparator",
        ),
        (
            json!({ "hooks": [{ "before": "placement" }] }),
            "hooks[0]: needs exactly one of request and webhook",
        ),
        (json!({ "hooks": [{ "before": "removal", "request": "muster.check.a" }] }), "unknown variant"),
        (
            json!({ "hooks": [{ "before": "placement", "request": "muster.desired.a" }] }),
            "not a subject of a check",
        ),
    ] {
        let refused = spec(&extra).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn an_instance_needs_the_sum_of_its_applications() {
    let both = json!({ "applications": [
        { "payloadName": "a", "resources": { "cores": 1, "memory": 2 } },
        { "payloadName": "b", "resources": { "cores": 4, "memory": 8 } }] });
    let sum = spec(&both).unwrap().resources();
    assert_eq!(sum, Resources { cores: 5, memory: 10 });
    assert_eq!(sum.minus(Resources { cores: 1, memory: 11 }), None, "no dimension is negative");
}
