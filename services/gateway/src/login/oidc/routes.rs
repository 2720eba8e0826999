//! The routes of a login by a provider: the redirect there, and the callback.
//!
//! Between the two only the browser keeps state: a sealed cookie with state, nonce and verifier.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{LOCATION, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use axum::routing::get;
use data_encoding::BASE64URL_NOPAD;
use muster_contract::Timestamp;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::Oidc;
use super::provider::ProviderError;
use crate::login::Login;
use crate::login::routes::{login_of, no_random, shown};
use crate::login::seal::{Purpose, Sealer};
use crate::login::session::{Cookie, OIDC_COOKIE, SESSION_COOKIE, Session, Voucher, cookie, set_cookie};
use crate::people::People;
use crate::problem::{Problem, RETRY_AFTER_SECONDS};

/// The address to which the provider sends a browser back.
pub(crate) const CALLBACK: &str = "/callback";
/// Time to log in at the provider, in seconds.
const ATTEMPT_SECONDS: i64 = 10 * 60;
/// Random bytes of state and nonce.
const STATE_BYTES: usize = 16;
/// Random bytes of the verifier.
const VERIFIER_BYTES: usize = 32;

/// A login under way in a browser.
#[derive(Debug, Serialize, Deserialize)]
struct OidcAttempt {
    state: String,
    nonce: String,
    verifier: String,
    ends: i64,
}

/// The routes.
pub(crate) fn router() -> Router<People> {
    Router::new().route("/login/oidc", get(leave)).route(CALLBACK, get(come_back))
}

fn random_text<const N: usize>(sealer: &Sealer) -> Result<String, Problem> {
    let bytes = sealer.random_bytes::<N>().ok_or_else(no_random)?;
    Ok(BASE64URL_NOPAD.encode(&bytes))
}

fn redirect_uri(people: &People, headers: &HeaderMap) -> Result<String, Problem> {
    let (scheme, host) = people.login_address(headers)?;
    Ok(format!("{scheme}://{host}{CALLBACK}"))
}

/// Sends the browser to the provider.
async fn leave(State(people): State<People>, headers: HeaderMap) -> Result<Response, Problem> {
    let (login, oidc) = with_oidc(&people)?;
    let (now, redirect_uri) = (people.clock().now(), redirect_uri(&people, &headers)?);
    let authorize = match oidc.asked(move |provider| provider.authorize(now)).await {
        Ok(authorize) => authorize,
        Err(error) => return failed(&people, &headers, &error),
    };
    let attempt = OidcAttempt {
        state: random_text::<STATE_BYTES>(&login.sealer)?,
        nonce: random_text::<STATE_BYTES>(&login.sealer)?,
        verifier: random_text::<VERIFIER_BYTES>(&login.sealer)?,
        ends: now.as_second() + ATTEMPT_SECONDS,
    };
    let challenge = BASE64URL_NOPAD.encode(digest(&SHA256, attempt.verifier.as_bytes()).as_ref());
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("response_type", "code")
        .append_pair("client_id", &oidc.client_id)
        .append_pair("redirect_uri", &redirect_uri)
        .append_pair("scope", "openid profile email")
        .append_pair("state", &attempt.state)
        .append_pair("nonce", &attempt.nonce)
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256")
        .finish();
    let sealed = login.sealer.seal(Purpose::Oidc, &attempt).ok_or_else(no_random)?;
    // Not strict: the browser comes back from the provider by a link.
    let cookie = set_cookie(OIDC_COOKIE, &sealed, ATTEMPT_SECONDS, false);
    let sign = if authorize.contains('?') { '&' } else { '?' };
    let address = [(LOCATION, format!("{authorize}{sign}{query}"))];
    Ok((StatusCode::SEE_OTHER, AppendHeaders([(SET_COOKIE, cookie)]), address).into_response())
}

