//! Attempts to get in without a login, or to exceed a role: forged, foreign, expired, revoked and replayed proofs;
//! altered and exchanged cookies and tokens; changes from other sites; names with header lines.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_identity::claims::{self, User};
use muster_identity::login::{LoginProof, LoginPurpose};
use muster_identity::{KeyPair, Role, creds, jwt};
use muster_tests::system::program;
use muster_tests::wait::until;
use serde_json::{Value, json};

use super::client::{Answer, get, send};
use super::events::Events;
use super::login::{Browser, KEY, LoginStage, SESSION, ask};

/// The content of another key file for sessions.
const OTHER_KEY: &str = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// The JWT and the key of a credentials file.
fn credentials(file: &Path) -> (String, KeyPair) {
    let text = std::fs::read_to_string(file).unwrap();
    let key = KeyPair::from_seed(creds::seed(&text).unwrap()).unwrap();
    (creds::token(&text).unwrap().to_owned(), key)
}

async fn nonce(addr: SocketAddr) -> String {
    get(addr, "/login/nonce").await.unwrap().json()["nonce"].as_str().unwrap().to_owned()
}

async fn prove(addr: SocketAddr, proof: &LoginProof) -> Answer {
    send(addr, &posted(addr, &serde_json::to_value(proof).unwrap())).await.unwrap()
}

/// A token for this JWT and key.
async fn token_for(addr: SocketAddr, jwt: &str, key: &KeyPair) -> Answer {
    let proof = LoginProof::sign(key, jwt, &addr.to_string(), LoginPurpose::Token, &nonce(addr).await);
    prove(addr, &proof.unwrap()).await
}

/// A JWT of a name, signed by the hub's signing key of a role, with tags that claim another one.
fn named(stage: &LoginStage, role: Role, name: &str) -> (String, KeyPair) {
    let seed =
        std::fs::read_to_string(stage.hub.auth().join(format!("signers/{}.seed", role.as_str()))).unwrap();
    let signer = KeyPair::from_seed(seed.trim()).unwrap();
    let (own, _) = credentials(&stage.hub.creds(role));
    let account = jwt::read(&own).unwrap().nats.issuer_account;
    let key = KeyPair::new_user();
    let user = User { account: &account, key: &key.public_key(), issued: 1, expires: None };
    let token = claims::service(&signer, &user, Role::Operator, name, &BTreeMap::new()).unwrap();
    (token, key)
}

