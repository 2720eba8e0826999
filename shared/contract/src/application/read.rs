//! Reads a description from a value, and finds all that is wrong with it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{ApplicationDescription, DescribedParameter, DescribedProfile, ValueRule};
use crate::constraints::DeviceConstraints;
use crate::decode::Violation;
use crate::desired::{Component, ProfileType, RemovalPhase, Target};
use crate::ids::ComponentName;
use crate::profile::Workload;

const API_VERSIONS: [&str; 2] = ["margo.org/v1-alpha1", "application.margo.org/v1alpha1"];
const KINDS: [&str; 2] = ["ApplicationDescription", "application"];
/// Margo's limit of application ids.
const ID_CHARS_MAX: usize = 200;

/// The violations so far.
#[derive(Default)]
struct Reader {
    found: Vec<Violation>,
}

/// A mapping with its path.
struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl ApplicationDescription {
    /// Reads a description.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(value: &Value) -> Result<Self, Vec<Violation>> {
        let mut reader = Reader::default();
        let read = reader.description(value);
        match read {
            Some(read) if reader.found.is_empty() => Ok(read),
            _ => Err(reader.found),
        }
    }
}

impl<'a> Fields<'a> {
    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }
}

impl Reader {
    fn push(&mut self, path: impl Into<String>, rule: impl Into<String>) {
        self.found.push(Violation { path: path.into(), rule: rule.into() });
    }

