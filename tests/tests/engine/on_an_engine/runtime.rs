//! The agent's compose runtime on a real engine: containers of an image of the test's own, all of them gone at the end.

use std::path::Path;
use std::time::Duration;

use muster_agent::package::{PackageSettings, PackageStore};
use muster_agent::runtime::compose::ComposeRuntime;
use muster_agent::runtime::{Exit, Running, Runtime, Started, Unit, UnitName, code};
use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::desired::{Component, ProfileType};
use muster_contract::profile::Workload;
use muster_contract::state::StatusError;
use muster_tests::containers::{box_image, docker, listed, try_docker};
use muster_tests::oci::{OciRegistry, packed};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A device whose agent runs containers.
struct Device {
    key: DeviceKey,
    runtime: ComposeRuntime,
    exits: mpsc::Receiver<Exit>,
    dir: TempDir,
}

impl Device {
    fn new(name: &str) -> Self {
        box_image();
        let (key, dir): (DeviceKey, _) =
            (format!("check/{name}").parse().unwrap(), tempfile::tempdir().unwrap());
        let (runtime, exits) = runtime(&key, dir.path());
        let device = Self { key, runtime, exits, dir };
        device.sweep();
        device
    }

    /// The agent dies and another comes up.
    fn restart(&mut self) {
        (self.runtime, self.exits) = runtime(&self.key, self.dir.path());
    }

    fn unit(&self, component: &str, composed: &str) -> Unit {
        self.unit_of(component, json!({"composeFile": composed, "timeout": "30s"}))
    }

    fn unit_of(&self, component: &str, properties: serde_json::Value) -> Unit {
        let serde_json::Value::Object(properties) = properties else { unreachable!() };
        let component = Component::new(component.parse().unwrap(), properties);
        Unit {
            device: self.key.clone(),
            deployment: "line".parse().unwrap(),
            digest: Digest::of_value(&component.properties),
            workload: Workload::of(ProfileType::Compose, &component).unwrap(),
            is_job: false,
            component: component.name,
            environment: [("GREETING".to_owned(), "moin".to_owned())].into(),
            values: Default::default(),
            namespace: None,
            labels: Default::default(),
        }
    }

    async fn try_start(&self, unit: &Unit) -> Result<Started, StatusError> {
        let never = CancellationToken::new();
        timeout(DEADLINE, self.runtime.start(unit, &never)).await.expect("a start that ends")
    }

    async fn start(&self, unit: &Unit) {
        assert_eq!(self.try_start(unit).await, Ok(Started::Ready));
    }

    async fn refused(&self, unit: &Unit) -> StatusError {
        self.try_start(unit).await.expect_err("this cannot start")
    }

    async fn exit(&mut self) -> Exit {
        timeout(DEADLINE, self.exits.recv()).await.expect("an exit").unwrap()
    }

    async fn inventory(&self) -> Vec<Running> {
        self.runtime.inventory().await.unwrap()
    }

    fn all(&self, list: &[&str]) -> Vec<String> {
        listed(&[list, &["--quiet", "--filter", &format!("label=io.muster.device={}", self.key)]].concat())
    }

    fn containers(&self) -> Vec<String> {
        self.all(&["ps", "--all"])
    }

    /// Makes a file in what runs: a container that waits for it goes on when the test wants it to.
    fn touch(&self, path: &str) {
        let running = self.all(&["ps"]);
        let made = running.iter().filter(|id| try_docker(&["exec", id, "touch", path]).is_ok()).count();
        assert!(made > 0, "nothing runs that could be told: {running:?}");
    }

    /// Everything of this device that the engine has.
    fn remains(&self) -> Vec<String> {
        [self.containers(), self.all(&["network", "ls"]), self.all(&["volume", "ls"])].concat()
    }

