//! Identifiers and counters. A value of one of these types is valid by construction.
//!
//! Names are DNS labels, so they are safe as a NATS token, a file name and a Kubernetes name. What is not
//! one is refused with the offending text and the rule; nothing is ever escaped.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::{COUNTER_MAX, LABEL_CHARS_MAX};

/// The rule of every identifier, in words for a person.
pub const LABEL_RULE: &str =
    "1 to 63 characters of a-z, 0-9 and '-', the first and the last a letter or a digit";
const LABEL_PATTERN: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a valid {what}: {LABEL_RULE}")]
pub struct LabelError {
    /// Which identifier was wanted.
    pub what: &'static str,
    /// The offending text, cut to what a log line can bear.
    pub text: String,
}

fn check(what: &'static str, text: &str) -> Result<(), LabelError> {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if bytes.len() <= LABEL_CHARS_MAX && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
    {
        Ok(())
    } else {
        Err(LabelError { what, text: text.chars().take(2 * LABEL_CHARS_MAX).collect() })
    }
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $what:literal, $normalise:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The identifier's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = LabelError;
            fn from_str(text: &str) -> Result<Self, LabelError> {
                let text: Cow<'_, str> = ($normalise)(text);
                check($what, &text)?;
                Ok(Self(Arc::from(text.as_ref())))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::text::parse(deserializer)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": LABEL_PATTERN, "description": LABEL_RULE })
            }
        }
    };
}

label!(
    /// A place with devices.
    SiteId, "site", Cow::Borrowed
);
label!(
    /// A device of a site.
    DeviceId, "device", Cow::Borrowed
);
label!(
    /// A deployment. A Margo deployment id is a UUID, in which upper-case hex means the same: it is lower-cased.
    DeploymentId, "deployment", lower_case_uuid
);
label!(
    /// The namespace of a deployment: of its objects in a cluster, and the prefix of its Compose projects.
    Namespace, "namespace", Cow::Borrowed
);
label!(
    /// A component of a deployment.
    ComponentName, "component", Cow::Borrowed
);
label!(
    /// A subscription to notices.
    SubscriptionName, "subscription", Cow::Borrowed
);
label!(
    /// A hub of a federation.
    HubName, "hub", Cow::Borrowed
);
label!(
    /// The name of a label: region, ring, model.
    LabelKey, "label", Cow::Borrowed
);
label!(
    /// The value of a label.
    LabelValue, "value of a label", Cow::Borrowed
);
label!(
    /// A view that a person has defined.
    ViewName, "name of a view", Cow::Borrowed
);
label!(
    /// A wave of a rollout.
    WaveName, "name of a wave", Cow::Borrowed
);

label!(
    /// A plan.
    PlanName, "name of a plan", Cow::Borrowed
);
label!(
    /// A revision of a plan: MRDS's deployment id.
    RevisionId, "id of a revision", Cow::Borrowed
);
label!(
    /// An instance of a plan, and its deployment on a device.
    InstanceName, "name of an instance", Cow::Borrowed
);
label!(
    /// An operation on an instance: its type, and a UUID.
    OperationId, "id of an operation", Cow::Borrowed
);
label!(
    /// A cluster of nodes.
    ClusterName, "name of a cluster", Cow::Borrowed
);
label!(
    /// A compute capability of nodes.
    CapabilityName, "name of a capability", Cow::Borrowed
);

fn lower_case_uuid(text: &str) -> Cow<'_, str> {
    if is_uuid(text) { Cow::Owned(text.to_ascii_lowercase()) } else { Cow::Borrowed(text) }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

impl DeploymentId {
    /// Whether it is a UUID: then people need a name beside it.
    pub fn is_uuid(&self) -> bool {
        is_uuid(self.as_str())
    }
}

/// A device and the site it belongs to: the identity the bus enforces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct DeviceKey {
    /// Its site.
    pub site: SiteId,
    /// Its name within the site.
    pub device: DeviceId,
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.site, self.device)
    }
}

/// Why a text is not `SITE/DEVICE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceKeyError {
    /// There is no slash, or more than one.
    #[error("'{0}' is not SITE/DEVICE")]
    Shape(String),
    /// One side is not an identifier.
    #[error(transparent)]
    Label(#[from] LabelError),
}

impl FromStr for DeviceKey {
    type Err = DeviceKeyError;
    fn from_str(text: &str) -> Result<Self, DeviceKeyError> {
        match text.split_once('/') {
            Some((site, device)) if !device.contains('/') => {
                Ok(Self { site: site.parse()?, device: device.parse()? })
            }
            _ => Err(DeviceKeyError::Shape(text.chars().take(2 * LABEL_CHARS_MAX).collect())),
        }
    }
}

