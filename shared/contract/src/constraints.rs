//! Margo's `deviceConstraints` (1.0-rc.3): what a device must have before it deploys a profile.
//!
//! A constraint that is not understood could not be kept, so unlike elsewhere an unknown field is refused. Whether a device
//! meets them is `muster_domain::eligibility`'s.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decode::Violation;

/// Most rules of a profile, expressions of a selector and values of an expression.
pub const CONSTRAINT_ITEMS_MAX: usize = 64;
/// Architectures that Margo names; `x86_64` is the older word for `amd64`.
const ARCHITECTURES: [&str; 6] = ["amd64", "arm64", "arm", "riscv64", "other", "x86_64"];
/// Units of a quantity with their powers of 1024.
const UNITS: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];

/// The requirements of a deployment on its devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceConstraints {
    /// How much of everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_requirements: Option<CapacityRequirements>,
    /// The rules; a device must satisfy all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CONSTRAINT_ITEMS_MAX))]
    pub eligibility_rules: Vec<EligibilityRule>,
}

/// How much a device must have at least.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacityRequirements {
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuRequirement>,
    /// Memory, as `512Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Disk, as `20Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
}

/// Which processors a device must have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuRequirement {
    /// Cores; half a core is `0.5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    /// One of these architectures; any where none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
}

/// Something that must be true of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EligibilityRule {
    /// A rule about capabilities: a key is a JSON Pointer (RFC 6901) into their `properties`.
    PropertySelector(Selector),
    /// A rule about the labels that the device reports: a key is the label.
    LabelSelector(Selector),
}

/// Expressions that must all hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// The expressions.
    #[schemars(length(min = 1, max = CONSTRAINT_ITEMS_MAX))]
    pub match_expressions: Vec<MatchExpression>,
}

/// A key, and what must be true of what is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MatchExpression {
    /// Where to look.
    pub key: String,
    /// How to compare.
    pub operator: Operator,
    /// The values to compare with: texts, numbers or truth values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CONSTRAINT_ITEMS_MAX))]
    pub values: Vec<Value>,
    /// For `ContainsAll` and `ContainsAny`: what must be true of an item of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_selector: Option<ItemSelector>,
}

/// Expressions about an item of a list; a key is a JSON Pointer into the item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ItemSelector {
    /// The expressions.
    #[schemars(length(min = 1, max = CONSTRAINT_ITEMS_MAX))]
    pub match_expressions: Vec<ItemExpression>,
}

/// An expression about an item of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemExpression {
    /// Where to look in the item.
    pub key: String,
    /// How to compare; not `ContainsAll` or `ContainsAny`.
    pub operator: Operator,
    /// The values to compare with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Value>,
}

/// How to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The value, or an item of a list, is one of `values`.
    In,
    /// There is a value, and neither it nor an item of it is one of `values`.
    NotIn,
    /// There is a value.
    Exists,
    /// There is none.
    DoesNotExist,
    /// The value is a number greater than the only one of `values`.
    Gt,
    /// The value is a number less than the only one of `values`.
    Lt,
    /// An item of a list meets all expressions of `itemSelector`.
    ContainsAll,
    /// An item of a list meets one of them.
    ContainsAny,
}

impl DeviceConstraints {
    /// Reads them, and checks their rules.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn read(value: &Value) -> Result<Self, Violation> {
        let read: Self = serde_path_to_error::deserialize(value)
            .map_err(|error| Violation::at(error.path(), error.inner()))?;
        read.check().map(|()| read)
    }

    /// The rules that the types cannot say.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(&self) -> Result<(), Violation> {
        if let Some(capacity) = &self.capacity_requirements {
            capacity.check().map_err(|broken| broken.within("capacityRequirements"))?;
        }
        check_count("eligibilityRules", self.eligibility_rules.len(), 0)?;
        self.eligibility_rules.iter().enumerate().try_for_each(|(at, rule)| {
            rule.check().map_err(|broken| broken.within(format!("eligibilityRules[{at}]")))
        })
    }
}

