//! A device without workloads: an outbox that is filled at will, and the agent's real way up from it to a real server.
//!
//! The test chooses the reports, so the truth is known to the row.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::sync::Arc;

use muster_agent::app::schema;
use muster_agent::connection::ConnectionSupervisor;
use muster_agent::db::Db;
use muster_agent::metrics::Metrics;
use muster_agent::outbox::{Limits, NewReport, Outbox, RecordChange, Summary};
use muster_agent::relay::Relay;
use muster_agent::relay::budget::{Budget, Rate};
use muster_agent::relay::core::RelayCore;
use muster_agent::report::{Body, CapabilitiesBody, StatusBody};
use muster_agent::schedule::SchedulePhase;
use muster_bus::{Bus, BusConfig};
use muster_contract::canonical::Digest;
use muster_contract::desired::{
    Component, DesiredDeployment, DesiredState, Profile, ProfileType, Source, SourceKind,
};
use muster_contract::headers::{ZSTD, ZSTD_REPORTS_1};
use muster_contract::limits::HEARTBEAT;
use muster_contract::receipt::Receipt;
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Generation, SeqRanges, State, Timestamp};
use muster_service::clock::SystemClock;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Rows written in one transaction.
const ROWS_PER_WRITE: usize = 1_000;
/// Room for any backlog of a test.
const LIMITS: Limits = Limits { rows: 10_000_000, bytes: 1 << 33 };

/// A device and what it has to tell.
pub struct Backlog {
    /// The device.
    pub device: DeviceKey,
    /// The waiting reports.
    pub outbox: Outbox,
    /// The desired state: deployments of two components each.
    pub desired: Arc<DesiredState>,
    db: Db,
    dir: TempDir,
}

/// The agent's way up, at work.
pub struct Sender {
    /// The connection, while there is one.
    pub connected: watch::Receiver<Option<Bus>>,
    stop: CancellationToken,
    work: JoinHandle<()>,
}

impl Backlog {
    /// A device that shall run so many deployments, `app-0` and so on, and has told nothing but what it is.
    pub async fn new(device: DeviceKey, deployments: usize) -> Self {
        Self::running(device, (0..deployments).map(|at| format!("app-{at}"))).await
    }

    /// The same of deployments of these names.
    pub async fn running(device: DeviceKey, deployments: impl Iterator<Item = String>) -> Self {
        let backlog = Self::reopened(tempfile::tempdir().unwrap(), device, deployments).await;
        let capabilities = Body::Capabilities(CapabilitiesBody {
            observed_at: Timestamp::now(),
            properties: serde_json::Map::new(),
            labels: Default::default(),
            agent_version: "test".to_owned(),
        });
        let first = NewReport { body: capabilities, change: RecordChange::None };
        backlog.outbox.append(Arc::new(vec![first])).await.unwrap();
        backlog
    }

    /// A device with the outbox that is in a directory.
    pub async fn reopened(
        dir: TempDir,
        device: DeviceKey,
        deployments: impl Iterator<Item = String>,
    ) -> Self {
        let (place, key) = (dir.path().to_owned(), device.clone());
        let opened = move || Db::open(&place, &key, &schema(), Timestamp::now()).unwrap();
        let db = tokio::task::spawn_blocking(opened).await.unwrap();
        let outbox = Outbox::open(db.clone(), LIMITS).await.unwrap();
        Self { device, outbox, desired: Arc::new(desired(deployments)), db, dir }
    }

    /// Writes reports of `(deployment, state)`, all seen at `at`.
    pub async fn tell(&self, at: Timestamp, reports: impl IntoIterator<Item = (usize, State)>) {
        let entry = |(deployment, state)| NewReport {
            body: Body::Status(status(&self.desired.deployments[deployment], state, at)),
            change: RecordChange::None,
        };
        let mut reports = reports.into_iter().map(entry).peekable();
        while reports.peek().is_some() {
            let entries: Vec<_> = reports.by_ref().take(ROWS_PER_WRITE).collect();
            self.outbox.append(Arc::new(entries)).await.unwrap();
        }
    }

    /// Writes so many reports of all deployments in turn: each comes up, fails, and comes up again.
    pub async fn tell_history(&self, reports: usize) {
        let deployments = self.desired.deployments.len();
        let nth = |at: usize| {
            let state = [State::Installing, State::Failed][at / deployments % 2];
            (at % deployments, state)
        };
        self.tell(Timestamp::now(), (0..reports).map(nth)).await;
    }

