//! Changes: decisions about rollouts, and verdicts on rejected reports. Each is a request that the services check and
//! record; a change that is repeated changes nothing. `If-Match` limits a decision to a version of the rollouts,
//! `Idempotency-Key` gives a repeated request the answer of the first ([`idempotency`](super::idempotency)).

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, IF_MATCH};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use muster_client::ask::AskError;
use muster_client::quarantine::{self, JudgeRequest, Judgements};
use muster_client::rollout::{self, Decided, DecisionRequest};
use muster_contract::near::near;
use muster_contract::quarantine::QuarantineAction;
use muster_contract::rollout::RolloutVerb;
use muster_contract::{Timestamp, WaveName};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::params::{Kind, Param, Values, param};
use super::routes::SELECT;
use super::{PREFIX, PathParams, deployment, document, path_names, selection, ungoverned};
use crate::people::People;
use crate::problem::Problem;

/// Longest body of a request in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;
/// Time for the body of a request.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Verbs about rollouts.
pub(crate) const ROLLOUT_VERBS: [&str; 9] =
    ["approve", "reject", "pause", "resume", "stop", "abort", "rollback", "retry", "next"];
/// Verbs about rejected reports.
pub(crate) const QUARANTINE_VERBS: [&str; 2] = ["requeue", "drop"];

/// Fields of a decision.
pub(crate) const DECISION: &[Param] = &[
    param("file", Kind::Text, "Only the rollout of this rollout.yaml"),
    param("wave", Kind::Text, "The wave to approve or reject; the first that waits, if left out"),
    param("reason", Kind::Text, "The reason, in one sentence, for the history"),
    param("force", Kind::Flag, "A gate that is shut or has failed counts as open, for next; needs a reason"),
];
/// Fields of a verdict on rejected reports.
pub(crate) const JUDGEMENT: &[Param] = &[
    param("quarantineSeq", Kind::List, "A report, by its sequence in QUARANTINE; may be repeated"),
    param("all", Kind::Flag, "Every report that passes the filters"),
    param("reason", Kind::Text, "The reason, for the record"),
];

/// The routes of changes.
pub(crate) fn router() -> Router<People> {
    Router::new()
        .route(&format!("{PREFIX}/rollouts/{{id}}/{{verb}}"), post(decide))
        .route(&format!("{PREFIX}/quarantine/{{item}}"), post(judge))
}

async fn decide(
    State(people): State<People>,
    path: PathParams,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (names, people) = (path_names(path)?, people.acting_for(request.extensions()));
    let versions = versions(request.headers())?;
    let fields = fields(request, DECISION).await?;
    let decided = decision(&people, &names, &fields, versions).await?;
    let status = if decided.as_array().is_some_and(|all| all.iter().all(|one| one.get("refused").is_some())) {
        StatusCode::CONFLICT
    } else {
        StatusCode::OK
    };
    Ok(document(status, &decided))
}

/// Records a decision about the rollouts of a deployment; the answer as `muster rollout … --format json` gives it.
///
/// # Errors
/// No service answers, no rollout governs the deployment, or no wave waits for approval.
pub(crate) async fn decision(
    people: &People,
    names: &Map<String, Value>,
    fields: &Values,
    versions: Vec<String>,
) -> Result<Value, Problem> {
    let id = deployment(names)?;
    let verb = names.get("verb").and_then(Value::as_str).unwrap_or_default();
    let now = people.clock.now();
    let request = DecisionRequest {
        deployment: id.clone(),
        file: fields.get("file").map(str::to_owned),
        reason: fields.get("reason").map(str::to_owned),
        versions,
    };
    let verb = match verb {
        "next" => {
            check_version(people, &request, now).await?;
            let force = forced(fields)?;
            let steps = rollout::next(&people.hub, &id, force, now).await?;
            return if steps.is_empty() { Err(ungoverned(&id)) } else { Ok(json!(steps)) };
        }
        "approve" | "reject" => {
            let wave = fields.get("wave").map(str::parse::<WaveName>).transpose();
            let wave = wave.map_err(|error| Problem::field("wave", error.to_string()))?;
            let all = match verb {
                "reject" => rollout::reject(&people.hub, &request, wave.as_ref(), now).await?,
                _ => rollout::approve(&people.hub, &request, wave.as_ref(), now).await?,
            };
            let detail = format!("no such wave of '{id}' waits for approval");
            return some(&all, || Problem::new(StatusCode::CONFLICT, detail));
        }
        "pause" => RolloutVerb::Pause,
        "resume" => RolloutVerb::Resume,
        "stop" => RolloutVerb::Stop,
        "abort" => RolloutVerb::Abort,
        "rollback" => RolloutVerb::Rollback,
        "retry" => RolloutVerb::Retry,
        other => return Err(no_verb(other, &ROLLOUT_VERBS)),
    };
    some(&rollout::decide(&people.hub, &request, verb, now).await?, || ungoverned(&id))
}

