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
            "description": "The messages between devices, services and subscribers over NATS JetStream. \
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
    let traits =
        headers_of(shape.name).map(|name| json!({ "$ref": format!("#/components/messageTraits/{name}") }));
    json!({
        "name": shape.name,
        "title": shape.name,
        "summary": schema.get("description"),
        "payload": {
            "schemaFormat": SCHEMA_FORMAT,
            "schema": { "$ref": format!("./json/{}.json", shape.name) }
        },
        "traits": traits.as_slice(),
    })
}

/// The headers of a message, by the name of its document; other messages need none.
fn headers_of(document: &str) -> Option<&'static str> {
    match document {
        "DesiredState" | "RolloutDecisions" | "RejectedReport" => Some("attributed"),
        "Receipt" => Some("receipt"),
        "StatusReport" | "CapabilitiesReport" | "ReportBatch" => Some("report"),
        "StatusFact" | "DeviceFact" | "LivenessFact" | "DeadlineFact" | "QuarantineFact" | "Incident"
        | "QuarantineVerdict" | "Ownership" | "PulseFact" | "HearingFact" => Some("fact"),
        _ => None,
    }
}

/// Headers. NATS header names are case-sensitive.
fn traits() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let of = |properties: Value| json!({ "headers": { "type": "object", "properties": properties } });
    let trace = text("W3C trace context, if the message is traced.");
    let stream = text("The stream that must store it; guards against a wrong one.");
    let (source, kind) = (text("CloudEvents: who says it."), text("CloudEvents: what kind of event it is."));
    json!({
        "attributed": of(json!({
            headers::TRACEPARENT: trace,
            headers::CE_SPECVERSION: { "const": headers::CE_SPECVERSION_VALUE },
            headers::CE_ID: text("CloudEvents: identity of the event."),
            headers::CE_SOURCE: source,
            headers::CE_TYPE: kind,
            headers::MSG_ID: text("The id of a rejected report: QUARANTINE recognises it within its duplicate window."),
            headers::EXPECTED_STREAM: stream,
            headers::EXPECTED_LAST_SUBJECT_SEQUENCE: text("The expected sequence of a desired state: compare-and-set."),
        })),
        "receipt": of(json!({
            headers::CE_SOURCE: source,
            headers::CE_TYPE: kind,
            headers::EXPECTED_STREAM: stream,
        })),
        "report": of(json!({
            headers::TRACEPARENT: trace,
            headers::EXPECTED_STREAM: stream,
            headers::REPORTS: text("How many reports a batch has."),
            headers::CONTENT_ENCODING: text("How the payload is encoded; absent if it is the document itself."),
            headers::MSG_ID: text(
                "Needless: ingest knows a report by its number. Who sends one draws it at random, so that nobody can \
                 guess and occupy it."
            ),
        })),
        "fact": of(json!({
            headers::TRACEPARENT: trace,
            headers::MSG_ID: text("The id of a rare fact: LEDGER recognises it within its duplicate window."),
            headers::EXPECTED_LAST_SUBJECT_SEQUENCE: text("The sequence of the partition's owner record."),
            headers::EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: text("The owner record of the partition, which must still be the newest of this subject."),
        })),
    })
}

fn parameters() -> Value {
    json!({
        "site": { "description": "A place with devices: a DNS label." },
        "device": { "description": "A device of the site: a DNS label." },
        "deployment": { "description": "A deployment: a DNS label." },
        "check": { "description": "The name of a check, in one or more tokens." },
        "file": { "description": "A rollout.yaml: the first 16 hex digits of the SHA-256 of its path." },
        "label": { "description": "The name of a label of devices: a DNS label." },
        "value": { "description": "The value of the label: a DNS label." },
        "view": { "description": "A view that a person has defined: a DNS label." },
        "document": { "description": "Which document is republished.", "enum": ["desired", "receipt"] },
        "fence": { "description": "One of a partition's fences; the record of fence 0 decides who owns it." },
        "plan": { "description": "A plan: a DNS label." },
        "instance": { "description": "An instance of a plan: a DNS label." },
        "name": { "description": "A cluster or a capability: a DNS label." },
        "subscription": { "description": "A subscriber's own name for a subscription: a DNS label." },
        "partition": { "description": "The server's hash of site and device, 0 to 15." },
    })
}