fn with_oidc(people: &People) -> Result<(&Login, &Oidc), Problem> {
    let login = login_of(people)?;
    let none = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "this gateway has no provider: log in with a key, or set --oidc-issuer",
        )
    };
    Ok((login, login.oidc.as_ref().ok_or_else(none)?))
}

/// Logs the browser in that the provider has sent back.
async fn come_back(
    State(people): State<People>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let (login, oidc) = with_oidc(&people)?;
    let now = people.clock().now();
    let (code, verifier, nonce) = match answered(&login.sealer, &headers, query.as_deref(), now) {
        Ok(answer) => answer,
        Err(why) => return refused(&people, &headers, why),
    };
    let redirect_uri = redirect_uri(&people, &headers)?;
    let asked = oidc.asked(move |provider| provider.claims(&code, &verifier, &redirect_uri, &nonce, now));
    let claims = match asked.await {
        Ok(claims) => claims,
        Err(error) => return failed(&people, &headers, &error),
    };
    let session = Session {
        person: oidc.person(&claims),
        voucher: Voucher::Provider(claims.iss.clone()),
        account: login.account.known(now).key.clone(),
        // The provider's clock may be ahead, and a revocation must cover every session that began before it.
        issued: u64::try_from(claims.iat.min(now.as_second())).unwrap_or(0),
        expires: login.end_of(now),
    };
    if let Err(why) = login.check(&session, now) {
        return refused(&people, &headers, &why.to_string());
    }
    tracing::info!(person = session.label(), role = session.person.role, "a person has logged in");
    let sealed = login.sealer.seal(Purpose::Session, &session).ok_or_else(no_random)?;
    let own = set_cookie(SESSION_COOKIE, &sealed, session.expires - now.as_second(), false);
    let cookies = [(SET_COOKIE, own), (SET_COOKIE, set_cookie(OIDC_COOKIE, "", 0, false))];
    Ok((StatusCode::SEE_OTHER, AppendHeaders(cookies), [(LOCATION, "/")]).into_response())
}

/// Code, verifier and nonce of a callback, if it belongs to the login under way in this browser.
fn answered(
    sealer: &Sealer,
    headers: &HeaderMap,
    query: Option<&str>,
    now: Timestamp,
) -> Result<(String, String, String), &'static str> {
    let Cookie::One(sealed) = cookie(headers, OIDC_COOKIE) else {
        return Err("no login is under way in this browser: begin again");
    };
    let attempt = sealer.open::<OidcAttempt>(Purpose::Oidc, sealed);
    let attempt = attempt.filter(|attempt| now.as_second() < attempt.ends);
    let attempt = attempt.ok_or("the login took too long: begin again")?;
    let pairs: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect();
    let one = |wanted: &str| {
        let mut found = pairs.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_ref());
        found.next().filter(|_| found.next().is_none())
    };
    if one("state") != Some(attempt.state.as_str()) {
        return Err("the answer belongs to another login: begin again");
    }
    let code =
        one("code").ok_or("the provider has refused the login: begin again, or ask its administrator")?;
    Ok((code.to_owned(), attempt.verifier, attempt.nonce))
}

fn refused(people: &People, headers: &HeaderMap, why: &str) -> Result<Response, Problem> {
    tracing::info!(cause = why, "refused a login");
    shown(people, headers, StatusCode::FORBIDDEN, Some(why))
}

fn failed(people: &People, headers: &HeaderMap, error: &ProviderError) -> Result<Response, Problem> {
    tracing::warn!(error = muster_service::error::chain(error), "cannot log in by the provider");
    let (status, why) = match error {
        ProviderError::Token(why) => {
            (StatusCode::FORBIDDEN, format!("the provider's answer is refused: {why}"))
        }
        _ => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the provider gave an invalid answer; try again, and read the gateway's log if it repeats"
                .to_owned(),
        ),
    };
    let mut response = shown(people, headers, status, Some(&why))?;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS.into());
    }
    Ok(response)
}
