//! Requests on `muster.publisher.*`: bytes to what is asked for, and the answer back to bytes. What a request does
//! is the announcer's; its documents come in by the same door as a commit's.

use std::collections::BTreeMap;

use bytes::Bytes;
use muster_bus::{Call, EndpointSpec, Fault, ServiceSpec};
use muster_contract::query::{
    ApplyRequest, ErrorBody, ErrorCode, PublisherQuery, RemoveRequest, RetireRequest,
};
use muster_contract::subjects::PUBLISHER_PREFIX;
use muster_contract::{DeploymentId, DeviceKey, RequestedBy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::compose::RequestRefused;
use crate::content::Content;
use crate::margo::{self, Level};
use crate::problems::Problems;

/// The verbs, each an endpoint.
const VERBS: [&str; 4] = ["apply", "remove", "retire", "status"];
/// The file that problems of a request's documents are in, where the request names none.
const FILE: &str = "request";
/// Longest name of a file that is repeated in an answer.
const FILE_CHARS_MAX: usize = 255;

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// How the publisher is.
    Status(PublisherQuery),
    /// A change.
    Change(Request),
}

/// A change to one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The device.
    pub key: DeviceKey,
    /// The change.
    pub change: Change,
    /// Who asks, where the server proves it; what a request says of its sender is not read.
    pub requested_by: Option<RequestedBy>,
}

/// What changes.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It runs these as well.
    Apply(Vec<Content>),
    /// One deployment that was applied by request, or all of them, are taken back.
    Remove(Option<DeploymentId>),
    /// It leaves the fleet.
    Retire,
}

/// The service as others discover it.
pub fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{PUBLISHER_PREFIX}.{name}") };
    ServiceSpec {
        name: "muster-publisher",
        version: env!("CARGO_PKG_VERSION"),
        description: "Desired state of devices: apply, remove, retire, and the status of the publisher",
        endpoints: VERBS.map(endpoint).into(),
    }
}

/// Understands a call.
///
/// # Errors
/// What is wrong with it.
pub fn understand(call: &Call) -> Result<Ask, ErrorBody> {
    let (key, change) = match call.endpoint {
        "apply" => {
            let ApplyRequest { key, documents, file } = parse(&call.payload, "ApplyRequest")?;
            let file = file_name(file.as_deref());
            let contents = contents(&key, &file, &documents).map_err(|problems| bad(problems.to_string()))?;
            (key, Change::Apply(contents))
        }
        "remove" => {
            let RemoveRequest { key, id } = parse(&call.payload, "RemoveRequest")?;
            (key, Change::Remove(id))
        }
        "retire" => {
            let RetireRequest { key } = parse(&call.payload, "RetireRequest")?;
            (key, Change::Retire)
        }
        _ => return status(&call.payload).map(Ask::Status),
    };
    Ok(Ask::Change(Request { key, change, requested_by: call.requester.record() }))
}

/// Whatever is no question about a commit asks for the status alone, as any payload once did.
fn status(payload: &[u8]) -> Result<PublisherQuery, ErrorBody> {
    match serde_json::from_slice::<Map<String, Value>>(payload) {
        Ok(fields) if fields.contains_key("commit") => parse(payload, "PublisherQuery"),
        _ => Ok(PublisherQuery::default()),
    }
}

fn parse<T: DeserializeOwned>(payload: &[u8], what: &str) -> Result<T, ErrorBody> {
    serde_json::from_slice(payload).map_err(|error| bad(format!("this is no {what}: {error}")))
}

/// A name as it can stand in a line of an answer.
fn file_name(said: Option<&str>) -> String {
    let name: String =
        said.unwrap_or_default().chars().filter(|c| !c.is_control()).take(FILE_CHARS_MAX).collect();
    if name.is_empty() { FILE.to_owned() } else { name }
}

/// The deployments of a request's documents.
fn contents(key: &DeviceKey, file: &str, documents: &str) -> Result<Vec<Content>, Problems> {
    let mut problems = Problems::default();
    let entries = margo::read(file, documents.as_bytes(), &Level::Device(key.clone()), &mut problems);
    let line = |document| move || margo::line_of_document(documents.as_bytes(), document);
    let mut seen = BTreeMap::new();
    for entry in &entries {
        if let Some(first) = seen.insert(entry.content.id(), entry.document) {
            let place = line(first)().unwrap_or_default();
            let rule = format!("'{}' is in line {place} already", entry.content.id());
            problems.push(file, line(entry.document), "id", rule);
        }
    }
    if entries.is_empty() && problems.is_empty() {
        problems.push(file, || None, "", "holds no deployment");
    }
    problems.or(entries.into_iter().map(|entry| entry.content).collect())
}

/// An answer as the bus sends it.
///
/// # Errors
/// The refusal, with its body.
pub fn reply<T: Serialize>(answer: Result<T, ErrorBody>) -> Result<Bytes, Fault> {
    answer
        .and_then(|answer| serde_json::to_vec(&answer).map_err(|error| internal(error.to_string())))
        .map_or_else(|error| Err(error.into()), |bytes| Ok(bytes.into()))
}

/// The request itself is wrong.
pub fn bad(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message: message.into() }
}

/// The publisher failed.
pub fn internal(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::Internal, message: message.into() }
}

/// The publisher has not caught up yet, or is leaving.
pub fn not_ready(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::NotReady, message: message.into() }
}

/// Somebody or something is in the way.
pub fn conflict(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::Conflict, message: message.into() }
}

impl From<RequestRefused> for ErrorBody {
    fn from(refused: RequestRefused) -> Self {
        let code = match refused {
            RequestRefused::NotRequested { .. } | RequestRefused::UnknownDevice(_) => ErrorCode::NotFound,
            RequestRefused::InGit { .. }
            | RequestRefused::RetiredInGit(_)
            | RequestRefused::GitUnknown(_)
            | RequestRefused::GitBehind(_) => ErrorCode::Conflict,
            RequestRefused::TooMuch(..) => ErrorCode::BadRequest,
        };
        Self { code, message: refused.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_told_whatever_the_payload_unless_it_names_a_commit_that_is_none() {
        for payload in ["", "hello", "7", "{}", r#"{"output":"summary"}"#, r#"{"commit":null}"#] {
            assert_eq!(status(payload.as_bytes()), Ok(PublisherQuery::default()), "{payload}");
        }
        let named = status(br#"{"commit":"9F2C1E5"}"#).unwrap().commit;
        assert_eq!(named.map(|commit| commit.to_string()).as_deref(), Some("9f2c1e5"));
        let refused = status(br#"{"commit":"HEAD"}"#).unwrap_err();
        assert!(refused.code == ErrorCode::BadRequest && refused.message.contains("HEAD"), "{refused:?}");
    }
}
