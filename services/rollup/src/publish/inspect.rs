//! Reacts to foreign entries in the bucket: it removes keys that are not views of this rollup and schedules its
//! own view in place of a foreign value. It writes no views.

use muster_bus::ViewEntry;
use muster_contract::incident::{ForeignView, IncidentKind};
use muster_contract::state::cut;
use muster_contract::subjects::stream::LEDGER;
use muster_contract::subjects::{ViewKey, defined_by};
use muster_service::error::chain;
use tokio::time::Instant;

use super::Publisher;
use crate::bucket::BucketEvent;

/// Bytes of a foreign key that an incident names.
const FOREIGN_KEY_BYTES_MAX: usize = 256;

impl Publisher {
    /// Applies an observation of the bucket. After a foreign write more may be missing: the bucket is read
    /// again.
    pub(super) async fn inspect(&mut self, event: BucketEvent) {
        let mut is_whole = true;
        match event {
            BucketEvent::Entries(entries) => {
                for entry in entries {
                    is_whole &= self.inspect_entry(&entry).await;
                }
            }
            BucketEvent::Shrunk => is_whole = false,
        }
        if !is_whole {
            self.read_at = Instant::now();
        }
    }

    /// False where something foreign came.
    async fn inspect_entry(&mut self, entry: &ViewEntry) -> bool {
        let Some(key) = ViewKey::parse(&entry.key) else { return self.inspect_foreign_key(entry).await };
        let held = *self.writer.cached(&key);
        // The writer's own, or older than what it knows.
        if entry.revision > 0 && entry.revision <= held.revision {
            return true;
        }
        let next = held.followed_by(entry, self.ledger_end);
        let next = if next.suspect == Some(ForeignView::Unreached) {
            // LEDGER may have gone on since it was asked. While it does not answer, nothing is suspect:
            // `judge_doubtful` asks again where this rollup does not read that far for long.
            let end = self.ask_ledger_end().await;
            held.followed_by(entry, end.unwrap_or(u64::MAX))
        } else {
            next
        };
        self.writer.cached.insert(key.clone(), next);
        self.writer.due.insert(key, Instant::now());
        next.suspect.is_none_or(|cause| cause == ForeignView::Key)
    }

    /// A foreign key. Defined views belong to the people who defined them.
    async fn inspect_foreign_key(&mut self, entry: &ViewEntry) -> bool {
        if entry.value.is_none() || defined_by(&entry.key).is_some() {
            return true;
        }
        self.report(&entry.key, entry.revision, ForeignView::Key);
        if let Err(error) = self.writer.bus().view_delete(&entry.key, None).await {
            // Met again by the next reading of the watch.
            tracing::warn!(view = entry.key, error = chain(&error), "cannot remove a foreign key");
        }
        false
    }

    /// LEDGER's last sequence; none where LEDGER does not answer.
    async fn ask_ledger_end(&mut self) -> Option<u64> {
        match self.writer.bus().stream_state(LEDGER).await {
            Ok(ledger) => {
                self.ledger_end = ledger.last_seq;
                Some(self.ledger_end)
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "cannot read LEDGER's end");
                None
            }
        }
    }

    fn report(&self, key: &str, revision: u64, cause: ForeignView) {
        let key = cut(key.to_owned(), FOREIGN_KEY_BYTES_MAX);
        self.incidents.report(None, IncidentKind::ForeignView { key, revision, cause });
    }

    /// The writer overwrites an entry with its own view or deletes it: logged where the entry cannot be a
    /// rollup's.
    pub(super) fn report_replaced(&mut self, key: &ViewKey, is_put: bool) {
        let held = self.writer.cached(key);
        let (revision, suspect) = (held.revision, held.suspect.take());
        match suspect {
            // Another rollup was first with a new view.
            None => {}
            Some(ForeignView::Key) if is_put => {}
            Some(cause) => self.report(&key.to_string(), revision, cause),
        }
    }
}
