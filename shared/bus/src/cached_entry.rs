//! Caches the entry of one key of the bucket `views`, and decides whether this process must write the key. It reads the
//! identity of a view (digest, position and validity) and no other content.
//!
//! Two processes may write one bucket. Each write names the revision that it replaces, so that neither overwrites an entry
//! that it has not seen. A view that is ahead of this process stays until this process has caught up, however long that
//! takes: a standby that lags must not write an older view. If LEDGER ends before the view's position, the view is from
//! another LEDGER (one restored from a backup has lower sequences), and is overwritten. The owner of the cache asks for the
//! end of LEDGER from time to time.
//!
//! A value counts as a view only if its digest matches its content and it names its key. Any other value, and any entry
//! that cannot follow the one before it, is suspect: the process that overwrites it reports it.

use std::time::Duration;

use bytes::Bytes;
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::incident::ForeignView;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, content_digest};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::bus::Bus;
use crate::publish::{PublishError, PublishErrorKind};
use crate::views::ViewEntry;

/// The last known entry of a key.
#[derive(Debug, Clone, Copy)]
pub struct CachedEntry {
    /// The revision of the entry; 0 if there is none.
    pub revision: u64,
    content: Content,
    /// When this process last wrote it.
    pub written_at: Option<Instant>,
    /// Why no rollup can have written the entry, if that is so.
    pub suspect: Option<ForeignView>,
    /// Since when the entry has been ahead of this process, or when LEDGER was last seen to reach it.
    ahead_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Content {
    /// No entry, or a deletion without a position.
    Nothing,
    /// A view was deleted by a writer that had read up to this sequence.
    Deleted(u64),
    /// A view.
    View(ViewIdentity),
    /// Another value, or the result of a write whose outcome is unknown.
    Unknown,
}

/// The identity of a view.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewIdentity {
    /// Digest of its content.
    pub digest: Digest,
    /// The position in LEDGER up to which it was derived.
    pub as_of: AsOf,
    /// The end of its validity, if it names one.
    #[serde(skip)]
    pub valid_until: Option<Timestamp>,
}

/// The result of a write.
#[derive(Debug)]
pub enum WriteResult {
    /// The entry has this revision.
    As(u64),
    /// Another process wrote first; its entry.
    Overtaken(CachedEntry),
    /// The server refused, or its answer was lost.
    Failed(PublishError),
}

/// An action of a process on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryAction {
    /// Nothing: the entry is right.
    Leave,
    /// Decide again later: the entry is ahead of this process.
    Wait,
    /// Write the view.
    Put,
    /// Delete the entry.
    Delete,
}

impl CachedEntry {
    /// A key that was never written.
    pub const NOTHING: Self = Self::new(0, Content::Nothing);

    const fn new(revision: u64, content: Content) -> Self {
        Self { revision, content, written_at: None, suspect: None, ahead_since: None }
    }

    /// The entry as the bucket has it; `None` if the key has no entry.
    pub fn read(entry: Option<&ViewEntry>) -> Self {
        let Some(entry) = entry else { return Self::NOTHING };
        match (&entry.value, entry.read_to) {
            (Some(value), _) => match identity(&entry.key, value) {
                Ok(view) => Self::new(entry.revision, Content::View(view)),
                Err(cause) => Self { suspect: Some(cause), ..Self::new(entry.revision, Content::Unknown) },
            },
            (None, Some(read_to)) => Self::new(entry.revision, Content::Deleted(read_to)),
            (None, None) => Self::new(entry.revision, Content::Nothing),
        }
    }

    /// The entry that replaces this one; suspect also if no rollup would have written it after this one. `end` is the last
    /// known sequence of LEDGER.
    #[must_use]
    pub fn followed_by(&self, entry: &ViewEntry, end: u64) -> Self {
        let mut next = Self::read(Some(entry));
        match (self.read_to(), next.content) {
            (_, Content::View(_) | Content::Deleted(_)) if next.read_to() > Some(end) => {
                (next.content, next.suspect) = (Content::Unknown, Some(ForeignView::Unreached));
            }
            (before, Content::View(_)) if next.read_to() < before => next.suspect = Some(ForeignView::Stale),
            (_, Content::View(_)) if matches!(self.content, Content::Nothing) => {
                // The owner clears this if it has a view under this key.
                next.suspect = Some(ForeignView::Key);
            }
            (_, Content::Nothing) if self.has_content() => {
                let is_marker = entry.revision > 0;
                next.suspect = Some(if is_marker { ForeignView::Deleted } else { ForeignView::Missing });
            }
            _ => {}
        }
        next
    }

    /// The sequence of LEDGER up to which its writer had read.
    pub const fn read_to(&self) -> Option<u64> {
        match self.content {
            Content::View(view) => Some(view.as_of.ledger_seq),
            Content::Deleted(read_to) => Some(read_to),
            Content::Nothing | Content::Unknown => None,
        }
    }

