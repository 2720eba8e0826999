//! A server, a repository and as many publishers as a test wants.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Delivery};
use muster_contract::desired::DesiredState;
use muster_contract::query::{ErrorReply, PublisherStatus};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, decode};
use muster_publisher::announce::AnnouncerHandle;
use muster_publisher::app::{self, Handle};
use muster_publisher::config::{Config, GitConfig};
use muster_publisher::git::REMOTE_TIMEOUT;
use muster_publisher::source::Policy;
use muster_publisher::status::Status;
use muster_service::config::{Common, LogFormat, Streams};
use muster_service::supervisor::{Drained, Supervisor};
use muster_simulator::repository::{BRANCH, Repository};
use muster_tests::server::Server;
use muster_tests::wait::until;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Time a request may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server and a repository with one commit.
pub(crate) struct Stage {
    pub server: Server,
    pub bus: Bus,
    pub repository: Repository,
    dir: TempDir,
}

/// A publisher within the test's process.
pub(crate) struct Publisher {
    pub supervisor: Supervisor,
    pub status: Arc<Status>,
    pub announcer: AnnouncerHandle,
    _handle: Handle,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
        let repository = Repository::create(dir.path().join("repository")).await.unwrap();
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        bus.converge().await.unwrap();
        Self { server, bus, repository, dir }
    }

    /// A publisher of the repository.
    pub(crate) async fn publisher(&self) -> Publisher {
        self.start(Some(self.repository.dir().to_str().unwrap()), false).await
    }

    /// A publisher that accepts a commit without any device.
    pub(crate) async fn publisher_that_may_empty_the_fleet(&self) -> Publisher {
        self.start(Some(self.repository.dir().to_str().unwrap()), true).await
    }

    /// A publisher that ignores rollouts.
    pub(crate) async fn publisher_that_ignores_rollouts(&self) -> Publisher {
        let policy = Policy { ignore_rollouts: true, ..Policy::default() };
        let repository = self.repository.dir().to_str().unwrap();
        self.start_with(Some(repository), false, REMOTE_TIMEOUT, policy).await
    }

    /// A publisher that accepts requests only.
    pub(crate) async fn publisher_without_git(&self) -> Publisher {
        self.start(None, false).await
    }

    /// A publisher of another copy of the repository.
    pub(crate) async fn publisher_of(&self, copy: &Path) -> Publisher {
        self.start(Some(copy.to_str().unwrap()), false).await
    }

    /// A publisher of a repository elsewhere, with a time for each run of git.
    pub(crate) async fn publisher_of_url(&self, url: &str, timeout: Duration) -> Publisher {
        self.start_with(Some(url), false, timeout, Policy::default()).await
    }

    async fn start(&self, repository: Option<&str>, allow_empty: bool) -> Publisher {
        self.start_with(repository, allow_empty, REMOTE_TIMEOUT, Policy::default()).await
    }

    async fn start_with(
        &self,
        repository: Option<&str>,
        allow_empty: bool,
        timeout: Duration,
        policy: Policy,
    ) -> Publisher {
        let source = |repository: &str| GitConfig {
            url: repository.parse().unwrap(),
            branch: BRANCH.parse().unwrap(),
            poll: Duration::from_millis(100),
            timeout,
            token_file: None,
            allow_empty,
            policy,
        };
        let common = Common {
            nats_url: self.server.url().parse().unwrap(),
            creds: None,
            tls_ca: None,
            http_addr: None,
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
        };
        let streams = Streams {
            uplink_bytes_max: muster_bus::config::UPLINK_BYTES_MAX,
            ledger_bytes_max: muster_bus::config::LEDGER_BYTES_MAX,
            replicas: 1,
        };
        let config = Config { common, streams, git: repository.map(source), data_dir: None };
        let supervisor = Supervisor::new();
        let handle = app::start(config, &supervisor).await.unwrap();
        until("the publisher is ready", async || supervisor.health().missing(), Vec::is_empty).await;
        Publisher {
            supervisor,
            status: handle.status.clone(),
            announcer: handle.announcer.clone(),
            _handle: handle,
        }
    }

    /// Commits the work tree; returns the commit.
    pub(crate) async fn commit(&self) -> String {
        self.repository.commit("test").await.unwrap();
        self.git(&["rev-parse", "HEAD"])
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git").current_dir(self.repository.dir()).args(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Writes a deployment with one component to a file.
    pub(crate) fn write(&self, path: &str, id: &str, command: &str) {
        self.repository.write(path, &deployment(id, command)).unwrap();
    }

    /// A device without a deployment of its own.
    pub(crate) fn device(&self, key: &str) {
        self.repository.write(&format!("sites/{key}/.gitkeep"), "").unwrap();
    }

    pub(crate) fn remove(&self, folder: &str) {
        std::fs::remove_dir_all(self.repository.dir().join(folder)).unwrap();
    }

    /// The last message of a device.
    pub(crate) async fn last(&self, device: &str) -> Option<Delivery> {
        let key: DeviceKey = device.parse().unwrap();
        self.bus.last(stream::DOWNLINK, &subjects::desired(&key)).await.unwrap()
    }

    /// The document of a device, which must exist and be valid.
    pub(crate) async fn document(&self, device: &str) -> DesiredState {
        let last = self.last(device).await.unwrap_or_else(|| panic!("{device} has no document"));
        decode::parse(&last.payload).unwrap()
    }

    /// `id=command@targetGeneration` of each deployment of a device, and its generation.
    pub(crate) async fn shown(&self, device: &str) -> (u64, Vec<String>) {
        let document = self.document(device).await;
        let shown = document.deployments.iter().map(|entry| {
            let command = entry.profile.components[0].properties["command"].as_str().unwrap();
            format!("{}={command}@{}", entry.id, entry.target_generation)
        });
        (document.generation.get(), shown.collect())
    }

    /// Publishes a document as another publisher would.
    pub(crate) async fn publish_as_a_publisher(&self, key: &DeviceKey, document: &DesiredState) {
        let id = format!("{}.{}.{}", key.site, key.device, document.generation);
        let trace = muster_bus::Trace::of_id(1);
        let letter = muster_bus::Outgoing {
            headers: muster_bus::event::attributes("muster-publisher", "DesiredState", id, trace),
            ..muster_bus::Outgoing::new(subjects::desired(key), decode::to_bytes(document))
        };
        self.bus.publish(letter).await.unwrap();
    }

    /// Removes every message of a device from DOWNLINK, as a lost disk does.
    pub(crate) async fn purge(&self, device: &str) {
        let filter = serde_json::json!({ "filter": subjects::desired(&device.parse().unwrap()) });
        let subject = format!("$JS.API.STREAM.PURGE.{}", stream::DOWNLINK);
        let reply = self.bus.request(&subject, filter.to_string().into(), PATIENCE).await.unwrap();
        let reply: serde_json::Value = serde_json::from_slice(&reply).unwrap();
        assert_eq!(reply["success"], true, "{reply}");
    }

    /// The last sequence of DOWNLINK: how much was ever published.
    pub(crate) async fn published(&self) -> u64 {
        self.bus.stream_state(stream::DOWNLINK).await.unwrap().last_seq
    }

    /// Sends the publisher a request; returns its answer, or the code and message of its refusal.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        verb: &str,
        request: &impl Serialize,
    ) -> Result<T, ErrorReply> {
        let payload = Bytes::from(serde_json::to_vec(request).unwrap());
        let subject = format!("{}.{verb}", subjects::PUBLISHER_PREFIX);
        let reply = self.bus.request(&subject, payload, PATIENCE).await.unwrap();
        serde_json::from_slice(&reply).map_err(|_| serde_json::from_slice(&reply).unwrap())
    }

    /// A directory that is removed after the test.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Publisher {
    /// Waits until a commit is completely published.
    pub(crate) async fn applied(&self, commit: &str) {
        let applied = |status: &PublisherStatus| {
            status.git.as_ref().is_some_and(|git| git.applied.as_deref() == Some(commit))
        };
        until("the commit is applied", async || self.status.answer(), applied).await;
    }

    /// Waits until a commit is refused; returns its problems, one a line.
    pub(crate) async fn refused(&self, commit: &str) -> Vec<String> {
        let refused = |status: &PublisherStatus| {
            let refused = status.git.as_ref().and_then(|git| git.refused.as_ref());
            refused.is_some_and(|refused| refused.revision == commit)
        };
        let status = until("the commit is refused", async || self.status.answer(), refused).await;
        let problems = status.git.unwrap().refused.unwrap().problems;
        let line = |line: Option<u64>| line.map_or_else(String::new, |line| line.to_string());
        problems.iter().map(|p| format!("{}:{}: {}: {}", p.file, line(p.line), p.field, p.rule)).collect()
    }

    /// Drains the publisher.
    pub(crate) async fn stop(self) -> Drained {
        self.supervisor.drain(Duration::from_secs(20)).await
    }

    /// Ends the publisher without a drain.
    pub(crate) async fn crash(self) {
        self.supervisor.abandon().await;
    }
}

/// A deployment with one component.
pub(crate) fn deployment(id: &str, command: &str) -> String {
    format!(
        "id: {id}\nmetadata: {{name: {id}}}\nspec:\n  applicationId: com-example-{id}\n  deploymentProfile:\n    \
         type: process\n    components:\n      - name: main\n        properties: {{command: {command}}}\n"
    )
}
