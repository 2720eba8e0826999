//! The OpenAPI 3.1 document: made from the tables of routes and the contract's own schemas, so no type is described twice.

mod changes;

use std::sync::OnceLock;

use schemars::SchemaGenerator;
use schemars::generate::Contract;
use serde_json::{Map, Value, json};

use super::super::emco::request::{
    CLOUD_WATCHED, CLUSTER_WATCHED, GROUP_WATCHED, OF_A_CLOUD, OF_A_CLUSTER, OF_A_GROUP,
};
use super::super::emco::{CLUSTER, GROUP, LOGICAL_CLOUD};
use super::act::{DECISION, JUDGEMENT, QUARANTINE_VERBS, ROLLOUT_VERBS};
use super::filters::SELECT;
use super::handler_helpers::PREFIX;
use super::packages::{PACKAGE, PACKAGE_TYPE};
use super::params::{Kind, Param};
use super::routes::ROUTES;
use super::webhooks::{REGISTRATION, RegisteredWebhook, WebhookList};
use crate::margo::trust;
use crate::openapi::{generator, passing, problem, refusal, refused};

/// Parameters without which a question has no answer, each with its route.
const REQUIRED: [(&str, &str); 4] =
    [("/why", "deployment"), ("/diff", "deployment"), ("/diff", "from"), ("/changes", "since")];

/// Flags that need no value.
const EMPTY_FLAGS: [&str; 3] = ["apps", "clusters", "resources"];

/// The meaning of the header `Idempotency-Key`.
const IDEMPOTENCY: &str = "A text of your choice: the same request with the same key within 10 minutes is made once, and gets the same answer";

/// Statuses of refusals that changes alone have.
const OF_CHANGES: [&str; 2] = ["412", "422"];

/// The document as a text.
pub(crate) fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    // Cannot fail: the document is JSON.
    TEXT.get_or_init(|| serde_json::to_string(&whole()).unwrap_or_default())
}

/// The document.
pub(crate) fn whole() -> Value {
    let mut generator = generator(Contract::Deserialize);
    let mut paths = Map::new();
    for route in ROUTES {
        let answer = (route.answer)(&mut generator);
        let params = [
            path_params(route.path),
            route.params().iter().map(|param| query_param(route.path, param)).collect(),
        ]
        .concat();
        let mut responses = responses("application/json", &json!(answer));
        if route.has_version() {
            responses["200"]["headers"] = etag("The version, for If-Match");
        }
        paths.insert(
            format!("{PREFIX}{}", route.path),
            json!({ "get": {
                "summary": route.summary,
                "operationId": operation("get", route.path),
                "parameters": params,
                "responses": responses,
            }}),
        );
    }
    changes::add(&mut paths, &mut generator);
    add_others(&mut paths);
    add_emco(&mut paths);
    add_webhooks(&mut paths, &mut generator);
    add_packages(&mut paths);
    trust::openapi::add(&mut paths);
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Problem".to_owned(), problem());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Muster",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The fleet over HTTP: the contract's documents as the services give them. Errors are problem documents \
                            (RFC 9457); 503 and 429 carry Retry-After.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": schemas, "responses": refusals() },
    })
}

/// EMCO's status query and its notifications.
fn add_emco(paths: &mut Map<String, Value>) {
    for (path, name, status, watched) in [
        (GROUP, "getEmcoGroupStatus", &OF_A_GROUP[..], &GROUP_WATCHED[..]),
        (CLUSTER, "getEmcoClusterStatus", &OF_A_CLUSTER[..], &CLUSTER_WATCHED[..]),
        (LOGICAL_CLOUD, "getEmcoLogicalCloudStatus", &OF_A_CLOUD[..], &CLOUD_WATCHED[..]),
    ] {
        let events = format!("{path}/watch");
        let summary = "EMCO's status query, for clients of EMCO";
        let notes = "EMCO's notifications: event snapshot, then change, stale, alive and end";
        paths.insert(path.to_owned(), emco_route(path, name, summary, status, "application/json", "object"));
        let (name, media) = (format!("{name}Watch"), "text/event-stream");
        paths.insert(events, emco_route(path, &name, notes, watched, media, "string"));
    }
}

