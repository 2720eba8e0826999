//! A change that is one request to a service: its description, and the handler that makes it. The request consists of the body
//! and of the fields that the address, the method and headers set. The service checks and records it.
//!
//! `If-Match` becomes the version that the planner compares, `Idempotency-Key` its id of the request: the planner knows it for 24
//! hours, whichever gateway sent it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use muster_client::ask::{AskError, Hub};
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::near::near;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::read;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::body::{BODY_BYTES_MAX, Fields, read_body};
use super::handler_helpers::{PathParams, document, path_names};
use super::idempotency::RequestName;
use super::routes::of;
use super::shape::{is_of, typed, wrong_kind};
use crate::people::People;
use crate::problem::Problem;

/// A change of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// Its method.
    pub method: ChangeMethod,
    /// The address below `/api/v1`; `{name}` is a field of the request.
    pub path: &'static str,
    /// The command that makes the same change, and its meaning.
    pub summary: &'static str,
    /// The service that makes it.
    pub service: Service,
    /// The service's name of the request.
    pub verb: &'static str,
    /// Pointers to the fields of the request that the address sets, where they are not `/name`.
    pub named: Pointers,
    /// Pointers to the fields that every request of this address has, with their values.
    pub fixed: Pointers,
    /// The pointer to the part of the request that is the body.
    pub body: &'static str,
    /// Fields of that part that have no use at this address.
    pub without: &'static [&'static str],
    /// Checks the shape of a request as the service does.
    pub check: fn(&[u8]) -> Result<(), ErrorBody>,
    /// The schema of the part of the request that is the body.
    pub part: fn(&mut SchemaGenerator) -> Schema,
    /// The schema of the answer.
    pub answer: fn(&mut SchemaGenerator) -> Schema,
    /// The status of an answer: 202 if devices or operations carry the change out later.
    pub status: StatusCode,
}

/// Fields of a request, each with a pointer.
pub(crate) type Pointers = &'static [(&'static str, &'static str)];

/// A change that is one request, with an address, the service and its verb.
pub(crate) const fn change<T, A>(
    method: ChangeMethod,
    path: &'static str,
    service: Service,
    verb: &'static str,
    summary: &'static str,
) -> Change
where
    T: DeserializeOwned + JsonSchema + 'static,
    A: JsonSchema,
{
    Change {
        method,
        path,
        summary,
        service,
        verb,
        named: &[],
        fixed: &[],
        body: "",
        without: &[],
        check: checked::<T>,
        part: T::json_schema,
        answer: of::<A>,
        status: StatusCode::OK,
    }
}

/// A change that devices or operations carry out later.
pub(crate) const fn accepted<T, A>(
    method: ChangeMethod,
    path: &'static str,
    service: Service,
    verb: &'static str,
    summary: &'static str,
) -> Change
where
    T: DeserializeOwned + JsonSchema + 'static,
    A: JsonSchema,
{
    Change { status: StatusCode::ACCEPTED, ..change::<T, A>(method, path, service, verb, summary) }
}

/// Methods of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeMethod {
    /// Adds something, or changes its state.
    Post,
    /// Makes what the address names, or replaces it.
    Put,
    /// Removes what the address names.
    Delete,
}

/// The service that makes a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// The publisher.
    Publisher,
    /// The planner, whose documents have versions.
    Planner,
    /// The rollup, about defined views.
    Views,
    /// The rollup, about subscriptions.
    Notify,
}

impl ChangeMethod {
    /// Its name in the OpenAPI document.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }
}

impl Service {
    async fn request(self, hub: &Hub, verb: &'static str, request: &Value) -> Result<Value, AskError> {
        match self {
            Self::Publisher => hub.publisher(verb, request).await,
            Self::Planner => hub.planner(verb, request).await,
            Self::Views => hub.view(verb, request).await,
            Self::Notify => hub.notify(verb, request).await,
        }
    }
}

/// Checks that bytes are a request of a type.
///
/// # Errors
/// The first unknown key or wrong field.
pub(super) fn checked<T: DeserializeOwned + JsonSchema + 'static>(bytes: &[u8]) -> Result<(), ErrorBody> {
    read::<T>(bytes).map(drop)
}

impl Change {
    /// Whether requests have a version and an id.
    pub(crate) fn is_versioned(&self) -> bool {
        self.service == Service::Planner
    }

