//! Follows the views during the whole run with the credentials of a subscriber, and checks that no view goes back in time.
//! A view may be late.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_bus::{Bus, ReadError, ViewEntry};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Entries read at once.
const BATCH: usize = 256;
/// Pause before a bucket that cannot be read is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Steps back that are reported at most.
const REPORTED_MAX: usize = 8;

/// The position that a view states.
#[derive(Debug, Deserialize)]
struct ViewTime {
    #[serde(rename = "asOf")]
    as_of: AsOf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AsOf {
    ledger_seq: u64,
}

/// The views seen so far.
#[derive(Debug, Default)]
struct SeenViews {
    /// The newest revision and position of each view.
    newest: BTreeMap<String, (u64, u64)>,
    views: u64,
    steps_back: Vec<String>,
}

/// A monitor at work. It ends with this value.
#[derive(Debug)]
pub(super) struct ViewMonitor {
    seen: Arc<Mutex<SeenViews>>,
    _task: AbortOnDropHandle<()>,
}

impl ViewMonitor {
    /// Starts to follow.
    pub(super) fn start(bus: Bus, stop: CancellationToken) -> Self {
        let seen = Arc::<Mutex<SeenViews>>::default();
        let task = tokio::spawn(follow(bus, Arc::clone(&seen), stop));
        Self { seen, _task: AbortOnDropHandle::new(task) }
    }

    /// Up to where in LEDGER the newest view had read.
    pub(super) fn newest(&self) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.newest.values().map(|(_, ledger_seq)| *ledger_seq).max().unwrap_or_default()
    }

    /// How many views were seen, and every step back in time.
    pub(super) fn result(&self) -> (u64, Vec<String>) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.views, seen.steps_back.clone())
    }
}

async fn follow(bus: Bus, seen: Arc<Mutex<SeenViews>>, stop: CancellationToken) {
    let following = async {
        loop {
            // The reader reconnects by itself; it ends when nothing can be read at all, as while the mirror is replaced. Then
            // everything is seen again, which is no step back: the revisions are the same.
            if let Err(error) = watch(&bus, &seen).await {
                tracing::debug!(%error, "cannot follow the views now");
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    stop.run_until_cancelled(following).await;
}

async fn watch(bus: &Bus, seen: &Mutex<SeenViews>) -> Result<(), ReadError> {
    let mut watch = bus.view_watch(">").await?;
    loop {
        let batch = watch.next_batch(BATCH).await?;
        // Counts are whole at any moment, so a panic elsewhere cannot have left half of one.
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        batch.iter().for_each(|entry| seen.apply(entry));
    }
}

impl SeenViews {
    fn apply(&mut self, entry: &ViewEntry) {
        let Some(Ok(view_time)) = entry.value.as_deref().map(serde_json::from_slice::<ViewTime>) else {
            return;
        };
        self.views += 1;
        let now = (entry.revision, view_time.as_of.ledger_seq);
        let newest = self.newest.entry(entry.key.clone()).or_insert(now);
        if now.0 <= newest.0 {
            return;
        }
        if now.1 < newest.1 && self.steps_back.len() < REPORTED_MAX {
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
    fn a_step_back_is_found_and_a_repetition_is_none() {
        let mut seen = SeenViews::default();
        for (revision, ledger_seq) in [(1, 10), (3, 20), (1, 10), (3, 20), (4, 20), (5, 19), (6, 30)] {
            seen.apply(&entry(revision, ledger_seq));
        }
        assert_eq!(seen.views, 7);
        assert_eq!(seen.steps_back.len(), 1, "{:?}", seen.steps_back);
        assert!(seen.steps_back[0].contains("revision 5 says 19"), "{:?}", seen.steps_back);
    }
}
