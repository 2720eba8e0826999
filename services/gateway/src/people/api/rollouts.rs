//! Reads about rollouts: each takes several requests, and [`muster_client::rollout`] makes them.
//!
//! Reads of the past are bounded in number and time: the query service rebuilds one point at a time, and the publisher reads one
//! earlier commit at a time. They run within the request, so they end when its client goes away.

use std::iter;
use std::time::Duration;

use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use muster_client::ask::{AskError, Hub};
use muster_client::operations::PendingApproval;
use muster_client::rollout::{
    RolloutsThen, explain, gathered, held_changes, operations, previewed, read_approvals, rollouts_at,
    rollouts_then, targets, verify, version,
};
use muster_contract::{DeploymentId, Timestamp};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::handler_helpers::{deployment, document, ungoverned};
use super::params::Values;
use super::routes::RolloutSource;
use crate::people::People;
use crate::problem::Problem;

/// Longest time of an answer about the past: a verification takes a rebuild for each decision.
const PAST_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The answer to a question.
///
/// # Errors
/// A service does not answer, no rollout governs the deployment, or an answer about the past has no room or takes too long.
pub(super) async fn read(
    people: &People,
    source: RolloutSource,
    values: &Values,
    names: &Map<String, Value>,
    now: Timestamp,
) -> Result<Response, Problem> {
    let hub = &people.hub;
    match source {
        RolloutSource::Why | RolloutSource::Preview | RolloutSource::Operations => {
            let id = deployment(names)?;
            let found = gathered(hub, &id, now).await?;
            let answer = match (found.rollouts.is_empty(), source) {
                (true, _) => return Err(ungoverned(&id)),
                (_, RolloutSource::Why) => json!(found.rollouts.iter().map(explain).collect::<Vec<_>>()),
                (_, RolloutSource::Preview) => json!(previewed(found, now)),
                _ => json!(found.rollouts.iter().flat_map(operations).collect::<Vec<_>>()),
            };
            Ok(document(StatusCode::OK, &answer))
        }
        RolloutSource::All => Ok(document(StatusCode::OK, &held_changes(hub).await?)),
        RolloutSource::Progress => {
            let id = deployment(names)?;
            match values.time("at", now)? {
                Some(at) => Ok(document(StatusCode::OK, &read_then(people, &id, at).await?)),
                None => read_present(hub, &id, now).await,
            }
        }
        RolloutSource::Verify => {
            let id = deployment(names)?;
            let found = read_past(people, &id, verify(hub, &id, &mut |_| ())).await?;
            Ok(document(StatusCode::OK, &found))
        }
        RolloutSource::History => {
            let id = deployment(names)?;
            let rollouts = targets(hub, &id).await?.decisions;
            Ok(document(StatusCode::OK, &json!({ "deployment": id, "rollouts": rollouts })))
        }
        RolloutSource::Approvals => {
            let waiting = read_approvals(hub, iter::empty(), now).await?.into_waiting()?;
            let waiting: Vec<_> = waiting.into_iter().map(PendingApproval::Wave).collect();
            Ok(document(StatusCode::OK, &waiting))
        }
    }
}

/// The rollouts as they stand now, with their version for `If-Match`.
async fn read_present(hub: &Hub, id: &DeploymentId, now: Timestamp) -> Result<Response, Problem> {
    let rollouts = rollouts_at(hub, id, now).await?;
    if rollouts.is_empty() {
        return Err(ungoverned(id));
    }
    let tag = HeaderValue::from_str(&format!("\"{}\"", version(&rollouts)));
    let mut response = document(StatusCode::OK, &rollouts);
    response.headers_mut().extend(tag.ok().map(|tag| (ETAG, tag)));
    Ok(response)
}

/// The rollouts of a deployment as they stood at a time.
///
/// # Errors
/// A service does not answer, no rollout governs the deployment, LEDGER has forgotten the time, or the answer has no room or takes
/// too long.
pub(crate) async fn read_then(
    people: &People,
    id: &DeploymentId,
    at: Timestamp,
) -> Result<RolloutsThen, Problem> {
    read_past(people, id, rollouts_then(&people.hub, id, at, &mut |_| ())).await
}

/// An answer about the past of a deployment's rollouts; `None` if no rollout governs it. One is made at a time.
async fn read_past<T>(
    people: &People,
    id: &DeploymentId,
    answer: impl Future<Output = Result<Option<T>, AskError>>,
) -> Result<T, Problem> {
    let Ok(_permit) = people.past_reads.try_acquire() else {
        let detail =
            "this gateway is making another answer about the past of rollouts; try again when it has ended";
        return Err(Problem::passing(StatusCode::TOO_MANY_REQUESTS, detail));
    };
    with_timeout(PAST_TIMEOUT, answer).await?.ok_or_else(|| ungoverned(id))
}

/// An answer, if it comes within a time. After that, the questions for it are dropped. A repetition would take as long.
async fn with_timeout<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, AskError>>,
) -> Result<T, Problem> {
    let too_long = |_| {
        let detail = format!(
            "no answer about the past of rollouts within {} s, the longest time that a gateway takes; run `muster rollout`, which waits longer",
            limit.as_secs()
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    Ok(timeout(limit, answer).await.map_err(too_long)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_takes_too_long_is_not_asked_for_again() {
        let never = std::future::pending::<Result<(), AskError>>();
        let problem = with_timeout(Duration::from_millis(20), never).await.unwrap_err();
        assert_eq!((problem.status, problem.retryable), (503, false), "{}", problem.detail);
        let soon = with_timeout(Duration::from_secs(60), async { Ok(7) }).await;
        assert_eq!(soon.unwrap(), 7);
    }
}
