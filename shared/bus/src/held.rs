//! What the bucket `views` holds under a key, as far as this process knows, what is to be done about it, and doing it. Of a
//! view it reads what tells one from another, and nothing else.
//!
//! Two processes may write one bucket. Each write expects the revision that its writer knows of, so that neither covers what
//! the other wrote unseen; and a view that has read further than this process is left alone until this process has
//! caught up with it, however long that takes: a standby that lags must not write what is older. Only where what is read
//! ends before it, what is there was derived from something else (a LEDGER restored from a backup has lower sequences), and
//! it is written over. How far there is anything to read, its writer finds out now and then.
//!
//! A value counts as a view only if its digest is the digest of its content and it is of its key. What is anything else, and
//! what cannot follow on what was there, is suspect: the writer that puts its own view in its place reports it.

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

/// What is held under a key.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// The revision of the key's last entry; 0 where there is none.
    pub revision: u64,
    content: Content,
    /// When it was last written by this process.
    pub written_at: Option<Instant>,
    /// What is wrong with the entry, if it cannot be a rollup's.
    pub suspect: Option<ForeignView>,
    /// Since when it has been left alone because it has read further, or since there was last seen to be as much to read.
    ahead_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Content {
    /// No view.
    Nothing,
    /// A view was deleted by a writer that had read up to this sequence.
    Deleted(u64),
    /// A view.
    View(Signed),
    /// Something else, or not known.
    Unknown,
}

/// What tells one view from another.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signed {
    /// Digest of what it says.
    pub digest: Digest,
    /// Up to where it has read.
    pub as_of: AsOf,
    /// Until when it may be believed; `None` where it does not say.
    #[serde(skip)]
    pub valid_until: Option<Timestamp>,
}

/// What became of a write.
#[derive(Debug)]
pub enum Written {
    /// It has this revision.
    As(u64),
    /// Somebody else had written: this is there now.
    Overtaken(Held),
    /// Whether it was written is not known, or it was refused.
    Failed(PublishError),
}

/// What is to be done about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It says what it shall.
    Leave,
    /// It has read further: look again later.
    Wait,
    /// It shall say something else.
    Put,
    /// There shall be nothing.
    Delete,
}

impl Held {
    /// A key that was never written.
    pub const NOTHING: Self = Self::new(0, Content::Nothing);

    const fn new(revision: u64, content: Content) -> Self {
        Self { revision, content, written_at: None, suspect: None, ahead_since: None }
    }

    /// What was read of the bucket; `None` where the key has no entry.
    pub fn read(entry: Option<&ViewEntry>) -> Self {
        let Some(entry) = entry else { return Self::NOTHING };
        match (&entry.value, entry.read_to) {
            (Some(value), _) => match signed(&entry.key, value) {
                Ok(view) => Self::new(entry.revision, Content::View(view)),
                Err(cause) => Self { suspect: Some(cause), ..Self::new(entry.revision, Content::Unknown) },
            },
            (None, Some(read_to)) => Self::new(entry.revision, Content::Deleted(read_to)),
            (None, None) => Self::new(entry.revision, Content::Nothing),
        }
    }

    /// An entry that comes in the place of this one: suspect also where no rollup would have written it then. `end` is
    /// LEDGER's last sequence, as far as it is known.
    #[must_use]
    pub fn followed_by(&self, entry: &ViewEntry, end: u64) -> Self {
        let mut next = Self::read(Some(entry));
        match (self.read_to(), next.content) {
            (_, Content::View(_) | Content::Deleted(_)) if next.read_to() > Some(end) => {
                (next.content, next.suspect) = (Content::Unknown, Some(ForeignView::Unreached));
            }
            (before, Content::View(_)) if next.read_to() < before => next.suspect = Some(ForeignView::Stale),
            (_, Content::View(_)) if matches!(self.content, Content::Nothing) => {
                // Unless it turns out to be a view.
                next.suspect = Some(ForeignView::Key);
            }
            (_, Content::Nothing) if self.says_something() => {
                let is_mark = entry.revision > 0;
                next.suspect = Some(if is_mark { ForeignView::Deleted } else { ForeignView::Missing });
            }
            _ => {}
        }
        next
    }

