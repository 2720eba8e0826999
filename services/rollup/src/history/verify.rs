//! Compares a rebuild with the running projection at the same sequence: every device's record and every view's
//! digest; the digests alone where LEDGER has discarded its beginning and no checkpoint leads on to it.
//!
//! The projection continues meanwhile, so the comparison goes part by part: it copies a part, reads the rebuild
//! on to the fact at which the part was copied, and compares the two. It reports the first difference in order.

use std::collections::BTreeMap;

use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::history::{Difference, RebuildBase, VerifyAnswer, digest_of_digests};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::subjects::ViewKey;
use muster_contract::view::FIELDS_OUTSIDE_DIGEST;
use muster_domain::fold::{DeviceRecord, Fleet};
use serde_json::Value;

use super::archive::Archive;
use super::progress::ReadProgress;
use super::rebuild::{Rebuilder, fold_to};
use super::tail::Tail;
use crate::projection::{Origin, Projection, ProjectionState};

/// Devices copied at once: the fold waits meanwhile, for a few milliseconds.
const DEVICES_AT_ONCE: usize = 500;
/// Views compared at once, for the same reason.
const VIEWS_AT_ONCE: usize = 64;

/// Rebuilds and compares with the projection.
///
/// # Errors
/// The reason why no comparison is possible.
pub async fn compare(
    rebuilder: &Rebuilder,
    projection: &Projection,
    archive: &Archive,
    progress: &dyn ReadProgress,
) -> Result<VerifyAnswer, ErrorBody> {
    let origin = projection.read(|now| now.origin);
    let (base, fleet) = rebuild_base(rebuilder, archive, origin).await?;
    let base_seq = fleet.as_of().ledger_seq;
    let tail = rebuilder.tail(base_seq).await?;
    let mut beside =
        Comparison { projection, progress, origin, base, fleet, tail, found: ComparisonResult::default() };
    beside.catch_up().await?;
    if base != RebuildBase::Window {
        beside.devices().await?;
    }
    let (running, rebuilt) = beside.views().await?;
    let ComparisonResult { devices, views, differences, first } = beside.found;
    Ok(VerifyAnswer {
        as_of: beside.fleet.as_of(),
        same: differences == 0,
        base,
        base_seq,
        running,
        rebuilt,
        devices,
        views,
        differences,
        first,
    })
}

/// Selects the start: all of LEDGER if it is complete, else the oldest checkpoint that LEDGER continues, else
/// LEDGER's first fact.
async fn rebuild_base(
    rebuilder: &Rebuilder,
    archive: &Archive,
    origin: Origin,
) -> Result<(RebuildBase, Fleet), ErrorBody> {
    let window = rebuilder.window().await?;
    if window.first_seq <= 1 {
        return Ok((RebuildBase::Ledger, Fleet::default()));
    }
    for mark in archive.marks(origin) {
        if mark.as_of.ledger_seq + 1 >= window.first_seq
            && let Some(fleet) = rebuilder.load(mark, window).await?
        {
            return Ok((RebuildBase::Checkpoint, fleet));
        }
    }
    Ok((RebuildBase::Window, Fleet::default()))
}

/// A rebuild beside the running projection.
struct Comparison<'a> {
    projection: &'a Projection,
    progress: &'a dyn ReadProgress,
    origin: Origin,
    base: RebuildBase,
    fleet: Fleet,
    tail: Tail,
    found: ComparisonResult,
}

#[derive(Default)]
struct ComparisonResult {
    devices: u64,
    views: u64,
    differences: u64,
    first: Option<Difference>,
}

