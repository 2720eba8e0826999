//! The checkpoints of the LEDGER that is read now. When LEDGER is made anew or set back, they are of a past that never
//! was: nothing is given out of them any more, and the next one clears them away.
//!
//! Reading and writing the file takes its time and is for threads that may block; what there is, anybody may ask.

use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_contract::canonical::Digest;
use muster_contract::view::AsOf;
use muster_domain::fold::Fleet;
use muster_service::error::chain;

use super::store::{Checkpoints, KeepError, LoadError};
use super::thinning::Mark;
use crate::present::Origin;
use crate::store::Store;

/// Checkpoints, and which LEDGER they are of.
#[derive(Debug)]
pub struct Archive {
    file: Mutex<Checkpoints>,
    list: Mutex<List>,
}

/// What there is.
#[derive(Debug)]
struct List {
    origin: Origin,
    marks: Vec<Mark>,
}

impl Archive {
    /// Checkpoints of a LEDGER as the process found it.
    pub fn new(checkpoints: Checkpoints, origin: Origin) -> Self {
        let marks = checkpoints.marks().to_vec();
        Self { file: Mutex::new(checkpoints), list: Mutex::new(List { origin, marks }) }
    }

    /// Those of a LEDGER, in ascending order.
    pub fn marks(&self, origin: Origin) -> Vec<Mark> {
        let list = self.list();
        if list.origin == origin { list.marks.clone() } else { Vec::new() }
    }

    /// The sequence of the newest of a LEDGER; 0 where there is none.
    pub fn newest(&self, origin: Origin) -> u64 {
        let list = self.list();
        let newest = list.marks.last().filter(|_| list.origin == origin);
        newest.map_or(0, |mark| mark.as_of.ledger_seq)
    }

    /// How many there are, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        let list = self.list();
        (list.marks.len(), list.marks.iter().map(|mark| mark.bytes).sum())
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
        let mut file = self.file();
        if self.list().origin != origin {
            file.begin_anew(origin.created_at)?;
            *self.list() = List { origin, marks: Vec::new() };
        }
        let mark = file.keep(snapshot, as_of, digest)?;
        self.list().marks = file.marks().to_vec();
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

    /// Either holds at any moment what the file held before or after a change, so a panic elsewhere leaves no half.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Self::list`].
    fn file(&self) -> MutexGuard<'_, Checkpoints> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
