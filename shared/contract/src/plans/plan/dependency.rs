//! An application that another one of its instance starts after: its name, or its name and a time to wait.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::duration_text;
use crate::ids::ComponentName;

/// Longest time to wait after an application is ready, as EMCO has it.
const WAIT_MAX: Duration = Duration::from_secs(4096);

/// An application that is ready before another one starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The application.
    pub app: ComponentName,
    /// Time between its readiness and the start of the other one.
    pub wait: Duration,
}

/// A dependency with a time.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Waited {
    /// The application.
    app: ComponentName,
    /// Time between its readiness and the start of the other one: 30s; at most 4096s.
    #[serde(default, with = "duration_text")]
    #[schemars(with = "String")]
    wait: Duration,
}

/// The forms of a dependency.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it is the schema alone")]
enum Form {
    Name(ComponentName),
    Waited(Waited),
}

impl From<ComponentName> for Dependency {
    fn from(app: ComponentName) -> Self {
        Self { app, wait: Duration::ZERO }
    }
}

impl Dependency {
    /// Checks the time.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.wait <= WAIT_MAX { Ok(()) } else { Err(format!("has a wait above {}s", WAIT_MAX.as_secs())) }
    }
}

/// A name alone without a time, so that an older program reads it.
impl Serialize for Dependency {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.wait.is_zero() {
            return self.app.serialize(to);
        }
        Waited { app: self.app.clone(), wait: self.wait }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Dependency;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of an application, or its app and wait")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Dependency, E> {
                text.parse::<ComponentName>().map(Dependency::from).map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Dependency, A::Error> {
                let Waited { app, wait } = Waited::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Dependency { app, wait })
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl JsonSchema for Dependency {
    fn schema_name() -> Cow<'static, str> {
        "Dependency".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Form::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dependency_is_a_name_or_a_name_and_a_wait() {
        for (value, app, seconds) in [
            (json!("db"), "db", 0),
            (json!({ "app": "db", "wait": "30s" }), "db", 30),
            (json!({ "app": "db", "wait": "1h" }), "db", 3600),
        ] {
            let read: Dependency = serde_json::from_value(value.clone()).unwrap();
            assert_eq!((read.app.as_str(), read.wait.as_secs()), (app, seconds));
            assert_eq!(serde_json::to_value(&read).unwrap(), value, "it is written as it was read");
            assert_eq!(read.check(), Ok(()));
        }
        for bad in [json!(5), json!({ "wait": "1s" }), json!({ "app": "db", "for": "1s" }), json!("no name")]
        {
            assert!(serde_json::from_value::<Dependency>(bad.clone()).is_err(), "{bad}");
        }
        let long: Dependency = serde_json::from_value(json!({ "app": "db", "wait": "2h" })).unwrap();
        assert!(long.check().is_err());
    }
}
