//! Middleware of people's routes: requires a session for all but the login, and checks its role. A role has no right here that
//! it lacks over NATS, except that operators change packages with the packager's credentials of a gateway that has them.
//!
//! A change by cookie must name its origin, and so comes from a page of this gateway; a program sends a token.

use axum::extract::{Request, State};
use axum::http::header::{LOCATION, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use muster_identity::Role;

use super::current;
use super::oidc::routes::CALLBACK;
use super::routes::LOGIN;
use super::session::{Access, Refused, Session};
use crate::people::People;
use crate::people::api::handler_helpers::PREFIX;
use crate::people::guard::FETCH_SITE;
use crate::people::page;
use crate::problem::Problem;

/// Paths that need no session: health and logout, and the return from a provider.
const OPEN: [&str; 4] = ["/live", "/ready", "/logout", CALLBACK];
/// Prefixes of more paths that need no session: the files of pages, the login, and the public certificates of devices.
const OPEN_BELOW: [&str; 3] = ["/assets/", "/login/", "/.well-known/"];
/// Paths that only an operator may read, with everything below them: payloads of rejected reports, webhooks, and packages, which a
/// viewer cannot list over NATS either.
const FOR_OPERATORS: [&str; 4] =
    ["/quarantine", "/api/v1/quarantine", "/api/v1/webhooks", "/api/v1/packages"];
/// The prefix of EMCO's addresses.
const EMCO_PREFIX: &str = "/v2";
/// Names of query parameters that may hold a secret.
const SECRETS: [&str; 7] = ["token", "access_token", "id_token", "bearer", "jwt", "session", "authorization"];

/// Lets a request through with its session, or refuses it.
pub(crate) async fn gate(State(people): State<People>, mut request: Request, next: Next) -> Response {
    let Some(login) = people.login() else { return next.run(request).await };
    if let Some(name) = secret_in_address(&request) {
        let detail = format!(
            "{name}: logs keep addresses, so send no secret in one; log in again, and send the token as a header"
        );
        return Problem::new(StatusCode::BAD_REQUEST, detail).into_response();
    }
    if is_open(request.uri().path()) {
        return next.run(request).await;
    }
    let (session, access) = match login.session(request.headers(), people.clock().now()) {
        Ok(found) => found,
        Err(refused) => return not_logged_in(&request, &refused),
    };
    if let Some(detail) = refusal(&session, access, &request) {
        return refused(&request, Problem::new(StatusCode::FORBIDDEN, detail));
    }
    request.extensions_mut().insert(session.clone());
    current::scope(session, next.run(request)).await
}

fn is_open(path: &str) -> bool {
    path == LOGIN || OPEN.contains(&path) || OPEN_BELOW.iter().any(|prefix| path.starts_with(prefix))
}

fn is_api(path: &str) -> bool {
    let is_below = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    is_below(PREFIX) || is_below(EMCO_PREFIX) || ["/openapi.json", "/openapi-devices.json"].contains(&path)
}

/// The name of a query parameter that may hold a secret.
fn secret_in_address(request: &Request) -> Option<&'static str> {
    let query = request.uri().query()?;
    form_urlencoded::parse(query.as_bytes())
        .find_map(|(name, _)| SECRETS.into_iter().find(|secret| name.eq_ignore_ascii_case(secret)))
}

/// Why a session does not permit a request; `None` if it does.
fn refusal(session: &Session, access: Access, request: &Request) -> Option<String> {
    let (path, is_change) = (request.uri().path(), !request.method().is_safe());
    let is_below = |prefix: &&str| {
        path == *prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
    };
    let is_permitted = session.may_change() || session.may_approve() && is_verdict(path);
    if (is_change || FOR_OPERATORS.iter().any(is_below)) && !is_permitted {
        let (name, role, needed) = (session.label(), &session.person.role, Role::Operator.as_str());
        return Some(format!("{name} is logged in as {role}, and this needs the role {needed}"));
    }
    // The guard has compared these headers with this gateway's own origin.
    let headers = request.headers();
    let is_named = headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE);
    let is_unnamed = is_change && access == Access::Cookie && !is_named;
    is_unnamed.then(|| "a change with a cookie must name its Origin; a program sends a token".to_owned())
}

/// Whether an address approves or rejects a wave or an operation.
fn is_verdict(path: &str) -> bool {
    let parts: Vec<&str> = path.strip_prefix(PREFIX).unwrap_or(path).split('/').collect();
    matches!(
        parts[..],
        ["", "rollouts", _, "approve" | "reject"]
            | ["", "plans", _, "instances", _, "operations", _, "approve" | "reject"]
    )
}

fn refused(request: &Request, problem: Problem) -> Response {
    if is_api(request.uri().path()) { problem.into_response() } else { page::of_problem(problem) }
}