impl Comparison<'_> {
    /// Reads the running projection, and brings the rebuild to the same fact.
    async fn read_at_same_fact<T>(
        &mut self,
        look: impl FnOnce(&ProjectionState) -> T,
    ) -> Result<T, ErrorBody> {
        let origin = self.origin;
        let seen = self.projection.read(|now| {
            (now.origin == origin && now.caught_up).then(|| (look(now), now.fleet.as_of().ledger_seq))
        });
        let Some((seen, ledger_seq)) = seen else { return Err(started_over()) };
        if ledger_seq < self.fleet.as_of().ledger_seq {
            return Err(started_over());
        }
        fold_to(&mut self.fleet, &mut self.tail, ledger_seq, self.progress).await?;
        Ok(seen)
    }

    /// Reads on until there is little left, so that no part has to wait long for its fact.
    async fn catch_up(&mut self) -> Result<(), ErrorBody> {
        let mut before = u64::MAX;
        loop {
            let read_to = self.projection.read(|now| now.fleet.as_of().ledger_seq);
            let behind = read_to.saturating_sub(self.fleet.as_of().ledger_seq);
            self.read_at_same_fact(|_| ()).await?;
            if behind == 0 || behind >= before {
                return Ok(());
            }
            before = behind;
        }
    }

    async fn devices(&mut self) -> Result<(), ErrorBody> {
        let mut after: Option<DeviceKey> = None;
        loop {
            let running = self
                .read_at_same_fact(|now| now.fleet.records_after(after.as_ref(), DEVICES_AT_ONCE))
                .await?;
            let last = running.last().map(|record| record.key().clone());
            let is_last = running.len() < DEVICES_AT_ONCE;
            let mut rebuilt = Vec::new();
            let mut from = after.clone();
            // As many as there are up to the last one that runs; behind the last of all, everything.
            loop {
                let more = self.fleet.records_after(from.as_ref(), DEVICES_AT_ONCE);
                let within = |record: &DeviceRecord| is_last || Some(record.key()) <= last.as_ref();
                let whole = more.len() == DEVICES_AT_ONCE && more.iter().all(within);
                from = more.last().map(|record| record.key().clone());
                rebuilt.extend(more.into_iter().filter(within));
                if !whole {
                    break;
                }
            }
            self.side_by_side(running, rebuilt);
            if is_last {
                return Ok(());
            }
            after = last;
        }
    }

    fn side_by_side(&mut self, running: Vec<DeviceRecord>, rebuilt: Vec<DeviceRecord>) {
        let by_key = |records: Vec<DeviceRecord>| -> BTreeMap<_, _> {
            records.into_iter().map(|record| (record.key().clone(), record)).collect()
        };
        let (running, mut rebuilt) = (by_key(running), by_key(rebuilt));
        for (key, one) in running {
            let other = rebuilt.remove(&key);
            self.found.devices += 1;
            if other.as_ref() != Some(&one) {
                self.differ(key.to_string(), Some(json(&one)), other.as_ref().map(json));
            }
        }
        for (key, other) in rebuilt {
            self.found.devices += 1;
            self.differ(key.to_string(), None, Some(json(&other)));
        }
    }

    /// The digest of all views of each side, as they were compared.
    async fn views(&mut self) -> Result<(Digest, Digest), ErrorBody> {
        let (mut running, mut rebuilt) = (BTreeMap::new(), BTreeMap::new());
        let mut keys = self.read_at_same_fact(|now| now.fleet.view_keys()).await?;
        keys.extend(self.fleet.view_keys());
        let keys: Vec<ViewKey> = keys.into_iter().collect();
        for part in keys.chunks(VIEWS_AT_ONCE) {
            let shown = |fleet: &Fleet| part.iter().map(|key| fleet.view(key)).collect::<Vec<_>>();
            let one = self.read_at_same_fact(|now| shown(&now.fleet)).await?;
            let other = shown(&self.fleet);
            for (key, (one, other)) in part.iter().zip(one.into_iter().zip(other)) {
                let name = key.to_string();
                running.extend(digest(one.as_ref()).map(|digest| (name.clone(), digest)));
                rebuilt.extend(digest(other.as_ref()).map(|digest| (name.clone(), digest)));
                self.found.views += u64::from(one.is_some() || other.is_some());
                let [one, other] = match self.base {
                    RebuildBase::Window => [one, other].map(covered_by_digest),
                    RebuildBase::Ledger | RebuildBase::Checkpoint => [one, other],
                };
                if one != other {
                    self.differ(name, one, other);
                }
            }
        }
        Ok((digest_of_digests(&running), digest_of_digests(&rebuilt)))
    }

    fn differ(&mut self, key: String, running: Option<Value>, rebuilt: Option<Value>) {
        self.found.differences += 1;
        if self.found.first.is_none() {
            let (field, running, rebuilt) = first_difference(running, rebuilt);
            let ledger_seq = self.fleet.as_of().ledger_seq;
            self.found.first = Some(Difference { key, field, running, rebuilt, ledger_seq });
        }
    }
}