/// A number that counts from 1. Zero, the usual stand-in for "none", does not exist.
pub trait Counter: Copy + Ord {
    /// The value for a number, if it is not zero.
    fn new(value: u64) -> Option<Self>;
    /// The number.
    fn get(self) -> u64;
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident up to $max:expr) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        $(#[$doc])*
        pub struct $name(std::num::NonZeroU64);

        impl $name {
            /// The first one.
            pub const FIRST: Self = Self(std::num::NonZeroU64::MIN);
            /// The last one.
            const MAX: u64 = $max;

            /// The one after this. Counting stops at the last one, which no device lives to see.
            pub fn next(self) -> Self {
                Self::new(self.0.get().saturating_add(1)).unwrap_or(self)
            }

            /// The value for a number, if it is neither zero nor beyond the last one.
            pub const fn new(value: u64) -> Option<Self> {
                match std::num::NonZeroU64::new(value) {
                    Some(value) if value.get() <= Self::MAX => Some(Self(value)),
                    _ => None,
                }
            }

            /// The number.
            pub const fn get(self) -> u64 {
                self.0.get()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let number = u64::deserialize(deserializer)?;
                let refused = || format!("{number} is not a number from 1 to {}", Self::MAX);
                Self::new(number).ok_or_else(|| serde::de::Error::custom(refused()))
            }
        }

        impl Counter for $name {
            fn new(value: u64) -> Option<Self> {
                Self::new(value)
            }
            fn get(self) -> u64 {
                self.0.get()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// A life of a device's memory: rises when its database is lost.
    #[schemars(extend("maximum" = COUNTER_MAX))]
    Epoch up to COUNTER_MAX
);
counter!(
    /// A report's place within an epoch: 1, 2, 3, without a hole.
    #[schemars(extend("maximum" = COUNTER_MAX))]
    Seq up to COUNTER_MAX
);
counter!(
    /// A version of a device's desired state.
    Generation up to u64::MAX
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_dns_labels() {
        let longest = "a".repeat(63);
        for good in ["a", "7", "press-4", "6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10", &longest] {
            assert_eq!(good.parse::<SiteId>().unwrap().as_str(), good);
        }
        let too_long = "a".repeat(64);
        for bad in ["", "-a", "a-", "A", "a.b", "a b", "a_b", "*", ">", "ü", "a/b", &too_long] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_uuid_in_upper_case_is_the_same_deployment() {
        let id: DeploymentId = "6F0B2A52-6C0E-4A4B-9A57-5C1D8F1E2A10".parse().unwrap();
        assert_eq!(id.as_str(), "6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10");
        assert!("Web".parse::<DeploymentId>().is_err(), "only UUIDs are lower-cased");
        assert!(id.is_uuid() && !"web".parse::<DeploymentId>().unwrap().is_uuid());
    }

    #[test]
    fn a_refusal_names_the_text_and_the_rule() {
        let message = "Plant 7".parse::<SiteId>().unwrap_err().to_string();
        assert!(
            message.contains("'Plant 7'") && message.contains("site") && message.contains("1 to 63"),
            "{message}"
        );
    }

    #[test]
    fn a_device_key_is_two_labels() {
        let key: DeviceKey = "plant7/press-4".parse().unwrap();
        assert_eq!(key.to_string(), "plant7/press-4");
        for bad in ["plant7", "plant7/", "/press", "a/b/c", "a/B"] {
            assert!(bad.parse::<DeviceKey>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn counters_start_at_one() {
        assert!(serde_json::from_str::<Seq>("0").is_err());
        assert_eq!(Seq::FIRST.next().get(), 2);
    }

    #[test]
    fn numbers_and_epochs_end_where_other_readers_begin_to_round() {
        let last = serde_json::from_str::<Epoch>("9007199254740991").unwrap();
        assert_eq!((last.get(), last.next()), (COUNTER_MAX, last));
        for beyond in ["9007199254740992", "18446744073709551615"] {
            let refused = serde_json::from_str::<Seq>(beyond).unwrap_err().to_string();
            assert!(refused.contains(beyond) && refused.contains("9007199254740991"), "{refused}");
        }
        assert_eq!(serde_json::from_str::<Generation>("18446744073709551615").unwrap().get(), u64::MAX);
    }
}
