//! The short examples of `schemas/examples` in Python, JavaScript and Rust, on an open hub and on a secured one over TLS with
//! the credentials of `muster auth`: a device, a table, a view by label, and notices. Each language does the same. [`guide`]
//! follows the page that shows them, and [`pages`] compares the pages with the files.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod guide;
mod pages;

use std::path::{Path, PathBuf};

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_identity::Role;
use muster_simulator::child::{Child, Spec};
use muster_simulator::repository::{BRANCH, Repository, write_devices};
use muster_tests::example::{Example, Language};
use muster_tests::guarded::Guarded;
use muster_tests::story::{key, sleeper};
use muster_tests::system::{DEADLINE, INGEST, PUBLISHER, ROLLUP, System, program};
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The device that an example plays, and one that never connects.
const PLAYED: &str = "plant7/press-1";
const SILENT: &str = "plant8/press-2";
/// Silence after which a device is stale.
const LEASE: &str = "3s";
/// Contexts of the nats CLI.
const PERSON_CONTEXT: &str = "hub";
const DEVICE_CONTEXT: &str = "device";

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_python_run_on_an_open_hub() {
    examples_run(Language::Python, Stage::open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_python_run_on_a_secured_hub() {
    examples_run(Language::Python, Stage::secured().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_javascript_run_on_an_open_hub() {
    if Language::JavaScript.is_there("examples in JavaScript on an open hub") {
        examples_run(Language::JavaScript, Stage::open().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_javascript_run_on_a_secured_hub() {
    if Language::JavaScript.is_there("examples in JavaScript on a secured hub") {
        examples_run(Language::JavaScript, Stage::secured().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_rust_run_on_an_open_hub() {
    examples_run(Language::Rust, Stage::open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_rust_run_on_a_secured_hub() {
    examples_run(Language::Rust, Stage::secured().await).await;
}

/// A hub with two devices that should run one deployment.
struct Stage {
    bus: Bus,
    dir: PathBuf,
    /// Arguments of a person's program.
    person: Vec<String>,
    /// Arguments of the device's program.
    device: Vec<String>,
    /// Ends with the stage.
    parts: Parts,
}

/// The processes of a stage.
enum Parts {
    Open(Box<System>),
    Secured(Box<SecuredParts>),
}

struct SecuredParts {
    hub: Guarded,
    rollup: Option<Child>,
    rollup_spec: Spec,
    _services: [Child; 2],
}

impl Stage {
    async fn open() -> Self {
        let system = System::with_settings(&[]).await;
        publish(&system.repository, &system.bus).await;
        let (dir, url) = (system.dir().to_owned(), vec!["--url".to_owned(), system.server.url()]);
        Self {
            bus: system.bus.clone(),
            dir,
            person: url.clone(),
            device: url,
            parts: Parts::Open(Box::new(system)),
        }
    }

    async fn secured() -> Self {
        let hub = Guarded::start();
        let (data, keeper) = (arg(&hub.dir().join("rollup")), arg(&hub.creds(Role::Keeper)));
        let repository = Repository::create(hub.dir().join("repository")).await.unwrap();
        let git = arg(repository.dir());
        let spec = |role: Role, name: &str, own: &[&str]| {
            let (creds, authority) = (arg(&hub.creds(role)), arg(hub.authority().unwrap()));
            let reach =
                ["--nats-url", &hub.url(), "--creds", &creds, "--tls-ca", &authority].map(str::to_owned);
            let args = reach.into_iter().chain(own.iter().map(ToString::to_string)).collect();
            Spec { name: name.to_owned(), program: program(name), args }
        };
        let start = |role, name, own: &[&str]| Child::start(spec(role, name, own), hub.dir()).unwrap();
        let publisher = ["--git-url", &git, "--git-branch", BRANCH, "--git-poll", "200ms"];
        let rollup_spec = spec(Role::Rollup, ROLLUP, &["--data-dir", &data, "--readers-creds", &keeper]);
        let rollup = Some(Child::start(rollup_spec.clone(), hub.dir()).unwrap());
        let services =
            [start(Role::Ingest, INGEST, &["--lease", LEASE]), start(Role::Publisher, PUBLISHER, &publisher)];
        let reach = |creds: &Path| {
            let authority = arg(hub.authority().unwrap());
            ["--url", &hub.url(), "--creds", &arg(creds), "--tls-ca", &authority].map(str::to_owned).to_vec()
        };
        let device = reach(&hub.enroll(&key(PLAYED), "1h"));
        let person = reach(&hub.creds(Role::Subscriber));
        let bus = Bus::connect(hub.config(Role::Subscriber), &CancellationToken::new()).await.unwrap();
        publish(&repository, &bus).await;
        let dir = hub.dir().to_owned();
        let parts = SecuredParts { hub, rollup, rollup_spec, _services: services };
        Self { bus, dir, person, device, parts: Parts::Secured(Box::new(parts)) }
    }

    async fn kill_rollup(&mut self) {
        match &mut self.parts {
            Parts::Open(system) => system.kill(ROLLUP).await,
            Parts::Secured(parts) => parts.rollup.take().unwrap().kill().await.unwrap(),
        }
    }

    /// Starts the rollup again, and waits until it answers.
    async fn start_rollup(&mut self) {
        match &mut self.parts {
            Parts::Open(system) => system.start_again(ROLLUP),
            Parts::Secured(parts) => {
                parts.rollup = Some(Child::start(parts.rollup_spec.clone(), parts.hub.dir()).unwrap());
            }
        }
        until("an answer of the rollup", || self.confirmed(), Value::is_number).await;
    }

    /// The number of the notice that the only subscriber has confirmed; null without an answer.
    async fn confirmed(&self) -> Value {
        let answer = self.bus.request("muster.notify.list", "{}".into(), DEADLINE).await.unwrap_or_default();
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        answer["subscriptions"][0]["seen"].clone()
    }

    /// Waits until LEDGER has a freshness of the played device.
    async fn until_heard(&self, freshness: &str) {
        let subject = format!("muster.liveness.{}", PLAYED.replace('/', "."));
        let state = async || {
            let fact = self.bus.last("LEDGER", &subject).await.ok().flatten();
            fact.and_then(|fact| serde_json::from_slice::<Value>(&fact.payload).ok()).unwrap_or_default()
        };
        until(freshness, state, |fact| fact["state"] == freshness).await;
    }

    /// The arguments of a program, followed by those of its connection.
    fn args<'a>(own: &[&'a str], reach: &'a [String]) -> Vec<&'a str> {
        own.iter().copied().chain(reach.iter().map(String::as_str)).collect()
    }

    /// Writes both connections into contexts of the nats CLI, and returns the configuration folder.
    fn contexts(&self) -> PathBuf {
        let home = self.dir.join("config");
        let folder = home.join("nats/context");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, reach) in [(PERSON_CONTEXT, &self.person), (DEVICE_CONTEXT, &self.device)] {
            let value = |flag: &str| {
                let at = reach.iter().position(|word| word == flag)?;
                Some(reach[at + 1].clone())
            };
            let context =
                json!({ "url": value("--url"), "creds": value("--creds"), "ca": value("--tls-ca") });
            std::fs::write(folder.join(format!("{name}.json")), context.to_string()).unwrap();
        }
        home
    }
}

/// Publishes the deployment, and waits for its view.
async fn publish(repository: &Repository, bus: &Bus) {
    let devices: Vec<DeviceKey> = vec![key(PLAYED), key(SILENT)];
    write_devices(repository, &devices).unwrap();
    repository.write("fleet/web.yaml", &sleeper("web", 1)).unwrap();
    repository.write("fleet/labels.yaml", "ring: canary\n").unwrap();
    repository.commit("web").await.unwrap();
    let view = async || bus.last("KV_views", "$KV.views.deployment.web").await.ok().flatten().is_some();
    until("a view of web", view, |is_there| *is_there).await;
}

fn arg(path: &Path) -> String {
    path.display().to_string()
}

/// The device reports, the table tells stale from never heard, the view agrees with the hub and resumes, and notices are
/// neither repeated nor lost.
async fn examples_run(language: Language, mut stage: Stage) {
    let (person, reach, config) = (stage.person.clone(), stage.device.clone(), stage.contexts());
    let start = |name: &str, own: &[&str]| Example::start(language, name, &Stage::args(own, &person));
    let by_context = |name: &str, own: &[&str], context: &str| {
        let mut command = language.command(name);
        command.args(own).args(["--context", context]).env("XDG_CONFIG_HOME", &config);
        Example::run(&format!("{name} in {language:?}"), command)
    };
    let played = [PLAYED, "--heartbeat", "1"];
    let device = Example::start(language, "device", &Stage::args(&played, &reach));
    let mut watch = by_context("watch", &[], PERSON_CONTEXT);
    table(&mut watch, &[("installed", [1, 0, 0]), ("waiting", [0, 0, 1])]).await;

    let about = ["night-shift", "--deployment", "web"];
    let mut notices = start("notify", &about);
    let present = line(&mut notices).await;
    assert_eq!((&present["number"], &present["event"]), (&json!(1), &json!("present")), "{present}");

    let file = arg(&stage.dir.join("ring.json"));
    let mut view = start("view", &["ring", &file]);
    let groups = json!({ "canary": { "installed": 1, "waiting": 1 } });
    let first = agreed(&mut view, &groups).await;
    view.kill().await;
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains("\"installed\""), "{kept}");
    std::fs::write(&file, kept.replace("\"installed\"", "\"failed\"")).unwrap();
    let mut view = start("view", &["ring", &file]);
    until_disagreed(&mut view).await;
    view.kill().await;
    std::fs::write(&file, kept).unwrap();

    device.kill().await;
    table(&mut watch, &[("installed", [0, 1, 0]), ("waiting", [0, 0, 1])]).await;
    let mut last = line(&mut notices).await;
    assert_eq!(
        (&last["event"], last["number"].as_u64() > present["number"].as_u64()),
        (&json!("changed"), true)
    );
    // A program that dies before it has confirmed sees the notice again.
    until("a confirmation", || stage.confirmed(), |seen| *seen == last["number"]).await;
    notices.kill().await;

    let mut view = by_context("view", &["ring", &file], PERSON_CONTEXT);
    let second = agreed(&mut view, &groups).await;
    let read = |line: &Value| line["read"].as_u64().unwrap();
    assert!(read(&second) < read(&first), "it reads only the tail: {second} after {first}");

    // Both the hub and the subscriber are away, so one notice covers all changes.
    stage.kill_rollup().await;
    let device = by_context("device", &played, DEVICE_CONTEXT);
    stage.until_heard("fresh").await;
    device.kill().await;
    stage.until_heard("stale").await;
    let device = by_context("device", &played, DEVICE_CONTEXT);
    stage.until_heard("fresh").await;
    stage.start_rollup().await;
    let mut notices = by_context("notify", &about, PERSON_CONTEXT);
    table(&mut watch, &[("installed", [1, 0, 0]), ("waiting", [0, 0, 1])]).await;
    let (missed, next) = missed(&mut notices).await;
    assert_eq!(missed, ["fresh", "stale", "fresh"], "each change once, before {next}");
    assert!(next["number"].as_u64() > last["number"].take().as_u64(), "no notice is repeated: {next}");
    for example in [watch, view, notices, device] {
        example.kill().await;
    }
}

/// The changes of the played device's freshness that were missed, and the notice after them.
async fn missed(notices: &mut Example) -> (Vec<String>, Value) {
    let (mut lines, mut heard) = (Vec::new(), Vec::new());
    loop {
        let line = line(notices).await;
        let change = &line["missed"];
        if change.is_null() {
            return (heard, line);
        }
        let (from, to) = (&change["from"]["freshness"], &change["to"]["freshness"]);
        if from != to && PLAYED.ends_with(change["device"].as_str().unwrap_or("-")) {
            heard.push(to.as_str().unwrap().to_owned());
        }
        assert!(!lines.contains(change), "it is repeated: {change}");
        lines.push(change.clone());
    }
}

/// Reads tables until one has these rows of `web`: a standing with its fresh, stale and never heard targets.
async fn table(watch: &mut Example, wanted: &[(&str, [u64; 3])]) {
    loop {
        let mut rows = Vec::new();
        loop {
            let line = watch.line().await;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => break,
                ["web", _, standing, fresh, stale, never, all] => {
                    let counts = [fresh, stale, never].map(|count| count.parse::<u64>().unwrap());
                    assert_eq!(counts.iter().sum::<u64>(), all.parse::<u64>().unwrap(), "{line}");
                    rows.push((standing.to_owned(), counts));
                }
                _ => {}
            }
        }
        rows.sort();
        if rows.iter().map(|(standing, counts)| (standing.as_str(), *counts)).eq(wanted.iter().copied()) {
            return;
        }
    }
}

/// Reads lines until the view has these groups and the hub agrees; it never disagrees.
async fn agreed(view: &mut Example, groups: &Value) -> Value {
    loop {
        let line = line(view).await;
        assert_ne!(line["agrees"], json!(false), "{line}");
        if line["agrees"] == json!(true) && line["ring"] == *groups {
            return line;
        }
    }
}

/// Reads lines until the hub does not agree.
async fn until_disagreed(view: &mut Example) {
    while line(view).await["agrees"] != json!(false) {}
}

async fn line(example: &mut Example) -> Value {
    serde_json::from_str(&example.line().await).unwrap()
}
