//! Parses requests on `muster.publisher.*`, and serialises their answers. The announcer carries them out; their documents
//! are parsed by the same code as a commit's.

use std::collections::BTreeMap;

use bytes::Bytes;
use muster_bus::{Call, EndpointSpec, Fault, Role, ServiceSpec};
use muster_contract::limits::{RELEASE_DEVICES_MAX, ROLLBACK_DEVICES_MAX};
use muster_contract::query::{
    ApplyRequest, ErrorBody, ErrorCode, PublisherQuery, RemoveRequest, RetireRequest,
};
use muster_contract::question::{read, read_or_default};
use muster_contract::rollout::{DecideRequest, ReleaseRequest, TargetsQuery};
use muster_contract::subjects::PUBLISHER_PREFIX;
use muster_contract::{DeploymentId, DeviceKey, RequestedBy};
use muster_domain::plans::is_of_plan;
use serde::Serialize;

use crate::compose::RequestRefused;
use crate::content::{Content, OF_A_PLAN};
use crate::margo::{self, Level};
use crate::problems::Problems;

/// The endpoints.
const VERBS: [&str; 7] = ["apply", "decide", "release", "remove", "retire", "status", "targets"];
/// The file name in problems of a request that names no file.
const FILE: &str = "request";
/// Longest file name that an answer repeats, in characters.
const FILE_CHARS_MAX: usize = 255;
/// Characters of a requested commit that an error repeats.
const REVISION_CHARS_MAX: usize = 64;

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub enum PublisherRequest {
    /// A query of the publisher's status.
    Status(PublisherQuery),
    /// A query of the targets of a rollout.
    Targets(TargetsQuery),
    /// A release of held changes.
    Release(Release),
    /// A decision about a rollout.
    Decide(Decide),
    /// A change to a device.
    Change(Request),
}

/// A release of a deployment's content to devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Release {
    /// The request.
    pub request: ReleaseRequest,
    /// The requester, as in [`Request`].
    pub requested_by: Option<RequestedBy>,
}

/// A decision about a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct Decide {
    /// The request.
    pub request: DecideRequest,
    /// The requester, as in [`Request`].
    pub requested_by: Option<RequestedBy>,
}

/// A change to one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The device.
    pub key: DeviceKey,
    /// The change.
    pub change: Change,
    /// The requester, if the server vouches for it; the request's own claims about its sender are not read.
    pub requested_by: Option<RequestedBy>,
}

/// A change to a device.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Adds deployments.
    Apply(Vec<Content>),
    /// Removes one deployment that was applied by request, or all of them.
    Remove(Option<DeploymentId>),
    /// Takes the device out of the fleet.
    Retire,
}

/// The description of the service.
pub fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{PUBLISHER_PREFIX}.{name}") };
    ServiceSpec {
        name: "muster-publisher",
        version: env!("CARGO_PKG_VERSION"),
        description: "Desired state of devices: apply, release, remove, retire, decisions about rollouts, and the status of the publisher",
        endpoints: VERBS.map(endpoint).into(),
    }
}

/// Parses a call.
///
/// # Errors
/// The problems of the request.
pub fn parse_request(call: &Call) -> Result<PublisherRequest, ErrorBody> {
    let (key, change) = match call.endpoint {
        "apply" => {
            let ApplyRequest { key, documents, file } = read(&call.payload)?;
            let file = file_name(file.as_deref());
            let contents =
                contents(&key, &file, &documents).map_err(|problems| bad_request(problems.to_string()))?;
            check_application_ids(&contents, author(call)?.as_ref())?;
            (key, Change::Apply(contents))
        }
        "remove" => {
            let RemoveRequest { key, id } = read(&call.payload)?;
            (key, Change::Remove(id))
        }
        "retire" => {
            let RetireRequest { key } = read(&call.payload)?;
            (key, Change::Retire)
        }
        "release" => {
            let request = release(&call.payload)?;
            return Ok(PublisherRequest::Release(Release { request, requested_by: author(call)? }));
        }
        "decide" => {
            let request: DecideRequest = read(&call.payload)?;
            request.check().map_err(|violation| bad_request(violation.to_string()))?;
            return Ok(PublisherRequest::Decide(Decide { request, requested_by: author(call)? }));
        }
        "targets" => return read(&call.payload).map(PublisherRequest::Targets),
        _ => return read_or_default(&call.payload).map(PublisherRequest::Status),
    };
    Ok(PublisherRequest::Change(Request { key, change, requested_by: author(call)? }))
}

