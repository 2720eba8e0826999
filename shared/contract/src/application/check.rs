//! Holds a description against a deployment that names it: the profile with its components, and the values of parameters.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ApplicationDescription, DescribedProfile};
use crate::decode::Violation;
use crate::desired::{DesiredDeployment, Parameter};
use crate::near::near;

const PARAMETERS: &str = "spec.parameters";
const PROFILE: &str = "spec.deploymentProfile";

impl ApplicationDescription {
    /// The rules that a deployment of the application breaks, by the fields of its document.
    pub fn check(&self, deployment: &DesiredDeployment) -> Vec<Violation> {
        let mut found = Vec::new();
        found.extend(self.check_profile(deployment));
        for (name, parameter) in &deployment.parameters {
            let refused = match self.parameters.get(name) {
                None => Some((String::new(), self.unknown(name))),
                Some(described) => {
                    let rule = described.rule.as_ref();
                    let broken = rule.and_then(|rule| rule.accepts(&parameter.value).err());
                    broken.map(|broken| (".value".to_owned(), broken))
                }
            };
            if let Some((field, rule)) = refused {
                found.push(Violation::at(format_args!("{PARAMETERS}.{name}{field}"), rule));
            }
        }
        found
    }

    /// The immutable values that a new content of a deployment changes.
    pub fn check_change(&self, before: &DesiredDeployment, after: &DesiredDeployment) -> Vec<Violation> {
        let mut found = Vec::new();
        for (name, described) in self.parameters.iter().filter(|(_, described)| described.immutable) {
            let default = described.value.as_ref();
            let (was, is) =
                (value(&before.parameters, name, default), value(&after.parameters, name, default));
            if was != is {
                let shown = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
                let rule = format!(
                    "is {}, and must stay {}: the application says that it cannot change once it is deployed",
                    shown(is),
                    shown(was)
                );
                found.push(Violation::at(format_args!("{PARAMETERS}.{name}.value"), rule));
            }
        }
        found
    }

    fn unknown(&self, name: &str) -> String {
        let names = self.parameters.keys().map(String::as_str);
        let near = near(name, names).first().map(|near| format!("; did you mean {near}?"));
        format!("is no parameter of the application {}{}", self.id, near.unwrap_or_default())
    }

    /// A profile of the application has the type, and the components in this order.
    fn check_profile(&self, deployment: &DesiredDeployment) -> Option<Violation> {
        let wanted = &deployment.profile;
        let of_type: Vec<&DescribedProfile> =
            self.profiles.iter().filter(|profile| profile.profile_type == wanted.profile_type).collect();
        if of_type.is_empty() {
            let rule = format!("the application {} has no profile of this type", self.id);
            return Some(Violation::at(format_args!("{PROFILE}.type"), rule));
        }
        let names: Vec<&str> = wanted.components.iter().map(|component| component.name.as_str()).collect();
        let has_in_order = |profile: &&DescribedProfile| {
            let mut described = profile.components.iter();
            names.iter().all(|name| described.any(|component| component == name))
        };
        if of_type.iter().any(has_in_order) {
            return None;
        }
        let listed: Vec<String> = of_type.iter().map(|profile| profile.components.join(", ")).collect();
        let rule = format!(
            "the components are not those of the application {}, in its order: {}",
            self.id,
            listed.join("; or ")
        );
        Some(Violation::at(format_args!("{PROFILE}.components"), rule))
    }
}

fn value<'a>(
    parameters: &'a BTreeMap<String, Parameter>,
    name: &str,
    default: Option<&'a Value>,
) -> Option<&'a Value> {
    parameters.get(name).map(|parameter| &parameter.value).or(default)
}

#[cfg(test)]
mod tests;
