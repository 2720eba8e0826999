//! Somebody who follows the views all through the storm, as a subscriber does: a view may be late, and must never go
//! back in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_bus::{Bus, ReadError, ViewEntry};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Entries taken at once.
const BATCH: usize = 256;
/// Pause before a bucket that cannot be read is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Steps back that are told; one would be enough.
const TOLD_MAX: usize = 8;

/// What a view says of its own position.
#[derive(Debug, Deserialize)]
struct Dated {
    #[serde(rename = "asOf")]
    as_of: AsOf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AsOf {
    ledger_seq: u64,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// The newest revision and position of each view.
    newest: BTreeMap<String, (u64, u64)>,
    views: u64,
    steps_back: Vec<String>,
}

/// A witness at work. It ends with this value.
#[derive(Debug)]
pub(super) struct Witness {
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

impl Witness {
    /// Begins to follow.
    pub(super) fn begin(bus: Bus, stop: CancellationToken) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let task = tokio::spawn(follow(bus, Arc::clone(&seen), stop));
        Self { seen, _task: AbortOnDropHandle::new(task) }
    }

    /// How many views were seen, and every step back in time.
    pub(super) fn testimony(&self) -> (u64, Vec<String>) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.views, seen.steps_back.clone())
    }
}

async fn follow(bus: Bus, seen: Arc<Mutex<Seen>>, stop: CancellationToken) {
    let following = async {
        loop {
            // The reader heals itself; it ends when nothing can be read at all, as while the server is away at the
            // start. Then everything is seen again, which is no step back: revisions tell.
            if let Err(error) = watch(&bus, &seen).await {
                tracing::debug!(%error, "the views cannot be followed now");
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    stop.run_until_cancelled(following).await;
}

async fn watch(bus: &Bus, seen: &Mutex<Seen>) -> Result<(), ReadError> {
    let mut watch = bus.view_watch(">").await?;
    loop {
        let batch = watch.next_batch(BATCH).await?;
        // Counts are whole at any moment, so a panic elsewhere cannot have left half of one.
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        batch.iter().for_each(|entry| seen.take(entry));
    }
}

impl Seen {
    fn take(&mut self, entry: &ViewEntry) {
        let Some(Ok(dated)) = entry.value.as_deref().map(serde_json::from_slice::<Dated>) else { return };
        self.views += 1;
        let now = (entry.revision, dated.as_of.ledger_seq);
        let newest = self.newest.entry(entry.key.clone()).or_insert(now);
        if now.0 <= newest.0 {
            return;
        }
        if now.1 < newest.1 && self.steps_back.len() < TOLD_MAX {
            self.steps_back.push(format!(
                "view {} went back in time: revision {} says {}, and revision {} before it said {}",
                entry.key, now.0, now.1, newest.0, newest.1
            ));
        }
        *newest = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(revision: u64, ledger_seq: u64) -> ViewEntry {
        let value = format!(r#"{{"asOf":{{"ledgerSeq":{ledger_seq}}}}}"#);
        ViewEntry {
            key: "fleet".to_owned(),
            value: Some(value.into_bytes().into()),
            revision,
            read_to: None,
            pending: 0,
        }
    }

    #[test]
    fn a_step_back_is_seen_and_the_same_again_is_none() {
        let mut seen = Seen::default();
        for (revision, ledger_seq) in [(1, 10), (3, 20), (1, 10), (3, 20), (4, 20), (5, 19), (6, 30)] {
            seen.take(&entry(revision, ledger_seq));
        }
        assert_eq!(seen.views, 7);
        assert_eq!(seen.steps_back.len(), 1, "{:?}", seen.steps_back);
        assert!(seen.steps_back[0].contains("revision 5 says 19"), "{:?}", seen.steps_back);
    }
}
