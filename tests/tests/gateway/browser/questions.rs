//! Ten questions of an operator. A real browser answers each from the page, by visible text and clicks, and the command line
//! gives the same answer at the same position of LEDGER. Screenshots show the pages on a desk, at 320 pixels, in the dark and
//! without script. It does not test the other words of the pages.

use std::net::SocketAddr;

use muster_bus::Outgoing;
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, Timestamp, subjects};
use muster_tests::rollouts::{DEVICES, ROLLOUT_FILE, json, muster, release, says, start_planner};
use muster_tests::story::{self, sleeper};
use muster_tests::system::{GATEWAY, System, agent_name};
use serde_json::{Value, json};

use super::driver::Browser;
use super::{eventually, start_gateway};

/// The questions, the page that answers each, and the clicks from the first screen to the answer. The gateway's page has them.
const QUESTIONS: [(&str, &str, usize); 10] = [
    (
        "Which deployment is worst now, and since when?",
        "first sentence; its name, changes of the last hour",
        2,
    ),
    ("Which devices are not heard, the longest silence first?", "first screen, Dark devices", 0),
    ("How many targets certainly run a deployment, and how many may?", "its page, first sentence", 1),
    ("Which reports are missing?", "first sentence; the page of the deployment, Why", 1),
    ("Why does a rollout wait, and which decision does it need?", "Rollouts", 1),
    ("Which error do targets report, and on which device for example?", "first screen, Errors", 0),
    ("Which site is silent, and since when?", "first screen, Sites; the page of the site", 1),
    ("How much changed in the last hour, and by which fact last?", "Changes, since 1h", 2),
    ("How did the fleet look at an earlier moment?", "first screen at that moment", 0),
    ("Is this page itself up to date?", "top right of every page", 0),
];
/// A deployment whose component ends before it is ready.
const CAMERA: &str = "\
id: camera
metadata: {name: camera}
spec:
  applicationId: com-example-camera
  deploymentProfile:
    type: process
    components:
      - name: reader
        properties:
          command: sh
          args: ['-c', 'echo cannot open /dev/video0 >&2; exit 3']
          readiness: {type: uptime, for: 500ms}
";
const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-1]}
  - {name: all, percent: 100%, approval: before}
";
/// Reports of a silent device that never come.
const MISSING: u64 = 2;