    fn sweep(&self) {
        for id in self.containers() {
            docker(&["rm", "--force", "--volumes", &id]);
        }
        for (kind, ids) in
            [("network", self.all(&["network", "ls"])), ("volume", self.all(&["volume", "ls"]))]
        {
            ids.iter().for_each(|id| _ = docker(&[kind, "rm", id]));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.sweep();
    }
}

fn runtime(key: &DeviceKey, dir: &Path) -> (ComposeRuntime, mpsc::Receiver<Exit>) {
    let (sender, exits) = mpsc::channel(8);
    let packages = PackageStore::new(dir, PackageSettings::default());
    (ComposeRuntime::new(key.clone(), dir, packages, sender), exits)
}

/// A service that runs a shell script.
fn service(name: &str, script: &str, more: &str) -> String {
    let image = box_image();
    format!("  {name}:\n    image: {image}\n    init: true\n    command: [sh, -c, {script:?}]\n{more}")
}

fn project(services: &[String]) -> String {
    format!("services:\n{}", services.concat())
}

const FOREVER: &str = "while true; do sleep 1; done";

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_is_ready_with_its_containers_and_another_agent_adopts_it() {
    let mut device = Device::new("taken-over");
    let healthy = "    environment: {GREETING: \"${GREETING}\"}\n    healthcheck: {test: [CMD, test, -e, /tmp/up], interval: 1s, retries: 30}\n";
    let script = format!("echo $$GREETING; sleep 2; touch /tmp/up; {FOREVER}");
    let job = service("job", "exit 0", "");
    let unit = device.unit("web", &project(&[service("http", &script, healthy), job]));
    device.start(&unit).await;
    let before = device.containers();
    assert_eq!(before.len(), 2);
    let logs: String = before.iter().map(|id| docker(&["logs", id])).collect();
    assert_eq!(logs.trim(), "moin", "parameters are variables");
    device.restart();
    assert_eq!(
        device.inventory().await,
        [Running { name: unit.name(), digest_prefix: unit.digest_prefix() }]
    );
    device.start(&unit).await;
    assert_eq!(device.containers(), before, "nothing was made anew");
    docker(&["kill", &before.iter().find(|id| docker(&["logs", id]) == "moin").unwrap().clone()]);
    let exit = device.exit().await;
    assert_eq!((exit.name, exit.digest_prefix), (unit.name(), unit.digest_prefix()));
    assert!(exit.error.message.contains("'http' ended with exit code"), "{}", exit.error.message);
    device.start(&unit).await;
    timeout(DEADLINE, device.runtime.remove(&unit.name(), SECOND)).await.unwrap().unwrap();
    assert_eq!(device.remains(), Vec::<String>::new());
    assert_eq!(device.inventory().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_of_a_registry_runs_and_starts_again_without_the_registry() {
    let Some(registry) = OciRegistry::start("a package of a registry on an engine") else { return };
    let device = Device::new("package");
    let composed = project(&[service(
        "web",
        &format!("cat /conf/hello; {FOREVER}"),
        "    volumes: [./conf:/conf:ro]\n",
    )]);
    registry.push(
        "line/app",
        "1.0",
        &packed(&[("app/compose.yaml", &composed), ("app/conf/hello", "moin\n")]),
    );
    let properties =
        json!({"repository": registry.repository("line/app"), "revision": "1.0", "timeout": "60s"});
    let unit = device.unit_of("web", properties);
    device.start(&unit).await;
    assert_eq!(docker(&["logs", &device.containers()[0]]).trim(), "moin", "files of the package are mounted");
    let other = json!({"repository": registry.repository("line/other"), "revision": "1.0", "timeout": "60s"});
    let error = device.refused(&device.unit_of("other", other)).await;
    assert_eq!(error.code, code::PACKAGE_FAILED);
    drop(registry);
    timeout(DEADLINE, device.runtime.stop(&unit.name(), SECOND)).await.unwrap().unwrap();
    assert_eq!(device.containers(), Vec::<String>::new());
    device.start(&unit).await;
    timeout(DEADLINE, device.runtime.remove(&unit.name(), SECOND)).await.unwrap().unwrap();
    assert_eq!(device.remains(), Vec::<String>::new());
    assert!(!device.dir.path().join("compose/line/web").exists(), "nothing of the package is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_before_or_after_readiness_says_how_and_with_which_last_words() {
    let mut device = Device::new("ends");
    let early = device.unit("early", &project(&[service("web", "echo no disk >&2; exit 3", "")]));
    let error = device.refused(&early).await;
    assert_eq!((error.code.as_str(), error.source.as_str()), (code::EXITED, "early"));
    assert!(error.message.contains("exit code 3") && error.message.contains("no disk"), "{}", error.message);
    assert_eq!(device.containers(), Vec::<String>::new(), "after an error nothing of it runs");
    let check = "    healthcheck: {test: [CMD, test, '!', -e, /tmp/ill], interval: 1s, retries: 2}\n";
    let ill = device.unit("ill", &project(&[service("web", FOREVER, check)]));
    device.start(&ill).await;
    device.touch("/tmp/ill");
    let exit = device.exit().await;
    assert_eq!(exit.error.code, code::UNHEALTHY, "{}", exit.error.message);
    let script = "while test ! -e /tmp/done; do sleep 1; done; exit 0";
    let brief = device.unit("brief", &project(&[service("web", script, "")]));
    device.start(&brief).await;
    device.touch("/tmp/done");
    let exit = device.exit().await;
    assert!(exit.error.message.contains("exit code 0"), "{}", exit.error.message);
    let before = device.containers();
    device.start(&brief).await;
    assert_ne!(device.containers(), before, "what was to stay and ended well does not count as done");
    let looping = "    restart: always\n";
    let again = device.unit("again", &project(&[service("web", "echo on and on; exit 1", looping)]));
    let error = device.refused(&again).await;
    assert!(error.message.contains("restarts by the engine"), "{}", error.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_says_why_and_others_go_on() {
    let mut device = Device::new("refused");
    let good = device.unit("good", &project(&[service("web", FOREVER, "")]));
    device.start(&good).await;
    let missing = "services:\n  web: {image: 'localhost:9/muster-no-such-image:1'}\n";
    let error = device.refused(&device.unit("missing", missing)).await;
    assert_eq!(error.code, code::START_FAILED);
    assert!(
        error.message.contains("muster-no-such-image") || error.message.contains("localhost:9"),
        "{}",
        error.message
    );
    let invalid = device.refused(&device.unit("invalid", "services:\n  web: {imag: x}\n")).await;
    assert!(invalid.message.contains("Compose rejects its file"), "{}", invalid.message);
    assert!(invalid.message.contains("imag"), "{}", invalid.message);
    let garbled = device.refused(&device.unit("garbled", "services: [")).await;
    assert!(garbled.message.contains("Compose rejects its file"), "{}", garbled.message);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ports = format!("    ports: ['127.0.0.1:{port}:80']\n");
    let taken = device.refused(&device.unit("taken", &project(&[service("web", FOREVER, &ports)]))).await;
    assert!(
        taken.message.contains(&port.to_string()) && taken.message.contains("in use"),
        "{}",
        taken.message
    );
    let late = "    healthcheck: {test: [CMD, 'false'], interval: 1s, retries: 100}\n";
    let mut slow = device.unit("slow", &project(&[service("web", FOREVER, late)]));
    if let Workload::Compose(package) = &mut slow.workload {
        // Long enough for a loaded machine to make the container.
        package.gate.timeout = Some(20 * SECOND);
    }
    let error = device.refused(&slow).await;
    assert_eq!(error.code, code::NOT_READY, "{}", error.message);
    assert!(error.message.contains("health check of service 'web'"), "{}", error.message);
    assert_eq!(
        device.inventory().await,
        [Running { name: good.name(), digest_prefix: good.digest_prefix() }]
    );
    assert!(device.exits.try_recv().is_err(), "nothing happened to the good one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_volume_outlives_a_version_and_goes_with_its_component() {
    let device = Device::new("volumes");
    let composed = |script: &str| {
        let mount = "    volumes: ['kept:/kept']\n    environment: [GREETING]\n";
        format!("{}volumes: {{kept: {{}}}}\n", project(&[service("web", script, mount)]))
    };
    let one = device.unit("web", &composed(&format!("echo $$GREETING >/kept/note; {FOREVER}")));
    device.start(&one).await;
    let UnitName { .. } = one.name();
    device.runtime.stop(&one.name(), SECOND).await.unwrap();
    assert_eq!(device.containers(), Vec::<String>::new());
    let two = device.unit("web", &composed(&format!("cat /kept/note; {FOREVER}")));
    device.start(&two).await;
    assert_eq!(docker(&["logs", &device.containers()[0]]), "moin");
    device.runtime.remove(&two.name(), SECOND).await.unwrap();
    assert_eq!(device.remains(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_units_whose_names_run_together_run_side_by_side() {
    let device = Device::new("names");
    let composed = project(&[service("web", FOREVER, "")]);
    let unit = |deployment: &str, component: &str| Unit {
        deployment: deployment.parse().unwrap(),
        ..device.unit(component, &composed)
    };
    let (one, other) = (unit("web", "api-cache"), unit("web-api", "cache"));
    device.start(&one).await;
    device.start(&other).await;
    let found = device.inventory().await;
    let runs = |unit: &Unit| found.iter().any(|it| it.name == unit.name() && !it.digest_prefix.is_empty());
    assert!(runs(&one) && runs(&other), "{found:?}");
    device.runtime.remove(&one.name(), SECOND).await.unwrap();
    assert_eq!(device.inventory().await.len(), 1, "only its own is taken away");
    device.runtime.remove(&other.name(), SECOND).await.unwrap();
    assert_eq!(device.remains(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_finds_a_named_volume_of_an_earlier_project_name() {
    let device = Device::new("former");
    let digits: String = Digest::of_bytes(device.key.to_string().as_bytes()).as_bytes()[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let former = format!("m-line-web-{digits}");
    let (owner, volume) = (format!("io.muster.device={}", device.key), format!("{former}_kept"));
    let labels = [&owner, "io.muster.unit=line/web", &format!("com.docker.compose.project={former}")];
    let labels = labels.iter().flat_map(|label| ["--label", label]);
    let args: Vec<_> = ["volume", "create"].into_iter().chain(labels).chain([volume.as_str()]).collect();
    docker(&args);
    let mount = format!("{volume}:/kept");
    docker(&[
        "run",
        "--rm",
        "--network",
        "none",
        "--volume",
        &mount,
        box_image(),
        "sh",
        "-c",
        "echo moin >/kept/note",
    ]);
    let read = service("web", &format!("cat /kept/note; {FOREVER}"), "    volumes: ['kept:/kept']\n");
    let unit = device.unit("web", &format!("{}volumes: {{kept: {{}}}}\n", project(&[read])));
    let unit = Unit {
        namespace: Some("margo-apps".parse().unwrap()),
        labels: [("acme.example/line".to_owned(), "press".to_owned())].into(),
        ..unit
    };
    device.start(&unit).await;
    let container = &device.containers()[0];
    assert_eq!(docker(&["logs", container]), "moin");
    let told: serde_json::Value = serde_json::from_str(&docker(&["inspect", container])).unwrap();
    assert_eq!(told[0]["Config"]["Labels"]["acme.example/line"], "press");
    device.runtime.remove(&unit.name(), SECOND).await.unwrap();
    assert_eq!(device.remains(), Vec::<String>::new());
    // Without that data, its project has its namespace as prefix.
    device.start(&unit).await;
    let told: serde_json::Value =
        serde_json::from_str(&docker(&["inspect", &device.containers()[0]])).unwrap();
    let project = told[0]["Config"]["Labels"]["com.docker.compose.project"].as_str().unwrap();
    assert_eq!(project, format!("margo-apps_line_web-{digits}"));
    device.runtime.remove(&unit.name(), SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_job_is_done_once_its_services_have_ended_with_0() {
    let device = Device::new("removal-job");
    let job = |component: &str, script: &str| {
        let unit = device.unit(component, &project(&[service("drain", script, "")]));
        Unit { is_job: true, ..unit }
    };
    let waits = job("waits", "while [ ! -e /tmp/go ]; do sleep 0.1; done");
    let start = device.start(&waits);
    let goes_on = async {
        // It has been up for longer than a service that counts as ready.
        tokio::time::sleep(3 * SECOND).await;
        device.touch("/tmp/go");
    };
    let mut start = std::pin::pin!(start);
    tokio::select! {
        () = &mut start => panic!("a job that runs is not done"),
        () = goes_on => {}
    }
    start.await;
    device.runtime.remove(&waits.name(), SECOND).await.unwrap();
    let refused = device.refused(&job("fails", "exit 3")).await;
    assert_eq!(refused.code, code::EXITED);
    assert!(refused.message.contains("exit code 3"), "{}", refused.message);
    assert!(device.remains().is_empty());
}