/// Credentials of another hub.
fn of_another_hub(stage: &LoginStage) -> PathBuf {
    let dir = stage.hub.dir().join("another");
    let made = Command::new(program("muster")).args(["auth", "init", "--dir"]).arg(&dir).output().unwrap();
    assert!(made.status.success());
    dir.join("creds/operator.creds")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_forged_foreign_expired_revoked_or_replayed_proof_opens_a_session() {
    let stage = LoginStage::start().await;
    let addr = stage.addr;
    let refused = |answer: &Answer, why: &str| {
        assert!(answer.status == 403 && answer.body.contains(why), "{why}: {answer:?}");
    };
    let (jwt, key) = credentials(&stage.hub.creds(Role::Operator));
    let good =
        LoginProof::sign(&key, &jwt, &addr.to_string(), LoginPurpose::Token, &nonce(addr).await).unwrap();
    let other_key =
        LoginProof::sign(&KeyPair::new_user(), &jwt, &addr.to_string(), good.purpose, &good.nonce);
    refused(&prove(addr, &other_key.unwrap()).await, "signature");
    for (host, purpose) in
        [("fleet.example.com", LoginPurpose::Token), (&*addr.to_string(), LoginPurpose::Page)]
    {
        let elsewhere = LoginProof::sign(&key, &jwt, host, purpose, &good.nonce).unwrap();
        refused(&prove(addr, &LoginProof { purpose: LoginPurpose::Token, ..elsewhere }).await, "signature");
    }
    assert_eq!(prove(addr, &good).await.status, 200);
    refused(&prove(addr, &good).await, "was used");
    let own_nonce = LoginProof::sign(&key, &jwt, &addr.to_string(), LoginPurpose::Token, "AAAA").unwrap();
    refused(&prove(addr, &own_nonce).await, "none of this gateway");

    let (foreign, foreign_key) = credentials(&of_another_hub(&stage));
    refused(&token_for(addr, &foreign, &foreign_key).await, "account PEOPLE");
    let account = jwt::read(&jwt).unwrap().nats.issuer_account;
    let user = User { account: &account, key: &key.public_key(), issued: 1, expires: None };
    let forged =
        claims::service(&KeyPair::new_account(), &user, Role::Operator, "eve", &BTreeMap::new()).unwrap();
    refused(&token_for(addr, &forged, &key).await, "no key of a role");
    let altered = format!("{}A{}", &jwt[..50], &jwt[51..]);
    refused(&token_for(addr, &altered, &key).await, "JWT is refused");
    for role in [Role::Planner, Role::Gateway] {
        let (jwt, key) = credentials(&stage.hub.creds(role));
        refused(&token_for(addr, &jwt, &key).await, "does not log in");
    }

    let short = stage.creds(Role::Viewer, "short", "1s");
    let expired = async || stage.token(&short).err().unwrap_or_default();
    until("the JWT has expired", expired, |words| words.contains("expired")).await;
    let anna = stage.creds(Role::Operator, "anna", "1h");
    let token = stage.token(&anna).unwrap();
    assert_ne!(ask(addr, "GET", "/api/v1/fleet", &token).await.status, 401);
    let (_, key) = credentials(&anna);
    let header = format!("Authorization: Bearer {token}\r\nConnection: close\r\n");
    let mut events = Events::open_with(addr, "/api/v1/watch/fleet", &header).await;
    events.next().await;
    stage.hub.decide(&["revoke", "--key", &key.public_key()]);
    let known = async || ask(addr, "GET", "/api/v1/fleet", &token).await;
    let out = until("the session of a revoked person ends", known, |answer| answer.status == 401).await;
    assert!(out.body.contains("revoked"), "{out:?}");
    assert!(stage.token(&anna).unwrap_err().contains("revoked"));
    events.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_a_proof_counts_under_the_public_host_alone() {
    let mut stage = LoginStage::start().await;
    let addr = stage.start_gateway_with(KEY, &["--public-url", "https://fleet.example.com"]).await;
    let named = async |host: &str, request: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        send(addr, &head).await.unwrap()
    };
    let (jwt, key) = credentials(&stage.hub.creds(Role::Operator));
    for (host, status) in [
        ("localhost:8080", 421),
        ("[::1]:8080", 421),
        ("[::1]evil", 421),
        ("localhost:x@evil", 421),
        ("fleet.example.com", 200),
    ] {
        let nonce = named(host, "GET /login/nonce", "").await;
        let nonce = if nonce.status == 200 {
            nonce.json()["nonce"].as_str().unwrap().to_owned()
        } else {
            String::new()
        };
        let proof = LoginProof::sign(&key, &jwt, host, LoginPurpose::Token, &nonce).unwrap();
        let answer = named(host, "POST /login/key", &serde_json::to_string(&proof).unwrap()).await;
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
    let page = named("fleet.example.com", "GET /login", "").await;
    assert!(page.body.contains("muster login https://fleet.example.com --nonce "), "{page:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_exchanged_or_foreign_cookie_or_token_opens_nothing() {
    let mut stage = LoginStage::start().await;
    let addr = stage.addr;
    let (browser, token) =
        (stage.browser(Role::Operator).await, stage.token(&stage.hub.creds(Role::Operator)).unwrap());
    let cookie = browser.value(SESSION).unwrap().to_owned();
    let with_cookie = async |addr, value: &str| {
        let cookies = vec![(SESSION.to_owned(), value.to_owned())];
        Browser { cookies }.get(addr, "/api/v1/fleet").await.status
    };
    assert_ne!(with_cookie(addr, &cookie).await, 401);
    assert_ne!(ask(addr, "GET", "/api/v1/fleet", &token).await.status, 401);
    for at in [0, 20, cookie.len() / 2, cookie.len() - 1] {
        let mut bytes = cookie.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert_eq!(with_cookie(addr, &String::from_utf8(bytes).unwrap()).await, 401, "byte {at}");
    }
    assert_eq!(with_cookie(addr, &token).await, 401, "a token is no cookie");
    assert_eq!(ask(addr, "GET", "/api/v1/fleet", &cookie).await.status, 401, "a cookie is no token");
    let twice = format!("{cookie}; {SESSION}={cookie}");
    assert_eq!(with_cookie(addr, &twice).await, 401, "two cookies are none");
    let both = format!(
        "GET /api/v1/fleet HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Basic YTpi\r\nCookie: {SESSION}={cookie}\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(send(addr, &both).await.unwrap().status, 401, "a refused header is not passed over");
    for name in ["access_token", "token", "jwt"] {
        let answer = ask(addr, "GET", &format!("/api/v1/fleet?{name}={token}"), &token).await;
        assert!(answer.status == 400 && !answer.body.contains(&token), "{answer:?}");
    }
    let (twin, stranger) = (stage.start_gateway(KEY).await, stage.start_gateway(OTHER_KEY).await);
    assert_ne!(with_cookie(twin, &cookie).await, 401, "any gateway with the same key");
    assert_eq!(with_cookie(stranger, &cookie).await, 401, "none with another key");
    assert_eq!(ask(stranger, "GET", "/api/v1/fleet", &token).await.status, 401);

    // A code is of the browser whose page showed the nonce.
    let nonce = Browser::default().login_page(addr).await;
    let done = stage.login(&stage.hub.creds(Role::Operator), &["--nonce", &nonce]);
    let form = format!("code={}", String::from_utf8(done.stdout).unwrap().trim());
    let mut other = Browser::default();
    other.login_page(addr).await;
    for mut thief in [other, Browser::default()] {
        let refused = thief.post(addr, "/login", &form).await;
        assert!(refused.status == 403 && thief.value(SESSION).is_none(), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_site_changes_nothing_and_no_name_becomes_a_header_or_a_role() {
    let stage = LoginStage::start().await;
    let addr = stage.addr;
    let mut browser = stage.browser(Role::Operator).await;
    let own = format!("Origin: http://{addr}\r\n");
    for headers in [
        "",
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        &format!("{own}Sec-Fetch-Site: same-site\r\n"),
    ] {
        for path in ["/rollouts/web/pause", "/api/v1/rollouts/web/stop"] {
            let refused = browser.post_with(addr, path, headers, "").await;
            assert_eq!(refused.status, 403, "{path} {headers}: {refused:?}");
        }
    }
    for path in ["/login", "/logout"] {
        let refused = browser.post_with(addr, path, "Origin: http://evil.example\r\n", "code=a").await;
        assert!(refused.status == 403 && refused.header("set-cookie").is_none(), "{path}: {refused:?}");
    }
    assert_ne!(browser.post(addr, "/api/v1/rollouts/web/pause", "").await.status, 403);

    // Tags claim the role operator, and the name a header, a script and an escape sequence.
    let name = "eve\r\nSet-Cookie: a=b\u{1b}[2J<script>alert(1)</script>";
    let (jwt, key) = named(&stage, Role::Viewer, name);
    let answer = token_for(addr, &jwt, &key).await;
    assert_eq!((answer.status, answer.json()["role"].as_str()), (200, Some("viewer")), "{answer:?}");
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    for (method, path) in
        [("GET", "/"), ("POST", "/api/v1/rollouts/web/pause"), ("POST", "/rollouts/web/pause")]
    {
        let shown = ask(addr, method, path, &token).await;
        assert!(shown.header("set-cookie").is_none() && !shown.body.contains('\u{1b}'), "{shown:?}");
        let is_page = shown.header("content-type").is_some_and(|media| media.starts_with("text/html"));
        assert!(!is_page || !shown.body.contains("<script>alert"), "{shown:?}");
        assert_eq!(shown.status == 403, method == "POST", "a role follows from the signing key: {shown:?}");
    }
    let body = json!({ "for": "token", "jwt": "a".repeat(100_000), "nonce": "a", "signature": "a" });
    let large = send(addr, &posted(addr, &body)).await.unwrap();
    assert_eq!(large.status, 413, "{large:?}");
}

fn posted(addr: SocketAddr, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /login/key HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
