//! asyncapi.yaml (3.0): every subject with its documents, who writes and who reads it. Addresses come from the
//! contract's own functions, facts about streams from the bus's topology; neither is said a second time here.

mod channels;
mod operations;
mod streams;

use muster_contract::headers;
use serde_json::{Map, Value, json};

use super::catalogue::{self, Shape};
use super::json_schema;
use super::ordered::Ordered;

/// JSON Schema's media type for the draft that the schemas use.
const SCHEMA_FORMAT: &str = "application/schema+json;version=draft-2020-12";
const NOTICE: &str = "# Generated from shared/contract and shared/bus. To rewrite it:\n\
    # UPDATE_SCHEMAS=1 cargo test -p muster-tests --test schemas_fresh\n";

/// The whole file.
pub fn text() -> String {
    let yaml = serde_norway::to_string(&Ordered(&document())).expect("a JSON value is YAML");
    format!("{NOTICE}{yaml}")
}

/// The document as a value.
pub fn document() -> Value {
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Muster",
            "version": "1.0.0",
            "description": "What devices, services and subscribers say to each other over NATS JetStream. \
                Every document is JSON with `apiVersion: muster/v1` and its `kind`; readers ignore fields they do \
                not know. `x-muster-stream` names the stream that holds a channel's messages.",
            "license": { "name": "Apache-2.0" }
        },
        "defaultContentType": "application/json",
        "servers": {
            "hub": { "host": "127.0.0.1:4222", "protocol": "nats", "description": "NATS with JetStream." }
        },
        "channels": channels::all(),
        "operations": operations::all(),
        "components": { "messages": messages(), "messageTraits": traits(), "parameters": parameters() },
        "x-muster-streams": streams::all(),
    })
}

fn messages() -> Map<String, Value> {
    catalogue::shapes().map(|shape| (shape.name.to_owned(), message(shape))).collect()
}

fn message(shape: &Shape) -> Value {
    let schema = json_schema::schema(shape);
    json!({
        "name": shape.name,
        "title": shape.name,
        "summary": schema.get("description"),
        "payload": {
            "schemaFormat": SCHEMA_FORMAT,
            "schema": { "$ref": format!("./json/{}.json", shape.name) }
        },
        "traits": [{ "$ref": "#/components/messageTraits/published" }],
    })
}

/// Headers. NATS header names are case-sensitive.
fn traits() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({
        "published": {
            "headers": {
                "type": "object",
                "properties": {
                    headers::TRACEPARENT: text("W3C trace context."),
                    headers::CE_SPECVERSION: { "const": headers::CE_SPECVERSION_VALUE },
                    headers::CE_ID: text("CloudEvents: identity of the event."),
                    headers::CE_SOURCE: text("CloudEvents: who says it."),
                    headers::CE_TYPE: text("CloudEvents: what kind of event it is."),
                    headers::MSG_ID: text(
                        "Recognised by the stream within its duplicate window. A device's is random (UUIDv7) and \
                         kept with the report, so that nobody can guess and occupy it."
                    ),
                    headers::EXPECTED_STREAM: text("The stream that must store it; guards against a wrong one."),
                    headers::EXPECTED_LAST_SUBJECT_SEQUENCE: text("Compare-and-set, used for desired states; of a fact, the sequence of its partition's owner record."),
                    headers::EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: text("Of a fact: the owner record of its partition, which must still be the newest of this subject."),
                }
            }
        }
    })
}

fn parameters() -> Value {
    json!({
        "site": { "description": "A place with devices: a DNS label." },
        "device": { "description": "A device of the site: a DNS label." },
        "deployment": { "description": "A deployment: a DNS label." },
        "check": { "description": "The name of a check, in one or more tokens." },
        "file": { "description": "A rollout.yaml: the first 16 hex digits of the SHA-256 of its path." },
        "label": { "description": "What groups devices: a DNS label." },
        "value": { "description": "What the label says: a DNS label." },
        "view": { "description": "A view that a person has defined: a DNS label." },
        "document": { "description": "Which document is republished.", "enum": ["desired", "receipt"] },
        "fence": { "description": "One of a partition's fences; the record of fence 0 decides who owns it." },
        "subscription": { "description": "A subscriber's own name for a subscription: a DNS label." },
        "partition": { "description": "The server's hash of site and device, 0 to 15." },
    })
}
