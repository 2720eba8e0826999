//! Bringing the streams of an older release to this release's shape. A service never does it: it names what differs and
//! waits for a person, because a changed stream may drop what it holds. It changes no consumer and removes nothing.

use async_nats::jetstream::stream::Config as Stream;
use serde_json::{Map, Value, json};

use crate::bus::Bus;
use crate::converge::{Difference, Existing, FREE_STREAM_FIELDS, TopologyError, compare, fields, refusal};
use crate::wire::ApiError;

/// JetStream's code for a stream that is not there.
const STREAM_NOT_FOUND: u64 = 10059;

/// A stream of the contract, as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamShape {
    /// Its name.
    pub name: String,
    /// Whether there is such a stream.
    pub exists: bool,
    /// Where it differs from the contract.
    pub differences: Vec<Difference>,
}

impl Bus {
    /// Every stream of the contract, as the server has it.
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

    /// Gives every stream that differs the contract's shape, and leaves what an operator may decide as it is; the streams
    /// as they were before.
    ///
    /// # Errors
    /// The server does not answer, or refuses a change. Streams before that one are changed then; call it again.
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

/// The settings to send: those that are there, with the contract's where they differ.
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
    fn an_upgrade_changes_what_differs_and_keeps_what_an_operator_decided() {
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
