//! The properties that a component of each profile type may have. The wire carries them as an open object (Margo); here
//! they become types, once in the publisher and once in the agent.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::canonical::Digest;
use crate::decode::Violation;
use crate::desired::{Component, DesiredDeployment, ProfileType, is_env_name};

pub use crate::duration_text::{DURATION_MAX, parse_duration};

/// Readiness by staying up: how long, where nothing is said.
pub const UPTIME_DEFAULT: Duration = Duration::from_secs(1);
/// Time between SIGTERM and SIGKILL, where nothing is said.
pub const STOP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

const PROCESS_PROPERTIES: [&str; 10] = [
    "command",
    "args",
    "env",
    "workingDir",
    "readiness",
    "stopTimeout",
    "restart",
    "wait",
    "waitBefore",
    "timeout",
];
const SIMULATED_PROPERTIES: [&str; 10] = [
    "startDelay",
    "stopDelay",
    "failStarts",
    "crashAfter",
    "restart",
    "packageLocation",
    "packageDigest",
    "wait",
    "waitBefore",
    "timeout",
];
const PACKAGE_PROPERTIES: [&str; 8] = [
    "repository",
    "revision",
    "packageLocation",
    "packageDigest",
    "keyLocation",
    "wait",
    "waitBefore",
    "timeout",
];
/// Properties that Muster adds for some types of packages.
const COMPOSE_FILE: &str = "composeFile";
const STOP_TIMEOUT: &str = "stopTimeout";
const MANIFESTS: &str = "manifests";
const NAMESPACE: &str = "namespace";

/// A component with its properties understood.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// A process of the device's operating system.
    Process(Process),
    /// A script for simulations: no process, only its states.
    Simulated(Simulated),
    /// A Compose package (Margo).
    Compose(Package),
    /// A Helm chart (Margo).
    Helm(Package),
    /// Manifests of Kubernetes objects.
    Kubernetes(Package),
}

impl Workload {
    /// Understands a component's properties.
    ///
    /// # Errors
    /// The property and what is wrong with it.
    pub fn of(profile: ProfileType, component: &Component) -> Result<Self, Violation> {
        let properties = &component.properties;
        match profile {
            ProfileType::Process => Ok(Self::Process(typed::<Process>(properties)?.checked()?)),
            ProfileType::Simulated => typed(properties).map(Self::Simulated),
            ProfileType::Compose => typed(properties).map(Self::Compose),
            ProfileType::Helm => typed(properties).map(Self::Helm),
            ProfileType::Kubernetes => typed(properties).map(Self::Kubernetes),
        }
    }

    /// The first property that nothing would read: most often a slip of the pen. A publisher refuses it; a device
    /// ignores it, because a newer publisher may know more. Vendor extensions (`x-…`) are always allowed.
    pub fn unread_property(profile: ProfileType, component: &Component) -> Option<&str> {
        let read: &[&str] = match profile {
            ProfileType::Process => &PROCESS_PROPERTIES,
            ProfileType::Simulated => &SIMULATED_PROPERTIES,
            ProfileType::Compose | ProfileType::Helm | ProfileType::Kubernetes => &PACKAGE_PROPERTIES,
        };
        let own: &[&str] = match profile {
            ProfileType::Process | ProfileType::Simulated => &[],
            ProfileType::Compose => &[COMPOSE_FILE, STOP_TIMEOUT],
            ProfileType::Helm => &[NAMESPACE],
            ProfileType::Kubernetes => &[MANIFESTS, NAMESPACE],
        };
        component
            .properties
            .keys()
            .map(String::as_str)
            .find(|name| !read.contains(name) && !own.contains(name) && !name.starts_with("x-"))
    }

    /// How this component is gated: what all profile types have in common.
    pub const fn gate(&self) -> &Gate {
        match self {
            Self::Process(process) => &process.gate,
            Self::Simulated(script) => &script.gate,
            Self::Compose(package) | Self::Helm(package) | Self::Kubernetes(package) => &package.gate,
        }
    }
}

impl DesiredDeployment {
    /// The components with their properties understood, in order.
    ///
    /// # Errors
    /// The component and the property that cannot be understood.
    pub fn workloads(&self) -> Result<Vec<(&Component, Workload)>, Violation> {
        self.profile
            .components
            .iter()
            .enumerate()
            .map(|(at, component)| {
                let workload = Workload::of(self.profile.profile_type, component);
                Ok((
                    component,
                    workload.map_err(|broken| broken.within(format!("profile.components[{at}]")))?,
                ))
            })
            .collect()
    }
}

