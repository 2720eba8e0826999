//! Each change of the OpenAPI document refuses a viewer, a page that is not of the gateway, and bodies that cannot be understood,
//! before it asks a service. No service runs here, so whatever is sent to one is answered with 503.

use std::net::SocketAddr;

use muster_identity::Role;
use serde_json::Value;

use super::client::{Answer, send};
use super::login::{Browser, LoginStage, ask};

/// More than a body may have.
const LONG: usize = 1024 * 1024 + 1;

/// A change of the document, with names in its address.
struct Change {
    method: String,
    path: String,
}

impl Change {
    async fn with(&self, addr: SocketAddr, headers: &str, media: &str, body: &str) -> Answer {
        let Self { method, path } = self;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {addr}\r\n{headers}Connection: close\r\n\
             Content-Type: {media}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        send(addr, &request).await.unwrap()
    }
}

/// All changes.
async fn changes(addr: SocketAddr, token: &str) -> Vec<Change> {
    let document = ask(addr, "GET", "/openapi.json", token).await.json();
    let mut changes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let names = [("{site}", "plant7"), ("{device}", "press-4"), ("{seq}", "1")];
        let path = names.iter().fold(path.clone(), |path, (name, value)| path.replace(name, value));
        let path = path.split('/').map(|part| if part.starts_with('{') { "web" } else { part });
        let path = path.collect::<Vec<_>>().join("/");
        let methods = item.as_object().unwrap().keys().filter(|method| *method != "get");
        changes.extend(methods.map(|method| Change { method: method.to_uppercase(), path: path.clone() }));
    }
    changes
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_passes_from_a_viewer_another_page_or_with_a_wrong_body() {
    let stage = LoginStage::start().await;
    let addr = stage.addr;
    let operator = stage.token(&stage.hub.creds(Role::Operator)).unwrap();
    let viewer = stage.token(&stage.hub.creds(Role::Viewer)).unwrap();
    let (operator, viewer) =
        (format!("Authorization: Bearer {operator}\r\n"), format!("Authorization: Bearer {viewer}\r\n"));
    let browser: Browser = stage.browser(Role::Operator).await;
    let cookie: String =
        browser.cookies.iter().map(|(name, value)| format!("Cookie: {name}={value}\r\n")).collect();
    let long = format!("{{\"nosuchfield\":\"{}\"}}", "a".repeat(LONG));
    let token = operator.trim_start_matches("Authorization: Bearer ").trim();
    let changes = changes(addr, token).await;
    assert!(changes.len() > 50, "{}", changes.len());
    for change in changes {
        let what = format!("{} {}", change.method, change.path);
        // It takes any content, and this gateway may store none: [`super::packages`].
        let is_package = what == "PUT /api/v1/packages/web";
        for (headers, media, body, status) in [
            (&viewer, "application/json", "{}", 403),
            (&cookie, "application/json", "{}", 403),
            (&operator, "text/plain", "{}", 415),
            (&operator, "application/json", "[]", 400),
            (&operator, "application/json", "{\"nosuchfield\":1}", 400),
            (&operator, "application/json", long.as_str(), 413),
        ] {
            let answer = change.with(addr, headers, media, body).await;
            let status = if is_package && status != 403 { 409 } else { status };
            assert_eq!(answer.status, status, "{what}: {answer:?}");
            assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
            if status == 400 && body.contains("nosuchfield") {
                assert_eq!(answer.json()["errors"][0]["field"], "nosuchfield", "{what}: {answer:?}");
            }
        }
    }
    for (method, path) in
        [("DELETE", "/plans/web"), ("POST", "/devices/plant7/press-4/retire"), ("DELETE", "/views/rings")]
    {
        let change = Change { method: method.to_owned(), path: format!("/api/v1{path}") };
        let answer = change.with(addr, &operator, "application/json", "").await;
        let detail: Value = answer.json()["detail"].clone();
        assert!(answer.status == 503 && detail.to_string().contains("is it running"), "{path}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_is_refused_every_change_but_approve_and_reject() {
    let stage = LoginStage::start().await;
    let token = stage.token(&stage.hub.creds(Role::Approver)).unwrap();
    let headers = format!("Authorization: Bearer {token}\r\n");
    let mut permitted = Vec::new();
    for change in changes(stage.addr, &token).await {
        let answer = change.with(stage.addr, &headers, "application/json", "{}").await;
        if answer.status != 403 {
            permitted.push(format!("{} {}", change.method, change.path));
        }
    }
    permitted.sort_unstable();
    assert_eq!(
        permitted,
        [
            "POST /api/v1/plans/web/instances/web/operations/web/approve",
            "POST /api/v1/plans/web/instances/web/operations/web/reject",
            "POST /api/v1/rollouts/web/approve",
            "POST /api/v1/rollouts/web/reject",
        ]
    );
}
