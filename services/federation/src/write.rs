//! Views of all hubs into the bucket `views` of the top: each view that changed is written, at most so often, and what is
//! there last is the final state. A view whose digest did not change is not written; one that is gone is deleted, also if
//! an earlier life left it behind.
//!
//! No sum is written until every hub was read once: a view must not go back in time. What an earlier life left is not true
//! for ever, though: once the lease has ended and some hub was never read, those views say of everything that nobody is
//! heard and nothing known.
//!
//! A second federation writes the same; a view of it that has read further is left alone for as long as it takes to read
//! every hub anew, and then it was wrong or a hub was restored from a backup, and it is written over. Who does not hear a hub
//! that another one hears leaves the writing to that one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{
    Board, Bus, Decision, Held, LEARN_EVERY, ReadError, Reader, Signed, ViewEntry, WRITE_INTERVAL, Write,
    Written,
};
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::parts::{HUBS_KEY, HubList};
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, content_digest};
use muster_contract::{HubName, Timestamp};
use muster_domain::fold::{Merge, all_unheard};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::lease::hears_more;
use crate::merged::Merged;
use crate::metrics::{Metrics, ViewResult};
use crate::pace::{AHEAD_PATIENCE, Pace};

/// Views built at one look: the hubs' followers wait meanwhile.
const LOOK_MAX: usize = 64;
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Time between two looks at a view that has read further.
const AHEAD_LOOK: Duration = Duration::from_secs(5);
/// Up to where a document has read that is of no fact.
const NOTHING_READ: AsOf = AsOf { ledger_seq: 0, at: Timestamp::UNIX_EPOCH };

const READER: Reader<Key> = Reader { key: Key::parse, holds: there };

/// A key that the federation writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A view.
    View(ViewKey),
    /// Which hubs there are.
    Hubs,
}

impl Key {
    fn parse(key: &str) -> Option<Self> {
        if key == HUBS_KEY { Some(Self::Hubs) } else { ViewKey::parse(key).map(Self::View) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::View(key) => key.fmt(f),
            Self::Hubs => f.write_str(HUBS_KEY),
        }
    }
}

/// The writer of views.
#[derive(Debug)]
pub struct Writer {
    board: Board<Key>,
    merged: Arc<Merged>,
    metrics: Metrics,
    /// What was said of the hubs when that was looked at last.
    hubs: Vec<bool>,
    hubs_looked_at: Option<Instant>,
    pace: Pace,
    clock: Arc<dyn Clock>,
    /// When it was last found out whether another one hears more.
    stood_back: Option<(Instant, bool)>,
    /// It was said that what an earlier life left is not known any more.
    disowned: bool,
}

impl Writer {
    /// A writer of what is merged.
    pub fn new(
        bus: Bus,
        merged: Arc<Merged>,
        (pace, clock, metrics): (Pace, Arc<dyn Clock>, Metrics),
        chance: Rng,
    ) -> Self {
        Self {
            board: Board::new(bus, chance),
            merged,
            metrics,
            hubs: Vec::new(),
            hubs_looked_at: None,
            pace,
            clock,
            stood_back: None,
            disowned: false,
        }
    }