    /// A mapping with only these fields and those of vendors; with any if none is named.
    fn object<'a>(&mut self, value: &'a Value, path: String, known: &[&str]) -> Option<Fields<'a>> {
        let Value::Object(map) = value else {
            self.push(path, "is not a mapping");
            return None;
        };
        let fields = Fields { map, path };
        let is_unknown = |key: &&String| !known.contains(&key.as_str()) && !key.starts_with("x-");
        for key in map.keys().filter(is_unknown).filter(|_| !known.is_empty()) {
            self.push(fields.at(key), format!("is not a field here; {} are", known.join(", ")));
        }
        Some(fields)
    }

    fn required<'a>(&mut self, fields: &Fields<'a>, key: &str) -> Option<&'a Value> {
        let value = fields.get(key);
        if value.is_none() {
            self.push(fields.at(key), "is missing");
        }
        value
    }

    fn text<'a>(&mut self, value: &'a Value, path: &str) -> Option<&'a str> {
        let text = value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            self.push(path, "is not a text; write it in quotes");
        }
        text
    }

    fn required_text(&mut self, fields: &Fields<'_>, key: &str) -> Option<String> {
        let value = self.required(fields, key)?;
        self.text(value, &fields.at(key)).map(str::to_owned)
    }

    /// The items of a list with their paths; nothing if it is missing.
    fn items<'a>(&mut self, fields: &Fields<'a>, key: &str) -> Vec<(String, &'a Value)> {
        let path = fields.at(key);
        match fields.get(key) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                items.iter().enumerate().map(|(at, item)| (format!("{path}[{at}]"), item)).collect()
            }
            Some(_) => {
                self.push(path, "is not a list");
                Vec::new()
            }
        }
    }

    fn description(&mut self, value: &Value) -> Option<ApplicationDescription> {
        let known =
            ["apiVersion", "kind", "id", "metadata", "deploymentProfiles", "parameters", "configuration"];
        let root = self.object(value, String::new(), &known)?;
        self.envelope(&root);
        let metadata = self.required(&root, "metadata");
        let known = ["id", "name", "description", "version", "catalog"];
        let metadata = metadata.and_then(|value| self.object(value, "metadata".to_owned(), &known));
        let id = self.id(&root, metadata.as_ref());
        let head = metadata.as_ref().map(|metadata| {
            let description = metadata.get("description").and_then(Value::as_str).map(str::to_owned);
            let names = (self.required_text(metadata, "name"), self.required_text(metadata, "version"));
            (names, description, self.organizations(metadata))
        });
        let profiles = self.profiles(&root);
        let components: BTreeSet<&str> =
            profiles.iter().flat_map(|profile| &profile.components).map(String::as_str).collect();
        let mut parameters = self.parameters(&root, &components);
        self.configuration(&root, &mut parameters);
        self.check_defaults(&parameters);
        let ((name, version), description, organizations) = head?;
        Some(ApplicationDescription {
            id: id?,
            name: name?,
            version: version?,
            description,
            organizations,
            profiles,
            parameters,
        })
    }

    fn envelope(&mut self, root: &Fields<'_>) {
        let mut one_of = |value: Option<&Value>, key: &str, allowed: &[&str]| {
            let is_known = value.is_none_or(|value| value.as_str().is_some_and(|it| allowed.contains(&it)));
            if !is_known {
                self.push(key, format!("is not known; allowed are: {}", allowed.join(", ")));
            }
        };
        one_of(root.get("apiVersion"), "apiVersion", &API_VERSIONS);
        one_of(root.get("kind"), "kind", &KINDS);
        if root.get("kind").is_none() {
            self.push("kind", "is missing: ApplicationDescription");
        }
    }

    /// The id: at the top, or in drafts of 2024 in the metadata.
    fn id(&mut self, root: &Fields<'_>, metadata: Option<&Fields<'_>>) -> Option<String> {
        let early = metadata.and_then(|metadata| metadata.get("id"));
        let (path, value) = match (root.get("id"), early) {
            (Some(one), Some(other)) if one != other => {
                self.push("metadata.id", "differs from id: write it once");
                return None;
            }
            (Some(value), _) => ("id", value),
            (None, Some(value)) => ("metadata.id", value),
            (None, None) => {
                self.push("id", "is missing (in earlier drafts: metadata.id)");
                return None;
            }
        };
        let id = self.text(value, path)?;
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if id.len() <= ID_CHARS_MAX && id.bytes().all(is_allowed) {
            return Some(id.to_owned());
        }
        let rule = format!("is not an application id: 1 to {ID_CHARS_MAX} characters of a-z, 0-9 and '-'");
        self.push(path, rule);
        None
    }

    fn organizations(&mut self, metadata: &Fields<'_>) -> Vec<String> {
        let Some(catalog) = self.required(metadata, "catalog") else { return Vec::new() };
        let Some(catalog) = self.object(catalog, metadata.at("catalog"), &[]) else { return Vec::new() };
        let items = self.items(&catalog, "organization");
        if items.is_empty() {
            self.push(catalog.at("organization"), "is missing: who makes the application");
        }
        let name = |(path, value): (String, &Value)| {
            let organization = self.object(value, path, &["name", "site"])?;
            self.required_text(&organization, "name")
        };
        items.into_iter().filter_map(name).collect()
    }

    fn profiles(&mut self, root: &Fields<'_>) -> Vec<DescribedProfile> {
        let items = self.items(root, "deploymentProfiles");
        if items.is_empty() {
            self.push("deploymentProfiles", "is missing: an application has a profile at least");
        }
        items.into_iter().filter_map(|(path, value)| self.profile(path, value)).collect()
    }

    fn profile(&mut self, path: String, value: &Value) -> Option<DescribedProfile> {
        let known = ["type", "id", "description", "components", "deviceConstraints", "requiredResources"];
        let profile = self.object(value, path, &known)?;
        let profile_type: Option<ProfileType> = self.required(&profile, "type").and_then(|value| {
            let known = serde_json::from_value(value.clone()).ok();
            if known.is_none() {
                self.push(profile.at("type"), format!("{value} is not a type of profile"));
            }
            known
        });
        if let Some(constraints) = profile.get("deviceConstraints")
            && let Err(violation) = DeviceConstraints::read(constraints)
        {
            self.found.push(violation.within(profile.at("deviceConstraints")));
        }
        let items = self.items(&profile, "components");
        if items.is_empty() {
            self.push(profile.at("components"), "is missing: a profile has a component at least");
        }
        let mut components = Vec::new();
        for (path, value) in items {
            let Some(component) = self.component(&path, value) else { continue };
            if components.contains(&component.name.to_string()) {
                self.push(format!("{path}.name"), "is the name of another component of the profile");
            }
            if let Some(Err(violation)) = profile_type.map(|profile| Workload::of(profile, &component)) {
                self.found.push(violation.within(&path));
            }
            components.push(component.name.to_string());
        }
        let id = profile.get("id").and_then(Value::as_str).map(str::to_owned);
        Some(DescribedProfile { id, profile_type: profile_type?, components })
    }

    fn component(&mut self, path: &str, value: &Value) -> Option<Component> {
        let component = self.object(value, path.to_owned(), &["name", "properties", "runsAt"])?;
        let properties = self.required(&component, "properties")?;
        let properties = self.object(properties, component.at("properties"), &[])?;
        let name = self.required_text(&component, "name")?.parse::<ComponentName>();
        let name = name.map_err(|error| self.push(component.at("name"), format!("{error}"))).ok()?;
        let runs_at = component.get("runsAt").map(RemovalPhase::read).transpose();
        let runs_at = runs_at.map_err(|rule| self.push(component.at("runsAt"), rule)).ok()?;
        Some(Component { name, properties: properties.map.clone(), runs_at })
    }

    fn parameters(
        &mut self,
        root: &Fields<'_>,
        components: &BTreeSet<&str>,
    ) -> BTreeMap<String, DescribedParameter> {
        let Some(value) = root.get("parameters") else { return BTreeMap::new() };
        let Some(all) = self.object(value, "parameters".to_owned(), &[]) else { return BTreeMap::new() };
        let mut read = BTreeMap::new();
        for (name, value) in all.map {
            let Some(parameter) = self.object(value, all.at(name), &["value", "targets"]) else { continue };
            let targets = self.targets(&parameter, components);
            let value = parameter.get("value").cloned();
            if value.as_ref().is_some_and(Value::is_object) {
                self.push(parameter.at("value"), "is neither a text, a number, a truth value nor a list");
            }
            let described = DescribedParameter { value, targets, name: None, immutable: false, rule: None };
            read.insert(name.clone(), described);
        }
        read
    }

    fn targets(&mut self, parameter: &Fields<'_>, components: &BTreeSet<&str>) -> Vec<Target> {
        let items = self.items(parameter, "targets");
        if items.is_empty() {
            self.push(parameter.at("targets"), "is missing: where the value goes");
        }
        let mut targets = Vec::new();
        for (path, value) in items {
            match serde_json::from_value::<Target>(value.clone()) {
                Err(error) => self.push(path, format!("is no target: {error}")),
                Ok(target) => {
                    for name in target.components.iter().filter(|name| !components.contains(name.as_str())) {
                        self.push(
                            format!("{path}.components"),
                            format!("{name} is a component of no profile"),
                        );
                    }
                    targets.push(target);
                }
            }
        }
        targets
    }

    /// Gives each parameter the name and the rule of its setting.
    fn configuration(&mut self, root: &Fields<'_>, parameters: &mut BTreeMap<String, DescribedParameter>) {
        let Some(value) = root.get("configuration") else { return };
        let Some(all) = self.object(value, "configuration".to_owned(), &["sections", "schema"]) else {
            return;
        };
        let mut rules: BTreeMap<String, ValueRule> = BTreeMap::new();
        for (path, value) in self.items(&all, "schema") {
            match serde_json::from_value::<ValueRule>(value.clone()) {
                Err(error) => self.push(path, format!("is no rule: {error}")),
                Ok(rule) => {
                    if let Err((field, broken)) = rule.check() {
                        self.push(format!("{path}.{field}"), broken);
                    }
                    if rules.insert(rule.name.clone(), rule).is_some() {
                        self.push(format!("{path}.name"), "is the name of another rule");
                    }
                }
            }
        }
        for (path, value) in self.items(&all, "sections") {
            let Some(section) = self.object(value, path, &["name", "settings"]) else { continue };
            for (path, value) in self.items(&section, "settings") {
                self.setting(path, value, &rules, parameters);
            }
        }
    }

    fn setting(
        &mut self,
        path: String,
        value: &Value,
        rules: &BTreeMap<String, ValueRule>,
        parameters: &mut BTreeMap<String, DescribedParameter>,
    ) {
        let known = ["parameter", "name", "description", "immutable", "schema"];
        let Some(setting) = self.object(value, path, &known) else { return };
        let (of, name) = (self.required_text(&setting, "parameter"), self.required_text(&setting, "name"));
        let rule = self.required_text(&setting, "schema").and_then(|name| {
            let rule = rules.get(&name);
            if rule.is_none() {
                self.push(setting.at("schema"), format!("'{name}' is no rule of configuration.schema"));
            }
            rule.cloned()
        });
        let immutable = setting.get("immutable").cloned().unwrap_or(Value::Bool(false));
        let Value::Bool(immutable) = immutable else {
            return self.push(setting.at("immutable"), "is neither true nor false");
        };
        let Some(of) = of else { return };
        match parameters.get_mut(&of) {
            None => self.push(setting.at("parameter"), format!("'{of}' is no parameter of the application")),
            Some(parameter) => {
                parameter.name = name;
                parameter.immutable = immutable;
                parameter.rule = rule;
            }
        }
    }

    fn check_defaults(&mut self, parameters: &BTreeMap<String, DescribedParameter>) {
        for (name, parameter) in parameters {
            let default = parameter.rule.as_ref().zip(parameter.value.as_ref());
            if let Some(Err(rule)) = default.map(|(rule, value)| rule.accepts(value)) {
                self.push(format!("parameters.{name}.value"), rule);
            }
        }
    }
}
