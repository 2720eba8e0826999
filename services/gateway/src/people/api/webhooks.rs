//! `/api/v1/webhooks`: registers, lists and removes webhooks. The hub keeps them; the answer to a registration alone has the
//! secret.

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::{delete, get};
use muster_client::ask::understood;
use muster_client::webhooks as client;
use muster_contract::WebhookUrl;
use muster_contract::notify::{
    Subscription, SubscriptionAnswer, WEBHOOK_GIVE_UP_DEFAULT_SECONDS, WebhookLine, WebhookRequest,
};
use muster_service::error::chain;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::body::fields;
use super::handler_helpers::{PREFIX, PathParams, document, path_names};
use super::params::{Kind, Param, Values, param};
use crate::people::People;
use crate::problem::Problem;

/// Fields of a registration.
pub(crate) const REGISTRATION: &[Param] = &[
    param("name", Kind::Text, "Its name: small letters, digits and hyphens"),
    param("url", Kind::Text, "The address: https, without user and password"),
    Param { name: "deployment", field: "id", kind: Kind::Text, about: "Only this deployment" },
    param("app", Kind::List, "Only of this application; may be repeated"),
    param("site", Kind::List, "Only at this site; may be repeated"),
    param("device", Kind::List, "Only on this device, as SITE/DEVICE; may be repeated"),
    param("component", Kind::List, "Only this component; may be repeated"),
    Param { name: "axis", field: "status", kind: Kind::Text, about: "deployed or ready" },
    param("output", Kind::Text, "summary or all"),
    param("on", Kind::Text, "change (any change, the default) or verdict (status and verdict alone)"),
    param("windowMs", Kind::Number, "Least time between two notices in milliseconds, from 200 to 3600000"),
    param("waitFor", Kind::Flag, "Accept names that the fleet does not have yet"),
    param("giveUpSeconds", Kind::Number, "Disable it after so many seconds of failures, from 10 to 604800"),
];

/// The answer to a registration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RegisteredWebhook {
    name: String,
    /// Host and port of the address.
    host: String,
    /// The key of the signatures. It is not shown again: register the webhook again for another one.
    secret: String,
    /// Whether it replaces a webhook of this name.
    resumed: bool,
}

/// All webhooks.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WebhookList {
    webhooks: Vec<WebhookLine>,
}

/// The routes of webhooks.
pub(crate) fn router() -> Router<People> {
    Router::new()
        .route(&format!("{PREFIX}/webhooks"), get(list).post(register))
        .route(&format!("{PREFIX}/webhooks/{{name}}"), delete(remove))
}

async fn register(State(people): State<People>, request: Request<Body>) -> Result<Response, Problem> {
    let people = people.acting_for(request.extensions());
    let values = fields(request, REGISTRATION).await?;
    let mut asked = values.question(people.clock().now())?;
    let url = asked.remove("url").ok_or_else(|| Problem::field("url", "is missing"))?;
    let url = url.as_str().unwrap_or_default().parse::<WebhookUrl>();
    let url = url.map_err(|error| Problem::field("url", error.to_string()))?;
    let give_up = asked.remove("giveUpSeconds").and_then(|value| value.as_u64());
    let subscription = subscription(asked)?;
    let Some(webhooks) = &people.webhooks else {
        let detail = "this gateway has no --webhook-key, so it registers no webhooks";
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    webhooks.check(&url).await.map_err(|error| Problem::field("url", chain(&error)))?;
    let target = webhooks.new_target(url).ok_or_else(|| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the system gives no random numbers for a secret")
    })?;
    let request = WebhookRequest {
        subscription,
        host: target.host,
        sealed: target.sealed,
        give_up_seconds: give_up.unwrap_or(WEBHOOK_GIVE_UP_DEFAULT_SECONDS),
    };
    request.check().map_err(|violation| {
        Problem::field(violation.path.trim_start_matches("subscription."), violation.rule)
    })?;
    let answer = people.hub.notify("webhook-register", &request).await?;
    let answer: SubscriptionAnswer = understood(&answer)?;
    let registered = RegisteredWebhook {
        name: answer.name.to_string(),
        host: request.host,
        secret: target.secret,
        resumed: answer.resumed,
    };
    let mut response = document(StatusCode::CREATED, &registered);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Name and filters of a registration.
fn subscription(asked: Map<String, Value>) -> Result<Subscription, Problem> {
    if !asked.contains_key("name") {
        return Err(Problem::field("name", "is missing"));
    }
    let read = serde_path_to_error::deserialize::<_, Subscription>(Value::Object(asked));
    read.map_err(|error| {
        let field = error.path().to_string();
        let known = REGISTRATION.iter().find(|param| param.field == field);
        Problem::field(known.map_or(&field, |param| param.name), error.into_inner().to_string())
    })
}

async fn list(State(people): State<People>, request: Request<Body>) -> Result<Response, Problem> {
    let people = people.acting_for(request.extensions());
    Values::read(request.uri().query().unwrap_or_default(), &[])?;
    let list = WebhookList { webhooks: client::list(&people.hub).await? };
    Ok(document(StatusCode::OK, &list))
}

async fn remove(
    State(people): State<People>,
    path: PathParams,
    RawQuery(query): RawQuery,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Values::read(query.as_deref().unwrap_or_default(), &[])?;
    let (names, people) = (path_names(path)?, people.acting_for(request.extensions()));
    fields(request, &[]).await?;
    let name = names.get("name").and_then(Value::as_str).unwrap_or_default();
    let name = name
        .parse()
        .map_err(|error: muster_contract::LabelError| Problem::field("name", error.to_string()))?;
    Ok(document(StatusCode::OK, &client::remove(&people.hub, name).await?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_field_is_named_as_the_request_has_it() {
        let read = |value: Value| subscription(value.as_object().unwrap().clone());
        let good =
            read(json!({ "name": "alarms", "id": "web", "site": ["plant7"], "on": "verdict" })).unwrap();
        assert_eq!((good.name.as_str(), good.site.len()), ("alarms", 1));
        for (wrong, field) in [
            (json!({}), "name"),
            (json!({ "name": "a b" }), "name"),
            (json!({ "name": "a", "id": "a b" }), "deployment"),
            (json!({ "name": "a", "status": "sleepy" }), "axis"),
            (json!({ "name": "a", "on": "never" }), "on"),
        ] {
            let problem = read(wrong.clone()).unwrap_err();
            assert_eq!((problem.status, problem.errors[0].field.as_str()), (400, field), "{wrong}");
        }
    }
}
