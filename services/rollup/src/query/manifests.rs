//! Reads the desired manifests of a page's targets. The fold keeps no manifest, only the LEDGER sequence of
//! each device's desired state: it is read when a question asks for detail, and cached for the next one.
//!
//! An entry is shown only if it is the target's own: from its device's desired state, of its deployment and of
//! the fold's generation, with the digest of its content. For a superseded generation the entry comes from the
//! document of that generation, which [`place`] looks for in LEDGER. An entry that LEDGER does not give, or not
//! in time, is left out, and the answer counts those targets; it is never an error.

mod cache;
mod place;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use muster_bus::{Bus, Delivery, ReadError};
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::manifest::Manifest;
use muster_contract::query::DETAIL_PAGE_MAX;
use muster_contract::question::ANSWER_BYTES_MAX;
use muster_contract::status::{StatusAnswer, TargetStatus};
use muster_contract::subjects::{LedgerSubject, stream::LEDGER};
use muster_contract::{DeploymentId, DeviceKey, Generation};
use muster_domain::fold::Fleet;
use muster_service::blocking::block_in_place_if_large;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use self::cache::{Entry, ManifestCache};
use crate::history::point_in_time::PATIENCE;
use crate::projection::Projection;

/// Largest manifest in an answer, as JSON: the targets that share it fit beside it.
pub(super) const MANIFEST_BYTES_MAX: usize = ANSWER_BYTES_MAX / 2;
/// How long an answer about the present waits for all that it reads.
pub(super) const READS_FOR: Duration = Duration::from_secs(2);
/// How much longer than for its point an answer about the past waits at most: a federation gives up on a hub after 4 s.
pub(super) const READS_AFTER: Duration = Duration::from_millis(500);
/// Desired states that are read at once for one answer.
const READS_AT_ONCE: usize = 16;
/// Answers with manifests that are made at once: each may gather many more bytes than it has room for.
const ANSWERS_AT_ONCE: usize = 8;
/// Bytes of a document that are read in a few microseconds.
const ITEM_BYTES: usize = 1024;

const _: () = assert!(READS_AT_ONCE < DETAIL_PAGE_MAX);
const _: () =
    assert!(READS_FOR.as_millis() <= PATIENCE.as_millis() && READS_AFTER.as_millis() < READS_FOR.as_millis());
const _: () = assert!(DETAIL_PAGE_MAX < cache::ENTRIES_MAX && MANIFEST_BYTES_MAX < cache::BYTES_MAX);

/// A target, and the LEDGER sequence of its desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ManifestRequest {
    /// Not known of what is superseded.
    ledger_seq: Option<u64>,
    key: DeviceKey,
    deployment: DeploymentId,
    version: Version,
}

/// The entry of a deployment that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The one that has been the target since this generation.
    Target(Generation),
    /// The one in the document of this generation.
    Document(Generation),
}

/// The request for each target's manifest, in the order of the targets; none where there is none. For a
/// superseded target it names the generation asked for.
pub(super) fn wanted(
    fleet: &Fleet,
    targets: &[TargetStatus],
    asked: Option<Generation>,
) -> Vec<Option<ManifestRequest>> {
    let place = |target: &TargetStatus| {
        let (ledger_seq, version) = if target.superseded {
            (None, Version::Document(asked?))
        } else {
            (Some(fleet.desired_at(&target.key)?), Version::Target(target.target_generation?))
        };
        let (key, deployment) = (target.key.clone(), target.deployment.clone());
        Some(ManifestRequest { ledger_seq, key, deployment, version })
    };
    targets.iter().map(place).collect()
}

/// Reads manifests. Clones share the cache.
#[derive(Debug, Clone)]
pub(crate) struct Manifests {
    bus: Bus,
    projection: Arc<Projection>,
    cache: Arc<Mutex<ManifestCache>>,
    turns: Arc<Semaphore>,
}

impl Manifests {
    /// A reader of LEDGER on this bus, which is the one of the projection.
    pub(crate) fn new(bus: Bus, projection: Arc<Projection>) -> Self {
        Self { bus, projection, cache: Arc::default(), turns: Arc::new(Semaphore::new(ANSWERS_AT_ONCE)) }
    }

    /// Waits for a slot, which lasts as long as the returned guard; none on a timeout.
    pub(super) async fn acquire_slot(&self, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        timeout_at(deadline, self.turns.acquire()).await.ok()?.ok()
    }