fn emco_route(path: &str, name: &str, summary: &str, params: &[Param], media: &str, kind: &str) -> Value {
    let params = [path_params(path), params.iter().map(|param| query_param(path, param)).collect()].concat();
    json!({ "get": {
        "summary": summary,
        "operationId": name,
        "parameters": params,
        "responses": responses(media, &json!({ "type": kind })),
    }})
}

/// Webhooks: registration, list and removal.
fn add_webhooks(paths: &mut Map<String, Value>, generator: &mut SchemaGenerator) {
    let path = format!("{PREFIX}/webhooks");
    let registered = json!(generator.subschema_for::<RegisteredWebhook>());
    let mut routes = change("webhook register", "/webhooks", REGISTRATION, &registered);
    routes["post"]["summary"] = json!("Register a webhook: notices that gateways post to an https address");
    for media in ["application/json", "application/x-www-form-urlencoded"] {
        routes["post"]["requestBody"]["content"][media]["schema"]["required"] = json!(["name", "url"]);
    }
    routes["post"]["requestBody"]["required"] = json!(true);
    if let Some(responses) = routes["post"]["responses"].as_object_mut()
        && let Some(answer) = responses.remove("200")
    {
        responses.insert("201".to_owned(), answer);
    }
    let listed = json!(generator.subschema_for::<WebhookList>());
    routes["get"] = json!({
        "summary": "Webhooks with the progress of their deliveries, without their secrets",
        "operationId": "getWebhooks",
        "parameters": [],
        "responses": responses("application/json", &listed),
    });
    paths.insert(path, routes);
    let path = "/webhooks/{name}";
    let mut parameters = path_params(path);
    parameters.push(header("Idempotency-Key", IDEMPOTENCY));
    let mut responses = responses("application/json", &json!({ "type": "object" }));
    responses["422"] = refused("422");
    paths.insert(
        format!("{PREFIX}{path}"),
        json!({ "delete": {
            "summary": "Remove a webhook",
            "operationId": operation("delete", path),
            "parameters": parameters,
            "responses": responses,
        }}),
    );
}

/// Storing and removing packages.
fn add_packages(paths: &mut Map<String, Value>) {
    let text = || json!({ "type": "string" });
    let answers = |good: &[&str], properties: Value| {
        let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        let mut responses = responses("application/json", &schema);
        let answer = responses["200"].clone();
        good.iter().for_each(|status| responses[*status] = answer.clone());
        responses["412"] = refused("412");
        responses
    };
    let mut remove = json!({
        "summary": "`muster package remove`",
        "operationId": operation("delete", PACKAGE),
        "parameters": path_params(PACKAGE),
        "responses": answers(&["200"], json!({ "removed": text() })),
    });
    push(&mut remove["parameters"], header("Idempotency-Key", IDEMPOTENCY));
    remove["responses"]["422"] = refused("422");
    let put = json!({
        "summary": "`muster package put`: a gzip-compressed tar archive, or the signature of one",
        "operationId": operation("put", PACKAGE),
        "parameters": path_params(PACKAGE),
        "requestBody": { "required": true, "content": {
            PACKAGE_TYPE: { "schema": { "type": "string", "format": "binary" } },
        }},
        "responses": answers(
            &["200", "201"],
            json!({ "name": text(), "address": text(), "digest": text(),
                "bytes": { "type": "integer", "minimum": 0 }, "changed": { "type": "boolean" } }),
        ),
    });
    paths.insert(format!("{PREFIX}{PACKAGE}"), json!({ "put": put, "delete": remove }));
}