    /// Up to where its writer had read.
    pub const fn read_to(&self) -> Option<u64> {
        match self.content {
            Content::View(view) => Some(view.as_of.ledger_seq),
            Content::Deleted(read_to) => Some(read_to),
            Content::Nothing | Content::Unknown => None,
        }
    }

    /// True where a view is there.
    pub const fn is_view(&self) -> bool {
        matches!(self.content, Content::View(_))
    }

    /// Until when the view that is there may be believed.
    pub const fn valid_until(&self) -> Option<Timestamp> {
        match self.content {
            Content::View(view) => view.valid_until,
            Content::Nothing | Content::Deleted(_) | Content::Unknown => None,
        }
    }

    const fn says_something(&self) -> bool {
        matches!(self.content, Content::View(_) | Content::Unknown)
    }

    /// What this process has written: a view, or none.
    pub fn written(revision: u64, view: Option<Signed>, at: Instant) -> Self {
        let content = view.map_or(Content::Nothing, Content::View);
        Self { written_at: Some(at), ..Self::new(revision, content) }
    }

    /// A view that somebody knows to be there.
    pub const fn holding(revision: u64, view: Signed) -> Self {
        Self::new(revision, Content::View(view))
    }

    /// The same after a write of unknown fate.
    pub const fn doubted(self, at: Instant) -> Self {
        Self { content: Content::Unknown, written_at: Some(at), ..self }
    }

    /// True where somebody else wrote something else, although it had read to the very same fact: one of the two is
    /// wrong, or what they read differs.
    pub fn disputes(&self, wanted: Option<Digest>, as_of: AsOf) -> bool {
        let Content::View(view) = self.content else { return false };
        self.written_at.is_none() && view.as_of == as_of && Some(view.digest) != wanted
    }

    /// What is to be done so that it says `wanted`, as of a moment.
    pub fn decide(&mut self, wanted: Option<Digest>, as_of: AsOf, now: Instant) -> Decision {
        let there = if let Content::View(view) = self.content { Some(view.digest) } else { None };
        let ahead = self.read_to() > Some(as_of.ledger_seq);
        if ahead && there != wanted {
            self.ahead_since.get_or_insert(now);
            return Decision::Wait;
        }
        self.ahead_since = None;
        match (wanted, self.content) {
            (None, Content::Nothing | Content::Deleted(_)) => Decision::Leave,
            (None, _) => Decision::Delete,
            (Some(_), _) if there == wanted => Decision::Leave,
            (Some(_), _) => Decision::Put,
        }
    }
}

impl Held {
    /// True where it has been left alone for so long that it is to be found out how far there is anything to read.
    pub fn is_doubtful(&self, patience: Duration, now: Instant) -> bool {
        self.ahead_since.is_some_and(|since| now >= since + patience)
    }

    /// Takes in where that ends, found out after this was read: what has read beyond it has read something else.
    pub fn judge(&mut self, end: u64, now: Instant) {
        if self.read_to() > Some(end) {
            (self.content, self.ahead_since) = (Content::Unknown, None);
        } else {
            self.ahead_since = Some(now);
        }
    }

    /// The bucket has no entry of it any more. True where it had said something.
    pub fn vanish(&mut self) -> bool {
        let said = self.says_something();
        let suspect = said.then_some(ForeignView::Missing);
        *self = Self { written_at: self.written_at, suspect, ..Self::NOTHING };
        said
    }
}

impl Bus {
    /// Writes a view, or deletes it, in place of the revision that is expected. Who was overtaken learns by whom.
    pub async fn view_write(&self, key: &str, view: Option<Bytes>, expected: u64, read_to: u64) -> Written {
        let done = match view {
            Some(bytes) => self.view_put(key, bytes, Some(expected)).await,
            None => {
                let read_to = (read_to > 0).then_some(read_to);
                self.view_delete_as_of(key, Some(expected), read_to).await
            }
        };
        match done {
            Ok(revision) => Written::As(revision),
            Err(error) if error.kind == PublishErrorKind::Conflict => match self.view_last(key).await {
                Ok(entry) => Written::Overtaken(Held::read(entry.as_ref())),
                Err(_) => Written::Failed(error),
            },
            Err(error) => Written::Failed(error),
        }
    }
}

