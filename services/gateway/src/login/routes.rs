//! The routes of the login: the page with its nonce, the proof of `muster login`, the code that the page exchanges for a session,
//! tokens of programs, and the logout.
//!
//! A page's nonce is in a sealed cookie of the browser that shows it, and a code belongs to one nonce. So another browser cannot
//! use a code, and no gateway has to remember it. A program's nonce is sealed, short-lived and valid once.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use axum::routing::{get, post};
use data_encoding::BASE32_NOPAD;
use muster_contract::Timestamp;
use muster_identity::login::{LoginProof, LoginPurpose, ProvenPerson};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::seal::Purpose;
use super::session::{ATTEMPT_COOKIE, Cookie, SESSION_COOKIE, Session, cookie, set_cookie};
use super::{Login, page, seconds};
use crate::people::People;
use crate::people::api::body::fields;
use crate::people::api::handler_helpers::document;
use crate::people::api::params::{Kind, Param, Values, param};
use crate::problem::Problem;

/// The address of the login page.
pub(crate) const LOGIN: &str = "/login";
/// Bytes of a nonce.
const NONCE_BYTES: usize = 16;
/// Longest nonce of a proof, in bytes.
const NONCE_CHARS_MAX: usize = 512;
/// Time of a login page, in seconds.
const PAGE_SECONDS: i64 = 10 * 60;
/// Time that a login page must have left to be shown again with the same nonce.
const PAGE_LEFT_SECONDS: i64 = 2 * 60;
/// Time of a code or of a program's nonce, in seconds.
const CODE_SECONDS: i64 = 2 * 60;

/// Fields of a proof.
const PROOF: &[Param] = &[
    param("for", Kind::Text, "page: a code for the login page; token: a token for a program"),
    param("jwt", Kind::Text, "The person's JWT"),
    param("nonce", Kind::Text, "The nonce that the page shows, or that /login/nonce gave"),
    param("signature", Kind::Text, "The signature of the JWT's key, in base64url"),
];
/// Fields of the form of the page.
const FORM: &[Param] = &[param("code", Kind::Text, "The code that `muster login` printed")];

/// A login page in a browser.
#[derive(Debug, Serialize, Deserialize)]
struct PageAttempt {
    nonce: String,
    ends: i64,
}

/// A nonce of a program's login.
#[derive(Debug, Serialize, Deserialize)]
struct ProgramNonce {
    id: String,
    ends: i64,
}

/// The content of a code.
#[derive(Debug, Serialize, Deserialize)]
struct Code {
    session: Session,
    nonce: String,
    ends: i64,
}

/// The routes.
pub(crate) fn router() -> Router<People> {
    Router::new()
        .route(LOGIN, get(show).post(enter))
        .route("/login/nonce", get(nonce))
        .route("/login/key", post(prove))
        .route("/logout", post(leave))
}

/// The login of a gateway that has one.
pub(super) fn login_of(people: &People) -> Result<&Login, Problem> {
    let none = || Problem::new(StatusCode::NOT_FOUND, "this gateway has no login; --session-key adds one");
    people.login().map(AsRef::as_ref).ok_or_else(none)
}

pub(super) fn no_random() -> Problem {
    Problem::passing(
        StatusCode::SERVICE_UNAVAILABLE,
        "the operating system gives no random numbers; try again",
    )
}

async fn show(State(people): State<People>, headers: HeaderMap) -> Result<Response, Problem> {
    shown(&people, &headers, StatusCode::OK, None)
}

