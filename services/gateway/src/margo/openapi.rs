//! The OpenAPI 3.1 document of the devices' API: Margo's workload management API 1.0.0-rc.3 as this gateway serves it, in our own
//! words. The types that read and write documents give their schemas; [`documents`] has those of documents without a type.
//!
//! It does not describe the routes of clusters without an agent, which the same listener serves.

mod documents;

use std::sync::OnceLock;

use muster_contract::DeploymentId;
use muster_contract::canonical::Digest;
use schemars::generate::Contract;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::capabilities::DEVICE_ID_BYTES_MAX;
use super::manifest::{BUNDLE_TYPE, MANIFEST_TYPE, ManifestText};
use super::request::{CHANGING, IMMUTABLE};
use super::routes::DEPLOYMENT_TYPE;
use super::status::StatusManifest;
use super::trust;
use crate::openapi::{generator, if_none_match, passing, problem, refusal, refused};

/// Margo's version of the API.
const VERSION: &str = "1.0.0-rc.3";
const DIGEST_ETAG: &str = "^\"sha256:[0-9a-f]{64}\"$";
const DEVICE_ID: &str = "^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$";

/// Statuses of refusals that every request may get.
const OF_ALL: [&str; 4] = ["403", "429", "500", "503"];
/// Statuses of refusals that a request with a body may get.
const OF_BODIES: [&str; 4] = ["400", "408", "413", "422"];

/// A request of the API.
struct Operation {
    method: &'static str,
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    describe: fn(&mut Schemas) -> Value,
}

const OPERATIONS: [Operation; 6] = [
    Operation {
        method: "put",
        path: "/api/v1/capabilities/{deviceId}",
        name: "putCapabilities",
        summary: "Report the capabilities of a device, its own or a child's",
        describe: put_capabilities,
    },
    Operation {
        method: "delete",
        path: "/api/v1/capabilities/{deviceId}",
        name: "deleteCapabilities",
        summary: "Remove the capabilities of a device",
        describe: delete_capabilities,
    },
    Operation {
        method: "get",
        path: "/api/v1/deployments",
        name: "getManifest",
        summary: "The desired state of the client's devices",
        describe: get_manifest,
    },
    Operation {
        method: "post",
        path: "/api/v1/deployments/{deploymentId}/status",
        name: "postStatus",
        summary: "Report the state of a deployment, also of one that has left the manifest",
        describe: post_status,
    },
    Operation {
        method: "get",
        path: "/api/v1/deployments/{deploymentId}/{digest}",
        name: "getDeployment",
        summary: "A deployment by the digest that the manifest names",
        describe: get_deployment,
    },
    Operation {
        method: "get",
        path: "/api/v1/bundles/{digest}",
        name: "getBundle",
        summary: "All deployments of the manifest in one archive, by its digest",
        describe: get_bundle,
    },
];

/// Makes schemas: what requests may have differs from what answers always have.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn request<T: JsonSchema>(&mut self) -> Value {
        json!(self.requests.subschema_for::<T>())
    }

    fn answer<T: JsonSchema>(&mut self) -> Value {
        json!(self.answers.subschema_for::<T>())
    }

    /// All schemas by name.
    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        all
    }
}

/// The document as a text.
pub(crate) fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    // Cannot fail: the document is JSON.
    TEXT.get_or_init(|| serde_json::to_string(&whole()).unwrap_or_default())
}

/// The document.
fn whole() -> Value {
    let mut schemas =
        Schemas { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) };
    let mut paths = Map::new();
    for Operation { method, path, name, summary, describe } in OPERATIONS {
        let mut operation = describe(&mut schemas);
        operation["operationId"] = json!(name);
        operation["summary"] = json!(summary);
        operation["security"] = json!([{ "clientCertificate": [] }]);
        paths.entry(path).or_insert_with(|| json!({}))[method] = operation;
    }
    trust::openapi::add(&mut paths);
    let deployment = documents::deployment(&mut schemas);
    let capabilities = documents::capabilities(&mut schemas);
    let mut definitions = schemas.definitions();
    definitions.insert("ApplicationDeployment".to_owned(), deployment);
    definitions.insert("DeviceCapabilitiesManifest".to_owned(), capabilities);
    definitions.insert("Problem".to_owned(), problem());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Muster for devices that speak Margo's API",
            "version": VERSION,
            "description": "Margo's workload management API as Muster's gateway serves it. A client speaks for one device, or for \
                            several, and gets nothing of another client's. Errors are problem documents (RFC 9457); 429, 500 and \
                            503 carry Retry-After, and nothing else may be tried again.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "responses": refusals(),
            "securitySchemes": { "clientCertificate": { "type": "mutualTLS",
                "description": "A certificate (X.509-SVID) whose only URI is \
                                spiffe://TRUST-DOMAIN/margo/wfm/WFM-ID/client/CLIENT-ID, and that an operator has accepted" } },
        },
    })
}

