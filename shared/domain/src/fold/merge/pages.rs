//! Pages of several hubs as one: rows in the order that each hub has, cut where one hub with all rows would cut. Whose rows
//! they are, and what is counted beside them, is not told here.
//!
//! A hub whose page goes on may have rows right after its end, so nothing is shown that comes after the end of any of them.

use muster_contract::DeviceKey;
use muster_contract::query::{DeviceLine, StandingLine};
use muster_contract::status::TargetStatus;

use super::super::status::StatusCursor;

/// A row with a place in the order of all.
pub trait Placed {
    /// The place, which is also where a page ends.
    type Place: Ord + Clone;
    /// Its place.
    fn place(&self) -> Self::Place;
}

impl Placed for DeviceLine {
    type Place = DeviceKey;
    fn place(&self) -> DeviceKey {
        self.key.clone()
    }
}

impl Placed for StandingLine {
    type Place = DeviceKey;
    fn place(&self) -> DeviceKey {
        self.key.clone()
    }
}

impl Placed for TargetStatus {
    type Place = StatusCursor;
    fn place(&self) -> StatusCursor {
        StatusCursor::after(self)
    }
}

/// The page that the hubs' pages give. It never holds more rows than were asked for, besides those of the page that comes in.
#[derive(Debug)]
pub struct Pages<T: Placed> {
    limit: usize,
    rows: Vec<T>,
    /// Where the first of the pages that go on ended.
    end: Option<T::Place>,
    /// Rows were left out.
    more: bool,
}

impl<T: Placed> Pages<T> {
    /// A page of at most so many rows, of which none has come.
    pub const fn new(limit: usize) -> Self {
        Self { limit: if limit == 0 { 1 } else { limit }, rows: Vec::new(), end: None, more: false }
    }

    /// Takes the page of a hub, which was asked for as many rows, and where it ended if it goes on.
    pub fn take(&mut self, rows: Vec<T>, end: Option<T::Place>) {
        self.rows.extend(rows);
        // What has come before is in order already, and so is what comes.
        self.rows.sort_by_cached_key(Placed::place);
        self.end = match (self.end.take(), end) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        };
        let seen = self
            .end
            .as_ref()
            .map_or(self.rows.len(), |end| self.rows.partition_point(|row| row.place() <= *end));
        self.more |= self.rows.len() > seen.min(self.limit);
        self.rows.truncate(seen.min(self.limit));
    }

    /// How many rows it has.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// True where it has none.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Its rows, or fewer of them, and where it ends if there is more: one that is full, or cut, ends with its last row.
    pub fn cut(&self, most: usize) -> (&[T], Option<T::Place>) {
        let rows = &self.rows[..self.rows.len().min(most)];
        let cut = rows.len() < self.rows.len();
        let more = cut || self.more || self.end.is_some();
        let end = match rows.last() {
            Some(last) if cut || rows.len() >= self.limit => Some(last.place()),
            _ => self.end.clone(),
        };
        (rows, end.filter(|_| more))
    }
}
