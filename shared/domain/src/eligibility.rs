//! Checks whether a device may deploy a profile: Margo's `deviceConstraints` against the device's capabilities.
//!
//! Eligibility rules must be met. A capacity must be met where the device reports it: an unreported capacity
//! refuses nothing.

use std::collections::BTreeMap;

use muster_contract::constraints::{
    CapacityRequirements, CpuRequirement, DeviceConstraints, EligibilityRule, ItemExpression,
    MatchExpression, Operator, quantity_bytes,
};
use serde_json::{Map, Value};

/// A device's own properties from its `CapabilitiesReport`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capabilities {
    /// Margo's properties.
    pub properties: Map<String, Value>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// The reason why a device may not deploy a profile with these constraints; none if it may. Names the first
/// unmet constraint.
pub fn refusal(constraints: &DeviceConstraints, device: &Capabilities) -> Option<String> {
    let capacity = constraints.capacity_requirements.as_ref();
    let short = capacity.and_then(|capacity| shortage(capacity, &device.properties));
    let unmet = || {
        let rules = constraints.eligibility_rules.iter().enumerate();
        rules
            .filter_map(|(at, rule)| Some(format!("eligibilityRules[{at}]: {}", unmet(rule, device)?)))
            .next()
    };
    short.map(|short| format!("capacityRequirements.{short}")).or_else(unmet)
}

fn shortage(capacity: &CapacityRequirements, properties: &Map<String, Value>) -> Option<String> {
    let cpu = capacity.cpu.as_ref().and_then(|cpu| cpu_shortage(cpu, properties));
    let least = |name: &str, least: &Option<String>| {
        let (least, has) = (least.as_deref()?, properties.get(name)?.as_str()?);
        let is_short = quantity_bytes(has)? < quantity_bytes(least)?;
        is_short.then(|| format!("{name}: {least} is required, the device has {has}"))
    };
    cpu.or_else(|| least("memory", &capacity.memory)).or_else(|| least("storage", &capacity.storage))
}

fn cpu_shortage(cpu: &CpuRequirement, properties: &Map<String, Value>) -> Option<String> {
    // `cpus` until rc.2, `cpu` since.
    let cpus = properties.get("cpus").or_else(|| properties.get("cpu"))?.as_array()?;
    let wanted: Vec<&str> = cpu.architectures.iter().map(|name| newest_name(name)).collect();
    let fits = |entry: &&Value| {
        let architecture = entry.get("architecture").and_then(Value::as_str).map(newest_name);
        wanted.is_empty() || architecture.is_none_or(|name| wanted.contains(&name))
    };
    let fitting: Vec<_> = cpus.iter().filter(fits).collect();
    if fitting.is_empty() {
        return Some(format!("cpu.architectures: {} is required, the device has none", wanted.join(" or ")));
    }
    let cores: f64 = fitting.iter().filter_map(|entry| entry.get("cores")?.as_f64()).sum();
    let least = cpu.cores.filter(|least| cores > 0.0 && cores < *least)?;
    Some(format!("cpu.cores: {least} are required, the device has {cores}"))
}

fn newest_name(architecture: &str) -> &str {
    if architecture == "x86_64" { "amd64" } else { architecture }
}

fn unmet(rule: &EligibilityRule, device: &Capabilities) -> Option<String> {
    match rule {
        EligibilityRule::PropertySelector(selector) => {
            let properties = Value::Object(device.properties.clone());
            let unmet = |it: &&MatchExpression| !property_holds(it, properties.pointer(&it.key));
            selector.match_expressions.iter().find(unmet).map(|it| said(it, properties.pointer(&it.key)))
        }
        EligibilityRule::LabelSelector(selector) => {
            let label = |it: &MatchExpression| device.labels.get(&it.key).map(|text| labelled(text));
            let unmet = |it: &&MatchExpression| !holds(it.operator, &it.values, label(it).as_ref());
            selector.match_expressions.iter().find(unmet).map(|it| said(it, label(it).as_ref()))
        }
    }
}