/// The reason to force a gate, if it shall be forced.
fn forced(fields: &Values) -> Result<Option<&str>, Problem> {
    let reason = fields.get("reason");
    match (fields.get("force"), reason) {
        (Some("true"), None) => Err(Problem::field("reason", "is missing: a forced gate needs a reason")),
        (Some("true"), reason) => Ok(reason),
        _ => Ok(None),
    }
}

/// Refuses a request for rollouts of another version. A step is not pinned beyond that: each of its decisions is judged anew.
async fn check_version(people: &People, request: &DecisionRequest, now: Timestamp) -> Result<(), Problem> {
    if request.versions.is_empty() {
        return Ok(());
    }
    let rollouts = rollout::rollouts_at(&people.hub, &request.deployment, now).await?;
    if request.versions.contains(&rollout::version(&rollouts)) || rollouts.is_empty() {
        Ok(())
    } else {
        Err(AskError::VersionChanged(request.deployment.clone()).into())
    }
}

/// The versions of `If-Match`; none for any version.
fn versions(headers: &HeaderMap) -> Result<Vec<String>, Problem> {
    let mut versions = Vec::new();
    let mut is_any = false;
    let wrong = || Problem::field("If-Match", "must be the ETag of the rollouts, or * alone");
    for value in headers.get_all(IF_MATCH) {
        let tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
        for tag in tags {
            let version = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            match version {
                Some(version) if !version.is_empty() => versions.push(version.to_owned()),
                // The star stands alone.
                None if tag == "*" && !is_any => is_any = true,
                _ => return Err(wrong()),
            }
        }
    }
    if is_any && !versions.is_empty() { Err(wrong()) } else { Ok(versions) }
}

fn some(all: &[Decided], none: impl FnOnce() -> Problem) -> Result<Value, Problem> {
    if all.is_empty() { Err(none()) } else { Ok(json!(all)) }
}

fn no_verb(verb: &str, known: &[&'static str]) -> Problem {
    let shown: String = verb.chars().filter(|sign| !sign.is_control()).take(64).collect();
    let detail = format!("there is no verb '{shown}'; there are {}", known.join(", "));
    Problem::new(StatusCode::NOT_FOUND, detail).with_near(&near(verb, known.iter().copied()))
}

async fn judge(
    State(people): State<People>,
    path: PathParams,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (names, people) = (path_names(path)?, people.acting_for(request.extensions()));
    if !versions(request.headers())?.is_empty() {
        let detail = "rejected reports have no version: leave If-Match out";
        return Err(Problem::new(StatusCode::PRECONDITION_FAILED, detail));
    }
    let fields = fields(request, &[SELECT, JUDGEMENT].concat()).await?;
    let judgements = judgement(&people, &names, &fields).await?;
    Ok(document(StatusCode::OK, &judgements))
}

/// Requeues or drops rejected reports.
///
/// # Errors
/// No ingest answers, QUARANTINE does not hold a report, or the request selects none.
pub(crate) async fn judgement(
    people: &People,
    names: &Map<String, Value>,
    fields: &Values,
) -> Result<Judgements, Problem> {
    let action = match names.get("item").and_then(Value::as_str).unwrap_or_default() {
        "requeue" => QuarantineAction::Requeue,
        "drop" => QuarantineAction::Drop,
        other => return Err(no_verb(other, &QUARANTINE_VERBS)),
    };
    let seqs = fields.all("quarantineSeq").map(|text| {
        text.parse::<u64>().map_err(|_| Problem::field("quarantineSeq", format!("'{text}' is no number")))
    });
    let quarantine_seqs = seqs.collect::<Result<Vec<_>, _>>()?;
    let is_filtered = SELECT.iter().any(|param| fields.get(param.name).is_some());
    if quarantine_seqs.is_empty() && !is_filtered && fields.get("all") != Some("true") {
        return Err(Problem::field("quarantineSeq", "name a report, a filter, or all=true"));
    }
    let request = JudgeRequest {
        quarantine_seqs,
        select: selection(fields, people.clock.now())?,
        reason: fields.get("reason").map(str::to_owned),
    };
    let mut judgements = Judgements::default();
    match quarantine::judge(&people.hub, action, &request, &mut judgements).await? {
        Ok(()) => Ok(judgements),
        Err(missing) => {
            Err(Problem::new(StatusCode::NOT_FOUND, format!("QUARANTINE holds no report {}", missing.0)))
        }
    }
}

/// The fields of a request's body: a form, or a JSON object of texts, numbers, flags and lists of them.
///
/// # Errors
/// The body is too long, too slow, of another type, or has an unknown field.
pub(crate) async fn fields(request: Request<Body>, known: &[Param]) -> Result<Values, Problem> {
    let (parts, body) = request.into_parts();
    if parts.uri.query().is_some_and(|query| !query.is_empty()) {
        return Err(Problem::field("query", "a change takes its fields in the body"));
    }
    let too_large = || {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {BODY_BYTES_MAX} bytes"))
    };
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await;
    let bytes =
        bytes.map_err(|_| Problem::passing(StatusCode::REQUEST_TIMEOUT, "the body came too slowly"))?;
    let bytes = bytes.map_err(|_| too_large())?;
    if bytes.is_empty() {
        return Ok(Values::default());
    }
    let wrong = || {
        let detail = "the body must be application/json or application/x-www-form-urlencoded";
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    };
    match media_type(&parts.headers).as_deref() {
        Some("application/x-www-form-urlencoded") => {
            let form = std::str::from_utf8(&bytes).map_err(|_| Problem::field("body", "is no form"))?;
            // A form of a page sends its empty fields, too.
            let filled = form_urlencoded::parse(form.as_bytes()).filter(|(_, value)| !value.is_empty());
            Values::of(filled.map(|(name, value)| (name.into_owned(), value.into_owned())), known)
        }
        Some("application/json") => {
            let object = serde_json::from_slice::<Map<String, Value>>(&bytes);
            let object =
                object.map_err(|error| Problem::field("body", format!("is no JSON object: {error}")))?;
            Values::of(flat(object)?.into_iter(), known)
        }
        _ => Err(wrong()),
    }
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next()?.trim().to_ascii_lowercase())
}