impl CapacityRequirements {
    fn check(&self) -> Result<(), Violation> {
        for (name, quantity) in [("memory", &self.memory), ("storage", &self.storage)] {
            if let Some(text) = quantity
                && quantity_bytes(text).is_none()
            {
                return Err(Violation::at(name, format!("'{text}' is no quantity such as 512Mi or 20Gi")));
            }
        }
        let Some(cpu) = &self.cpu else { return Ok(()) };
        if cpu.cores.is_some_and(|cores| !cores.is_finite() || cores <= 0.0) {
            return Err(Violation::at("cpu.cores", "is not above 0"));
        }
        match cpu.architectures.iter().find(|name| !ARCHITECTURES.contains(&name.as_str())) {
            Some(name) => {
                let rule = format!("'{name}' is not known; there are {}", ARCHITECTURES.join(", "));
                Err(Violation::at("cpu.architectures", rule))
            }
            None => Ok(()),
        }
    }
}

impl EligibilityRule {
    fn check(&self) -> Result<(), Violation> {
        let (name, selector) = match self {
            Self::PropertySelector(selector) => ("propertySelector", selector),
            Self::LabelSelector(selector) => ("labelSelector", selector),
        };
        let of_labels = matches!(self, Self::LabelSelector(_));
        selector.check(of_labels).map_err(|broken| broken.within(name))
    }
}

impl Selector {
    fn check(&self, of_labels: bool) -> Result<(), Violation> {
        check_count("matchExpressions", self.match_expressions.len(), 1)?;
        self.match_expressions.iter().enumerate().try_for_each(|(at, expression)| {
            expression.check(of_labels).map_err(|broken| broken.within(format!("matchExpressions[{at}]")))
        })
    }
}

impl MatchExpression {
    fn check(&self, of_labels: bool) -> Result<(), Violation> {
        check_key(&self.key, of_labels)?;
        let of_items = matches!(self.operator, Operator::ContainsAll | Operator::ContainsAny);
        if of_items && of_labels {
            return Err(Violation::at("operator", "compares the items of a property: labels have none"));
        }
        match &self.item_selector {
            Some(_) if !of_items => {
                Err(Violation::at("itemSelector", "is read by ContainsAll and ContainsAny alone"))
            }
            None if of_items => Err(Violation::at("itemSelector", "is missing")),
            Some(items) => {
                items.check().map_err(|broken| broken.within("itemSelector"))?;
                check_values(self.operator, &self.values)
            }
            None => check_values(self.operator, &self.values),
        }
    }
}

impl ItemSelector {
    fn check(&self) -> Result<(), Violation> {
        check_count("matchExpressions", self.match_expressions.len(), 1)?;
        self.match_expressions.iter().enumerate().try_for_each(|(at, expression)| {
            expression.check().map_err(|broken| broken.within(format!("matchExpressions[{at}]")))
        })
    }
}

impl ItemExpression {
    fn check(&self) -> Result<(), Violation> {
        check_key(&self.key, false)?;
        if matches!(self.operator, Operator::ContainsAll | Operator::ContainsAny) {
            return Err(Violation::at("operator", "compares a list, and this is one of its items"));
        }
        check_values(self.operator, &self.values)
    }
}

fn check_count(name: &str, count: usize, least: usize) -> Result<(), Violation> {
    if (least..=CONSTRAINT_ITEMS_MAX).contains(&count) {
        return Ok(());
    }
    Err(Violation::at(name, format!("has {count} entries; {least} to {CONSTRAINT_ITEMS_MAX} are allowed")))
}

fn check_key(key: &str, of_labels: bool) -> Result<(), Violation> {
    let is_escaped =
        |token: &str| token.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'));
    let is_pointer = key.starts_with('/') && key.split('/').all(is_escaped);
    if if of_labels { !key.is_empty() } else { is_pointer } {
        return Ok(());
    }
    Err(Violation::at(
        "key",
        format!("'{key}' is not a {}", if of_labels { "label" } else { "JSON Pointer such as /vendor" }),
    ))
}

