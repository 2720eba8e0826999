//! Changes the streams of an older release to the settings of this release. Only an operator starts it: a service names
//! the differences and stops, because a changed stream may drop messages. It changes no consumer and removes nothing.

use async_nats::jetstream::stream::Config as Stream;
use serde_json::{Map, Value, json};

use crate::bus::Bus;
use crate::converge::{Difference, Existing, FREE_STREAM_FIELDS, TopologyError, compare, refusal};
use crate::topology::fields;
use crate::wire::ApiError;

/// JetStream's code for a missing stream.
const STREAM_NOT_FOUND: u64 = 10059;

/// A stream of the contract compared with the server's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamShape {
    /// Its name.
    pub name: String,
    /// Whether the server has it.
    pub exists: bool,
    /// Settings that differ from the contract.
    pub differences: Vec<Difference>,
}

impl Bus {
    /// Compares every stream of the contract with the server's.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn stream_shapes(&self) -> Result<Vec<StreamShape>, TopologyError> {
        let mut shapes = Vec::new();
        for wanted in self.wanted().streams {
            let found = self.found(&wanted).await?;
            let differences = found.as_ref().map(|found| differences(&wanted, found)).unwrap_or_default();
            shapes.push(StreamShape { exists: found.is_some(), name: wanted.name, differences });
        }
        Ok(shapes)
    }

    /// Updates every stream that differs, and keeps the settings that an operator may choose. Returns the comparison from
    /// before the update.
    ///
    /// # Errors
    /// The server does not answer, or refuses a change. The streams before that one are updated then; call it again.
    pub async fn upgrade_streams(&self) -> Result<Vec<StreamShape>, TopologyError> {
        let before = self.stream_shapes().await?;
        for wanted in self.wanted().streams {
            let differs =
                before.iter().any(|shape| shape.name == wanted.name && !shape.differences.is_empty());
            if let Some(found) = self.found(&wanted).await?.filter(|_| differs) {
                let changed = changed(&wanted, &found);
                let verb = format!("STREAM.UPDATE.{}", wanted.name);
                let updated = self.wire.api::<Value>(&verb, &changed).await;
                updated.map_err(|source| refusal(&format!("stream {}", wanted.name), source))?;
            }
        }
        Ok(before)
    }

    async fn found(&self, wanted: &Stream) -> Result<Option<Map<String, Value>>, TopologyError> {
        match self.wire.api::<Existing>(&format!("STREAM.INFO.{}", wanted.name), &json!({})).await {
            Ok(found) => Ok(Some(found.config)),
            Err(ApiError::Refused { code: STREAM_NOT_FOUND, .. }) => Ok(None),
            Err(source) => Err(refusal(&format!("stream {}", wanted.name), source)),
        }
    }
}

fn differences(wanted: &Stream, found: &Map<String, Value>) -> Vec<Difference> {
    compare(&format!("stream {}", wanted.name), &fields(wanted), found, &FREE_STREAM_FIELDS)
}

/// The settings to send: the server's, with the contract's value for each field that differs.
fn changed(wanted: &Stream, found: &Map<String, Value>) -> Map<String, Value> {
    let wanted_fields = fields(wanted);
    let mut changed = found.clone();
    for Difference { field, .. } in differences(wanted, found) {
        match wanted_fields.get(&field) {
            Some(value) => changed.insert(field, value.clone()),
            None => changed.remove(&field),
        };
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_changes_what_differs_and_keeps_an_operators_choices() {
        let wanted = Stream { name: "UPLINK".to_owned(), max_messages_per_subject: 7, ..Stream::default() };
        let mut found = fields(&wanted);
        found.insert("max_msgs_per_subject".to_owned(), json!(1));
        found.insert("num_replicas".to_owned(), json!(3));
        found.insert("sealed".to_owned(), json!(true));
        let changed = changed(&wanted, &found);
        assert_eq!((&changed["max_msgs_per_subject"], &changed["num_replicas"]), (&json!(7), &json!(3)));
        assert_eq!(changed.get("sealed").unwrap_or(&Value::Bool(false)), &json!(false));
        assert!(differences(&wanted, &changed).is_empty());
    }
}
