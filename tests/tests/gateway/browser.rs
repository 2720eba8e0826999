//! A real Chromium before the gateway: the page follows the fleet, breaks no rule of its policy, fits 320 pixels, and greys
//! itself when the hub dies. `questions` has what an operator asks. Screenshots are kept beside the test report. Without Chromium
//! the tests are named as not run; `make browser` requires it.

mod driver;
mod questions;

use muster_tests::story;
use muster_tests::system::{System, agent_name};
use serde_json::{Value, json};

use self::driver::Browser;
use super::{served, start_gateway};

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_follows_the_fleet_and_greys_the_page_when_the_hub_dies() {
    let (mut system, addr) = served().await;
    let Some(browser) = Browser::start(&system).await else { return };
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