/// A label is a text on the wire; one that is written as a number is compared as one too.
fn labelled(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn property_holds(expression: &MatchExpression, found: Option<&Value>) -> bool {
    let Some(items) = &expression.item_selector else {
        return holds(expression.operator, &expression.values, found);
    };
    let meets = |item: &Value| {
        let mut each = items
            .match_expressions
            .iter()
            .map(|it: &ItemExpression| holds(it.operator, &it.values, item.pointer(&it.key)));
        if expression.operator == Operator::ContainsAll { each.all(|met| met) } else { each.any(|met| met) }
    };
    found.and_then(Value::as_array).is_some_and(|list| list.iter().any(meets))
}

fn holds(operator: Operator, values: &[Value], found: Option<&Value>) -> bool {
    let is_one = |found: &Value| values.iter().any(|value| is_same(value, found));
    let has_one = |found: &Value| match found {
        Value::Array(items) => items.iter().any(is_one),
        other => is_one(other),
    };
    match operator {
        Operator::In => found.is_some_and(has_one),
        Operator::NotIn => found.is_some_and(|found| !has_one(found)),
        Operator::Exists => found.is_some(),
        Operator::DoesNotExist => found.is_none(),
        Operator::Gt => numbers(found, values).is_some_and(|(found, bound)| found > bound),
        Operator::Lt => numbers(found, values).is_some_and(|(found, bound)| found < bound),
        Operator::ContainsAll | Operator::ContainsAny => false,
    }
}

/// `2` and `2.0` are the same number, and so is a label that is written as one.
fn is_same(value: &Value, found: &Value) -> bool {
    match (value.as_f64(), number(found)) {
        (Some(one), Some(other)) => one == other,
        _ => value == found,
    }
}

fn numbers(found: Option<&Value>, values: &[Value]) -> Option<(f64, f64)> {
    Some((number(found?)?, values.first()?.as_f64()?))
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

/// The required values of a key, and the actual ones.
fn said(expression: &MatchExpression, found: Option<&Value>) -> String {
    let values: Vec<String> = expression.values.iter().map(ToString::to_string).collect();
    let wanted = match expression.operator {
        Operator::In => format!("one of {}", values.join(", ")),
        Operator::NotIn => format!("none of {}", values.join(", ")),
        Operator::Exists => "a value".to_owned(),
        Operator::DoesNotExist => "no value".to_owned(),
        Operator::Gt => format!("more than {}", values.join("")),
        Operator::Lt => format!("less than {}", values.join("")),
        Operator::ContainsAll | Operator::ContainsAny => {
            "a list with an item that itemSelector selects".to_owned()
        }
    };
    let found = found.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    format!("{} must be {wanted}; the device has {found}", expression.key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device() -> Capabilities {
        let Value::Object(properties) = json!({
            "vendor": "Acme", "memory": "15Gi", "cpus": [{"cores": 4, "architecture": "amd64"}],
            "peripherals": [{"type": "camera", "model": "c1"}, {"type": "gpu"}],
            "supportedDeploymentTypes": ["process", "compose"]
        }) else {
            unreachable!()
        };
        let labels =
            [("line", "press"), ("slots", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        Capabilities { properties, labels: labels.into() }
    }

    fn refused(constraints: &Value) -> Option<String> {
        refusal(&DeviceConstraints::read(constraints).unwrap(), &device())
    }

    fn rule(selector: &str, expression: &Value) -> Value {
        json!({"eligibilityRules": [{selector: {"matchExpressions": [expression]}}]})
    }

    #[test]
    fn capacity_is_held_against_what_the_device_reports() {
        let capacity = |capacity: Value| refused(&json!({ "capacityRequirements": capacity }));
        for met in [
            json!({}),
            json!({"memory": "15Gi", "cpu": {"cores": 4, "architectures": ["arm64", "x86_64"]}}),
            // It does not say how much disk it has.
            json!({"storage": "9Ei"}),
        ] {
            assert_eq!(capacity(met.clone()), None, "{met}");
        }
        for (unmet, words) in [
            (json!({"memory": "16Gi"}), "capacityRequirements.memory: 16Gi is required, the device has 15Gi"),
            (json!({"cpu": {"cores": 4.5}}), "cpu.cores: 4.5 are required, the device has 4"),
            (
                json!({"cpu": {"architectures": ["arm64", "arm"]}}),
                "cpu.architectures: arm64 or arm is required",
            ),
        ] {
            assert!(capacity(unmet.clone()).is_some_and(|said| said.contains(words)), "{unmet}");
        }
    }

    #[test]
    fn each_operator_has_its_truth() {
        let items = |operator: &str, kind: &str, model: &str| {
            json!({"key": "/peripherals", "operator": operator, "itemSelector": {"matchExpressions": [
                {"key": "/type", "operator": "In", "values": [kind]},
                {"key": "/model", "operator": "In", "values": [model]}
            ]}})
        };
        let table = [
            (json!({"key": "/vendor", "operator": "In", "values": ["Acme", "X"]}), true),
            (json!({"key": "/vendor", "operator": "In", "values": ["X"]}), false),
            (json!({"key": "/supportedDeploymentTypes", "operator": "In", "values": ["compose"]}), true),
            (json!({"key": "/supportedDeploymentTypes", "operator": "NotIn", "values": ["compose"]}), false),
            (json!({"key": "/vendor", "operator": "NotIn", "values": ["X"]}), true),
            (json!({"key": "/nothing", "operator": "NotIn", "values": ["X"]}), false),
            (json!({"key": "/nothing", "operator": "Exists"}), false),
            (json!({"key": "/nothing", "operator": "DoesNotExist"}), true),
            (json!({"key": "/cpus/0/cores", "operator": "Gt", "values": [3]}), true),
            (json!({"key": "/cpus/0/cores", "operator": "Gt", "values": [4]}), false),
            (json!({"key": "/cpus/0/cores", "operator": "Lt", "values": [4.5]}), true),
            (json!({"key": "/vendor", "operator": "Lt", "values": [4]}), false),
            (items("ContainsAll", "camera", "c1"), true),
            (items("ContainsAll", "gpu", "c1"), false),
            (items("ContainsAny", "gpu", "c2"), true),
            (items("ContainsAny", "display", "c2"), false),
        ];
        for (expression, met) in table {
            let said = refused(&rule("propertySelector", &expression));
            assert_eq!(said.is_none(), met, "{expression}: {said:?}");
        }
    }

    #[test]
    fn labels_are_those_that_the_device_reports() {
        for (expression, met) in [
            (json!({"key": "line", "operator": "In", "values": ["press", "weld"]}), true),
            (json!({"key": "slots", "operator": "Gt", "values": [2]}), true),
            (json!({"key": "slots", "operator": "In", "values": [3]}), true),
            (json!({"key": "region", "operator": "Exists"}), false),
        ] {
            let said = refused(&rule("labelSelector", &expression));
            assert_eq!(said.is_none(), met, "{expression}: {said:?}");
        }
        let said =
            refused(&rule("labelSelector", &json!({"key": "line", "operator": "In", "values": ["weld"]})));
        let words = r#"eligibilityRules[0]: line must be one of "weld"; the device has "press""#;
        assert_eq!(said.as_deref(), Some(words));
    }
}