    /// The manifests of the targets, as far as they are cached or read in time.
    pub(super) async fn entries(
        &self,
        mut wanted: Vec<Option<ManifestRequest>>,
        deadline: Instant,
    ) -> Vec<Option<Entry>> {
        self.cache().enter(self.projection.read(|now| now.origin));
        place::find(&mut wanted, deadline, |key, generation| place::of(&self.bus, key, generation)).await;
        let read = |ledger_seq| {
            let bus = self.bus.clone();
            async move { message(bus.at(LEDGER, ledger_seq).await, ledger_seq) }
        };
        gathered(&wanted, deadline, &self.cache, read).await
    }

    fn cache(&self) -> MutexGuard<'_, ManifestCache> {
        locked(&self.cache)
    }
}

/// The value is consistent at any moment, so a panic elsewhere leaves no partial update.
fn locked(cache: &Mutex<ManifestCache>) -> MutexGuard<'_, ManifestCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message as it was read: its subject and its document.
type Message = (String, bytes::Bytes);

fn message(read: Result<Option<Delivery>, ReadError>, ledger_seq: u64) -> Option<Message> {
    match read {
        Ok(held) => held.map(|message| (message.subject, message.payload)),
        Err(error) => {
            tracing::debug!(ledger.seq = ledger_seq, %error, "left a manifest out");
            None
        }
    }
}

/// The cached manifests, and those that `read` returns until the deadline.
async fn gathered<F: Future<Output = Option<Message>>>(
    wanted: &[Option<ManifestRequest>],
    deadline: Instant,
    cache: &Mutex<ManifestCache>,
    read: impl Fn(u64) -> F,
) -> Vec<Option<Entry>> {
    let mut entries: Vec<Option<Entry>> = {
        let cache = locked(cache);
        wanted.iter().map(|wanted| cache.find(wanted.as_ref()?)).collect()
    };
    let mut reads = Vec::new();
    for (ledger_seq, of) in documents(wanted, &entries) {
        let reading = read(ledger_seq);
        reads.push(async move { (of, reading.await) });
    }
    let mut reads = stream::iter(reads).buffer_unordered(READS_AT_ONCE);
    while let Ok(Some((of, message))) = timeout_at(deadline, reads.next()).await {
        let Some((subject, payload)) = message else { continue };
        block_in_place_if_large(payload.len() / ITEM_BYTES, || {
            let Some((key, state)) = desired(&subject, &payload) else { return };
            for at in of {
                let Some(wanted) = wanted[at].as_ref().filter(|wanted| wanted.key == key) else { continue };
                entries[at] = entry(&state, wanted).map(|entry| locked(cache).hold(wanted, entry));
            }
        });
    }
    entries
}

/// The documents that are not held, and the targets that each is of.
fn documents(wanted: &[Option<ManifestRequest>], held: &[Option<Entry>]) -> BTreeMap<u64, Vec<usize>> {
    let mut documents: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, (wanted, held)) in wanted.iter().zip(held).enumerate() {
        if let (Some(ManifestRequest { ledger_seq: Some(ledger_seq), .. }), None) = (wanted, held) {
            documents.entry(*ledger_seq).or_default().push(at);
        }
    }
    documents
}

/// The desired state in a message of LEDGER, and its device.
fn desired(subject: &str, payload: &[u8]) -> Option<(DeviceKey, DesiredState)> {
    match LedgerSubject::parse(subject)? {
        LedgerSubject::Desired(key) => Some((key, serde_json::from_slice(payload).ok()?)),
        _ => None,
    }
}

/// A target's entry from its device's desired state.
fn entry(state: &DesiredState, wanted: &ManifestRequest) -> Option<Entry> {
    let is_it = |entry: &&DesiredDeployment| {
        let is_of = match wanted.version {
            Version::Target(generation) => entry.target_generation == generation,
            Version::Document(generation) => state.generation == generation,
        };
        is_of && entry.id == wanted.deployment
    };
    let entry = state.deployments.iter().find(is_it)?;
    if entry.content_digest() != entry.digest {
        return None;
    }
    Some(Entry::new(entry.digest, state.source_of(entry), Manifest::from(entry.clone())))
}

/// Adds the manifests of its targets to an answer, and the number of those left out.
pub(super) fn add_manifests(answer: &mut StatusAnswer, entries: Vec<Option<Entry>>) {
    for (target, entry) in answer.targets.iter_mut().zip(entries) {
        let Some(entry) = entry else { continue };
        (target.digest, target.source) = (Some(entry.digest), Some(entry.source.clone()));
        if entry.bytes <= MANIFEST_BYTES_MAX {
            answer.manifests.entry(entry.digest).or_insert_with(|| Manifest::clone(&entry.manifest));
        }
    }
    answer.declare_manifests();
}

/// Leaves out every manifest: where they find no room beside a single target.
pub(super) fn withhold(answer: &mut StatusAnswer) {
    answer.manifests.clear();
    answer.declare_manifests();
}

#[cfg(test)]
mod tests;
