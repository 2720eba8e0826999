//! A device that runs units in a cluster, through the agent's own runtime.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is the test's result")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use muster_agent::package::{PackageSettings, PackageStore};
use muster_agent::runtime::kubernetes::{KubernetesRuntime, KubernetesSettings};
use muster_agent::runtime::{Exit, Running, Runtime as _, Started, Unit};
use muster_contract::canonical::Digest;
use muster_contract::desired::{Component, ProfileType};
use muster_contract::profile::Workload;
use muster_contract::state::StatusError;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::DEADLINE;

/// A device.
pub struct ClusterDevice {
    /// Its runtime.
    pub runtime: KubernetesRuntime,
    exits: mpsc::Receiver<Exit>,
    kubeconfig: PathBuf,
    helm: PathBuf,
    dir: TempDir,
}

/// A kubeconfig for a server, as JSON, which is YAML.
pub fn kubeconfig(folder: &Path, cluster: &Value, user: &Value) -> PathBuf {
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

impl ClusterDevice {
    /// A device on which nothing has ever run.
    ///
    /// # Panics
    /// The kubeconfig cannot be used.
    pub fn new(kubeconfig: PathBuf, helm: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (runtime, exits) = runtime(dir.path(), &kubeconfig, &helm);
        Self { runtime, exits, kubeconfig, helm, dir }
    }

    /// Its data directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the agent by another one, with its files or without.
    pub fn restart(&mut self, with_files: bool) {
        if !with_files {
            self.dir = tempfile::tempdir().unwrap();
        }
        (self.runtime, self.exits) = runtime(self.dir.path(), &self.kubeconfig, &self.helm);
    }

    /// Starts a unit that is expected to become ready.
    pub async fn start(&self, unit: &Unit) {
        assert_eq!(self.try_start(unit).await, Ok(Started::Ready));
    }

    /// Starts a unit.
    pub async fn try_start(&self, unit: &Unit) -> Result<Started, StatusError> {
        let never = CancellationToken::new();
        tokio::time::timeout(DEADLINE, self.runtime.start(unit, &never)).await.expect("a start that ends")
    }

    /// Starts a unit that is expected to fail.
    pub async fn fail(&self, unit: &Unit) -> StatusError {
        self.try_start(unit).await.expect_err("a start that fails")
    }

    /// Removes a unit.
    pub async fn remove(&self, unit: &Unit) {
        let (name, limit) = (unit.name(), std::time::Duration::from_secs(10));
        let removed = tokio::time::timeout(DEADLINE, self.runtime.remove(&name, limit)).await;
        removed.expect("a removal that ends").unwrap();
    }

    /// The units that the runtime lists.
    pub async fn inventory(&self) -> Vec<Running> {
        self.runtime.inventory().await.unwrap()
    }

    /// The next unexpected end.
    pub async fn exit(&mut self) -> Exit {
        tokio::time::timeout(DEADLINE, self.exits.recv()).await.expect("an exit").expect("a runtime")
    }

    /// The unexpected end that has been sent already, if any.
    pub fn exit_sent(&mut self) -> Option<Exit> {
        self.exits.try_recv().ok()
    }
}

fn runtime(dir: &Path, kubeconfig: &Path, helm: &Path) -> (KubernetesRuntime, mpsc::Receiver<Exit>) {
    let (sender, exits) = mpsc::channel(8);
    let settings = KubernetesSettings {
        kubeconfig: Some(kubeconfig.to_owned()),
        helm: helm.to_owned(),
        namespace_prefix: "muster-".to_owned(),
    };
    let device = "plant/cluster".parse().unwrap();
    let packages = PackageStore::new(dir, PackageSettings::default());
    (KubernetesRuntime::new(device, dir, settings, packages, sender).unwrap(), exits)
}

/// A unit of a deployment.
///
/// # Panics
/// The properties are none of the type.
pub fn unit(profile: ProfileType, deployment: &str, properties: &Value, values: &[(&str, Value)]) -> Unit {
    let Value::Object(properties) = properties.clone() else { panic!("properties are an object") };
    let values = values.iter().map(|(pointer, value)| ((*pointer).to_owned(), value.clone()));
    let values: std::collections::BTreeMap<String, Value> = values.collect();
    let digest = Digest::of_value(&(&properties, &values));
    let component = Component::new("web".parse().unwrap(), properties);
    Unit {
        device: "plant/cluster".parse().unwrap(),
        deployment: deployment.parse().unwrap(),
        component: component.name.clone(),
        namespace: None,
        labels: Default::default(),
        digest,
        workload: Workload::of(profile, &component).unwrap(),
        is_job: false,
        environment: Default::default(),
        values,
    }
}

/// A unit of manifests.
pub fn manifests(deployment: &str, text: &str, timeout: &str) -> Unit {
    unit(ProfileType::Kubernetes, deployment, &json!({"manifests": text, "timeout": timeout}), &[])
}

/// A unit of a chart.
pub fn chart(deployment: &str, location: &str, timeout: &str, values: &[(&str, Value)]) -> Unit {
    unit(ProfileType::Helm, deployment, &json!({"packageLocation": location, "timeout": timeout}), values)
}

/// Polls until there is a result. `what` names it in the panic.
///
/// # Panics
/// There is none in time.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "no result within {DEADLINE:?}: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
}