/// What tells a view from another, if the value is a view of this key.
fn signed(key: &str, value: &[u8]) -> Result<Signed, ForeignView> {
    let value: Value = serde_json::from_slice(value).map_err(|_| ForeignView::NoView)?;
    let mut view = Signed::deserialize(&value).map_err(|_| ForeignView::NoView)?;
    view.valid_until = value["asOf"]["validUntil"].as_str().and_then(|until| until.parse().ok());
    if !is_of_key(key, &value) {
        return Err(ForeignView::NoView);
    }
    if content_digest(&value) != view.digest {
        return Err(ForeignView::Damaged);
    }
    Ok(view)
}

/// Whether a value names the view of its key. Any value is of a key that is no view's.
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

    fn view(text: &[u8], ledger_seq: u64) -> Option<Signed> {
        Some(Signed { digest: Digest::of_bytes(text), as_of: as_of(ledger_seq), valid_until: None })
    }

    #[test]
    fn what_is_done_follows_from_what_is_there_and_what_is_wanted() {
        let (now, one) = (Instant::now(), Some(Digest::of_bytes(b"one")));
        let there = |view| Held::written(7, view, now);
        let unknown = there(None).doubted(now);
        // there, wanted, expected; the present has read to 10
        let table = [
            (there(None), None, Decision::Leave),
            (there(None), one, Decision::Put),
            (there(view(b"one", 9)), one, Decision::Leave),
            (there(view(b"one", 99)), one, Decision::Leave),
            (there(view(b"two", 10)), one, Decision::Put),
            (there(view(b"two", 11)), one, Decision::Wait),
            (there(view(b"two", 10)), None, Decision::Delete),
            (there(view(b"two", 11)), None, Decision::Wait),
            (unknown, one, Decision::Put),
            (unknown, None, Decision::Delete),
        ];
        for (at, (mut held, wanted, expected)) in table.into_iter().enumerate() {
            assert_eq!(held.decide(wanted, as_of(10), now), expected, "row {at}");
        }
    }

    #[test]
    fn another_rollup_that_read_the_same_and_says_something_else_is_noticed() {
        let one = Some(Digest::of_bytes(b"one"));
        let theirs = |text, seq| Held { content: Content::View(view(text, seq).unwrap()), ..Held::NOTHING };
        assert!(theirs(b"two", 10).disputes(one, as_of(10)));
        assert!(theirs(b"two", 10).disputes(None, as_of(10)));
        assert!(!theirs(b"one", 10).disputes(one, as_of(10)));
        assert!(!theirs(b"two", 9).disputes(one, as_of(10)), "it had read less");
        assert!(!Held::written(7, view(b"two", 10), Instant::now()).disputes(one, as_of(10)), "its own");
    }

    #[test]
    fn a_view_that_has_read_further_is_written_over_only_where_ledger_ends_before_it() {
        let begun = Instant::now();
        let one = Some(Digest::of_bytes(b"one"));
        let late = begun + 100 * PATIENCE;
        let mut held = Held::written(7, view(b"two", 1_000), begun);
        assert_eq!(held.decide(one, as_of(10), begun), Decision::Wait);
        assert!(!held.is_doubtful(PATIENCE, begun + PATIENCE / 2));
        assert_eq!(
            held.decide(one, as_of(12), late),
            Decision::Wait,
            "a standby may lag for as long as it likes"
        );
        assert!(held.is_doubtful(PATIENCE, late));
        held.judge(1_000, late);
        assert!(!held.is_doubtful(PATIENCE, late), "it is asked for again later");
        assert_eq!(held.decide(one, as_of(12), late), Decision::Wait);
        held.judge(999, late);
        assert_eq!(held.decide(one, as_of(12), late), Decision::Put);
    }

    #[test]
    fn what_the_bucket_has_lost_is_written_anew() {
        let (now, one) = (Instant::now(), Some(Digest::of_bytes(b"one")));
        let mut held = Held::written(7, view(b"one", 9), now);
        assert!(held.vanish());
        assert_eq!((held.revision, held.decide(one, as_of(10), now)), (0, Decision::Put));
        assert!(!held.vanish(), "there was nothing");
    }
}