    /// The numbers of waiting reports.
    pub async fn summary(&self) -> Summary {
        self.outbox.summary().await.unwrap()
    }

    /// Stores a receipt that covers nothing and says that the hub reads batches.
    pub async fn hub_reads_batches(&self) {
        let receipt = Receipt {
            api_version: ApiVersion::V1,
            kind: kind::Receipt::default(),
            epoch: self.outbox.fix_epoch(Timestamp::now()).await.unwrap(),
            through: 0,
            missing: SeqRanges::new(),
            refused: Vec::new(),
            batches: [ZSTD, ZSTD_REPORTS_1].map(str::to_owned).into(),
            generation: None,
        };
        self.outbox.receive(receipt, Timestamp::now()).await.unwrap();
    }

    /// Closes the outbox and returns the directory of the device, for an agent program to go on from there.
    pub async fn close(self) -> TempDir {
        self.db.close().await;
        self.dir
    }

    /// Begins to send.
    pub fn send(&self, settings: BusConfig, limit: Option<Rate>) -> Sender {
        let (connection, connected) = watch::channel(None);
        let (_, desired) = watch::channel(Some(Arc::clone(&self.desired)));
        let (_, receipt_fetched) = watch::channel(true);
        let (open, phase) = watch::channel(SchedulePhase::Open);
        let relay = Relay {
            device: self.device.clone(),
            outbox: self.outbox.clone(),
            clock: Arc::new(SystemClock),
            desired,
            storage_failure: watch::channel(None).1,
            refused: watch::channel(None).1,
            token: watch::channel(None).1,
            receipt_fetched,
            metrics: Metrics::default(),
            core: RelayCore::new(HEARTBEAT, Budget::new(limit, Instant::now()), fastrand::Rng::new()),
        };
        let keeper =
            ConnectionSupervisor { settings, phase, connected: connection, rng: fastrand::Rng::new() };
        let stop = CancellationToken::new();
        let working = stop.clone();
        let work = tokio::spawn(async move {
            keeper.run(relay, working.clone(), working).await;
            drop(open);
        });
        Sender { connected, stop, work }
    }
}

impl Sender {
    /// Ends it; what is left is sent if that goes quickly.
    pub async fn end(self) {
        self.stop.cancel();
        self.work.await.unwrap();
    }
}

fn desired(deployments: impl Iterator<Item = String>) -> DesiredState {
    let entry = |name: String| {
        let component = |name: &str| Component::new(name.parse().unwrap(), serde_json::Map::new());
        let mut entry = DesiredDeployment {
            id: name.parse().unwrap(),
            name,
            application_id: "com-example-backlog".to_owned(),
            namespace: None,
            labels: Default::default(),
            target_generation: Generation::FIRST,
            digest: Digest::of_bytes(b""),
            profile: Profile {
                profile_type: ProfileType::Simulated,
                components: ["web", "worker"].map(component).into(),
                device_constraints: None,
            },
            parameters: Default::default(),
            stopped: false,
            restart: 0,
            source: None,
        };
        entry.digest = entry.content_digest();
        entry
    };
    DesiredState {
        api_version: ApiVersion::V1,
        kind: kind::DesiredState::default(),
        generation: Generation::FIRST,
        issued_at: Timestamp::UNIX_EPOCH,
        retired: false,
        source: Source::new(SourceKind::Api, "test".to_owned()),
        labels: Default::default(),
        retry: None,
        deployments: deployments.map(entry).collect(),
    }
}

fn status(deployment: &DesiredDeployment, state: State, at: Timestamp) -> StatusBody {
    let error = (state == State::Failed)
        .then(|| StatusError::new("exit-1", "main", "the process ended with status 1; see its log"));
    let component =
        |component: &Component| ComponentStatus { name: component.name.clone(), state, error: error.clone() };
    StatusBody {
        observed_at: at,
        deployment: deployment.id.clone(),
        generation: deployment.target_generation,
        digest: deployment.digest,
        status: DeploymentStatus { state, error: error.clone(), reason: None },
        components: deployment.profile.components.iter().map(component).collect(),
        retries: Vec::new(),
    }
}
