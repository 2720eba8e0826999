//! A device that runs containers, as the process it is: an agent, a hub, and an engine of the test's own that can be
//! taken away without a word.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::view::{DeploymentView, Verdict};
use muster_simulator::child::Spec;
use muster_tests::containers::{BOX, import_box, try_docker};
use muster_tests::system::{System, agent_name, program};
use muster_tests::wait::within;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(90);

/// An engine that nobody else uses. It ends with the value, and its containers with it.
struct Private {
    dir: TempDir,
    running: Option<Child>,
}

impl Private {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("muster-engine-").tempdir().unwrap(), running: None }
    }

    fn host(&self) -> String {
        format!("unix://{}/engine.sock", self.dir.path().display())
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.path().join("engine.pid")
    }

    /// Starts it, and waits until it answers.
    async fn start(&mut self) {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        let log = std::fs::File::options().create(true).append(true).open(at("engine.log")).unwrap();
        let mut command = Command::new("dockerd");
        command.args(["--host", &self.host(), "--data-root", &at("data"), "--exec-root", &at("exec")]);
        // The machine's own engine looks after the machine's network.
        command.args(["--pidfile", &at("engine.pid"), "--bridge", "none", "--iptables=false"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running = Some(command.spawn().unwrap());
        let answers = async || try_docker(&["--host", &self.host(), "version"]);
        within(DEADLINE, "the engine answers", answers, Result::is_ok).await.unwrap();
    }

    /// Asks it to end, with everything that it runs.
    fn stop(&mut self) {
        if let Some(mut child) = self.running.take() {
            // It may have ended by itself.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            child.wait().unwrap();
        }
        let _ = std::fs::remove_file(self.pid_file());
    }

    fn containers(&self) -> usize {
        let listed = try_docker(&["--host", &self.host(), "ps", "--quiet"]);
        listed.map(|ids| ids.lines().count()).unwrap_or_default()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        self.stop();
        // The device's mounts for its containers would hold its folder.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let own = self.dir.path().display().to_string();
        let mounted =
            mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|path| path.starts_with(&own));
        for path in mounted {
            let _ = Command::new("umount").args(["--lazy", path]).status();
        }
    }
}

/// A deployment of one service without a network of its own.
fn deployment(id: &str, image: &str) -> String {
    format!(
        r#"id: {id}
metadata: {{name: {id}}}
spec:
  applicationId: com-example-{id}
  deploymentProfile:
    type: compose
    components:
      - name: {id}
        properties:
          timeout: 0m30s
          composeFile: |
            services:
              {id}:
                image: {image}
                network_mode: none
                init: true
                command: [sh, -c, "while true; do sleep 1; done"]
"#
    )
}

async fn until(system: &System, id: &str, what: &str, holds: impl Fn(&DeploymentView) -> bool) {
    let look = async || {
        let views = system.hub.deployments().await.unwrap_or_default();
        views.into_iter().find(|view| view.deployment.as_str() == id)
    };
    within(DEADLINE, what, look, |view| view.as_ref().is_some_and(&holds)).await;
}

fn says(view: &DeploymentView, words: &str) -> bool {
    view.errors.iter().any(|error| error.example.message.contains(words))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_reports_a_missing_engine_and_survives_its_restart() {
    let (mut engine, mut system) = (Private::new(), System::start().await);
    let key: DeviceKey = "check/engine".parse().unwrap();
    system.repository.write(&format!("sites/{}/{}/.gitkeep", key.site, key.device), "").unwrap();
    system.repository.write("fleet/web.yaml", &deployment("web", BOX)).unwrap();
    let missing = "localhost:9/muster-no-such-image:1";
    system.repository.write("fleet/broken.yaml", &deployment("broken", missing)).unwrap();
    system.repository.commit("Containers").await.unwrap();
    system.start_own(agent(&system, &key, &engine));

    until(&system, "web", "the status names the missing engine", |view| {
        view.verdict == Verdict::Failing && says(view, "Docker daemon")
    })
    .await;
    engine.start().await;
    import_box(&["--host", &engine.host()]);
    until(&system, "web", "it runs once there is an engine", |view| view.verdict == Verdict::Converged).await;
    until(&system, "broken", "the status names the missing image", |view| {
        view.verdict == Verdict::Failing && (says(view, "no-such-image") || says(view, "localhost:9"))
    })
    .await;
    assert_eq!(engine.containers(), 1);

    engine.stop();
    until(&system, "web", "the status names the stopped engine", |view| view.verdict == Verdict::Failing)
        .await;
    engine.start().await;
    until(&system, "web", "it runs again after the engine's restart", |view| {
        view.verdict == Verdict::Converged
    })
    .await;
    assert_eq!(engine.containers(), 1);

    // Another device keeps the commit from being one that empties the fleet.
    let other = format!("sites/{}/another/.gitkeep", key.site);
    system.repository.write(&other, "").unwrap();
    std::fs::remove_dir_all(system.repository.dir().join("fleet")).unwrap();
    system.repository.commit("Nothing more").await.unwrap();
    let containers = async || engine.containers();
    within(DEADLINE, "nothing runs any more", containers, |count| *count == 0).await;
    let left = async || {
        let views = system.hub.deployments().await;
        views.map(|views| views.len()).unwrap_or(usize::MAX)
    };
    within(DEADLINE, "nothing is left", left, |count| *count == 0).await;
}

/// The agent, told where the engine is.
fn agent(system: &System, key: &DeviceKey, engine: &Private) -> Spec {
    let hub = format!("nats://{}", system.address());
    let data = system.device_dir(key).display().to_string();
    let (host, program) =
        (format!("DOCKER_HOST={}", engine.host()), program("muster-agent").display().to_string());
    let own =
        [&*host, &*program, "--nats-url", &hub, "--site", key.site.as_str(), "--device", key.device.as_str()];
    let more = ["--data-dir", &data, "--runtime", "compose", "--heartbeat", "1s", "--reconnect-max", "1s"];
    let retry = ["--retry-min", "500ms", "--retry-max", "2s", "--on-exit", "keep"];
    let args = own.iter().chain(&more).chain(&retry).map(|&arg| arg.to_owned()).collect();
    Spec { name: agent_name(key), program: "/usr/bin/env".into(), args }
}
