//! A real Chromium before the gateway: the page follows the fleet, breaks no rule of its policy, fits 320 pixels, and greys
//! itself when the hub dies. Screenshots are kept beside the test report. Without Chromium the test is named as not run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use muster_tests::not_run::not_run;
use muster_tests::server::free_port;
use muster_tests::story;
use muster_tests::system::{System, agent_name};
use serde_json::{Value, json};

use super::client::send_one;
use super::served;

/// Errors of the document or the policy that a console may not have. A lost connection is none of them.
const DEFECTS: [&str; 4] = ["Content Security Policy", "Uncaught", "SyntaxError", "404"];

/// A browser that a driver steers.
struct Browser {
    driver: Child,
    addr: SocketAddr,
    session: String,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// A browser; none if this machine has no driver.
    async fn start(system: &System) -> Option<Self> {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new("chromedriver");
        command.args([&format!("--port={}", addr.port()), "--allowed-ips=127.0.0.1"]);
        let driver = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let mut browser = Self { driver, addr, session: String::new() };
        system
            .eventually("the driver is up", async || {
                let request = format!("GET /status HTTP/1.1\r\nHost: {addr}\r\n\r\n");
                match send_one(addr, &request).await {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        let args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let wanted = json!({"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}});
        let opened =
            browser.call("POST", "/session", &json!({"capabilities": {"alwaysMatch": wanted}})).await;
        browser.session = opened["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = if self.session.is_empty() {
            path.to_owned()
        } else {
            format!("/session/{}{path}", self.session)
        };
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.addr,
            body.len()
        );
        let answer = send_one(self.addr, &request).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()["value"].clone()
    }

    async fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url })).await;
    }

    async fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] })).await
    }

    async fn size(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": params});
        self.call("POST", "/goog/cdp/execute", &command).await;
    }

    /// Keeps a screenshot beside the test report.
    async fn screenshot(&self, name: &str) {
        let encoded = self.call("GET", "/screenshot", &Value::Null).await;
        let png = base64::engine::general_purpose::STANDARD.decode(encoded.as_str().unwrap()).unwrap();
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), png).unwrap();
    }

    /// The defects in the console since it was read last.
    async fn defects(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" })).await;
        let messages = log.as_array().unwrap().iter().filter_map(|line| line["message"].as_str());
        messages
            .filter(|line| DEFECTS.iter().any(|defect| line.contains(defect)))
            .map(str::to_owned)
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_follows_the_fleet_and_greys_the_page_when_the_hub_dies() {
    let (mut system, addr) = served().await;
    let Some(browser) = Browser::start(&system).await else {
        return not_run("browser", "this machine has no chromedriver");
    };
    browser.size(1280, 1100).await;
    browser.open(&format!("http://{addr}/")).await;
    let text = "return document.getElementById('state').textContent";
    eventually(&system, &browser, text, &json!("live")).await;
    browser.screenshot("fleet-1280.png").await;

    browser.open(&format!("http://{addr}/deployments/web")).await;
    let digest = "return document.getElementById('digest').dataset.digest";
    let before = browser.run(digest).await;
    // A device that falls silent changes the view.
    system.kill(&agent_name(&story::key(super::DEVICES[0]))).await;
    system
        .eventually("the page follows by itself to the digest of the command", async || {
            let page = browser.run(digest).await;
            let shown = system.muster(&["status", "web", "--format", "json"]).await;
            let view: Value = serde_json::from_slice(&shown.stdout).map_err(|error| error.to_string())?;
            let is_new = page != before && page == view["view"]["digest"];
            if is_new { Ok(()) } else { Err(format!("{page} {before} {view}")) }
        })
        .await;

    for path in [
        "/",
        "/deployments/web",
        "/devices",
        "/devices/plant7/press-1",
        "/rollouts",
        "/plans",
        "/quarantine",
        "/changes",
    ] {
        browser.size(320, 900).await;
        browser.open(&format!("http://{addr}{path}")).await;
        let width = browser.run("return document.documentElement.scrollWidth").await;
        assert!(width.as_u64().unwrap() <= 320, "{path} is {width} pixels wide");
        let unnamed = "return [...document.querySelectorAll('a,button,input,select')].filter(one => one.type !== 'hidden' \
                       && !(one.textContent.trim() || one.getAttribute('aria-label') || (one.labels && one.labels.length))).length";
        assert_eq!(browser.run(unnamed).await, 0, "{path} has a control without a name");
    }
    browser.open(&format!("http://{addr}/")).await;
    browser.screenshot("fleet-320.png").await;
    assert_eq!(browser.defects().await, Vec::<String>::new());

    browser.size(1280, 1100).await;
    eventually(&system, &browser, text, &json!("live")).await;
    system.server.kill();
    let grey = "return document.documentElement.classList.contains('is-stale') && !document.getElementById('alarm').hidden";
    eventually(&system, &browser, grey, &json!(true)).await;
    browser.screenshot("fleet-stale.png").await;
}

async fn eventually(system: &System, browser: &Browser, script: &str, wanted: &Value) {
    system
        .eventually(script, async || {
            let found = browser.run(script).await;
            if found == *wanted { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
}
