//! Reads about rollouts: each takes several requests, and [`muster_client::rollout`] makes them.

use std::iter;

use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use muster_client::ask::{AskError, Hub};
use muster_client::rollout::{
    explain, gathered, held_changes, operations, previewed, read_approvals, rollouts_at, targets, version,
};
use muster_contract::Timestamp;
use serde_json::{Map, Value, json};

use super::routes::RolloutSource;
use super::{deployment, document, ungoverned};
use crate::problem::Problem;

/// The answer to a question.
///
/// # Errors
/// A service does not answer, or no rollout governs the deployment.
pub(super) async fn read(
    hub: &Hub,
    source: RolloutSource,
    names: &Map<String, Value>,
    now: Timestamp,
) -> Result<Response, Problem> {
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
            let rollouts = rollouts_at(hub, &id, now).await?;
            if rollouts.is_empty() {
                return Err(ungoverned(&id));
            }
            let tag = HeaderValue::from_str(&format!("\"{}\"", version(&rollouts)));
            let mut response = document(StatusCode::OK, &rollouts);
            response.headers_mut().extend(tag.ok().map(|tag| (ETAG, tag)));
            Ok(response)
        }
        RolloutSource::History => {
            let id = deployment(names)?;
            let rollouts = targets(hub, &id).await?.decisions;
            Ok(document(StatusCode::OK, &json!({ "deployment": id, "rollouts": rollouts })))
        }
        RolloutSource::Approvals => {
            let state = read_approvals(hub, iter::empty(), now).await?;
            // A list without a deployment that could not be judged would look whole.
            if !state.unknown.is_empty() {
                return Err(AskError::CommitChanged.into());
            }
            Ok(document(StatusCode::OK, &state.waiting.into_values().collect::<Vec<_>>()))
        }
    }
}