/// The author of a change, for its record.
fn author(call: &Call) -> Result<Option<RequestedBy>, ErrorBody> {
    call.requester
        .author(&call.subject)
        .map_err(|error| ErrorBody { code: ErrorCode::Forbidden, message: error.to_string() })
}

/// Checks that only the planner applies deployments of plans. On an open hub the server vouches for nobody, and all may.
fn check_application_ids(contents: &[Content], author: Option<&RequestedBy>) -> Result<(), ErrorBody> {
    let is_other = author.is_some_and(|by| by.role.as_deref() != Some(Role::Planner.as_str()));
    let of_plan = contents.iter().find(|content| is_of_plan(content.application_id()));
    match of_plan.filter(|_| is_other) {
        Some(content) => {
            let id = content.id();
            Err(bad_request(format!("deployment {id}: spec.applicationId: {OF_A_PLAN}")))
        }
        None => Ok(()),
    }
}

/// Checks that a release or a decision was computed for the last accepted commit, if it says for which. A content that was the newest one
/// would otherwise go out as a rollback of the commit that came since.
///
/// # Errors
/// It was computed for another commit.
pub(crate) fn check_revision(computed: Option<&str>, accepted: Option<&str>) -> Result<(), ErrorBody> {
    match (computed, accepted) {
        (Some(of), Some(accepted)) if of != accepted => Err(conflict(format!(
            "the request is for commit {}, and the last accepted commit is {accepted}: ask for the targets again",
            of.chars().take(REVISION_CHARS_MAX).collect::<String>()
        ))),
        (Some(_), None) => Err(not_ready("the publisher has read no good commit since its start: ask again")),
        _ => Ok(()),
    }
}

/// Reads a release.
fn release(payload: &[u8]) -> Result<ReleaseRequest, ErrorBody> {
    let request: ReleaseRequest = read(payload)?;
    if request.before.is_some() && request.digest.is_some() {
        return Err(bad_request("before: takes the place of digest; leave one of them out"));
    }
    let max = if request.before.is_some() { ROLLBACK_DEVICES_MAX } else { RELEASE_DEVICES_MAX };
    let count = request.devices.len();
    if (1..=max).contains(&count) {
        Ok(request)
    } else {
        Err(bad_request(format!("devices: has {count} entries; 1 to {max} are allowed")))
    }
}

/// The file name that an answer may repeat.
fn file_name(given: Option<&str>) -> String {
    let name: String =
        given.unwrap_or_default().chars().filter(|c| !c.is_control()).take(FILE_CHARS_MAX).collect();
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
            let line_number = line(first)().unwrap_or_default();
            let rule = format!("'{}' is in line {line_number} already", entry.content.id());
            problems.push(file, line(entry.document), "id", rule);
        }
    }
    if entries.is_empty() && problems.is_empty() {
        problems.push(file, || None, "", "holds no deployment");
    }
    problems.or(entries.into_iter().map(|entry| entry.content).collect())
}

/// Serialises an answer.
///
/// # Errors
/// The refusal, with its body.
pub fn reply<T: Serialize>(answer: Result<T, ErrorBody>) -> Result<Bytes, Fault> {
    answer
        .and_then(|answer| serde_json::to_vec(&answer).map_err(|error| internal(error.to_string())))
        .map_or_else(|error| Err(error.into()), |bytes| Ok(bytes.into()))
}

/// The error of a wrong request.
pub(crate) fn bad_request(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message: message.into() }
}

/// The error of a failure in the publisher.
pub fn internal(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::Internal, message: message.into() }
}

/// The error of a publisher that has not caught up yet, or is stopping.
pub fn not_ready(message: impl Into<String>) -> ErrorBody {
    ErrorBody { code: ErrorCode::NotReady, message: message.into() }
}

