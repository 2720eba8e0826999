//! Keeps the statuses of one kind's objects in one namespace: a list in pages, then a watch with bookmarks from its version. If
//! the API server has compacted that version (410), it lists again. Only the status of an object is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::client::{ApiClient, ApiError, JSON, METADATA, METADATA_LIST, PAGE_OBJECTS, next_page};
use super::discovery::Resource;
use super::kstatus::pod::{self, Owner, PodProblem};
use super::kstatus::{self, ObjectStatus};

/// Objects of one kind in one namespace.
const OBJECTS_MAX: usize = 20_000;
/// Seconds after which the API server ends a watch; the next one goes on from the last bookmark.
const WATCH_SECONDS: u64 = 60;
/// Silence after which a watch counts as dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(WATCH_SECONDS + 15);
/// Delays before another attempt.
const DELAY_MIN: Duration = Duration::from_millis(200);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Pause between two watches, for a server that ends each watch at once.
const PAUSE: Duration = Duration::from_millis(50);
/// The status code for a version that the server has compacted.
const GONE: u16 = 410;
/// Kinds of the core group without a status: only their metadata is read, because their content may be secret.
const WITHOUT_STATUS: [&str; 5] = ["ConfigMap", "Secret", "ServiceAccount", "LimitRange", "PodTemplate"];
/// Groups whose kinds have no status.
const GROUPS_WITHOUT_STATUS: [&str; 3] =
    ["rbac.authorization.k8s.io", "admissionregistration.k8s.io", "scheduling.k8s.io"];

/// Scope of one watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct WatchKey {
    pub(super) resource: Resource,
    pub(super) namespace: Option<String>,
}

/// The part of an object that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) status: ObjectStatus,
    /// A pod's: the cause that keeps it from being ready, and the workload that made it.
    pub(super) problem: Option<PodProblem>,
    pub(super) owner: Option<Owner>,
}

/// The objects of a watch.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) objects: HashMap<String, Observed>,
    /// The newest request for a list that this snapshot satisfies; 0 before the first list.
    pub(super) listed: u64,
    /// The start of an outage of the API server.
    pub(super) failing_since: Option<Instant>,
    /// The last error, until a request succeeds.
    pub(super) error: Option<String>,
    /// Whether the API server refused the request, so that it is useless to wait.
    pub(super) is_refused: bool,
}

/// The task of one watch.
pub(super) struct Watcher {
    pub(super) key: WatchKey,
    pub(super) client: Arc<ApiClient>,
    pub(super) snapshot: Arc<Mutex<Snapshot>>,
    /// The newest request for a list.
    pub(super) requests: watch::Receiver<u64>,
    /// Counts changes of all snapshots.
    pub(super) changes: watch::Sender<u64>,
}

impl WatchKey {
    fn has_status(&self) -> bool {
        let group = self.resource.api_version.split_once('/').map_or("", |(group, _)| group);
        let is_core_without = group.is_empty() && WITHOUT_STATUS.contains(&self.resource.kind.as_str());
        !is_core_without && !GROUPS_WITHOUT_STATUS.contains(&group)
    }

    fn is_pods(&self) -> bool {
        self.resource.api_version == "v1" && self.resource.kind == "Pod"
    }

    fn observe(&self, mut object: Value) -> Observed {
        if self.has_status() {
            // The API server omits both in the items of a list.
            object["apiVersion"] = Value::from(self.resource.api_version.as_str());
            object["kind"] = Value::from(self.resource.kind.as_str());
        }
        let is_pod = self.is_pods();
        Observed {
            status: kstatus::status(&object),
            problem: is_pod.then(|| pod::problem(&object)).flatten(),
            owner: is_pod.then(|| pod::owner(&object)).flatten(),
        }
    }
}

impl Watcher {
    /// Watches until the task is cancelled.
    pub(super) async fn run(mut self) {
        let (mut delays, mut rng) = (FullJitter::new(DELAY_MIN, DELAY_MAX), fastrand::Rng::new());
        let mut version = None;
        loop {
            let pause = match self.turn(&mut version).await {
                Ok(()) => {
                    delays.reset();
                    PAUSE
                }
                Err(error) if error.code() == Some(GONE) => {
                    tracing::debug!(
                        kind = self.key.resource.kind,
                        "listing again: the server has compacted the version"
                    );
                    version = None;
                    PAUSE
                }
                Err(error) => {
                    self.record_failure(&error);
                    delays.next(&mut rng)
                }
            };
            sleep(pause).await;
        }
    }

