//! The routes of the trust bundle in the OpenAPI documents.

use serde_json::{Map, Value, json};

use super::{BUNDLE, DISCOVERY};
use crate::openapi::{if_none_match, refusal};

/// Adds both routes.
pub(crate) fn add(paths: &mut Map<String, Value>) {
    let discovery = json!({ "type": "object", "required": ["trustDomain", "trustBundleUri"], "properties": {
        "trustDomain": { "type": "string" }, "trustBundleUri": { "type": "string", "format": "uri" } } });
    let about = "Margo's discovery: the trust domain, and the address of the trust bundle";
    paths.insert(DISCOVERY.to_owned(), json!({ "get": read("getMargoDiscovery", about, &discovery) }));
    let about = "The trust bundle of devices, in SPIFFE's form: a JWK Set";
    paths.insert(BUNDLE.to_owned(), json!({ "get": read("getTrustBundle", about, &bundle()) }));
}

fn bundle() -> Value {
    let key = json!({ "type": "object", "required": ["kty", "use", "x5c"], "properties": {
        "kty": { "enum": ["EC", "OKP", "RSA"] }, "use": { "const": "x509-svid" },
        "x5c": { "type": "array", "minItems": 1, "items": { "type": "string" } } } });
    json!({ "type": "object", "required": ["spiffe_refresh_hint", "keys"], "properties": {
        "spiffe_sequence": { "type": "integer", "minimum": 0 },
        "spiffe_refresh_hint": { "type": "integer", "minimum": 1 },
        "keys": { "type": "array", "items": key } } })
}

fn read(name: &str, summary: &str, schema: &Value) -> Value {
    let etag = json!({ "ETag": { "description": "The digest of the document",
        "required": true, "schema": { "type": "string" } } });
    json!({
        "summary": summary,
        "operationId": name,
        "description": "Served by the listener of people, to everybody and over https alone",
        "parameters": [if_none_match()],
        "responses": {
            "200": { "description": "The document", "headers": etag,
                "content": { "application/json": { "schema": schema } } },
            "304": { "description": "The client has the document", "headers": etag },
            "404": refusal("This gateway serves no devices, or serves people without TLS"),
            "421": refusal("The gateway does not serve this host"),
        },
    })
}
