//! A Chromium that chromedriver steers, for tests of pages: addresses, visible text, clicks, screenshots and the console. It
//! tests nothing itself. Without chromedriver the tests are named as not run, or fail if `MUSTER_BROWSER` is `required`.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use muster_tests::not_run::not_run;
use muster_tests::server::free_port;
use muster_tests::system::System;
use serde_json::{Value, json};

use crate::client::send_one;

/// The variable that `make browser` sets to `required`.
const MODE: &str = "MUSTER_BROWSER";
/// Errors of the document or the policy that a console may not have. A lost connection is none of them.
const DEFECTS: [&str; 4] = ["Content Security Policy", "Uncaught", "SyntaxError", "404"];
/// Clicks the first link or button that has a visible text and that nothing covers, and fills in a labelled field before that,
/// if one is named. Says why it cannot.
const PRESS: &str = "
const [words, label, value] = arguments;
if (label) {
  const named = [...document.querySelectorAll('label')].find(one => one.innerText.trim() === label);
  if (!named || !named.control) return 'no field is labelled ' + label;
  named.control.value = value;
}
const seen = one => (one.innerText || '').trim() === words && one.getClientRects().length > 0;
const found = [...document.querySelectorAll('a, button')].find(seen);
if (!found) return 'no link or button says ' + words;
found.scrollIntoView({ block: 'center' });
const box = found.getClientRects()[0];
const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
if (!found.contains(top)) return 'something covers ' + words;
found.click();
return '';
";
/// The section whose heading begins with some words.
const SECTION: &str = "
const section = [...document.querySelectorAll('section')].find(one => {
  const heading = one.querySelector('h2');
  return heading && heading.innerText.startsWith(arguments[0]);
});
";

/// A browser that a driver steers.
pub(super) struct Browser {
    driver: Child,
    addr: SocketAddr,
    session: String,
    /// Links and buttons that were pressed.
    pub(super) clicks: Cell<usize>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// A browser; none if this machine has no driver and none is required.
    pub(super) async fn start(system: &System) -> Option<Self> {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new("chromedriver");
        command.args([&format!("--port={}", addr.port()), "--allowed-ips=127.0.0.1"]);
        let Ok(driver) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            let is_required = std::env::var(MODE).is_ok_and(|mode| mode == "required");
            assert!(!is_required, "this machine has no chromedriver: .ci/browser installs it");
            not_run(
                "browser",
                "this machine has no chromedriver; as root on Debian, `make browser` installs it",
            );
            return None;
        };
        let mut browser = Self { driver, addr, session: String::new(), clicks: Cell::new(0) };
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

    pub(super) async fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url })).await;
    }

    pub(super) async fn run(&self, script: &str) -> Value {
        self.run_with(script, &[]).await
    }

    async fn run_with(&self, script: &str, args: &[&str]) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": args })).await
    }

    /// A text that a script returns, with single spaces and without those between thousands.
    async fn words(&self, script: &str, args: &[&str]) -> String {
        let text = self.run_with(script, args).await;
        let text = text.as_str().unwrap_or_default().replace('\u{202f}', "");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The visible text of the page.
    pub(super) async fn text(&self) -> String {
        self.words("return document.body.innerText", &[]).await
    }

    /// The visible text of the section whose heading begins with these words.
    pub(super) async fn section(&self, heading: &str) -> String {
        self.words(&format!("{SECTION} return section ? section.innerText : ''"), &[heading]).await
    }

    /// The texts of the links in the rows of a section.
    pub(super) async fn links(&self, heading: &str) -> Vec<String> {
        let links = "section ? [...section.querySelectorAll('li a')].map(one => one.innerText) : []";
        let found = self.run_with(&format!("{SECTION} return {links}"), &[heading]).await;
        serde_json::from_value(found).unwrap()
    }

    /// The visible text of each row of the page's tables.
    pub(super) async fn rows(&self) -> Vec<String> {
        let script = "return [...document.querySelectorAll('tbody tr')].map(one => one.innerText)";
        let rows: Vec<String> = serde_json::from_value(self.run(script).await).unwrap();
        rows.iter().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// Clicks a link or button by its visible text, once it is there.
    pub(super) async fn press(&self, system: &System, words: &str) {
        self.fill_and_press(system, ("", ""), words).await;
    }

    /// The same after a value is filled in beside a label: content that is renewed between the two would lose it.
    pub(super) async fn fill_and_press(&self, system: &System, (label, value): (&str, &str), words: &str) {
        system
            .eventually(&format!("'{words}' can be pressed"), async || {
                let refused = self.words(PRESS, &[words, label, value]).await;
                if refused.is_empty() { Ok(()) } else { Err(refused) }
            })
            .await;
        self.clicks.set(self.clicks.get() + 1);
    }

    /// A command of the DevTools protocol.
    async fn devtools(&self, command: &str, params: &Value) {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": params })).await;
    }

    pub(super) async fn size(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &params).await;
    }

    pub(super) async fn prefer_dark(&self, is_dark: bool) {
        let scheme = if is_dark { "dark" } else { "light" };
        let params = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &params).await;
    }

    /// Lets pages run their scripts or not; those of a test always run.
    pub(super) async fn permit_scripts(&self, is_permitted: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": !is_permitted })).await;
    }

    /// Keeps a screenshot beside the test report.
    pub(super) async fn screenshot(&self, name: &str) {
        let encoded = self.call("GET", "/screenshot", &Value::Null).await;
        let png = base64::engine::general_purpose::STANDARD.decode(encoded.as_str().unwrap()).unwrap();
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), png).unwrap();
    }

    /// The defects in the console since it was read last.
    pub(super) async fn defects(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" })).await;
        let messages = log.as_array().unwrap().iter().filter_map(|line| line["message"].as_str());
        messages
            .filter(|line| DEFECTS.iter().any(|defect| line.contains(defect)))
            .map(str::to_owned)
            .collect()
    }
}
