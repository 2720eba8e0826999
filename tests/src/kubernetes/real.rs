//! A real cluster without nodes: etcd, the API server and the controllers, built from Debian's sources by .ci/kubernetes/build.
//! A test plays the node: it sets the status of pods. Without the programs a test is listed as not run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is the test's result")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::device::kubeconfig;
use crate::not_run::not_run;
use crate::server::free_port;

const FOLDER_VARIABLE: &str = "MUSTER_KUBERNETES";
const TOKEN: &str = "token-of-a-test";
const AGENT_TOKEN: &str = "token-of-an-agent";
const START_LIMIT: Duration = Duration::from_secs(90);

/// A running cluster, which ends when dropped.
pub struct RealCluster {
    etcd: Child,
    api: Option<Child>,
    controllers: Option<Child>,
    programs: PathBuf,
    ports: [u16; 4],
    dir: TempDir,
}

/// The folder with the programs, if `make kubernetes` has set it.
fn programs() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from)
}

impl RealCluster {
    /// Starts one; lists the test as not run if there are no programs.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(test: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            not_run(test, "this machine has no API server: `make kubernetes` builds one once, and runs it");
            return None;
        };
        let (dir, ports) =
            (tempfile::tempdir().unwrap(), [free_port(), free_port(), free_port(), free_port()]);
        let etcd = etcd(&programs, dir.path(), ports);
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(dir.path().join("service-account.key"), key.serialize_pem()).unwrap();
        fs::write(dir.path().join("service-account.pub"), key.public_key_pem()).unwrap();
        fs::write(
            dir.path().join("tokens"),
            format!("{TOKEN},muster,muster,\"system:masters\"\n{AGENT_TOKEN},agent,agent\n"),
        )
        .unwrap();
        let mut cluster = Self { etcd, api: None, controllers: None, programs, ports, dir };
        cluster.start_api();
        let ca = fs::read_to_string(cluster.dir.path().join("certs/apiserver.crt")).unwrap();
        let certificate =
            json!({"server": cluster.url(""), "certificate-authority-data": base64_of(ca.as_bytes())});
        kubeconfig(cluster.dir.path(), &certificate, &json!({"token": TOKEN}));
        cluster.start_controllers();
        Some(cluster)
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// The kubeconfig of an agent with all rights, which the API server throttles; it never throttles the group `system:masters`,
    /// to which [`Self::kubeconfig`] belongs.
    ///
    /// # Panics
    /// The API server refuses to grant the rights.
    pub fn kubeconfig_of_agent(&self) -> PathBuf {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "agent"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "agent"}],
        });
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/agent?fieldManager=test";
        self.patch(path, "application/apply-patch+yaml", &binding);
        let text = fs::read_to_string(self.kubeconfig()).unwrap().replace(TOKEN, AGENT_TOKEN);
        let path = self.dir.path().join("kubeconfig-of-agent");
        fs::write(&path, text).unwrap();
        path
    }

    /// A `helm` command with Helm's own library.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn helm(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/kubernetes/helm");
        let python = self.programs.join("venv/bin/python");
        let path = self.dir.path().join("helm");
        let text = format!("#!/bin/sh\nexec '{}' '{}' \"$@\"\n", python.display(), script.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Starts the API server, again at the same address.
    ///
    /// # Panics
    /// It does not start.
    pub fn start_api(&mut self) {
        self.start_api_with(&[]);
    }

    /// The same with further flags.
    ///
    /// # Panics
    /// It does not start.
    pub fn start_api_with(&mut self, flags: &[&str]) {
        let dir = self.dir.path();
        let file = |name: &str| dir.join(name).display().to_string();
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports[0]),
            format!("--secure-port={}", self.ports[2]),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", file("certs")),
            format!("--token-auth-file={}", file("tokens")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("service-account.pub")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
        ]);
        command.args(flags);
        self.api = Some(spawn(command, &dir.join("api.log")));
        let started = Instant::now();
        while !self.is_ready() {
            assert!(
                started.elapsed() < START_LIMIT,
                "the API server has not started within {START_LIMIT:?}: {}",
                tail(&dir.join("api.log"))
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn start_controllers(&mut self) {
        let mut command = Command::new(self.programs.join("kube-controller-manager"));
        let kubeconfig = self.kubeconfig().display().to_string();
        command.args([
            format!("--kubeconfig={kubeconfig}"),
            "--leader-elect=false".to_owned(),
            "--port=0".to_owned(),
            format!("--secure-port={}", self.ports[3]),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", self.dir.path().join("controller-certs").display()),
            format!(
                "--service-account-private-key-file={}",
                self.dir.path().join("service-account.key").display()
            ),
        ]);
        self.controllers = Some(spawn(command, &self.dir.path().join("controllers.log")));
    }

    /// Kills the API server with SIGKILL.
    pub fn kill_api(&mut self) {
        end(self.api.take());
    }

    /// The requests that the API server has refused because it had too many.
    ///
    /// # Panics
    /// The API server does not answer.
    pub fn throttled(&self) -> u64 {
        let mut answer =
            self.agent().get(self.url("/metrics")).header("authorization", bearer()).call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        let dropped = text.lines().filter(|line| line.starts_with("apiserver_dropped_requests_total{"));
        dropped.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }

    fn is_ready(&self) -> bool {
        self.agent()
            .get(self.url("/readyz"))
            .header("authorization", bearer())
            .call()
            .is_ok_and(|it| it.status() == 200)
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.ports[2])
    }

    fn agent(&self) -> Agent {
        let pem = fs::read(self.dir.path().join("certs/apiserver.crt")).unwrap_or_default();
        let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
            .filter_map(Result::ok)
            .filter_map(|item| if let ureq::tls::PemItem::Certificate(it) = item { Some(it) } else { None })
            .collect::<Vec<Certificate<'static>>>();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(std::sync::Arc::new(certificates)))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        Agent::config_builder().tls_config(tls).http_status_as_error(false).build().new_agent()
    }

    /// An object or a list; `None` if there is none.
    ///
    /// # Panics
    /// The API server does not answer.
    pub fn get(&self, path: &str) -> Option<Value> {
        let mut answer = self.agent().get(self.url(path)).header("authorization", bearer()).call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status() == 200).then(|| serde_json::from_str(&text).unwrap())
    }

    /// Changes fields of an object, with another field manager.
    ///
    /// # Panics
    /// The API server refuses it.
    pub fn patch(&self, path: &str, content_type: &str, body: &Value) -> Value {
        let request = self.agent().patch(self.url(path)).header("authorization", bearer());
        let mut answer = request.header("content-type", content_type).send(body.to_string()).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        assert!(answer.status().is_success(), "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// The API server refuses it.
    pub fn delete(&self, path: &str) {
        let answer = self.agent().delete(self.url(path)).header("authorization", bearer()).call().unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }

    /// The pods of a namespace.
    ///
    /// # Panics
    /// The API server does not answer.
    pub fn pods(&self, namespace: &str) -> Vec<Value> {
        let list = self.get(&format!("/api/v1/namespaces/{namespace}/pods")).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Plays the node once: sets the status of every pod of a namespace whose image is not `never`.
    pub fn play_node(&self, namespace: &str, status: &Value) {
        for pod in self.pods(namespace) {
            let image = pod.pointer("/spec/containers/0/image").and_then(Value::as_str);
            let has_it = pod["status"]["phase"] == status["phase"];
            if image != Some("never") && !has_it {
                let path = format!(
                    "/api/v1/namespaces/{namespace}/pods/{}/status",
                    pod["metadata"]["name"].as_str().unwrap()
                );
                self.patch(&path, "application/merge-patch+json", &json!({ "status": status }));
            }
        }
    }
}

/// The status of a pod that runs and is ready.
pub fn running() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]})
}

impl Drop for RealCluster {
    fn drop(&mut self) {
        end(self.controllers.take());
        end(self.api.take());
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

fn etcd(programs: &Path, dir: &Path, ports: [u16; 4]) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}", ports[1]));
    let mut command = Command::new(programs.join("etcd"));
    command.arg("--data-dir").arg(dir.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    spawn(command, &dir.join("etcd.log"))
}

fn spawn(mut command: Command, log: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(log).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        // It is gone already if this fails.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
}

fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