/// Routes that are in no table: one report, changes, and events.
fn add_others(paths: &mut Map<String, Value>) {
    let object = || json!({ "type": "object" });
    let report = format!("{PREFIX}/quarantine/{{seq}}");
    paths.insert(
        report.clone(),
        json!({ "get": {
            "summary": "One rejected report with its payload",
            "operationId": "getQuarantineSeq",
            "parameters": path_params(&report),
            "responses": responses("application/json", &object()),
        }}),
    );
    for verb in ROLLOUT_VERBS {
        let path = format!("/rollouts/{{id}}/{verb}");
        let answer = json!({ "type": "array", "items": { "type": "object" } });
        let mut change = change(&format!("rollout {verb}"), &path, DECISION, &answer);
        let about = "Only if the rollouts have this ETag: their commit, contents and decisions";
        push(&mut change["post"]["parameters"], header("If-Match", about));
        let mut conflict = refusals()["409"].take();
        conflict["content"]["application/json"] = json!({ "schema": answer });
        change["post"]["responses"]["409"] = conflict;
        change["post"]["responses"]["412"] = refused("412");
        paths.insert(format!("{PREFIX}{path}"), change);
    }
    for verb in QUARANTINE_VERBS {
        let path = format!("/quarantine/{verb}");
        let fields = [SELECT, JUDGEMENT].concat();
        let change = change(&format!("quarantine {verb}"), &path, &fields, &object());
        paths.insert(format!("{PREFIX}{path}"), change);
    }
    let views =
        "Events snapshot, change, stale, alive and end: data is the newest view, id its sequence in LEDGER";
    let rollouts = "The same events: data is what `muster rollout watch --format json` prints";
    let approvals = "The same events: data is the list of waves and operations that wait for an approval; partial \
                     names why operations are missing, and whole ends it";
    for (path, events) in [
        ("/watch/fleet", views),
        ("/watch/deployments/{id}", views),
        ("/watch/sites/{site}", views),
        ("/watch/rollouts/{id}", rollouts),
        ("/watch/approvals", approvals),
    ] {
        paths.insert(
            format!("{PREFIX}{path}"),
            json!({ "get": {
                "summary": events,
                "operationId": operation("get", path),
                "parameters": path_params(path),
                "responses": responses("text/event-stream", &json!({ "type": "string" })),
            }}),
        );
    }
}

/// A change by a form: the words of its command, and its address below the prefix.
fn change(words: &str, path: &str, fields: &[Param], answer: &Value) -> Value {
    let properties: Map<_, _> = fields.iter().map(|field| (field.name.to_owned(), schema(field))).collect();
    let body = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let mut parameters = path_params(path);
    parameters.push(header("Idempotency-Key", IDEMPOTENCY));
    let mut responses = responses("application/json", answer);
    responses["422"] = refused("422");
    json!({ "post": {
        "summary": format!("`muster {words}`"),
        "operationId": operation("post", path),
        "parameters": parameters,
        "requestBody": { "content": {
            "application/json": { "schema": body },
            "application/x-www-form-urlencoded": { "schema": body },
        }},
        "responses": responses,
    }})
}

fn push(list: &mut Value, item: Value) {
    if let Value::Array(list) = list {
        list.push(item);
    }
}

fn header(name: &str, about: &str) -> Value {
    json!({ "name": name, "in": "header", "required": false, "description": about,
        "schema": { "type": "string", "minLength": 1 } })
}

fn etag(about: &str) -> Value {
    json!({ "ETag": { "description": about, "schema": { "type": "string" } } })
}

/// The name of an operation: its method and the words of its address below the prefix, as in `getPlansPlan`.
fn operation(method: &str, path: &str) -> String {
    let words = path.split(['/', '{', '}', '-']).filter(|word| !word.is_empty());
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    words.fold(method.to_owned(), |name, word| name + &capital(word))
}

fn path_params(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    names
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect()
}

fn query_param(path: &str, param: &Param) -> Value {
    let is_required = REQUIRED.contains(&(path, param.name));
    json!({ "name": param.name, "in": "query", "required": is_required, "description": param.about,
        "allowEmptyValue": EMPTY_FLAGS.contains(&param.name), "schema": schema(param) })
}

