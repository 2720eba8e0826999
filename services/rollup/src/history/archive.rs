//! Holds the checkpoints of the current LEDGER.
//!
//! When LEDGER is created anew, the checkpoints describe another past: none is handed out any more, and the
//! next one clears them. When LEDGER is set back, checkpoints of the remaining past still hold: the loader
//! compares each with LEDGER and drops it if they differ.
//!
//! Reading and writing the file blocks, so it belongs on blocking threads; the list of checkpoints may be read
//! anywhere.

use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::view::AsOf;
use muster_domain::fold::Fleet;
use muster_service::error::chain;

use super::checkpoint_retention::{Mark, Room};
use super::gaps::{self, Gap, HeldMarks, MarkSpacing};
use super::pack::Packed;
use super::store::Checkpoints;
use super::store::error::{KeepError, LoadError};
use crate::projection::Origin;
use crate::store::{Store, StoreError};

/// Checkpoints, and which LEDGER they are of.
#[derive(Debug)]
pub struct Archive {
    file: Mutex<Checkpoints>,
    list: Mutex<MarkList>,
    room: Room,
}

/// The list of checkpoints.
#[derive(Debug)]
struct MarkList {
    created_at: Timestamp,
    marks: Vec<Mark>,
    thinned_to: u64,
}

impl Archive {
    /// Checkpoints of a LEDGER as the process found it.
    pub fn new(checkpoints: Checkpoints, origin: Origin) -> Self {
        let room = checkpoints.held().room;
        let list = Mutex::new(MarkList::of(&checkpoints, origin.created_at));
        Self { file: Mutex::new(checkpoints), list, room }
    }

    /// Those of a LEDGER, in ascending order.
    pub fn marks(&self, origin: Origin) -> Vec<Mark> {
        let list = self.list();
        if list.created_at == origin.created_at { list.marks.clone() } else { Vec::new() }
    }

    /// The sequence of the newest checkpoint of a LEDGER up to a sequence; 0 if there is none. Later ones
    /// belong to a past that was taken back.
    pub fn newest(&self, origin: Origin, up_to: u64) -> u64 {
        let seqs = self.marks(origin).into_iter().map(|mark| mark.as_of.ledger_seq);
        seqs.filter(|seq| *seq <= up_to).max().unwrap_or(0)
    }

    /// How many there are, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        let list = self.list();
        (list.marks.len(), list.marks.iter().map(|mark| mark.bytes).sum())
    }

    /// The next place at which a checkpoint of a LEDGER is missing.
    pub fn gap(&self, origin: Origin, wanted: MarkSpacing<'_>) -> Option<Gap> {
        let list = self.list();
        let held = HeldMarks { marks: &list.marks, thinned_to: list.thinned_to, room: self.room };
        if list.created_at == origin.created_at { gaps::next(held, wanted) } else { None }
    }

    /// Makes a checkpoint of a snapshot. May block.
    ///
    /// # Errors
    /// The snapshot does not hold, or the file cannot be written.
    pub fn keep(
        &self,
        origin: Origin,
        snapshot: &Store,
        as_of: AsOf,
        digest: Digest,
    ) -> Result<Mark, KeepError> {
        // Packed before the file is locked, so that a concurrent load does not wait for it.
        let packed = Packed::of_snapshot(snapshot)?;
        let mut file = self.file();
        let created_at = origin.created_at;
        if self.list().created_at != created_at {
            file.start_over(created_at)?;
            *self.list() = MarkList::of(&file, created_at);
        }
        let mark = file.keep(&packed, as_of, digest)?;
        *self.list() = MarkList::of(&file, created_at);
        Ok(mark)
    }

    /// Makes a checkpoint between others, of a LEDGER as it was read; none where there is no room, or LEDGER was made anew
    /// meanwhile. May block.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn fill(
        &self,
        origin: Origin,
        packed: &Packed,
        as_of: AsOf,
        digest: Digest,
    ) -> Result<Option<Mark>, StoreError> {
        let mut file = self.file();
        if self.list().created_at != origin.created_at {
            return Ok(None);
        }
        let mark = file.fill(packed, as_of, digest)?;
        *self.list() = MarkList::of(&file, origin.created_at);
        Ok(mark)
    }

    /// The fold as it was at a checkpoint. May block.
    ///
    /// # Errors
    /// Why the checkpoint is of no use.
    pub fn load(&self, mark: Mark) -> Result<Fleet, LoadError> {
        self.file().load(mark)
    }

    /// Drops a checkpoint that is of no use. One that cannot be dropped is found of no use again. May block.
    pub fn remove(&self, ledger_seq: u64) {
        let mut file = self.file();
        if let Err(error) = file.remove(ledger_seq) {
            tracing::warn!(error = chain(&error), "cannot drop a damaged checkpoint");
        }
        self.list().marks.retain(|mark| mark.as_of.ledger_seq != ledger_seq);
    }

    /// Locks the list. List and file each hold the state before or after a change, so a panic leaves no half.
    fn list(&self) -> MutexGuard<'_, MarkList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the file.
    fn file(&self) -> MutexGuard<'_, Checkpoints> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MarkList {
    fn of(file: &Checkpoints, created_at: Timestamp) -> Self {
        let HeldMarks { marks, thinned_to, .. } = file.held();
        Self { created_at, marks: marks.to_vec(), thinned_to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::store::tests::{ROOM, kept, saved};
    use crate::store::tests::ledger_time;

    #[test]
    fn a_ledger_set_back_keeps_the_checkpoints_and_a_new_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, checkpoints) = kept(&directory, &[3, 5, 9], ROOM);
        let origin = Origin { created_at: ledger_time(), restarts: 0 };
        let archive = Archive::new(checkpoints, origin);
        let seqs =
            |origin| -> Vec<u64> { archive.marks(origin).iter().map(|mark| mark.as_of.ledger_seq).collect() };
        let set_back = Origin { restarts: 1, ..origin };
        assert_eq!(seqs(set_back), [3, 5, 9]);
        assert_eq!((archive.newest(set_back, 6), archive.newest(set_back, 9)), (5, 9));
        let (as_of, digest) = saved(&mut store, 6);
        archive.keep(set_back, &store, as_of, digest).unwrap();
        assert_eq!(seqs(set_back), [3, 5, 6]);

        let anew = Origin { created_at: "2026-11-21T08:00:00Z".parse().unwrap(), restarts: 2 };
        assert!(seqs(anew).is_empty() && archive.newest(anew, 9) == 0);
        let (as_of, digest) = saved(&mut store, 2);
        archive.keep(anew, &store, as_of, digest).unwrap();
        assert_eq!((seqs(anew), seqs(origin)), (vec![2], vec![]));
    }
}
