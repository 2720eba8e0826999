//! Changes: decisions about rollouts, and verdicts on rejected reports. Each is a request that the services check and
//! record; a change that is repeated changes nothing. `If-Match` limits a decision to a version of the rollouts,
//! `Idempotency-Key` gives a repeated request the answer of the first ([`idempotency`](super::idempotency)).

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::IF_MATCH;
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

use super::body::fields;
use super::filters::SELECT;
use super::handler_helpers::{PREFIX, PathParams, deployment, document, path_names, selection, ungoverned};
use super::params::{Kind, Param, Values, param};
use crate::people::People;
use crate::problem::Problem;

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
    let _clear = people.shared.clear_at_end();
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
    let _clear = people.shared.clear_at_end();
    let mut judgements = Judgements::default();
    match quarantine::judge(&people.hub, action, &request, &mut judgements).await? {
        Ok(()) => Ok(judgements),
        Err(missing) => {
            Err(Problem::new(StatusCode::NOT_FOUND, format!("QUARANTINE holds no report {}", missing.0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