/// The fields of an object, a list as one field for each of its values.
fn flat(object: Map<String, Value>) -> Result<Vec<(String, String)>, Problem> {
    let mut fields = Vec::new();
    for (name, value) in object {
        let values = match value {
            Value::Array(list) => list,
            value => vec![value],
        };
        for value in values {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                _ => return Err(Problem::field(&name, "must be a text, a number, true or false")),
            };
            fields.push((name.clone(), text));
        }
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(media: &str, body: &str) -> Result<Vec<String>, u16> {
        let request =
            Request::builder().header(CONTENT_TYPE, media).body(Body::from(body.to_owned())).unwrap();
        let known = [DECISION, JUDGEMENT].concat();
        let values = fields(request, &known).await.map_err(|problem| problem.status)?;
        Ok(["wave", "quarantineSeq"].iter().flat_map(|name| values.all(name)).map(str::to_owned).collect())
    }

    #[test]
    fn a_precondition_names_whole_entity_tags() {
        let read = |values: &[&'static str]| {
            let headers = values.iter().map(|value| (IF_MATCH, axum::http::HeaderValue::from_static(value)));
            versions(&headers.collect()).map_err(|problem| problem.status)
        };
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(read(&["*"]), Ok(vec![]));
        assert_eq!(
            read(&["\"a\", \"b\"", "\"c\""]),
            Ok(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()])
        );
        assert_eq!(read(&["\"a\"", "*"]), Err(400));
        for wrong in ["a", "\"\"", "W/\"a\"", "\"a", "", "\"old\", *", "*, \"old\"", "*, *"] {
            assert_eq!(read(&[wrong]), Err(400), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_change_is_a_form_or_an_object_within_bounds() {
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(read(form, "wave=all&file=").await.unwrap(), ["all"]);
        assert_eq!(read("application/json", r#"{"quarantineSeq": [7, "8"]}"#).await.unwrap(), ["7", "8"]);
        assert_eq!(read("application/json", "[]").await, Err(400));
        assert_eq!(read("application/json", r#"{"wave": {}}"#).await, Err(400));
        assert_eq!(read("application/json", r#"{"wavve": "a"}"#).await, Err(400));
        assert_eq!(read("text/plain", "wave=all").await, Err(415));
        let large = format!("wave={}", "a".repeat(1024 * 1024));
        assert_eq!(read(form, &large).await, Err(413));
    }
}
