//! People log in by an OpenID Connect provider: a role from its claim, and no session by an answer that is not its own.

use std::net::SocketAddr;

use muster_tests::oidc::{CLIENT, Provider, SECRET};
use serde_json::{Value, json};

use super::client::{Answer, send};
use super::login::{Browser, KEY, LoginStage, SESSION};

/// The claim with the role.
const ROLE: &str = "fleet_role";

/// A gateway that knows a provider.
async fn started(provider: &Provider) -> (LoginStage, SocketAddr) {
    let mut stage = LoginStage::start().await;
    let file = stage.hub.dir().join("client.secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let (issuer, file) = (provider.issuer(), file.display().to_string());
    let more = [
        "--oidc-issuer",
        &issuer,
        "--oidc-client-id",
        CLIENT,
        "--oidc-secret-file",
        &file,
        "--role-claim",
        ROLE,
    ];
    let addr = stage.start_gateway_with(KEY, &more).await;
    (stage, addr)
}

/// Follows the redirect to the provider; returns the path of the redirect back.
async fn at_provider(browser: &mut Browser, addr: SocketAddr) -> String {
    let away = browser.get(addr, "/login/oidc").await;
    assert_eq!(away.status, 303, "{away:?}");
    let location = away.header("location").unwrap();
    let (host, path) = location.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let back = send(host.parse().unwrap(), &request).await.unwrap();
    assert_eq!(back.status, 302, "{back:?}");
    back.header("location").unwrap().strip_prefix(&format!("http://{addr}")).unwrap().to_owned()
}

async fn logged_in(addr: SocketAddr) -> (Browser, Answer) {
    let mut browser = Browser::default();
    let back = at_provider(&mut browser, addr).await;
    let answer = browser.get(addr, &back).await;
    (browser, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_logs_people_in_with_the_claimed_role_or_as_viewers() {
    let provider = Provider::start();
    let (stage, addr) = started(&provider).await;
    assert!(Browser::default().get(addr, "/login").await.body.contains("/login/oidc"));
    for (claims, role) in [
        (json!({}), "viewer"),
        (json!({ ROLE: "operator" }), "operator"),
        (json!({ ROLE: ["staff", "subscriber"] }), "subscriber"),
        (json!({ ROLE: ["viewer", "approver"] }), "approver"),
        (json!({ ROLE: "gateway" }), "viewer"),
        (json!({ "role": "operator" }), "viewer"),
    ] {
        provider.set_claims(claims.clone());
        let (mut browser, answer) = logged_in(addr).await;
        assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
        let page = browser.get(addr, "/rollouts").await;
        assert!(
            page.body.contains("bea (oidc:") && page.body.contains(&format!("), {role}")),
            "{claims}: {page:?}"
        );
        let change = browser.post(addr, "/api/v1/rollouts/web/pause", "").await;
        assert_eq!(change.status != 403, role == "operator", "{claims}: {change:?}");
    }
    assert_eq!(provider.refused(), 0, "PKCE, secret and redirect address are right");
    let logs = stage.logs();
    assert!(logs.contains("bea (oidc:"), "{logs}");
    assert!(!logs.contains(SECRET) && !logs.contains("code="), "a secret is in a log:\n{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_another_login_client_time_key_or_provider_opens_a_session() {
    let provider = Provider::start();
    let (_stage, addr) = started(&provider).await;
    let nobody = |browser: &Browser, answer: &Answer, what: &str| {
        assert!(matches!(answer.status, 403 | 503) && browser.value(SESSION).is_none(), "{what}: {answer:?}");
    };
    for claims in [
        json!({ "iss": "http://evil.example" }),
        json!({ "aud": "other" }),
        json!({ "exp": 1 }),
        json!({ "nonce": "other" }),
        json!({ "nonce": Value::Null }),
    ] {
        provider.set_claims(claims.clone());
        let (browser, answer) = logged_in(addr).await;
        nobody(&browser, &answer, &claims.to_string());
    }
    provider.set_claims(json!({}));
    let (mut one, mut other) = (Browser::default(), Browser::default());
    let (back, others) = (at_provider(&mut one, addr).await, at_provider(&mut other, addr).await);
    for (mut browser, back) in [
        (Browser::default(), back.as_str()),
        (other.clone(), &back),
        (one.clone(), &others),
        (one.clone(), "/callback"),
        (one.clone(), "/callback?error=access_denied"),
        (one.clone(), &format!("{back}&state=a")),
    ] {
        let answer = browser.get(addr, back).await;
        nobody(&browser, &answer, back);
    }
    let mut copy = one.clone();
    assert_eq!(one.get(addr, &back).await.status, 303);
    let again = copy.get(addr, &back).await;
    nobody(&copy, &again, "a code counts once at the provider");
    provider.set_published(false);
    let (browser, answer) = logged_in(addr).await;
    nobody(&browser, &answer, "a key that the provider does not publish");
}