fn typed<T: DeserializeOwned>(properties: &Map<String, Value>) -> Result<T, Violation> {
    serde_path_to_error::deserialize(properties).map_err(|error| match error.path().to_string().as_str() {
        "." => Violation::at("properties", error.inner()),
        path => Violation::at(format!("properties.{path}"), error.inner()),
    })
}

/// Margo's `wait` and `timeout`, and the time before a start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gate {
    /// Start the next component only when this one is ready. True where nothing is said.
    #[serde(default, deserialize_with = "flag", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<bool>")]
    pub wait: Option<bool>,
    /// Time between the readiness of the components before this one and its start: `30s` (ours). Not for a retry of this one alone.
    #[serde(
        default,
        rename = "waitBefore",
        deserialize_with = "duration",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<String>")]
    pub wait_before: Option<Duration>,
    /// Not ready within this time is failed: `8m30s`.
    #[serde(default, deserialize_with = "duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub timeout: Option<Duration>,
}

impl Gate {
    /// Whether the next component waits for this one.
    pub fn waits(&self) -> bool {
        self.wait.unwrap_or(true)
    }
}

/// Properties of a component of type `process`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// The program: a path, or a name looked up in PATH.
    pub command: String,
    /// Its arguments; `$(NAME)` stands for the environment variable NAME.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, over the few of the agent's own that it passes on (PATH, HOME, locale, time zone).
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its working directory; a directory of its own under the agent's data directory where nothing is said.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// When it counts as ready: staying up for a second where nothing is said.
    #[serde(default)]
    pub readiness: Readiness,
    /// Time between SIGTERM and SIGKILL: 10 s where nothing is said.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub stop_timeout: Option<Duration>,
    /// The reaction to a failure: `always` (with growing delays; the default) or `never`.
    #[serde(default)]
    pub restart: Restart,
    /// `wait` and `timeout`.
    #[serde(flatten)]
    pub gate: Gate,
}

impl Process {
    fn checked(self) -> Result<Self, Violation> {
        if self.command.is_empty() {
            return Err(Violation::at("properties.command", "is empty: name the program to run"));
        }
        if let Some(name) = self.env.keys().find(|name| !is_env_name(name)) {
            return Err(Violation::at(
                "properties.env",
                format!("'{name}' is not the name of an environment variable"),
            ));
        }
        Ok(self)
    }

    /// Time between SIGTERM and SIGKILL.
    pub fn stop_timeout(&self) -> Duration {
        self.stop_timeout.unwrap_or(STOP_TIMEOUT_DEFAULT)
    }
}

/// When a process counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Readiness {
    /// When it has ended with exit code 0: a job.
    Exit,
    /// When it has stayed up this long.
    Uptime {
        /// `2s`
        #[serde(rename = "for", default = "uptime_default", deserialize_with = "duration_required")]
        #[schemars(with = "String")]
        lasting: Duration,
    },
    /// When something accepts connections on a port.
    Tcp {
        /// The port.
        port: std::num::NonZeroU16,
        /// The host: 127.0.0.1 where nothing is said.
        #[serde(default = "loopback")]
        host: String,
    },
    /// When a file exists; a relative path is relative to the working directory.
    File {
        /// Its path.
        path: String,
    },
}

impl Default for Readiness {
    fn default() -> Self {
        Self::Uptime { lasting: UPTIME_DEFAULT }
    }
}

const fn uptime_default() -> Duration {
    UPTIME_DEFAULT
}

fn loopback() -> String {
    "127.0.0.1".to_owned()
}

/// The reaction to a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Restart {
    /// It is tried again, with growing delays.
    #[default]
    Always,
    /// It stays failed until another generation comes.
    Never,
}