    /// Whether each request makes a new document, which has no version before.
    fn makes_document(&self) -> bool {
        self.method == ChangeMethod::Post && self.status == StatusCode::CREATED
    }

    /// The names in the address, each with its pointer in the request.
    fn names(&self) -> impl Iterator<Item = (&'static str, String)> {
        let names = self.path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        names.map(|name| {
            let pointer = self.named.iter().find(|(named, _)| *named == name);
            (name, pointer.map_or_else(|| format!("/{name}"), |(_, pointer)| (*pointer).to_owned()))
        })
    }

    /// Pointers to all fields that the address sets.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = String> {
        let fixed = self.fixed.iter().map(|(pointer, _)| (*pointer).to_owned());
        self.names().map(|(_, pointer)| pointer).chain(fixed)
    }

    /// Whether the address or a header sets a field of the body's part.
    fn is_set(&self, field: &str) -> bool {
        let is_it = |pointer: &str| {
            let rest = pointer.strip_prefix(self.body).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| rest.split('/').next() == Some(field))
        };
        let is_of_header = self.is_versioned() && ["expectedVersion", "requestId"].contains(&field);
        self.pointers().any(|pointer| is_it(&pointer))
            || self.body.is_empty() && is_of_header
            || self.without.contains(&field)
    }

    /// The schema of the body: that of its part without the fields that are set otherwise; `None` if there are no others.
    pub(crate) fn body_schema(&self, generator: &mut SchemaGenerator) -> Option<Value> {
        let mut schema = (self.part)(generator).to_value();
        let properties = schema.get_mut("properties")?.as_object_mut()?;
        properties.retain(|field, _| !self.is_set(field));
        if properties.is_empty() {
            return None;
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.retain(|field| !field.as_str().is_some_and(|field| self.is_set(field)));
        }
        schema["additionalProperties"] = json!(false);
        Some(schema)
    }

    /// The schema of the body without references. To generate it takes longer than to check a request by it.
    pub(crate) fn inline_schema(&self) -> Value {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        self.body_schema(&mut settings.into_generator()).unwrap_or_default()
    }

    /// Whether a form can say all that the body may: no field is an object or a list.
    pub(crate) fn takes_form(&self) -> bool {
        let schema = self.inline_schema();
        let mut fields = schema["properties"].as_object().into_iter().flatten();
        fields.all(|(_, field)| !is_of(field, "object") && !is_of(field, "array"))
    }

    /// The request of a body, whose inline schema is given.
    ///
    /// # Errors
    /// A field is unknown, wrong or missing, and named.
    fn request(
        &self,
        schema: &Value,
        names: &Map<String, Value>,
        fields: Fields,
        headers: &HeaderFields,
    ) -> Result<Value, Problem> {
        let body = self.object(schema, fields)?;
        let mut request = json!({});
        insert(&mut request, self.body, Value::Object(body));
        for (name, pointer) in self.names() {
            insert(&mut request, &pointer, names.get(name).cloned().unwrap_or_default());
        }
        self.fixed.iter().for_each(|(pointer, value)| insert(&mut request, pointer, json!(value)));
        if let Some(version) = headers.version {
            request["expectedVersion"] = json!(version);
        }
        if let Some(id) = &headers.request_id {
            request["requestId"] = json!(id);
        }
        let bytes = request.to_string();
        if bytes.len() > MESSAGE_BYTES_MAX {
            let detail = format!("the request has {} bytes; {MESSAGE_BYTES_MAX} are allowed", bytes.len());
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        (self.check)(bytes.as_bytes()).map_err(|error| self.refused(error))?;
        Ok(request)
    }

    /// The body as an object: fields of a form get the types that the schema gives them.
    fn object(&self, schema: &Value, fields: Fields) -> Result<Map<String, Value>, Problem> {
        let empty = Map::new();
        let known = schema["properties"].as_object().unwrap_or(&empty);
        let object = match fields {
            Fields::Object(object) => object,
            Fields::Form(pairs) => typed(pairs, known),
        };
        if let Some(unknown) = object.keys().find(|field| !known.contains_key(*field)) {
            return Err(self.unknown(unknown, known));
        }
        if let Some((field, rule)) = wrong_kind(schema, &Value::Object(object.clone()), "") {
            return Err(Problem::field(&field, rule));
        }
        let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        match required.find(|field| !object.contains_key(*field)) {
            Some(missing) => Err(Problem::field(missing, "is missing")),
            None => Ok(object),
        }
    }

    fn unknown(&self, field: &str, known: &Map<String, Value>) -> Problem {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let shown: String = field.chars().filter(|sign| !sign.is_control()).take(64).collect();
        if self.is_set(field) {
            return Problem::field(
                &shown,
                "has no use here, or the address or a header says it: leave it out",
            );
        }
        let rule = match names[..] {
            [] => "unknown field; this change has none".to_owned(),
            _ => format!("unknown field; there are {}", names.join(", ")),
        };
        Problem::field(&shown, rule).with_near(&near(field, names.iter().copied()))
    }

    /// A refusal with the field as the body has it.
    fn refused(&self, mut error: ErrorBody) -> Problem {
        let part = self.body.trim_start_matches('/').replace('/', ".");
        if !part.is_empty() {
            error.message = error.message.trim_start_matches(&format!("{part}.")).to_owned();
        }
        Problem::from(error)
    }

    /// The problem of a request that the service refuses.
    fn failed(&self, error: AskError, headers: &HeaderFields) -> Problem {
        match error {
            AskError::RefusedByPlanner(mut body) => {
                let part = format!("{}.", self.body.trim_start_matches('/').replace('/', "."));
                if let Some(field) = &mut body.field {
                    *field = field.trim_start_matches(&part).to_owned();
                }
                let is_of_version = body.code == ErrorCode::Conflict && body.current_version.is_some();
                if headers.version.is_some() && is_of_version {
                    return Problem::new(StatusCode::PRECONDITION_FAILED, body.message);
                }
                AskError::RefusedByPlanner(body).into()
            }
            AskError::Refused(body) => self.refused(body),
            other => other.into(),
        }
    }
}