    /// Writes until `stop`, and then once more what is due.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.merged.changes();
        if stop.run_until_cancelled(self.begin()).await.is_none() {
            return;
        }
        let mut learn_at = Instant::now() + LEARN_EVERY;
        loop {
            let wait = async {
                // First: where a view is due at every turn, the wait is over before the time is.
                let is_time = Instant::now() >= learn_at;
                !is_time && timeout_at(learn_at, self.wait(&mut changes)).await.is_ok()
            };
            match stop.run_until_cancelled(wait).await {
                None => break,
                // Not cancelled in the middle: what is under way would be unknown.
                Some(true) => self.write_due().await,
                Some(false) => {
                    if let Some(Err(error)) = stop.run_until_cancelled(self.board.learn(&READER)).await {
                        tracing::debug!(error = chain(&error), "cannot read the views again; trying later");
                    }
                    learn_at = Instant::now() + LEARN_EVERY;
                }
            }
        }
        self.finish().await;
    }

    /// Waits until there is something true to say, and learns what the bucket says already.
    async fn begin(&mut self) {
        let mut whole = self.merged.whole();
        // What is merged outlives this task, so the wait cannot end for want of a sender.
        let mut patience = self.pace.lease;
        while timeout(patience, whole.wait_for(|whole| *whole)).await.is_err() {
            self.disown().await;
            patience = self.pace.sign_every;
        }
        self.board.learn_at_last(&READER).await;
        // Whose counts are added is said first; the fleet's view is there from the start, also of an empty fleet.
        let now = Instant::now();
        self.board.due = [(Key::Hubs, now)].into();
        self.write_due().await;
        self.board.due.extend(self.board.held.keys().map(|key| (key.clone(), now)));
        self.board.due.insert(Key::View(ViewKey::Fleet), now);
    }

    /// Some hub was not read within the lease: what an earlier life left in the bucket is not known any more. Unless another
    /// federation, which hears that hub, has written it since.
    async fn disown(&mut self) {
        self.board.learn_at_last(&READER).await;
        self.board.due = [(Key::Hubs, Instant::now())].into();
        if self.stands_back().await {
            return;
        }
        if !std::mem::replace(&mut self.disowned, true) {
            let unread = self.merged.look(Merge::unread);
            let names = unread.iter().map(HubName::as_str).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                hubs = names,
                "not read within the lease: nothing that the bucket says is known any more"
            );
        }
        self.write_due().await;
        if let Err(error) = self.disown_views().await {
            tracing::warn!(error = chain(&error), "cannot read the views; they are left as they are");
        }
    }

    async fn disown_views(&mut self) -> Result<(), ReadError> {
        let mut watch = self.board.bus().view_watch(">").await?;
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                let (Some(Key::View(key)), Some(value)) = (Key::parse(&entry.key), &entry.value) else {
                    continue;
                };
                let Some((digest, view)) = all_unheard(&key, value) else { continue };
                if serde_json::from_slice::<Signed>(value).is_ok_and(|there| there.digest == digest) {
                    continue;
                }
                let written = self
                    .board
                    .bus()
                    .view_write(&entry.key, Some(view.to_string().into()), entry.revision, 0)
                    .await;
                match written {
                    Written::Failed(error) => {
                        tracing::warn!(view = entry.key, error = chain(&error), "cannot write a view");
                        // The next turn goes on: what says so already is passed over.
                        return Ok(());
                    }
                    Written::As(_) => self.metrics.view(ViewResult::Written),
                    Written::Overtaken(_) => self.metrics.view(ViewResult::Overtaken),
                }
            }
        }
        Ok(())
    }

    /// Whether another federation has heard, within the lease, of a hub that this one does not hear: then its views say more.
    /// Looked up now and then only.
    async fn stands_back(&mut self) -> bool {
        let own = self.merged.look(Merge::hub_list);
        if own.hubs.iter().all(|hub| hub.heard) {
            self.stood_back = None;
            return false;
        }
        let now = Instant::now();
        if let Some((at, answer)) = self.stood_back
            && now < at + self.pace.sign_every / 2
        {
            return answer;
        }
        let answer = match self.board.bus().view_get(HUBS_KEY).await {
            Ok(entry) => entry.and_then(|entry| entry.value).is_some_and(|value| {
                let theirs = serde_json::from_slice::<HubList>(&value);
                theirs.is_ok_and(|theirs| hears_more(&theirs, &own, self.pace.lease, self.clock.now()))
            }),
            // Asked again in a moment; who cannot see the bucket cannot write to it either.
            Err(_) => true,
        };
        if answer {
            self.metrics.stood_back.inc();
        }
        self.stood_back = Some((now, answer));
        answer
    }

    /// Waits until a key is due. Cancel-safe.
    async fn wait(&mut self, changes: &mut watch::Receiver<u64>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            changes.mark_unchanged();
            self.take_changed();
            let next = self.board.due.values().min().copied();
            if next.is_some_and(|next| next <= Instant::now()) {
                return;
            }
            let timer = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Ends with an error only when what is merged is gone, and this task holds it.
                _ = changes.changed() => {}
                () = timer => {}
            }
        }
    }

    /// Takes over which views may have changed, and when each may be written.
    fn take_changed(&mut self) {
        let now = Instant::now();
        self.board.changed(self.merged.take_changed().into_iter().map(Key::View));
        self.take_hubs(now);
        self.metrics.views_due.set(self.board.due.len() as i64);
    }

    /// The same of the hubs: at once where one falls silent or is back, else now and then: when each was heard is how readers,
    /// and other federations, know that this one is alive.
    fn take_hubs(&mut self, now: Instant) {
        let view = self.merged.look(Merge::hub_list);
        let hubs: Vec<bool> = view.hubs.iter().map(|hub| hub.heard).collect();
        let interval = if hubs == self.hubs { self.pace.sign_every } else { WRITE_INTERVAL };
        self.hubs = hubs;
        // From the last look on, not from the last write: what was looked at and had not changed is not due at once again.
        let allowed = self.hubs_looked_at.map_or(now, |at| now.max(at + interval));
        self.board.due.entry(Key::Hubs).and_modify(|at| *at = (*at).min(allowed)).or_insert(allowed);
    }

    /// Writes what is due now, look by look.
    async fn write_due(&mut self) {
        let now = Instant::now();
        if self.stands_back().await {
            self.hubs_looked_at = Some(now);
            self.board.due.values_mut().for_each(|at| *at = (*at).max(now + self.pace.sign_every / 2));
            return;
        }
        for look in self.board.due_now().chunks(LOOK_MAX) {
            let (writes, metrics) = (self.look(look), &self.metrics);
            self.board.write(writes, |fate| metrics.view(fate.into())).await;
        }
        self.metrics.views_due.set(self.board.due.len() as i64);
    }

    /// What has to be written of some keys, all as of one moment. They are due no more.
    fn look(&mut self, keys: &[Key]) -> Vec<Write<Key>> {
        let show = |merge: &Merge| {
            let views = keys.iter().map(|key| (key.clone(), show(merge, key)));
            (merge.as_of(), views.collect::<Vec<_>>())
        };
        let (as_of, views) = self.merged.look(show);
        let (now, mut writes) = (Instant::now(), Vec::new());
        for (key, view) in views {
            self.board.due.remove(&key);
            if key == Key::Hubs {
                self.hubs_looked_at = Some(now);
            }
            let held = self.board.held(&key);
            if held.is_doubtful(AHEAD_PATIENCE, now) {
                held.judge(as_of.ledger_seq, now);
            }
            match held.decide(view.as_ref().map(|(digest, _)| *digest), as_of, now) {
                Decision::Leave => self.metrics.view(ViewResult::Unchanged),
                Decision::Wait if held.written_at.is_none() => {
                    _ = self.board.due.insert(key, now + AHEAD_LOOK);
                }
                // Its own: a hub was set back, or is none of these any more, and so the sum has become less.
                Decision::Wait | Decision::Put | Decision::Delete => {
                    let as_of = if key == Key::Hubs { NOTHING_READ } else { as_of };
                    let view =
                        view.map(|(digest, bytes)| (Signed { digest, as_of, valid_until: None }, bytes));
                    writes.push(Write { key, view, expected: held.revision, read_to: 0 });
                }
            }
        }
        writes
    }

    /// The end: no hub is followed any more, and the bucket shall say what they said. What cannot be written now is written
    /// by the next life.
    async fn finish(&mut self) {
        self.take_changed();
        // How far hubs were read says itself that it is not of now.
        self.board.due.remove(&Key::Hubs);
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.board.due.values().max().copied() else { return };
            if !self.board.bus().link().borrow().is_up() {
                break;
            }
            if self.stands_back().await {
                return;
            }
            sleep_until(next).await;
            self.write_due().await;
        }
        if !self.board.due.is_empty() {
            let views = self.board.due.len();
            tracing::warn!(views, "views are left as they are; the next start brings them up to date");
        }
    }
}

/// A document and what tells it from another; none where there is no such view.
fn show(merge: &Merge, key: &Key) -> Option<(Digest, Bytes)> {
    match key {
        Key::View(key) => merge.view(key).map(|(digest, view)| (digest, view.to_string().into())),
        Key::Hubs => {
            let hubs = merge.hub_list();
            Some((content_digest(&hubs), to_bytes(&hubs).into()))
        }
    }
}

/// What an entry of the bucket holds.
fn there(key: &Key, entry: &ViewEntry) -> Held {
    let value = entry.value.as_ref().filter(|_| *key == Key::Hubs);
    match value.and_then(|value| serde_json::from_slice::<HubList>(value).ok()) {
        // It has read nothing itself, and so is never ahead of anything.
        Some(hubs) => {
            let (digest, as_of) = (content_digest(&hubs), NOTHING_READ);
            Held::holding(entry.revision, Signed { digest, as_of, valid_until: None })
        }
        None => Held::read(Some(entry)),
    }
}