/// The error of a conflict.
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
            RequestRefused::OverLimit(..) | RequestRefused::Application { .. } => ErrorCode::BadRequest,
        };
        Self { code, message: refused.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_release_for_another_commit_is_a_conflict() {
        let code = |revision, accepted| check_revision(revision, accepted).map_err(|error| error.code);
        assert_eq!(code(Some("c1"), Some("c1")), Ok(()));
        assert_eq!(code(Some("c1"), Some("c2")), Err(ErrorCode::Conflict));
        assert_eq!(code(Some("c1"), None), Err(ErrorCode::NotReady));
        assert_eq!(code(None, Some("c2")), Ok(()), "by hand");
    }

    #[test]
    fn a_gateway_requests_decisions_for_an_approver_and_no_other_change() {
        let digest = muster_contract::canonical::Digest::of_bytes(b"");
        let decide = format!(
            r#"{{"deployment":"web","digest":"{digest}","rollout":"rollout.yaml","verb":"approve","wave":"one"}}"#
        );
        let release = r#"{"deployment":"web","devices":[{"site":"plant7","device":"press-4"}]}"#;
        let device = r#"{"site":"plant7","device":"press-4"}"#;
        let code = |role: &str, endpoint: &'static str, payload: &str| {
            let person = muster_contract::OnBehalfOf::new("UANNA", "anna", role);
            let (gateway, name) = ("UG".to_owned(), "gateway".to_owned());
            let requester = muster_bus::Requester::Represented { gateway, name, person };
            let (subject, headers) =
                (format!("{PUBLISHER_PREFIX}.{endpoint}"), muster_bus::Headers::default());
            let call = Call { endpoint, subject, payload: payload.to_owned().into(), headers, requester };
            parse_request(&call).map(drop).map_err(|error| error.code)
        };
        assert_eq!(code("approver", "decide", &decide), Ok(()));
        assert_eq!(code("viewer", "decide", &decide), Err(ErrorCode::Forbidden));
        for (endpoint, payload) in [("release", release), ("remove", device), ("retire", device)] {
            assert_eq!(code("operator", endpoint, payload), Ok(()), "{endpoint}");
            assert_eq!(code("approver", endpoint, payload), Err(ErrorCode::Forbidden), "{endpoint}");
        }
    }

    #[test]
    fn only_the_planner_applies_deployments_of_plans() {
        let document = |application: &str| {
            json!({ "id": "web", "metadata": { "name": "web" }, "spec": { "applicationId": application,
                "deploymentProfile": { "type": "simulated", "components": [{ "name": "main", "properties": {} }] } } })
        };
        let refused = |role: &str, application: &str| {
            let documents = document(application).to_string();
            let payload =
                json!({ "site": "plant7", "device": "press-4", "documents": documents }).to_string();
            let requester = muster_bus::Requester::User {
                key: "UX".to_owned(),
                name: role.to_owned(),
                role: muster_bus::Role::of(role),
            };
            let subject = format!("{PUBLISHER_PREFIX}.apply");
            let headers = muster_bus::Headers::default();
            let call = Call { endpoint: "apply", subject, payload: payload.into(), headers, requester };
            parse_request(&call).err().map(|error| error.message)
        };
        assert_eq!(refused("planner", "muster-plan-web"), None);
        assert_eq!(refused("operator", "muster-planning"), None, "another word");
        assert!(refused("operator", "muster-plan--").is_some(), "the prefix is reserved, whatever follows");
        let expected = format!("deployment web: spec.applicationId: {OF_A_PLAN}");
        assert_eq!(refused("operator", "muster-plan-web"), Some(expected));
    }

    fn status(payload: &'static str) -> Result<PublisherRequest, ErrorBody> {
        parse_request(&Call {
            endpoint: "status",
            subject: format!("{PUBLISHER_PREFIX}.status"),
            payload: Bytes::from_static(payload.as_bytes()),
            headers: muster_bus::Headers::default(),
            requester: muster_bus::Requester::Unverified,
        })
    }

    #[test]
    fn a_status_request_is_empty_or_names_a_commit_and_nothing_else() {
        for payload in ["", "{}", r#"{"commit":null}"#] {
            assert_eq!(status(payload), Ok(PublisherRequest::Status(PublisherQuery::default())), "{payload}");
        }
        let named =
            PublisherRequest::Status(PublisherQuery { commit: "9f2c1e5".parse().ok(), rollouts_after: None });
        assert_eq!(status(r#"{"commit":"9F2C1E5"}"#), Ok(named));
        for (payload, words) in [
            (r#"{"commit":"HEAD"}"#, "HEAD"),
            (r#"{"comit":"9f2c1e5"}"#, "comit: unknown key; did you mean commit?"),
            ("hello", "not a question"),
        ] {
            let refused = status(payload).unwrap_err();
            assert!(refused.code == ErrorCode::BadRequest && refused.message.contains(words), "{refused:?}");
        }
    }
}