/// The fields of a request that headers set.
#[derive(Debug)]
struct HeaderFields {
    version: Option<u64>,
    request_id: Option<String>,
}

impl HeaderFields {
    fn read(change: &Change, request: &Request<Body>) -> Result<Self, Problem> {
        let version = version(request.headers())?;
        let has_version = change.is_versioned() && !change.makes_document();
        if version.is_some() && !has_version {
            let detail = "what this address makes or changes has no version: leave If-Match out";
            return Err(Problem::new(StatusCode::PRECONDITION_FAILED, detail));
        }
        let name = request.extensions().get::<RequestName>().filter(|_| change.is_versioned());
        Ok(Self { version, request_id: name.map(|name| name.0.to_string()) })
    }
}

/// The version of `If-Match`.
fn version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let mut all = headers.get_all(IF_MATCH).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let tag = value.to_str().ok().and_then(|text| text.strip_prefix('"')?.strip_suffix('"')?.parse().ok());
    match (tag, all.next()) {
        (Some(version), None) => Ok(Some(version)),
        _ => Err(Problem::field("If-Match", "must be one ETag: the version in quotation marks")),
    }
}

/// Makes a change, the inline schema of whose body is given.
///
/// # Errors
/// The request cannot be understood, the service refuses it, or does not answer.
pub(crate) async fn make(
    change: &'static Change,
    schema: Arc<Value>,
    State(people): State<People>,
    path: PathParams,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (names, people) = (path_names(path)?, people.acting_for(request.extensions()));
    let headers = HeaderFields::read(change, &request)?;
    let request = change.request(&schema, &names, read_body(request, BODY_BYTES_MAX).await?, &headers)?;
    let _clear = people.shared.clear_at_end();
    let answer = change.service.request(&people.hub, change.verb, &request).await;
    let answer = answer.map_err(|error| change.failed(error, &headers))?;
    let version = change.is_versioned().then(|| answer["version"].as_u64()).flatten();
    // Documents of the planner begin with version 0.
    let is_new = change.method == ChangeMethod::Put && version == Some(0);
    let status = if is_new { StatusCode::CREATED } else { change.status };
    let mut response = document(status, &answer);
    response.headers_mut().extend(version.and_then(etag).map(|tag| (ETAG, tag)));
    Ok(response)
}

/// The entity tag of a version.
pub(super) fn etag(version: u64) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("\"{version}\"")).ok()
}

/// Inserts a value at a pointer, with the objects around it; an object is merged into one that is there.
fn insert(into: &mut Value, pointer: &str, value: Value) {
    let mut place = into;
    for name in pointer.split('/').skip(1) {
        place = &mut place[name];
    }
    match (place, value) {
        (Value::Object(object), Value::Object(more)) => object.extend(more),
        (place, value) => *place = value,
    }
}