fn put_capabilities(_: &mut Schemas) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/DeviceCapabilitiesManifest" });
    json!({
        "description": "`properties.id` must be the deviceId of the address. 404: the gateway of this child has not reported its own.",
        "parameters": [device_id()],
        "requestBody": body(&schema),
        "responses": responses(reported(), &[&OF_BODIES[..], &["404"]].concat()),
    })
}

fn delete_capabilities(_: &mut Schemas) -> Value {
    let done = json!({ "204": { "description": "The device has no capabilities any more" } });
    json!({ "parameters": [device_id()], "responses": responses(done, &["400", "404"]) })
}

fn get_manifest(schemas: &mut Schemas) -> Value {
    let schema = schemas.answer::<ManifestText<'_>>();
    let good = content(MANIFEST_TYPE, &json!({ "schema": schema }), &headers(CHANGING));
    json!({
        "description": "Each read counts as a heartbeat of the client's devices. 503 also while the fleet has no desired state for \
                        them. 406: `Accept` names other media types alone.",
        "parameters": [if_none_match()],
        "responses": responses(good, &["406"]),
    })
}

fn post_status(schemas: &mut Schemas) -> Value {
    let schema = schemas.request::<StatusManifest>();
    json!({
        "description": "The state of the whole must be the most severe one of its components, or failed with an error of its own; the \
                        adopted version must be one that the client was served. 503: post the same status again.",
        "parameters": [path_param("deploymentId", &schemas.request::<DeploymentId>())],
        "requestBody": body(&schema),
        "responses": responses(reported(), &OF_BODIES),
    })
}

fn get_deployment(schemas: &mut Schemas) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/ApplicationDeployment" });
    let mut headers = headers(IMMUTABLE);
    headers["Vary"] = json!({ "required": true, "schema": { "const": "Accept-Encoding" } });
    let id = schemas.request::<DeploymentId>();
    let digest = schemas.request::<Digest>();
    json!({
        "description": "Compressed for a client that accepts gzip; the digest is that of the uncompressed text.",
        "parameters": [path_param("deploymentId", &id), path_param("digest", &digest), if_none_match()],
        "responses": responses(content(DEPLOYMENT_TYPE, &json!({ "schema": schema }), &headers), &["404"]),
    })
}

fn get_bundle(schemas: &mut Schemas) -> Value {
    let digest = schemas.request::<Digest>();
    json!({
        "description": "A gzip-compressed tar archive with a file `DEPLOYMENT-ID.yaml` for each deployment at its root.",
        "parameters": [path_param("digest", &digest), if_none_match()],
        "responses": responses(content(BUNDLE_TYPE, &json!({}), &headers(IMMUTABLE)), &["404"]),
    })
}

fn path_param(name: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": schema })
}

fn device_id() -> Value {
    let mut param = path_param(
        "deviceId",
        &json!({ "type": "string", "pattern": DEVICE_ID, "maxLength": DEVICE_ID_BYTES_MAX }),
    );
    param["description"] =
        json!("A child's id begins with its gateway's, `gateway/child`; the slash may stand as it is");
    param
}

fn body(schema: &Value) -> Value {
    json!({ "required": true, "content": { "application/json": { "schema": schema } } })
}

/// The headers of content and of 304.
fn headers(cache: &str) -> Value {
    let etag = json!({ "description": "The digest of the content, quoted", "required": true,
        "schema": { "type": "string", "pattern": DIGEST_ETAG } });
    json!({ "ETag": etag, "Cache-Control": { "required": true, "schema": { "const": cache } } })
}

/// The good answers of a conditional read.
fn content(media: &str, content: &Value, headers: &Value) -> Value {
    json!({
        "200": { "description": "The content", "headers": headers, "content": { media: content } },
        "304": { "description": "The client has the content", "headers": headers },
    })
}