/// Properties of a component of type `simulated`: what it pretends.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Simulated {
    /// Time until it is ready.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub start_delay: Option<Duration>,
    /// Time until it is stopped.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub stop_delay: Option<Duration>,
    /// Starts that fail before one succeeds.
    #[serde(default)]
    pub fail_starts: u32,
    /// Fails this long after each successful start.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub crash_after: Option<Duration>,
    /// The reaction to a failure.
    #[serde(default)]
    pub restart: Restart,
    /// URL of an archive that is fetched before it starts; nothing in it is run.
    #[serde(default)]
    pub package_location: Option<String>,
    /// The digest that the archive must have.
    #[serde(default)]
    pub package_digest: Option<Digest>,
    /// `wait` and `timeout`.
    #[serde(flatten)]
    pub gate: Gate,
}

/// Properties of a component of type `compose`, `helm` or `kubernetes`: Margo's, of every draft.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    /// OCI repository or chart URL.
    #[serde(default)]
    pub repository: Option<String>,
    /// Version in the repository.
    #[serde(default)]
    pub revision: Option<String>,
    /// URL of an archive (2024 draft, compose).
    #[serde(default)]
    pub package_location: Option<String>,
    /// The digest that the archive must have (ours).
    #[serde(default)]
    pub package_digest: Option<Digest>,
    /// URL of a public key (2024 draft, compose).
    #[serde(default)]
    pub key_location: Option<String>,
    /// The Compose file itself, in place of a package that would have to be fetched (ours; compose).
    #[serde(default)]
    pub compose_file: Option<String>,
    /// Time between SIGTERM and SIGKILL for each container (ours; compose): 10 s if absent.
    #[serde(default, deserialize_with = "duration")]
    #[schemars(with = "Option<String>")]
    pub stop_timeout: Option<Duration>,
    /// The manifests themselves, as YAML documents, in place of a package (ours; kubernetes).
    #[serde(default)]
    pub manifests: Option<String>,
    /// The namespace of its objects in the cluster (ours; helm, kubernetes). Default: a namespace for the deployment alone.
    #[serde(default)]
    pub namespace: Option<String>,
    /// `wait` and `timeout`.
    #[serde(flatten)]
    pub gate: Gate,
}

fn duration_required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
}

/// `true`, or `"true"` as in the examples of the 2024 draft.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Flag {
        Plain(bool),
        Text(String),
    }
    match Option::<Flag>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Flag::Plain(value)) => Ok(Some(value)),
        Some(Flag::Text(text)) => text
            .parse()
            .map(Some)
            .map_err(|_| serde::de::Error::custom(format!("'{text}' is neither true nor false"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload(profile: ProfileType, properties: Value) -> Result<Workload, Violation> {
        let Value::Object(properties) = properties else { panic!("an object, please") };
        Workload::of(profile, &Component::new("web".parse().unwrap(), properties))
    }

    #[test]
    fn a_process_needs_only_a_command() {
        let Ok(Workload::Process(process)) = workload(ProfileType::Process, json!({"command": "sleep"}))
        else {
            panic!()
        };
        assert_eq!(process.readiness, Readiness::Uptime { lasting: UPTIME_DEFAULT });
        assert!(process.gate.waits());
        assert_eq!(process.stop_timeout(), STOP_TIMEOUT_DEFAULT);
    }

    #[test]
    fn bad_properties_are_named() {
        for (properties, path) in [
            (json!({}), "properties"),
            (json!({"command": ""}), "properties.command"),
            (json!({"command": "x", "args": "y"}), "properties.args"),
            (json!({"command": "x", "env": {"A-B": "c"}}), "properties.env"),
            (json!({"command": "x", "readiness": {"type": "tcp", "port": 0}}), "properties.readiness"),
            (json!({"command": "x", "timeout": "soon"}), "properties"),
        ] {
            let violation = workload(ProfileType::Process, properties.clone()).unwrap_err();
            assert!(violation.path.starts_with(path), "{properties}: {violation}");
        }
    }

    #[test]
    fn a_property_nobody_reads_is_found() {
        let properties = json!({"command": "x", "x-acme-note": 1, "readyness": {}, "stopTimeout": "1s"});
        let Value::Object(properties) = properties else { panic!() };
        let component = Component::new("web".parse().unwrap(), properties);
        assert_eq!(Workload::unread_property(ProfileType::Process, &component), Some("readyness"));
    }

    #[test]
    fn durations_are_margos() {
        assert_eq!(parse_duration("8m30s").unwrap(), Duration::from_secs(510));
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        for bad in ["", "8", "-1s", "25h", "soon"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