fn not_logged_in(request: &Request, refused: &Refused) -> Response {
    if is_api(request.uri().path()) {
        let mut response = Problem::new(StatusCode::UNAUTHORIZED, refused.to_string()).into_response();
        let challenge = HeaderValue::from_static("Bearer realm=\"muster\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        return response;
    }
    (StatusCode::SEE_OTHER, [(LOCATION, LOGIN)]).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Method;
    use muster_contract::OnBehalfOf;

    use super::super::session::Voucher;

    use super::*;

    fn refused(role: &str, access: Access, method: Method, path: &str, origin: bool) -> Option<String> {
        let person = OnBehalfOf::new("UANNA", "anna", role);
        let voucher = Voucher::Key("AKEY".to_owned());
        let session = Session { person, voucher, account: "APEOPLE".to_owned(), issued: 0, expires: 0 };
        let mut request = Request::builder().method(method).uri(path);
        if origin {
            request = request.header(ORIGIN, "http://localhost");
        }
        refusal(&session, access, &request.body(Body::empty()).unwrap())
    }

    #[test]
    fn only_an_operator_stops_a_rollout_or_reads_the_quarantine() {
        for role in ["viewer", "approver", "subscriber", "planner", "king"] {
            for path in ["/rollouts/web/pause", "/api/v1/rollouts/web/stop", "/quarantine/drop", "/nothing"] {
                let words = refused(role, Access::Cookie, Method::POST, path, true).unwrap();
                assert!(words.contains("needs the role operator") && words.contains(role), "{words}");
            }
            for path in [
                "/quarantine",
                "/api/v1/quarantine",
                "/api/v1/quarantine/7",
                "/api/v1/webhooks",
                "/api/v1/packages",
            ] {
                assert!(refused(role, Access::Token, Method::GET, path, false).is_some(), "{role} {path}");
            }
            for path in ["/", "/rollouts", "/api/v1/fleet", "/quarantined"] {
                assert_eq!(refused(role, Access::Cookie, Method::GET, path, false), None, "{role} {path}");
            }
        }
        assert_eq!(refused("operator", Access::Cookie, Method::POST, "/rollouts/web/pause", true), None);
        assert_eq!(refused("operator", Access::Token, Method::GET, "/api/v1/quarantine", false), None);
    }

    #[test]
    fn an_approver_approves_and_rejects_waves_and_operations_alone() {
        let post = |role: &str, path: &str| refused(role, Access::Cookie, Method::POST, path, true);
        for path in [
            "/rollouts/web/approve",
            "/api/v1/rollouts/web/reject",
            "/plans/web/instances/a/operations/b/approve",
            "/api/v1/plans/web/instances/a/operations/b/approve",
            "/api/v1/plans/web/instances/a/operations/b/reject",
        ] {
            assert_eq!(post("approver", path), None, "{path}");
            assert!(post("viewer", path).is_some(), "{path}");
        }
        for path in [
            "/rollouts/web/stop",
            "/rollouts/approve",
            "/rollouts/web/approve/",
            "/rollouts/web/stop/approve",
            "/quarantine/approve",
            "/api/v1/rollouts/web/next",
            "/plans/web/instances/a/operations/b/cancel",
            "/plans/web/deactivate",
            "/api/v1/plans/web/instances/a/operations/b/cancel",
            "/api/v1/nodes/plant7/press-4/disruptions/a/approve",
            "/api/v1/deployments",
        ] {
            assert!(
                post("approver", path).is_some_and(|words| words.contains("needs the role operator")),
                "{path}"
            );
        }
    }

    #[test]
    fn a_change_by_cookie_names_its_origin_and_one_by_token_needs_none() {
        let change =
            |access, origin| refused("operator", access, Method::POST, "/api/v1/rollouts/web/pause", origin);
        assert!(change(Access::Cookie, false).unwrap().contains("Origin"));
        assert_eq!(change(Access::Token, false), None);
    }

    #[test]
    fn nothing_but_the_login_is_open() {
        for path in [
            "/login",
            "/login/key",
            "/login/nonce",
            "/logout",
            "/callback",
            "/live",
            "/ready",
            "/assets/muster-1.css",
        ] {
            assert!(is_open(path), "{path}");
        }
        for path in
            ["/", "/api/v1/fleet", "/openapi.json", "/loginx", "/assets", "/api/v1/watch/fleet", "//login"]
        {
            assert!(!is_open(path), "{path}");
        }
    }

    #[test]
    fn a_secret_in_an_address_is_found_by_its_name() {
        let secret = |uri: &str| secret_in_address(&Request::builder().uri(uri).body(Body::empty()).unwrap());
        assert_eq!(secret("/api/v1/fleet?access_token=a"), Some("access_token"));
        assert_eq!(secret("/?at=2h&%54oken=a"), Some("token"));
        assert_eq!(secret("/?at=2h"), None);
    }
}