/// The login page, with the nonce of this browser.
pub(super) fn shown(
    people: &People,
    headers: &HeaderMap,
    status: StatusCode,
    refused: Option<&str>,
) -> Result<Response, Problem> {
    let (login, now) = (login_of(people)?, people.clock().now().as_second());
    let held = login.attempt(headers).filter(|attempt| attempt.ends - now > PAGE_LEFT_SECONDS);
    let attempt = match held {
        Some(attempt) => attempt,
        None => {
            let bytes = login.sealer.random_bytes::<NONCE_BYTES>().ok_or_else(no_random)?;
            PageAttempt { nonce: BASE32_NOPAD.encode(&bytes).to_lowercase(), ends: now + PAGE_SECONDS }
        }
    };
    let sealed = login.sealer.seal(Purpose::Attempt, &attempt).ok_or_else(no_random)?;
    let cookie = set_cookie(ATTEMPT_COOKIE, &sealed, attempt.ends - now, true);
    let (scheme, host) = people.login_address(headers)?;
    let page = page::login(scheme, &host, &attempt.nonce, login.oidc.is_some(), refused);
    let html = [(CONTENT_TYPE, "text/html; charset=utf-8")];
    Ok((status, AppendHeaders([(SET_COOKIE, cookie)]), html, page.into_string()).into_response())
}

/// The nonce for a program.
async fn nonce(State(people): State<People>) -> Result<Response, Problem> {
    let (login, now) = (login_of(&people)?, people.clock().now().as_second());
    let bytes = login.sealer.random_bytes::<NONCE_BYTES>().ok_or_else(no_random)?;
    let nonce = ProgramNonce { id: BASE32_NOPAD.encode(&bytes), ends: now + CODE_SECONDS };
    let sealed = login.sealer.seal(Purpose::Nonce, &nonce).ok_or_else(no_random)?;
    Ok(document(StatusCode::OK, &json!({ "nonce": sealed, "expiresAt": moment(nonce.ends) })))
}

/// Answers a proof of a key with a code for the page, or a token.
async fn prove(State(people): State<People>, request: Request<Body>) -> Result<Response, Problem> {
    let (login, now) = (login_of(&people)?, people.clock().now());
    let (_, host) = people.login_address(request.headers())?;
    let proof = proof(&fields(request, PROOF).await?)?;
    let granted = login.granted(&host, &proof, now);
    if let Err(problem) = &granted {
        tracing::info!(status = problem.status, cause = problem.detail, "refused a login");
    }
    Ok(document(StatusCode::OK, &granted?))
}

fn proof(values: &Values) -> Result<LoginProof, Problem> {
    let field = |name: &'static str| {
        let text = values.get(name).map(str::to_owned);
        text.ok_or_else(|| Problem::field(name, "is missing"))
    };
    let purpose = match field("for")?.as_str() {
        "page" => LoginPurpose::Page,
        "token" => LoginPurpose::Token,
        _ => return Err(Problem::field("for", "must be page or token")),
    };
    let nonce = field("nonce")?;
    if nonce.len() > NONCE_CHARS_MAX {
        return Err(Problem::field(
            "nonce",
            "is too long: send the nonce that the page shows, or that /login/nonce gave",
        ));
    }
    Ok(LoginProof { purpose, jwt: field("jwt")?, nonce, signature: field("signature")? })
}

/// Exchanges the code of the form for a session of the browser.
async fn enter(State(people): State<People>, request: Request<Body>) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let values = fields(request, FORM).await?;
    let now = people.clock().now();
    let entered = login_of(&people)?.entered(&headers, values.get("code").unwrap_or_default().trim(), now);
    match entered {
        Ok((session, cookie)) => {
            tracing::info!(person = session.label(), role = session.person.role, "a person has logged in");
            let cookies = [(SET_COOKIE, cookie), (SET_COOKIE, set_cookie(ATTEMPT_COOKIE, "", 0, true))];
            Ok((StatusCode::SEE_OTHER, AppendHeaders(cookies), [(LOCATION, "/")]).into_response())
        }
        Err(why) => {
            tracing::info!(cause = why, "refused a login");
            shown(&people, &headers, StatusCode::FORBIDDEN, Some(&why))
        }
    }
}

