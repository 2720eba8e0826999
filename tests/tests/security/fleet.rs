//! A whole fleet that runs with nothing but the rights of its roles, over TLS.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use muster_bus::{Bus, Outgoing, RequestError, Start};
use muster_contract::DeviceKey;
use muster_contract::subjects::stream;
use muster_identity::Role;
use muster_simulator::child::{Child, Spec};
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, program};
use muster_tests::wait::{soon, until};
use serde_json::Value;

use crate::connect;

pub(crate) const WEB: &str = "id: web
metadata: {name: web}
spec:
  applicationId: com-example-web
  deploymentProfile:
    type: simulated
    components:
      - name: main
        properties: {}
";

/// The agent of a device that made its own key and was enrolled with it.
pub(crate) struct Agent {
    pub(crate) key: DeviceKey,
    pub(crate) data: PathBuf,
    process: Child,
}

impl Agent {
    /// A device that was never seen before.
    pub(crate) fn start(hub: &Guarded, key: &DeviceKey) -> Self {
        Self::start_for(hub, key, "30d")
    }

    /// The same for a time.
    pub(crate) fn start_for(hub: &Guarded, key: &DeviceKey, valid: &str) -> Self {
        let data = hub.dir().join("devices").join(key.device.as_str());
        let public_key = device_command(&data, &["key"]);
        let args = ["--site", key.site.as_str(), "--device", key.device.as_str(), "--runtime", "simulated"];
        let data_arg = data.display().to_string();
        let own = ["--data-dir", &data_arg, "--heartbeat", "1s", "--reconnect-max", "500ms"];
        let name = format!("agent-{}", key.device);
        admit(hub, key, &data, &["--key", &public_key, "--valid", valid, "--replace"]);
        let process = start(hub, &name, "muster-agent", &[&args[..], &own].concat());
        Self { key: key.clone(), data, process }
    }

    /// Has its JWT renewed for a time, as a person would.
    pub(crate) fn renew(&self, hub: &Guarded, valid: &str) {
        admit(hub, &self.key, &self.data, &["--valid", valid]);
    }

    /// Gives it a JWT, as a person would.
    pub(crate) fn accept(&self, hub: &Guarded, token: &str) {
        let file = hub.dir().join("given.jwt");
        std::fs::write(&file, token).unwrap();
        device_command(&self.data, &["accept", &file.display().to_string()]);
    }

    /// The output of `muster-agent status`.
    pub(crate) fn status(&self) -> String {
        device_command(&self.data, &["status"])
    }

    /// The JWT it has.
    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.data.join("identity/user.jwt")).unwrap().trim().to_owned()
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.process.log()).unwrap_or_default()
    }

    /// The payloads of its reports in UPLINK.
    pub(crate) async fn reports(&self, ingest: &Bus) -> Vec<String> {
        let filter = format!("muster.report.*.{}.{}", self.key.site, self.key.device);
        let mut replay = ingest.replay(stream::UPLINK, &[&filter], Start::First).await.unwrap();
        if replay.waiting() == 0 {
            return Vec::new();
        }
        let batch = soon("reports", replay.next_batch(1000)).await.unwrap();
        batch.iter().map(|report| String::from_utf8_lossy(&report.payload).into_owned()).collect()
    }
}

fn admit(hub: &Guarded, key: &DeviceKey, data: &Path, more: &[&str]) {
    let file = hub.dir().join(format!("{}.jwt", key.device));
    let name = file.display().to_string();
    hub.decide(&[&["enroll", &key.to_string(), "-o", &name], more].concat());
    device_command(data, &["accept", &name]);
}