/// Each operator has its own idea of values.
fn check_values(operator: Operator, values: &[Value]) -> Result<(), Violation> {
    let wrong = |rule: &str| Err(Violation::at("values", rule));
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => wrong("is missing"),
        Operator::In | Operator::NotIn => {
            if values.iter().any(|value| value.is_null() || value.is_array() || value.is_object()) {
                return wrong("holds something that is no text, number or truth value");
            }
            check_count("values", values.len(), 1)
        }
        Operator::Gt | Operator::Lt if values.len() == 1 && values[0].is_number() => Ok(()),
        Operator::Gt | Operator::Lt => wrong("is not one number"),
        _ if values.is_empty() => Ok(()),
        _ => wrong("is not read by this operator: leave it out"),
    }
}

/// The bytes of a quantity such as `512Mi`.
pub fn quantity_bytes(text: &str) -> Option<u128> {
    let (unit, power) = UNITS.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    let digits = text.strip_suffix(unit)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = is_number.then(|| digits.parse().ok())??;
    Some(u128::from(count) * 1024_u128.pow(power))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn constraints_are_read_and_written_unchanged() {
        let value = json!({
            "capacityRequirements": {
                "cpu": {"cores": 1.5, "architectures": ["amd64", "arm64"]}, "memory": "2048Mi", "storage": "20Gi"
            },
            "eligibilityRules": [
                {"labelSelector": {"matchExpressions": [
                    {"key": "acme.example/line", "operator": "In", "values": ["press", "weld"]}
                ]}},
                {"propertySelector": {"matchExpressions": [
                    {"key": "/peripherals", "operator": "ContainsAll", "itemSelector": {"matchExpressions": [
                        {"key": "/type", "operator": "In", "values": ["gpu"]}
                    ]}},
                    {"key": "/a~1b/0", "operator": "Gt", "values": [3]}
                ]}}
            ]
        });
        let read = DeviceConstraints::read(&value).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), value);
    }

    #[test]
    fn what_nothing_could_keep_is_named_by_field_and_rule() {
        let rule = |selector: &str, expression: Value| json!({"eligibilityRules": [{selector: {"matchExpressions": [expression]}}]});
        let table = [
            (json!({"cpu": {}}), "cpu: unknown field"),
            (
                json!({"capacityRequirements": {"memory": "2G"}}),
                "capacityRequirements.memory: '2G' is no quantity",
            ),
            (
                json!({"capacityRequirements": {"cpu": {"cores": 0}}}),
                "capacityRequirements.cpu.cores: is not above 0",
            ),
            (json!({"capacityRequirements": {"cpu": {"architectures": ["ppc"]}}}), "'ppc' is not known"),
            (json!({"eligibilityRules": [{"propertySelector": {"matchExpressions": []}}]}), "has 0 entries"),
            (
                rule("propertySelector", json!({"key": "vendor", "operator": "Exists"})),
                "is not a JSON Pointer",
            ),
            (rule("propertySelector", json!({"key": "/a~2", "operator": "Exists"})), "is not a JSON Pointer"),
            (rule("labelSelector", json!({"key": "a", "operator": "Like"})), "unknown variant `Like`"),
            (rule("labelSelector", json!({"key": "a", "operator": "In"})), "values: is missing"),
            (
                rule("labelSelector", json!({"key": "a", "operator": "Gt", "values": ["3"]})),
                "is not one number",
            ),
            (rule("labelSelector", json!({"key": "a", "operator": "Exists", "values": [1]})), "leave it out"),
            (rule("labelSelector", json!({"key": "a", "operator": "ContainsAny"})), "labels have none"),
            (
                rule("propertySelector", json!({"key": "/a", "operator": "ContainsAny"})),
                "itemSelector: is missing",
            ),
        ];
        for (value, words) in table {
            let said = DeviceConstraints::read(&value).unwrap_err();
            let said = format!("{}: {}", said.path, said.rule);
            assert!(said.contains(words), "{value}: {said}");
        }
    }

    #[test]
    fn a_quantity_has_a_unit_of_1024() {
        for (text, bytes) in
            [("1Ki", Some(1024)), ("2Gi", Some(2 << 30)), ("1", None), ("Mi", None), ("-1Mi", None)]
        {
            assert_eq!(quantity_bytes(text), bytes, "{text}");
        }
    }
}