#[test]
fn the_page_of_the_gateway_lists_the_ten_questions_and_their_answers() {
    let page = include_str!("../../../../services/gateway/README.md");
    for (question, place, clicks) in QUESTIONS {
        let row = format!("| {question} | {place} | {clicks} |");
        assert!(page.contains(&row), "services/gateway/README.md lacks: {row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_questions_have_the_same_answer_on_the_page_and_by_command() {
    let system = System::start().await;
    let Some(browser) = Browser::start(&system).await else { return };
    let mut fleet = Fleet::start(system).await;
    browser.size(1440, 1300).await;
    for (at, (question, _, clicks)) in QUESTIONS.into_iter().enumerate() {
        fleet.open(&browser, "/").await;
        browser.clicks.set(0);
        match at {
            0 => fleet.worst(&browser, question).await,
            1 => fleet.silent_devices(&browser, question).await,
            2 => fleet.bounds(&browser, question).await,
            3 => fleet.missing_reports(&browser, question).await,
            4 => fleet.rollout(&browser, question).await,
            5 => fleet.errors(&browser, question).await,
            6 => fleet.silent_site(&browser, question).await,
            7 => fleet.changes(&browser, question).await,
            8 => fleet.earlier(&browser, question).await,
            _ => fleet.up_to_date(&browser, question).await,
        }
        assert_eq!(browser.clicks.get(), clicks, "{question}");
    }
    fleet.keep_screenshots(&browser).await;
    assert_eq!(browser.defects().await, Vec::<String>::new());

    fleet.open(&browser, "/").await;
    fleet.state_is(&browser, "live").await;
    fleet.system.kill(GATEWAY).await;
    fleet.state_is(&browser, "not up to date").await;
    let text = browser.text().await;
    assert!(text.contains("The page shows what was known before."), "{text}");
}

/// A fleet in trouble: `camera` fails, a rollout of `web` waits for an approval, and plant8 is silent with reports missing.
struct Fleet {
    system: System,
    addr: SocketAddr,
    /// A moment before the trouble.
    calm: String,
}

impl Fleet {
    async fn start(mut system: System) -> Self {
        let devices = story::settled(&mut system, &DEVICES, "web").await;
        let addr = start_gateway(&mut system).await;
        let calm = Timestamp::now().to_string();
        system.repository.write("sites/plant7/camera.yaml", CAMERA).unwrap();
        system.repository.commit("a camera").await.unwrap();
        let loops = async || {
            let (_, why) = muster(&system, &["why", "camera"]).await;
            if why.matches("crash loop").count() == 2 { Ok(()) } else { Err(why) }
        };
        system.eventually("the camera is in a crash loop on both devices", loops).await;
        start_planner(&mut system);
        system.repository.write(ROLLOUT_FILE, ROLLOUT).unwrap();
        release(&system, &sleeper("web", 2)).await;
        says(&system, &["rollout", "show", "web"], "0 of 1 approvals").await;
        system.kill(&agent_name(&devices[3])).await;
        silent(&system, &devices[3], 0).await;
        announce(&system, &devices[3]).await;
        silent(&system, &devices[3], MISSING).await;
        system.kill(&agent_name(&devices[2])).await;
        silent(&system, &devices[2], 0).await;
        Self { system, addr, calm }
    }

    async fn open(&self, browser: &Browser, path: &str) {
        browser.open(&format!("http://{}{path}", self.addr)).await;
    }

    /// The answer of a command as JSON, at the position of LEDGER that the browser shows if `text` is its text.
    async fn asked(&self, command: &[&str], text: Option<&str>) -> Result<Value, String> {
        let seq = match text {
            Some(text) => number(text, "as of ledger ").ok_or(text)?.to_string(),
            None => String::new(),
        };
        let position: &[&str] = if seq.is_empty() { &[] } else { &["--at-seq", &seq] };
        let (code, answer) = json(&self.system, &[command, position].concat()).await;
        if code == 0 { Ok(answer) } else { Err(format!("{command:?}: {answer}")) }
    }

    async fn worst(&self, browser: &Browser, question: &str) {
        self.system
            .eventually(question, async || {
                let text = browser.text().await;
                let answer = self.asked(&["fleet"], Some(&text)).await?;
                // "1 of 2 deployments failing: some device failed".
                let message = answer["message"].as_str().unwrap_or_default();
                let (count, rule) = message.split_once(": ").ok_or(message)?;
                let (count, verdict) = count.rsplit_once(' ').ok_or(count)?;
                holds(&text, &[&format!("{verdict} {count}: {rule}"), "failing 1 of 2"])
            })
            .await;
        browser.press(&self.system, "camera").await;
        browser.press(&self.system, "changes of the last hour").await;
        self.system
            .eventually(question, async || {
                let answer = self.asked(&["changes", "camera", "--since", "1h"], None).await?;
                let changes = answer["changes"].as_array().ok_or("no changes")?;
                let last = changes.iter().rfind(|change| change["type"] == "verdict").ok_or("no verdict")?;
                let rows = browser.rows().await;
                let row = rows.iter().find(|row| row.contains(" verdict ")).ok_or("no row")?;
                holds(row, &["failing", &format!("status {}", last["ledgerSeq"])])
            })
            .await;
    }

    async fn silent_devices(&self, browser: &Browser, question: &str) {
        self.system
            .eventually(question, async || {
                let answer =
                    self.asked(&["devices", "--freshness", "stale", "--freshness", "never"], None).await?;
                let mut lines: Vec<&Value> = answer["devices"].as_array().into_iter().flatten().collect();
                lines.sort_by_cached_key(|line| line["lastHeardAt"].to_string());
                let devices: Vec<String> = lines.into_iter().map(name).collect();
                let shown = browser.links("Dark devices").await;
                let are_same = shown == devices && shown == ["plant8/press-4", "plant8/press-3"];
                if are_same { Ok(()) } else { Err(format!("{shown:?} {devices:?}")) }
            })
            .await;
    }

    async fn bounds(&self, browser: &Browser, question: &str) {
        browser.press(&self.system, "web").await;
        self.system
            .eventually(question, async || {
                let text = browser.text().await;
                let view = self.asked(&["status", "web"], Some(&text)).await?["view"].take();
                let (lo, hi, of) = (&view["converged"]["lo"], &view["converged"]["hi"], &view["targets"]);
                let bounds = format!("Between {lo} and {hi} of {of} targets have it installed");
                holds(&text, &[&bounds, "Between 2 and 4 of 4"])?;
                let digest = "return document.getElementById('digest')?.dataset.digest";
                let shown = browser.run(digest).await;
                if shown == view["digest"] { Ok(()) } else { Err(format!("{shown} {view}")) }
            })
            .await;
    }

    async fn missing_reports(&self, browser: &Browser, question: &str) {
        self.system
            .eventually(question, async || {
                let text = browser.text().await;
                let fleet = self.asked(&["fleet"], Some(&text)).await?;
                let missing = &fleet["complete"]["missingReports"];
                if *missing != MISSING {
                    return Err(fleet.to_string());
                }
                holds(&text, &[&format!("{missing} reports missing")])
            })
            .await;
        browser.press(&self.system, "web").await;
        self.system
            .eventually(question, async || {
                let answer = self.asked(&["devices"], None).await?;
                let lines = answer["devices"].as_array().into_iter().flatten();
                let names: Vec<String> =
                    lines.filter(|line| line["account"]["missing"].is_array()).map(name).collect();
                let why = browser.section("Why").await;
                let [device] = &names[..] else { return Err(format!("{names:?}")) };
                holds(&why, &[device, &format!("{MISSING} of these reports are missing")])
            })
            .await;
    }

    async fn rollout(&self, browser: &Browser, question: &str) {
        browser.press(&self.system, "Rollouts").await;
        self.system
            .eventually(question, async || {
                let (_, shown) = muster(&self.system, &["rollout", "show", "web"]).await;
                let sentence = shown.lines().find(|line| line.contains("0 of 1 approvals")).ok_or(&*shown)?;
                holds(&browser.text().await, &[sentence.trim(), "Approve wave all", "Reject wave all"])
            })
            .await;
    }

    async fn errors(&self, browser: &Browser, question: &str) {
        self.system
            .eventually(question, async || {
                let text = browser.text().await;
                let view = self.asked(&["status", "camera"], Some(&text)).await?["view"].take();
                let error = &view["errors"][0];
                let (code, example) = (error["code"].as_str().ok_or("no error")?, &error["example"]);
                let message = example["message"].as_str().unwrap_or_default();
                let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
                let shown = browser.section("Errors").await;
                holds(&shown, &[code, &format!("{} targets", error["count"]), &name(example), &message])?;
                holds(&shown, &["2 targets", "cannot open /dev/video0"])
            })
            .await;
    }

    async fn silent_site(&self, browser: &Browser, question: &str) {
        let is_silent = |row: &String| row.starts_with("plant8 ") && row.contains("silent");
        self.system
            .eventually(question, async || {
                let rows = browser.rows().await;
                if rows.iter().any(is_silent) { Ok(()) } else { Err(format!("{rows:?}")) }
            })
            .await;
        browser.press(&self.system, "plant8").await;
        self.system
            .eventually(question, async || {
                let (_, site) = muster(&self.system, &["site", "plant8", "--time-zone", "UTC"]).await;
                let since = site.split_once("is silent since ").and_then(|(_, rest)| rest.split_once('Z'));
                let since = since.ok_or(&*site)?.0.replace('T', " ");
                holds(&browser.text().await, &[&format!("No device of this site is heard since {since} UTC")])
            })
            .await;
    }

    async fn changes(&self, browser: &Browser, question: &str) {
        browser.press(&self.system, "Changes").await;
        browser.fill_and_press(&self.system, ("since", "1h"), "Show").await;
        self.system
            .eventually(question, async || {
                let (text, section) = (browser.text().await, browser.section("Since 1h").await);
                let (_, points) = text.split_once("from ledger ").ok_or(&*text)?;
                let (from, to) = points.split_once(" to ").ok_or(points)?;
                let to = number(to, "").ok_or(to)?.to_string();
                let answer = self.asked(&["changes", "--since", from, "--until", &to], None).await?;
                let last =
                    answer["changes"].as_array().and_then(|changes| changes.last()).ok_or("no changes")?;
                let rows = browser.rows().await;
                holds(&section, &[&format!("Since 1h {} ", answer["of"])])?;
                let row = rows.first().ok_or("no row")?;
                holds(row, &[&last["ledgerSeq"].to_string()])
            })
            .await;
    }

    async fn earlier(&self, browser: &Browser, question: &str) {
        self.system
            .eventually(question, async || {
                // The past is rebuilt at first, and a page of an error does not load itself again.
                self.open(browser, &format!("/?at={}", self.calm)).await;
                let text = browser.text().await;
                let (at_position, at_moment) = (
                    self.asked(&["fleet"], Some(&text)).await?,
                    self.asked(&["fleet", "--at", &self.calm], None).await?,
                );
                let digest = "return document.querySelector('main code[title^=\"sha256:\"]')?.title";
                let shown = browser.run(digest).await;
                if shown != at_position["digest"] || shown != at_moment["digest"] {
                    return Err(format!("{shown} {at_position} {at_moment}"));
                }
                holds(&text, &["As known at", "converged 1 of 1 deployment", "4 of 4 targets"])
            })
            .await;
    }

    async fn up_to_date(&self, browser: &Browser, question: &str) {
        let newest = self.asked(&["fleet"], None).await.unwrap()["asOf"]["ledgerSeq"].as_u64();
        self.system
            .eventually(question, async || {
                let text = browser.text().await;
                if number(&text, "as of ledger ") >= newest { Ok(()) } else { Err(text) }
            })
            .await;
        self.state_is(browser, "live").await;
        browser.run("getSelection().selectAllChildren(document.querySelector('h2'))").await;
        self.state_is(browser, "held while you select or type").await;
        browser.run("getSelection().removeAllRanges()").await;
        self.state_is(browser, "live").await;
    }

    async fn state_is(&self, browser: &Browser, words: &str) {
        let state = "return document.querySelector('[role=status]').innerText";
        eventually(&self.system, browser, state, &json!(words)).await;
    }

    async fn keep_screenshots(&self, browser: &Browser) {
        for (page, path) in [
            ("fleet", "/"),
            ("deployment", "/deployments/camera"),
            ("devices", "/devices?freshness=stale,never"),
            ("rollout", "/rollouts/web"),
            ("site", "/sites/plant8"),
            ("changes", "/changes"),
        ] {
            for (reader, width, height) in
                [("desktop", 1440, 1300), ("320", 320, 3000), ("dark", 1440, 1300), ("no-script", 1440, 1300)]
            {
                browser.size(width, height).await;
                browser.prefer_dark(reader == "dark").await;
                browser.permit_scripts(reader != "no-script").await;
                self.open(browser, path).await;
                let shown = browser.run("return document.documentElement.scrollWidth").await;
                assert!(shown.as_u64().unwrap() <= u64::from(width), "{path} is {shown} pixels wide");
                if reader == "no-script" {
                    self.state_is(browser, "as of this request").await;
                }
                browser.screenshot(&format!("questions-{page}-{reader}.png")).await;
            }
        }
        browser.permit_scripts(true).await;
        browser.size(1440, 1300).await;
    }
}

/// Waits until a device is silent and so many of its reports are missing.
async fn silent(system: &System, device: &DeviceKey, missing: u64) {
    system
        .eventually(&format!("{device} is silent, {missing} reports missing"), async || {
            let line = system.hub.device(device).await.map_err(|error| error.to_string())?.device;
            let is_silent = line.freshness == Freshness::Stale && line.account.missing.count() == missing;
            if is_silent { Ok(()) } else { Err(serde_json::to_string(&line).unwrap()) }
        })
        .await;
}

/// Publishes a heartbeat of a device that has given numbers to reports that never come.
async fn announce(system: &System, device: &DeviceKey) {
    let line = system.hub.device(device).await.unwrap().device;
    let heartbeat = json!({
        "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": line.epoch, "head": line.head + MISSING,
        "generation": line.generation,
    });
    system.bus.publish(Outgoing::new(subjects::presence(device), heartbeat.to_string())).await.unwrap();
}

/// The name of a device in an answer.
fn name(line: &Value) -> String {
    let word = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", word("site"), word("device"))
}

/// The number that follows some words in a text.
fn number(text: &str, words: &str) -> Option<u64> {
    let (_, rest) = text.split_once(words)?;
    rest.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok()
}

/// Whether a text has every one of these.
fn holds(text: &str, wanted: &[&str]) -> Result<(), String> {
    match wanted.iter().find(|words| !text.contains(**words)) {
        None => Ok(()),
        Some(words) => Err(format!("'{words}' is not in: {text}")),
    }
}