fn schema(param: &Param) -> Value {
    let described = |mut schema: Value| {
        schema["description"] = json!(param.about);
        schema
    };
    described(match param.kind {
        Kind::Text | Kind::Time | Kind::Point => json!({ "type": "string", "minLength": 1 }),
        Kind::List | Kind::Words | Kind::Devices => {
            json!({ "type": "array", "items": { "type": "string", "minLength": 1 } })
        }
        Kind::Number => json!({ "type": "integer", "minimum": 0 }),
        Kind::Flag => json!({ "type": "boolean" }),
    })
}

/// The refusals of all routes by status, described once.
fn refusals() -> Value {
    json!({
        "400": refusal("The request cannot be understood"),
        "401": refusal("A login is needed"),
        "403": refusal("The request is not permitted"),
        "404": refusal("There is no such thing"),
        "408": passing("The body came too slowly", true),
        "409": passing("The request contradicts the present state", false),
        "410": refusal("The cursor is not valid any more"),
        "412": refusal("It has another version than If-Match names, or none"),
        "413": refusal("The body is too long"),
        "415": refusal("The body is of a wrong media type"),
        "421": refusal("The gateway does not serve this host"),
        "422": refusal("The Idempotency-Key belongs to another request"),
        "429": passing("Too many requests are under way", true),
        "502": refusal("A service failed, or is of another version"),
        "503": passing("A service does not answer, or has not read LEDGER to its end", true),
    })
}

fn responses(media: &str, schema: &Value) -> Value {
    let mut responses =
        json!({ "200": { "description": "The answer", "content": { media: { "schema": schema } } } });
    let all = refusals();
    let statuses = all.as_object().into_iter().flat_map(Map::keys);
    for status in statuses.filter(|status| !OF_CHANGES.contains(&status.as_str())) {
        responses[status] = refused(status);
    }
    responses
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::openapi::tests::references;
    use crate::problem::PROBLEM_TYPE;

    #[test]
    fn every_reference_of_the_document_leads_to_a_schema() {
        assert!(references(&whole()).contains("#/components/schemas/DeploymentView"));
    }

    #[test]
    fn refusals_of_decisions_are_described() {
        let document = whole();
        let responses = &document["paths"]["/api/v1/rollouts/{id}/pause"]["post"]["responses"];
        assert_eq!(responses["409"]["content"]["application/json"]["schema"]["type"], "array");
        for status in ["401", "408", "412", "421", "422"] {
            assert_eq!(responses[status], refused(status), "{status}");
            assert!(
                document["components"]["responses"][status]["content"][PROBLEM_TYPE].is_object(),
                "{status}"
            );
        }
    }

    #[test]
    fn answers_that_may_pass_say_when_to_try_again() {
        let document = whole();
        let refusals = &document["components"]["responses"];
        for status in ["408", "429", "503"] {
            assert_eq!(refusals[status]["headers"]["Retry-After"]["required"], true, "{status}");
        }
        assert!(document["paths"]["/.well-known/margo"]["get"]["responses"]["304"].is_object());
    }

    #[test]
    fn operations_have_names_of_their_own_in_one_form() {
        let document = whole();
        let paths = document["paths"].as_object().unwrap();
        let mut names = BTreeSet::new();
        for (method, operation) in paths.values().flat_map(|path| path.as_object().unwrap()) {
            let name = operation["operationId"].as_str().unwrap();
            let rest = name.strip_prefix(method.as_str()).unwrap_or_default();
            let is_camel = rest.starts_with(|sign: char| sign.is_ascii_uppercase())
                && rest.chars().all(|sign| sign.is_ascii_alphanumeric());
            assert!(is_camel, "{method} {name}");
            assert!(names.insert(name), "{name} is there twice");
        }
    }

    #[test]
    fn a_change_that_always_makes_something_answers_created_alone() {
        let document = whole();
        let put = |path: &str| document["paths"][format!("{PREFIX}{path}")]["put"]["responses"].clone();
        let of_disruption = put("/nodes/{site}/{device}/disruptions/{id}");
        assert!(of_disruption["201"].is_object() && of_disruption["200"].is_null(), "{of_disruption}");
        let of_node = put("/nodes/{site}/{device}");
        assert!(of_node["201"].is_object() && of_node["200"].is_object(), "{of_node}");
    }
}
