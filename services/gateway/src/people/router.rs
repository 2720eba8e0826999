//! All routes of people, behind the guard and the login.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

use super::People;
use super::api::idempotency::once;
use super::{api, emco, guard, page, watch};
use crate::login::{gate, oidc, routes};
use crate::margo;
use crate::problem::Problem;

/// All routes of people.
pub(crate) fn router(people: People) -> Router {
    let gated = all_routes()
        .layer(from_fn_with_state(people.clone(), page::with_address))
        .layer(from_fn_with_state(people.clone(), once))
        .layer(from_fn_with_state(people.clone(), gate::gate));
    gated.layer(from_fn_with_state(people.clone(), guard::guard)).with_state(people)
}

fn all_routes() -> Router<People> {
    let openapi = |text: fn() -> &'static str| async move || ([(CONTENT_TYPE, "application/json")], text());
    Router::new()
        .route("/live", get(async || "alive\n"))
        .route("/ready", get(ready))
        .route("/openapi.json", get(openapi(api::openapi::text)))
        .route("/openapi-devices.json", get(openapi(margo::openapi::text)))
        .merge(api::router())
        .merge(emco::router())
        .merge(watch::router())
        .merge(page::router())
        .merge(routes::router())
        .merge(oidc::routes::router())
        .merge(margo::trust::routes::router())
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is no such address"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the address does not take this method")
        })
}

/// For a balancer before several gateways: whether this one has views that may be believed. It says nothing else of the fleet.
async fn ready(State(people): State<People>) -> Result<&'static str, Problem> {
    match people.feed.staleness() {
        None => Ok("ready\n"),
        Some(staleness) => Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, staleness.cause)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_routes_contradict_each_other() {
        // The router refuses a second route of the same shape by a panic.
        let _ = super::all_routes();
    }
}