/// Ends the session in the browser.
async fn leave(State(people): State<People>) -> Result<Response, Problem> {
    login_of(&people)?;
    let cookie = set_cookie(SESSION_COOKIE, "", 0, false);
    Ok((StatusCode::SEE_OTHER, AppendHeaders([(SET_COOKIE, cookie)]), [(LOCATION, LOGIN)]).into_response())
}

impl Login {
    /// The login page that a browser shows, if its cookie is there.
    fn attempt(&self, headers: &HeaderMap) -> Option<PageAttempt> {
        match cookie(headers, ATTEMPT_COOKIE) {
            Cookie::One(text) => self.sealer.open(Purpose::Attempt, text),
            Cookie::None | Cookie::Several => None,
        }
    }

    /// The code or token that a proof earns.
    fn granted(&self, host: &str, proof: &LoginProof, now: Timestamp) -> Result<Value, Problem> {
        let forbidden = |why: String| Problem::new(StatusCode::FORBIDDEN, why);
        let proven = proof.verify(host, &self.account.known(now), seconds(now));
        let proven = proven.map_err(|error| forbidden(error.to_string()))?;
        let session = self.session_of(&proven, now);
        match proof.purpose {
            LoginPurpose::Page => self.code(session, &proof.nonce, now),
            LoginPurpose::Token => {
                // After the proof, so that only a person of the hub can use a nonce up.
                let nonce = self.sealer.open::<ProgramNonce>(Purpose::Nonce, &proof.nonce);
                let is_good =
                    nonce.is_some_and(|nonce| self.nonces.use_up(&nonce.id, nonce.ends, now.as_second()));
                if !is_good {
                    return Err(forbidden(
                        "the nonce is none of this gateway, has expired, or was used: log in again"
                            .to_owned(),
                    ));
                }
                self.token(&session, &proven)
            }
        }
    }

    fn code(&self, session: Session, nonce: &str, now: Timestamp) -> Result<Value, Problem> {
        let ends = now.as_second() + CODE_SECONDS;
        let (name, role) = (session.label().to_owned(), session.person.role.clone());
        let code = Code { session, nonce: nonce.to_owned(), ends };
        let code = self.sealer.seal(Purpose::Code, &code).ok_or_else(no_random)?;
        Ok(json!({ "for": "page", "code": code, "name": name, "role": role, "expiresAt": moment(ends) }))
    }

    fn token(&self, session: &Session, proven: &ProvenPerson) -> Result<Value, Problem> {
        let token = self.sealer.seal(Purpose::Token, session).ok_or_else(no_random)?;
        tracing::info!(person = session.label(), role = proven.person.role, "a program has logged in");
        let (name, role, ends) = (session.label(), &session.person.role, moment(session.expires));
        Ok(json!({ "for": "token", "token": token, "name": name, "role": role, "expiresAt": ends }))
    }

    /// The session of a code with its cookie, or the reason why there is none.
    fn entered(&self, headers: &HeaderMap, code: &str, now: Timestamp) -> Result<(Session, String), String> {
        let again = "run the command of this page again";
        let code: Code = self
            .sealer
            .open(Purpose::Code, code)
            .ok_or_else(|| format!("this is no code of this gateway: {again}"))?;
        let attempt = self.attempt(headers).filter(|attempt| now.as_second() < attempt.ends);
        if now.as_second() >= code.ends || attempt.is_none_or(|attempt| attempt.nonce != code.nonce) {
            return Err(format!("the code belongs to another page, or is too old: {again}"));
        }
        self.check(&code.session, now).map_err(|refused| refused.to_string())?;
        let sealed = self.sealer.seal(Purpose::Session, &code.session);
        let sealed = sealed.ok_or_else(|| no_random().detail)?;
        let cookie = set_cookie(SESSION_COOKIE, &sealed, code.session.expires - now.as_second(), false);
        Ok((code.session, cookie))
    }
}

/// Unix seconds as a time.
fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

const _: () = assert!(PAGE_LEFT_SECONDS < PAGE_SECONDS && CODE_SECONDS <= PAGE_SECONDS);