    /// Lists if a list is requested, then watches until the stream ends or another list is requested.
    async fn turn(&mut self, version: &mut Option<String>) -> Result<(), ApiError> {
        let requested = *self.requests.borrow_and_update();
        if version.is_none() || lock(&self.snapshot).listed < requested {
            *version = Some(self.list(requested.max(1)).await?);
        }
        let from = version.clone().unwrap_or_default();
        let collection = self.key.resource.collection(self.key.namespace.as_deref());
        let path = format!(
            "{collection}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}"
        );
        let accept = if self.key.has_status() { JSON } else { METADATA };
        let mut stream = self.client.stream(&path, accept).await?;
        self.record_success();
        loop {
            let event = tokio::select! {
                changed = self.requests.changed() => return match changed {
                    Ok(()) => Ok(()),
                    // The watch was dropped, which ends this task.
                    Err(_) => std::future::pending().await,
                },
                event = timeout(SILENCE_LIMIT, stream.next()) => event,
            };
            let Ok(event) = event else { return Ok(()) };
            match event? {
                Some(event) => self.apply(event, version)?,
                None => return Ok(()),
            }
        }
    }

    /// Replaces the snapshot; returns the version of the list.
    async fn list(&self, requested: u64) -> Result<String, ApiError> {
        let collection = self.key.resource.collection(self.key.namespace.as_deref());
        let accept = if self.key.has_status() { JSON } else { METADATA_LIST };
        let (mut objects, mut token) = (HashMap::new(), String::new());
        let version = loop {
            let page = format!("{collection}?limit={PAGE_OBJECTS}&continue={token}");
            let mut page = self.client.get(&page, accept).await?;
            if let Value::Array(items) = page["items"].take() {
                objects.extend(items.into_iter().map(|item| (name_of(&item), self.key.observe(item))));
            }
            if objects.len() > OBJECTS_MAX {
                return Err(ApiError::Large);
            }
            token = next_page(&page);
            if token.is_empty() {
                break version_of(&page);
            }
        };
        let mut snapshot = lock(&self.snapshot);
        snapshot.objects = objects;
        snapshot.listed = requested;
        drop(snapshot);
        self.record_success();
        self.count_change();
        Ok(version)
    }

    fn apply(&self, mut event: Value, version: &mut Option<String>) -> Result<(), ApiError> {
        let object = event["object"].take();
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let (reason, message) = (text("reason"), text("message"));
            return Err(ApiError::Refused { code, reason, message, retry_after: None });
        }
        *version = Some(version_of(&object));
        let name = name_of(&object);
        let mut snapshot = lock(&self.snapshot);
        let is_changed = match kind {
            "ADDED" | "MODIFIED" => {
                let observed = self.key.observe(object);
                snapshot.objects.insert(name, observed.clone()) != Some(observed)
            }
            "DELETED" => snapshot.objects.remove(&name).is_some(),
            _ => false,
        };
        let is_large = snapshot.objects.len() > OBJECTS_MAX;
        drop(snapshot);
        if is_changed {
            self.count_change();
        }
        if is_large { Err(ApiError::Large) } else { Ok(()) }
    }

    fn record_success(&self) {
        let mut snapshot = lock(&self.snapshot);
        snapshot.failing_since = None;
        snapshot.is_refused = false;
        let was_failing = snapshot.error.take().is_some();
        drop(snapshot);
        if was_failing {
            self.count_change();
        }
    }

    fn record_failure(&self, error: &ApiError) {
        let (words, kind) = (chain(error), &self.key.resource.kind);
        let mut snapshot = lock(&self.snapshot);
        if snapshot.error.is_none() {
            tracing::warn!(kind, error = words, "cannot watch");
        }
        snapshot.failing_since.get_or_insert_with(Instant::now);
        snapshot.is_refused = !error.is_outage();
        snapshot.error = Some(format!("cannot watch {kind}: {words}"));
        drop(snapshot);
        self.count_change();
    }

    fn count_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// A snapshot is always whole, so a panic of another thread leaves none incomplete.
pub(super) fn lock(snapshot: &Mutex<Snapshot>) -> MutexGuard<'_, Snapshot> {
    snapshot.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_of(object: &Value) -> String {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn version_of(object: &Value) -> String {
    object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned()
}
