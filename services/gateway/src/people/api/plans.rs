//! Reads records of the planner: one by its name, and operations together with those of rollouts.

use axum::http::StatusCode;
use axum::http::header::ETAG;
use axum::response::Response;
use muster_client::ask::{AskError, Hub, understood};
use muster_client::rollout::operations_listed;
use muster_contract::Timestamp;
use muster_contract::plans::OperationsQuery;
use serde_json::{Map, Value, json};

use super::change::etag;
use super::handler_helpers::document;
use super::routes::Route;
use crate::problem::Problem;

/// The row of a list that the address names: the only name in it, or site and device. Its entity tag is its version.
///
/// # Errors
/// The planner does not answer, or there is no such row.
pub(super) async fn row(
    hub: &Hub,
    route: &Route,
    verb: &'static str,
    rows: &str,
    names: &Map<String, Value>,
) -> Result<Response, Problem> {
    let name = names.values().filter_map(Value::as_str).collect::<Vec<_>>();
    let name = match (names.get("site"), names.get("device")) {
        (Some(Value::String(site)), Some(Value::String(device))) => format!("{site}/{device}"),
        _ => name.concat(),
    };
    let mut question = json!({ "name": [name], "limit": 1 });
    route.fixed.iter().for_each(|(field, value)| question[*field] = json!(value));
    let mut answer = hub.planner(verb, &question).await?;
    let row = answer.get_mut(rows).and_then(|rows| rows.get_mut(0)).map(Value::take);
    let Some(row) = row else {
        let detail = format!("the planner has no '{name}' among its {rows}");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    // A row is the document, or has it beside what follows from it.
    let documents = [&row, &row["plan"], &row["instance"], &row["node"]];
    let version = documents.into_iter().find_map(|document| document["version"].as_u64());
    let mut response = document(StatusCode::OK, &row);
    response.headers_mut().extend(version.and_then(etag).map(|tag| (ETAG, tag)));
    Ok(response)
}

/// A page of the operations of plans; the first one also has those of rollouts under way, as `muster operation list` shows them.
///
/// # Errors
/// A service does not answer.
pub(super) async fn operations(
    hub: &Hub,
    question: &Map<String, Value>,
    now: Timestamp,
) -> Result<Value, AskError> {
    let mut answer = hub.planner("operation-list", question).await?;
    let query: OperationsQuery = understood(&Value::Object(question.clone()))?;
    if query.after.is_none()
        && let Some(rollouts) = operations_listed(hub, &query, now).await?
    {
        answer["rollouts"] = json!(rollouts);
    }
    Ok(answer)
}
