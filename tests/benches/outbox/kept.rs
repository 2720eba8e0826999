//! The outbox as the agent uses it: each report with its standing, in a real data directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use muster_agent::db::Db;
use muster_agent::outbox::{Limits, NewReport, Outbox, ROW_BYTES, RecordChange};
use muster_agent::record::DeploymentRecord;
use muster_agent::report::Body;
use muster_contract::canonical::Digest;
use muster_contract::desired::{Component, DesiredDeployment, Profile, ProfileType};
use muster_contract::{Generation, State, Timestamp};

use super::disk;

/// Deployments of the device.
pub(crate) const DEPLOYMENTS: u64 = 8;

/// Reports that are kept together.
pub(crate) type Group = Arc<Vec<NewReport>>;

pub(crate) struct Kept {
    db: Db,
    outbox: Outbox,
    log: PathBuf,
    next: AtomicU64,
}

impl Kept {
    pub(crate) async fn open(dir: &Path) -> Self {
        let device = "plant7/press-4".parse().unwrap();
        let db = Db::open(dir, &device, &muster_agent::app::schema(), Timestamp::now()).unwrap();
        let outbox = Outbox::open(db.clone(), Limits::default()).await.unwrap();
        Self { db, outbox, log: disk::log_of(&dir.join("agent.db")), next: AtomicU64::new(0) }
    }

    /// So many groups of reports, for later: what makes a report is not measured.
    pub(crate) fn groups(&self, groups: usize, reports: usize) -> Vec<Group> {
        let next = || entry(self.next.fetch_add(1, Ordering::Relaxed));
        let group = || Arc::new(std::iter::repeat_with(next).take(reports).collect());
        std::iter::repeat_with(group).take(groups).collect()
    }

    /// Keeps groups, each durably before the next: as the agent's one writer does, which has gathered what waits.
    pub(crate) async fn keep(&self, groups: Vec<Group>) {
        for group in groups {
            self.outbox.append_here(group).await.unwrap();
        }
    }

    /// As many callers as a group has reports keep one after another; each waits for its own.
    pub(crate) async fn keep_waiting(&self, callers: Vec<Vec<Group>>) {
        let keep = async |groups: Vec<Group>| {
            for group in groups {
                self.outbox.append(group).await.unwrap();
            }
        };
        join_all(callers.into_iter().map(keep)).await;
    }

    /// Pages of the log that one report costs.
    pub(crate) async fn pages(&self, reports: usize) -> f64 {
        self.db
            .run(|connection| connection.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(())))
            .await
            .unwrap();
        let before = disk::pages(&self.log);
        // The log is as long as it ever was, and written from its start again once all of it is written back: what is
        // counted is what comes at its end.
        while disk::pages(&self.log) <= before {
            self.keep(self.groups(1, 1)).await;
        }
        let start = disk::pages(&self.log);
        self.keep(self.groups(reports, 1)).await;
        (disk::pages(&self.log) - start) / reports as f64
    }

    /// Everything is there.
    pub(crate) async fn check(&self) {
        let summary = self.outbox.summary().await.unwrap();
        assert_eq!(summary.head, self.next.load(Ordering::Relaxed));
        assert_eq!(summary.unsent, summary.rows);
    }
}

/// The `nth` report of the device.
fn entry(nth: u64) -> NewReport {
    let id = format!("app-{}", nth % DEPLOYMENTS);
    let component = |name: &str| Component::new(name.parse().unwrap(), serde_json::Map::new());
    let desired = DesiredDeployment {
        id: id.parse().unwrap(),
        name: id,
        application_id: "com-example-bench".to_owned(),
        namespace: None,
        labels: Default::default(),
        target_generation: Generation::FIRST,
        digest: Digest::of_bytes(b"bench"),
        profile: Profile {
            profile_type: ProfileType::Simulated,
            components: vec![component("web"), component("worker")],
            device_constraints: None,
        },
        parameters: Default::default(),
        stopped: false,
        restart: 0,
        source: None,
    };
    let mut record = DeploymentRecord::new(desired, Generation::FIRST);
    let state = [State::Installing, State::Installed][(nth / DEPLOYMENTS % 2) as usize];
    record.components.iter_mut().for_each(|component| component.state = state);
    let body = Body::Status(record.body(Timestamp::now()));
    NewReport { body, change: RecordChange::Store(Box::new(record)) }
}

/// Bytes of a row, as the outbox counts them, and of a standing.
pub(crate) fn sizes() -> (usize, usize) {
    let NewReport { body, change } = entry(0);
    let RecordChange::Store(record) = change else { unreachable!("each report here keeps a standing") };
    let bytes = |text: serde_json::Result<String>| text.unwrap().len();
    (bytes(serde_json::to_string(&body)) + ROW_BYTES, bytes(serde_json::to_string(&record)))
}