    /// True if it is a view.
    pub const fn is_view(&self) -> bool {
        matches!(self.content, Content::View(_))
    }

    /// The end of the view's validity, if it is a view that names one.
    pub const fn valid_until(&self) -> Option<Timestamp> {
        match self.content {
            Content::View(view) => view.valid_until,
            Content::Nothing | Content::Deleted(_) | Content::Unknown => None,
        }
    }

    const fn has_content(&self) -> bool {
        matches!(self.content, Content::View(_) | Content::Unknown)
    }

    /// An entry that this process has written: a view, or a deletion.
    pub fn written(revision: u64, view: Option<ViewIdentity>, at: Instant) -> Self {
        let content = view.map_or(Content::Nothing, Content::View);
        Self { written_at: Some(at), ..Self::new(revision, content) }
    }

    /// An entry that holds a view.
    pub const fn of_view(revision: u64, view: ViewIdentity) -> Self {
        Self::new(revision, Content::View(view))
    }

    /// The same entry after a write whose outcome is unknown.
    pub const fn after_unknown_write(self, at: Instant) -> Self {
        Self { content: Content::Unknown, written_at: Some(at), ..self }
    }

    /// True if another process wrote another view at the same position: one of the two is wrong, or they read different
    /// facts.
    pub fn conflicts_with(&self, wanted: Option<Digest>, as_of: AsOf) -> bool {
        let Content::View(view) = self.content else { return false };
        self.written_at.is_none() && view.as_of == as_of && Some(view.digest) != wanted
    }

    /// The action that makes the entry `wanted`, which this process has derived up to `as_of`.
    pub fn decide(&mut self, wanted: Option<Digest>, as_of: AsOf, now: Instant) -> EntryAction {
        let there = if let Content::View(view) = self.content { Some(view.digest) } else { None };
        let ahead = self.read_to() > Some(as_of.ledger_seq);
        if ahead && there != wanted {
            self.ahead_since.get_or_insert(now);
            return EntryAction::Wait;
        }
        self.ahead_since = None;
        match (wanted, self.content) {
            (None, Content::Nothing | Content::Deleted(_)) => EntryAction::Leave,
            (None, _) => EntryAction::Delete,
            (Some(_), _) if there == wanted => EntryAction::Leave,
            (Some(_), _) => EntryAction::Put,
        }
    }
}

impl CachedEntry {
    /// True if the entry has been ahead for `patience`, so that the owner must ask for the end of LEDGER.
    pub fn is_check_due(&self, patience: Duration, now: Instant) -> bool {
        self.ahead_since.is_some_and(|since| now >= since + patience)
    }

    /// Compares the entry with the end of LEDGER, which was read after the entry: an entry beyond the end is from another
    /// LEDGER.
    pub fn check_end(&mut self, end: u64, now: Instant) {
        if self.read_to() > Some(end) {
            (self.content, self.ahead_since) = (Content::Unknown, None);
        } else {
            self.ahead_since = Some(now);
        }
    }

    /// Notes that the bucket has no entry of this key any more. True if it had one.
    pub fn set_missing(&mut self) -> bool {
        let had_content = self.has_content();
        let suspect = had_content.then_some(ForeignView::Missing);
        *self = Self { written_at: self.written_at, suspect, ..Self::NOTHING };
        had_content
    }
}

impl Bus {
    /// Writes a view, or deletes it with `None`, if the key's revision is `expected`. If another process wrote first, the
    /// result has its entry.
    pub async fn view_write(
        &self,
        key: &str,
        view: Option<Bytes>,
        expected: u64,
        read_to: u64,
    ) -> WriteResult {
        let done = match view {
            Some(bytes) => self.view_put(key, bytes, Some(expected)).await,
            None => {
                let read_to = (read_to > 0).then_some(read_to);
                self.view_delete_as_of(key, Some(expected), read_to).await
            }
        };
        match done {
            Ok(revision) => WriteResult::As(revision),
            Err(error) if error.kind == PublishErrorKind::Conflict => match self.view_last(key).await {
                Ok(entry) => WriteResult::Overtaken(CachedEntry::read(entry.as_ref())),
                Err(_) => WriteResult::Failed(error),
            },
            Err(error) => WriteResult::Failed(error),
        }
    }
}

/// The identity of a value that is a view of this key.
fn identity(key: &str, value: &[u8]) -> Result<ViewIdentity, ForeignView> {
    let value: Value = serde_json::from_slice(value).map_err(|_| ForeignView::NoView)?;
    let mut view = ViewIdentity::deserialize(&value).map_err(|_| ForeignView::NoView)?;
    view.valid_until = value["asOf"]["validUntil"].as_str().and_then(|until| until.parse().ok());
    if !is_of_key(key, &value) {
        return Err(ForeignView::NoView);
    }
    if content_digest(&value) != view.digest {
        return Err(ForeignView::Damaged);
    }
    Ok(view)
}