/// The good answers to a report.
fn reported() -> Value {
    json!({
        "200": { "description": "The hub has stored the report" },
        "201": { "description": "The hub has stored the report, the first of its kind" },
    })
}

fn responses(mut good: Value, statuses: &[&str]) -> Value {
    for status in statuses.iter().chain(&OF_ALL) {
        good[status] = refused(status);
    }
    good
}

/// The refusals by status. The last part of `type` is one of the words at the end, or the type is `about:blank`.
fn refusals() -> Value {
    json!({
        "400": refusal("The body is no JSON object, or the address has no deviceId (invalid-request)"),
        "403": refusal("The client is not accepted, or may not speak for the device (not-authorized)"),
        "404": refusal("The client has no such thing (device-not-found, gateway-not-found, deployment-not-found, invalid-bundle)"),
        "406": refusal("The client accepts another media type alone (server-cannot-generate-response)"),
        "408": refusal("The body came too slowly"),
        "413": refusal("The body is too long"),
        "422": refusal("A field breaks a rule; `errors` names it (semantic-error)"),
        "429": passing("The device reports faster than the hub stores", true),
        "500": passing("The gateway or the hub has a fault", true),
        "503": passing("The hub does not answer, or did not confirm the report", true),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::routing::MethodFilter;

    use super::super::routes::ROUTES;
    use super::*;
    use crate::openapi::tests::references;

    #[test]
    fn the_document_names_exactly_the_routes_that_are_served() {
        let methods = [
            ("get", MethodFilter::GET),
            ("put", MethodFilter::PUT),
            ("post", MethodFilter::POST),
            ("delete", MethodFilter::DELETE),
        ];
        let served = ROUTES.map(|(served, path, _)| {
            let (name, _) = methods.into_iter().find(|(_, method)| *method == served).unwrap();
            // OpenAPI has no sign for a parameter with slashes.
            (name.to_owned(), path.replace("{*", "{"))
        });
        let document = whole();
        let paths = document["paths"].as_object().unwrap().iter();
        // The listener of people serves these.
        let paths = paths.filter(|(path, _)| !path.starts_with("/.well-known/"));
        let described = paths.flat_map(|(path, operations)| {
            operations.as_object().unwrap().keys().map(move |method| (method.clone(), path.clone()))
        });
        assert_eq!(described.collect::<BTreeSet<_>>(), BTreeSet::from(served));
    }

    #[test]
    fn all_eight_endpoints_of_margo_are_described() {
        let document = whole();
        let operations =
            document["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap());
        assert_eq!(operations.map(Map::len).sum::<usize>(), 8);
    }

    #[test]
    fn every_reference_leads_to_a_schema_or_a_refusal() {
        let found = references(&whole());
        for name in ["UnsignedAppStateManifest", "DeploymentStatusManifest", "DeviceCapabilitiesManifest"] {
            assert!(found.contains(&format!("#/components/schemas/{name}")), "{found:?}");
        }
    }

    #[test]
    fn types_of_requests_and_of_answers_share_no_name_with_two_meanings() {
        let mut schemas =
            Schemas { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) };
        OPERATIONS.iter().for_each(|operation| _ = (operation.describe)(&mut schemas));
        documents::deployment(&mut schemas);
        let answers = schemas.answers.take_definitions(true);
        for (name, schema) in schemas.requests.take_definitions(true) {
            assert!(answers.get(&name).is_none_or(|other| *other == schema), "{name}");
        }
    }

    #[test]
    fn a_manifest_always_has_its_bundle_which_may_be_null() {
        let document = whole();
        let manifest = &document["components"]["schemas"]["UnsignedAppStateManifest"];
        assert_eq!(manifest["required"], json!(["manifestVersion", "bundle", "deployments"]));
        assert_eq!(manifest["properties"]["bundle"]["anyOf"][1], json!({ "type": "null" }));
    }

    #[test]
    fn only_refusals_that_may_pass_say_when_to_try_again() {
        for (status, refusal) in refusals().as_object().unwrap() {
            let is_passing = refusal["headers"]["Retry-After"]["required"] == true;
            assert_eq!(is_passing, ["429", "500", "503"].contains(&status.as_str()), "{status}");
        }
    }
}