/// A view without the words and times that no digest covers: they may follow from facts that LEDGER no longer holds.
fn covered_by_digest(mut view: Option<Value>) -> Option<Value> {
    if let Some(view) = view.as_mut().and_then(Value::as_object_mut) {
        view.retain(|name, _| name == "digest" || !FIELDS_OUTSIDE_DIGEST.contains(&name.as_str()));
    }
    view
}

fn json(record: &DeviceRecord) -> Value {
    serde_json::to_value(record).unwrap_or_default()
}

fn digest(view: Option<&Value>) -> Option<Digest> {
    view?["digest"].as_str()?.parse().ok()
}

/// The first field in which two values differ, and what each says there. The digest of a view comes last: something else
/// is why it differs.
fn first_difference(one: Option<Value>, other: Option<Value>) -> (String, Option<Value>, Option<Value>) {
    let (mut path, mut one, mut other) = (String::new(), one, other);
    loop {
        match (one, other) {
            (Some(Value::Object(mut a)), Some(Value::Object(mut b))) => {
                let mut names: Vec<String> = a.keys().chain(b.keys()).cloned().collect();
                names.sort_by_key(|name| (name == "digest", name.clone()));
                let Some(name) = names.into_iter().find(|name| a.get(name) != b.get(name)) else {
                    return (path_or_all(path), None, None);
                };
                (one, other) = (a.remove(&name), b.remove(&name));
                if !path.is_empty() {
                    path.push('.');
                }
                path += &name;
            }
            (Some(Value::Array(mut a)), Some(Value::Array(mut b))) => {
                let longest = a.len().max(b.len());
                let Some(at) = (0..longest).find(|at| a.get(*at) != b.get(*at)) else {
                    return (path_or_all(path), None, None);
                };
                let take = |values: &mut Vec<Value>| (at < values.len()).then(|| values.swap_remove(at));
                (one, other) = (take(&mut a), take(&mut b));
                path += &format!("[{at}]");
            }
            (one, other) => return (path_or_all(path), one, other),
        }
    }
}

fn path_or_all(path: String) -> String {
    if path.is_empty() { ".".to_owned() } else { path }
}

fn started_over() -> ErrorBody {
    let message = "LEDGER was made anew or set back meanwhile; ask again when it is read".to_owned();
    ErrorBody { code: ErrorCode::NotReady, message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let one = json!({"about": {"head": 4}, "digest": "x", "rows": [{"state": "failed"}, 1, 2]});
        let table = [
            (json!({"about": {"head": 5}, "rows": []}), "about.head", Some(json!(4)), Some(json!(5))),
            (
                json!({"about": {"head": 4}, "digest": "y", "rows": [{"state": "installed"}, 1, 2]}),
                "rows[0].state",
                Some(json!("failed")),
                Some(json!("installed")),
            ),
            (
                json!({"about": {"head": 4}, "digest": "x", "rows": [{"state": "failed"}, 1]}),
                "rows[2]",
                Some(json!(2)),
                None,
            ),
            (
                json!({"about": {"head": 4}, "digest": "y", "rows": one["rows"]}),
                "digest",
                Some(json!("x")),
                Some(json!("y")),
            ),
            (json!(7), ".", Some(one.clone()), Some(json!(7))),
        ];
        for (other, field, running, rebuilt) in table {
            let found = first_difference(Some(one.clone()), Some(other.clone()));
            assert_eq!(found, (field.to_owned(), running, rebuilt), "{other}");
        }
        assert_eq!(first_difference(None, Some(one.clone())), (".".to_owned(), None, Some(one)));
    }
}