/// Whether a value names the view of its key. True for a key that is no view's.
fn is_of_key(key: &str, value: &Value) -> bool {
    let says = |field: &str, wanted: &str| value[field] == wanted;
    match ViewKey::parse(key) {
        Some(ViewKey::Deployment(id)) => says("kind", "DeploymentView") && says("deployment", id.as_str()),
        Some(ViewKey::Site(site)) => says("kind", "SiteView") && says("site", site.as_str()),
        Some(ViewKey::Fleet) => says("kind", "FleetView"),
        Some(ViewKey::Group(label, group)) => {
            says("kind", "GroupView") && says("label", label.as_str()) && says("value", group.as_str())
        }
        Some(ViewKey::Defined(name)) => says("kind", "DefinedView") && says("name", name.as_str()),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn as_of(ledger_seq: u64) -> AsOf {
        AsOf { ledger_seq, at: Timestamp::UNIX_EPOCH }
    }

    fn view(text: &[u8], ledger_seq: u64) -> Option<ViewIdentity> {
        Some(ViewIdentity { digest: Digest::of_bytes(text), as_of: as_of(ledger_seq), valid_until: None })
    }

    #[test]
    fn the_action_follows_from_the_entry_and_the_wanted_view() {
        let (now, one) = (Instant::now(), Some(Digest::of_bytes(b"one")));
        let there = |view| CachedEntry::written(7, view, now);
        let unknown = there(None).after_unknown_write(now);
        // entry, wanted, expected; this process has read to 10
        let table = [
            (there(None), None, EntryAction::Leave),
            (there(None), one, EntryAction::Put),
            (there(view(b"one", 9)), one, EntryAction::Leave),
            (there(view(b"one", 99)), one, EntryAction::Leave),
            (there(view(b"two", 10)), one, EntryAction::Put),
            (there(view(b"two", 11)), one, EntryAction::Wait),
            (there(view(b"two", 10)), None, EntryAction::Delete),
            (there(view(b"two", 11)), None, EntryAction::Wait),
            (unknown, one, EntryAction::Put),
            (unknown, None, EntryAction::Delete),
        ];
        for (at, (mut cached, wanted, expected)) in table.into_iter().enumerate() {
            assert_eq!(cached.decide(wanted, as_of(10), now), expected, "row {at}");
        }
    }

    #[test]
    fn another_view_at_the_same_position_is_a_conflict() {
        let one = Some(Digest::of_bytes(b"one"));
        let theirs = |text, seq| CachedEntry {
            content: Content::View(view(text, seq).unwrap()),
            ..CachedEntry::NOTHING
        };
        assert!(theirs(b"two", 10).conflicts_with(one, as_of(10)));
        assert!(theirs(b"two", 10).conflicts_with(None, as_of(10)));
        assert!(!theirs(b"one", 10).conflicts_with(one, as_of(10)));
        assert!(!theirs(b"two", 9).conflicts_with(one, as_of(10)), "it had read less");
        assert!(
            !CachedEntry::written(7, view(b"two", 10), Instant::now()).conflicts_with(one, as_of(10)),
            "its own"
        );
    }

    #[test]
    fn a_view_ahead_is_overwritten_only_if_ledger_ends_before_it() {
        let begun = Instant::now();
        let one = Some(Digest::of_bytes(b"one"));
        let late = begun + 100 * PATIENCE;
        let mut cached = CachedEntry::written(7, view(b"two", 1_000), begun);
        assert_eq!(cached.decide(one, as_of(10), begun), EntryAction::Wait);
        assert!(!cached.is_check_due(PATIENCE, begun + PATIENCE / 2));
        assert_eq!(
            cached.decide(one, as_of(12), late),
            EntryAction::Wait,
            "a standby may lag for as long as it likes"
        );
        assert!(cached.is_check_due(PATIENCE, late));
        cached.check_end(1_000, late);
        assert!(!cached.is_check_due(PATIENCE, late), "the next check is due later");
        assert_eq!(cached.decide(one, as_of(12), late), EntryAction::Wait);
        cached.check_end(999, late);
        assert_eq!(cached.decide(one, as_of(12), late), EntryAction::Put);
    }

    #[test]
    fn a_missing_entry_is_written_again() {
        let (now, one) = (Instant::now(), Some(Digest::of_bytes(b"one")));
        let mut cached = CachedEntry::written(7, view(b"one", 9), now);
        assert!(cached.set_missing());
        assert_eq!((cached.revision, cached.decide(one, as_of(10), now)), (0, EntryAction::Put));
        assert!(!cached.set_missing(), "there was nothing");
    }
}