/// `muster-agent key` or `accept` on the device; what it prints.
fn device_command(data: &Path, args: &[&str]) -> String {
    let (first, rest) = args.split_first().unwrap();
    let mut command = Command::new(program("muster-agent"));
    let done = command.arg(first).arg("--data-dir").arg(data).args(rest).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn start(hub: &Guarded, name: &str, binary: &str, args: &[&str]) -> Child {
    let url = hub.url();
    let mut all: Vec<String> = ["--nats-url", &url].iter().chain(args).map(ToString::to_string).collect();
    if let Some(authority) = hub.authority() {
        all.extend(["--tls-ca".to_owned(), authority.display().to_string()]);
    }
    let spec = Spec { name: name.to_owned(), program: program(binary), args: all };
    Child::start(spec, hub.dir()).unwrap()
}

pub(crate) fn start_service(hub: &Guarded, role: Role, binary: &str, more: &[&str]) -> Child {
    let creds = hub.creds(role).display().to_string();
    start(hub, binary, binary, &[&["--creds", &creds], more].concat())
}

/// The answer of `muster` to a user with a role.
pub(crate) fn asked(hub: &Guarded, role: Role, args: &[&str]) -> Result<Value, String> {
    let creds = hub.creds(role).display().to_string();
    let done = hub.muster(&[&["--format", "json", "--creds", &creds], args].concat());
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { serde_json::from_slice(&done.stdout).map_err(|_| error) } else { Err(error) }
}

/// Every secret that was made, by the file that holds it.
fn secrets(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            secrets(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let seed = |word: &&str| word.len() == 58 && word.starts_with('S');
        found.extend(text.split_whitespace().filter(seed).map(str::to_owned));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_fleet_runs_with_only_the_rights_of_its_roles_over_tls() {
    let hub = Guarded::start();
    let rollup_data = hub.dir().join("rollup").display().to_string();
    let keeper = hub.creds(Role::Keeper).display().to_string();
    let rollup_args = ["--data-dir", &rollup_data, "--readers-creds", &keeper];
    let _rollup = start_service(&hub, Role::Rollup, ROLLUP, &rollup_args);
    let _publisher = start_service(&hub, Role::Publisher, PUBLISHER, &[]);
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s"]);
    let agents = ["press-4", "press-5"].map(|name| Agent::start(&hub, &device(name)));

    let file = hub.dir().join("web.yaml");
    std::fs::write(&file, WEB).unwrap();
    let file = file.display().to_string();
    for agent in &agents {
        let name = agent.key.to_string();
        let apply = async || asked(&hub, Role::Operator, &["apply", "-f", &file, "--device", &name]);
        until("the publisher takes a request", apply, Result::is_ok).await.unwrap();
    }
    let converged = |answer: &Result<Value, String>| {
        answer.as_ref().is_ok_and(|view| view["verdict"] == "converged" && view["targets"] == 2)
    };
    let status = async || asked(&hub, Role::Viewer, &["status", "web"]).map(|answer| answer["view"].clone());
    until("a viewer sees that web has converged", status, converged).await.unwrap();
    let audit = async || asked(&hub, Role::Operator, &["audit"]);
    until("an operator finds everything accounted for", audit, Result::is_ok).await.unwrap();
    asked(&hub, Role::Viewer, &["devices"]).unwrap();
    for role in [Role::Viewer, Role::Subscriber] {
        asked(&hub, role, &["publisher", "status"]).unwrap();
    }
    let watched = asked(&hub, Role::Viewer, &["watch", "web", "--until", "converged", "--within", "30s"]);
    assert_eq!(watched.unwrap()["state"]["verdict"], "converged", "a viewer gets the notice as well");
    // The keeper makes the mirror of LEDGER in its own time.
    let quarantine = async || asked(&hub, Role::Operator, &["quarantine", "list"]);
    until("an operator lists the quarantine", quarantine, Result::is_ok).await.unwrap();
    for role in [Role::Operator, Role::Subscriber] {
        let bus = connect(hub.config(role)).await;
        let mut watch = soon("views", bus.view_watch(">")).await.unwrap();
        assert!(!soon("a view", watch.next_batch(10)).await.unwrap().is_empty());
        let mut ledger = soon("LEDGER", bus.replay(stream::LEDGER, &[], Start::First)).await.unwrap();
        assert!(!soon("a fact", ledger.next_batch(10)).await.unwrap().is_empty());
    }
    nothing_was_refused_or_given_away(&hub);
    // Last, because it tries what people may not see.
    let restore = asked(&hub, Role::Operator, &["restore"]).unwrap();
    assert_eq!((&restore["ingestAnswers"], &restore["complete"]), (&Value::from(true), &Value::from(false)));
}

/// Nobody lacked a right, and no secret got into a log.
fn nothing_was_refused_or_given_away(hub: &Guarded) {
    let mut logs = vec![hub.server.log()];
    for entry in std::fs::read_dir(hub.dir().join("logs")).unwrap().flatten() {
        logs.push(std::fs::read_to_string(entry.path()).unwrap());
    }
    assert_eq!(logs.len(), 6);
    let mut seeds = Vec::new();
    secrets(hub.dir(), &mut seeds);
    // Operator, system, signers and credentials of the roles, of push and the watcher, and a key a device.
    assert_eq!(seeds.len(), 2 + 17 + 16 + 2, "{}", hub.dir().display());
    for log in logs {
        let refused = log.lines().find(|line| line.contains("ermissions"));
        assert_eq!(refused, None, "somebody lacked a right:\n{log}");
        assert!(!seeds.iter().any(|seed| log.contains(seed)), "a secret is in a log:\n{log}");
        assert!(!log.contains("Plaintext"), "{log}");
    }
}

#[tokio::test]
async fn a_viewer_can_ask_and_nothing_else() {
    let hub = Guarded::start();
    let _ingest = crate::ingest(&hub).await;
    hub.mirror().await;
    let bus = connect(hub.config(Role::Viewer)).await;
    let (desired, request) = (
        muster_bus::Outgoing::new("muster.desired.plant7.press-4", "{}"),
        muster_bus::Outgoing::new("muster.publisher.apply", "{}"),
    );
    let notice = muster_bus::Outgoing::new("muster.notice.mine", "{}");
    let (write, ask, tell, ledger, watch) = tokio::join!(
        bus.publish(desired),
        bus.publish(request),
        bus.publish(notice),
        bus.replay(stream::LEDGER, &[], Start::First),
        bus.view_watch(">"),
    );
    assert!(write.is_err() && ask.is_err() && tell.is_err(), "wrote what it may not");
    assert!(ledger.is_err() && watch.is_err(), "a consumer would let it write anywhere");
    let refused = bus.request("muster.publisher.apply", "{}".into(), Duration::from_secs(60)).await;
    assert!(matches!(refused, Err(RequestError::Forbidden { .. })), "told at once: {refused:?}");
    let file = hub.dir().join("web.yaml");
    std::fs::write(&file, muster_tests::story::sleeper("web", 1)).unwrap();
    let began = Instant::now();
    let args = ["apply", "--timeout", "60s", "--device", "plant7/press-4", "-f", file.to_str().unwrap()];
    let creds = hub.creds(Role::Viewer).display().to_string();
    let said = hub.muster(&[&args[..], &["--creds", &creds]].concat());
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && words.contains("no permission for muster.publisher.apply"), "{words}");
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for an answer that cannot come");
    assert_eq!(bus.view_get("fleet").await.unwrap(), None);
}

/// The devices' account has its own names for where answers go, so a batch is not recognised as one there; whatever goes
/// up then goes one by one.
#[tokio::test]
async fn a_long_backlog_gets_up_through_the_account_of_the_devices() {
    // Nobody takes them here: they fit into the device's share of UPLINK.
    const REPORTS: u64 = 500;
    let hub = Guarded::start();
    let ingest = crate::ingest(&hub).await;
    let key = device("press-4");
    hub.enroll(&key, "1h");
    let bus = connect(hub.device_config(&key)).await;
    let mut window = bus.window(256);
    let mut confirmed = 0;
    for n in 0..REPORTS {
        let report = Outgoing {
            message_id: Some(format!("id-{n}")),
            expected_stream: Some(stream::UPLINK),
            ..Outgoing::new(muster_contract::subjects::report(&key), format!("{n}"))
        };
        window.batch_by(64).await;
        soon("room", window.send(report, n)).await;
        while let Some((_, answer)) = window.try_next() {
            answer.unwrap();
            confirmed += 1;
        }
    }
    window.end_batch().await;
    while let Some((_, answer)) = soon("an answer", window.next()).await {
        answer.unwrap();
        confirmed += 1;
    }
    assert_eq!((confirmed, ingest.stream_state(stream::UPLINK).await.unwrap().messages), (REPORTS, REPORTS));
}
