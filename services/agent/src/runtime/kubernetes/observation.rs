//! The health of units from the statuses of their objects. All units share one watch for each kind and namespace; a watch
//! that no unit needs ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::ApiClient;
use super::discovery::Resource;
use super::health::{OwnedStatus, UnitHealth, verdict};
use super::kstatus::pod::PodProblem;
use super::object::ObjectRef;
use super::watch::{Snapshot, WatchKey, Watcher, lock};

/// Kinds whose pods are observed.
const WORKLOADS: [&str; 5] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"];

/// The namespace, kind and name of a workload that makes pods.
type WorkloadKey = (Option<String>, String, String);

/// An object of a unit, and the watch that covers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedObject {
    pub(super) reference: ObjectRef,
    pub(super) key: WatchKey,
}

/// All watches. One ends with the last observation that needs it.
#[derive(Debug)]
pub(super) struct WatchPool {
    client: Arc<ApiClient>,
    watches: Mutex<BTreeMap<WatchKey, Weak<Watch>>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Watch {
    snapshot: Arc<Mutex<Snapshot>>,
    requests: watch::Sender<u64>,
    _ends_on_drop: DropGuard,
}

/// The objects of a unit and the watches that cover them.
#[derive(Debug)]
pub(super) struct Observation {
    owned: Vec<OwnedObject>,
    watches: BTreeMap<WatchKey, Arc<Watch>>,
    changes: watch::Receiver<u64>,
}

impl OwnedObject {
    /// An object of a kind.
    pub(super) fn new(mut reference: ObjectRef, resource: Resource, namespace: &str) -> Self {
        let own = reference.namespace.take().unwrap_or_else(|| namespace.to_owned());
        reference.namespace = resource.is_namespaced.then_some(own);
        let key = WatchKey { namespace: reference.namespace.clone(), resource };
        Self { reference, key }
    }

    /// The watch of the pods that it makes, if it makes any.
    fn pods(&self) -> Option<WatchKey> {
        let pods = Resource {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            plural: "pods".to_owned(),
            is_namespaced: true,
        };
        WORKLOADS
            .contains(&self.reference.kind.as_str())
            .then(|| WatchKey { resource: pods, namespace: self.reference.namespace.clone() })
    }

    fn workload_key(&self) -> WorkloadKey {
        let ObjectRef { namespace, kind, name, .. } = &self.reference;
        (namespace.clone(), kind.clone(), name.clone())
    }
}

impl WatchPool {
    pub(super) fn new(client: Arc<ApiClient>) -> Self {
        Self { client, watches: Mutex::default(), changes: watch::Sender::new(0) }
    }

    /// Changes of any status.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Observes the objects of a unit until the observation is dropped.
    pub(super) fn observe(&self, owned: Vec<OwnedObject>) -> Observation {
        let keys = owned.iter().map(|it| it.key.clone()).chain(owned.iter().filter_map(OwnedObject::pods));
        let keys: BTreeSet<_> = keys.collect();
        let mut known = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, watch| watch.strong_count() > 0);
        let mut watches = BTreeMap::new();
        for key in keys {
            let watch = known.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| self.spawn(key.clone()));
            known.insert(key.clone(), Arc::downgrade(&watch));
            watches.insert(key, watch);
        }
        Observation { owned, watches, changes: self.changes() }
    }

    fn spawn(&self, key: WatchKey) -> Arc<Watch> {
        let (snapshot, stop) = (Arc::new(Mutex::default()), CancellationToken::new());
        let (requests, received) = watch::channel(0);
        let watcher = Watcher {
            key,
            client: Arc::clone(&self.client),
            snapshot: Arc::clone(&snapshot),
            requests: received,
            changes: self.changes.clone(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(watcher.run()));
        Arc::new(Watch { snapshot, requests, _ends_on_drop: stop.drop_guard() })
    }
}

impl Observation {
    /// Changes of any status.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The number of objects.
    pub(super) fn count(&self) -> usize {
        self.owned.len()
    }

    /// Lists all objects again: afterwards no status is older than this call.
    ///
    /// # Errors
    /// The API server refuses a list.
    pub(super) async fn resync(&self) -> Result<(), String> {
        let request = |watch: &Arc<Watch>| {
            watch.requests.send_modify(|requested| *requested += 1);
            let requested = *watch.requests.borrow();
            (Arc::clone(&watch.snapshot), requested)
        };
        let requests: Vec<_> = self.watches.values().map(request).collect();
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            let mut waits = false;
            for (snapshot, requested) in &requests {
                let snapshot = lock(snapshot);
                let is_listed = snapshot.listed >= *requested;
                if let Some(error) = snapshot.error.clone().filter(|_| snapshot.is_refused && !is_listed) {
                    return Err(error);
                }
                waits |= !is_listed;
            }
            if !waits || changes.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// The health of the unit.
    pub(super) fn health(&self) -> UnitHealth {
        let problems = self.problems();
        let statuses = self.owned.iter().map(|object| {
            let reference = &object.reference;
            let problem = problems.get(&object.workload_key());
            let Some(watch) = self.watches.get(&object.key) else {
                return (reference, OwnedStatus::Unknown, problem);
            };
            let snapshot = lock(&watch.snapshot);
            let status = match snapshot.objects.get(&reference.name) {
                _ if snapshot.listed == 0 => OwnedStatus::Unknown,
                Some(observed) => OwnedStatus::Known(observed.status.clone()),
                None => OwnedStatus::Missing,
            };
            (reference, status, problem)
        });
        verdict(statuses)
    }

    /// A problem of each workload's pods.
    fn problems(&self) -> HashMap<WorkloadKey, PodProblem> {
        let mut found = HashMap::new();
        for (key, watch) in &self.watches {
            for observed in lock(&watch.snapshot).objects.values() {
                if let Some((problem, (kind, name))) = observed.problem.clone().zip(observed.owner.clone()) {
                    found.entry((key.namespace.clone(), kind, name)).or_insert(problem);
                }
            }
        }
        found
    }

    /// The duration and the error of an outage of the API server, if there is one.
    pub(super) fn outage(&self) -> Option<(Duration, String)> {
        let failing = self.watches.values().filter_map(|watch| {
            let snapshot = lock(&watch.snapshot);
            Some((snapshot.failing_since?, snapshot.error.clone()?))
        });
        let (since, error) = failing.min_by_key(|(since, _)| *since)?;
        Some((Instant::now().duration_since(since), error))
    }
}
