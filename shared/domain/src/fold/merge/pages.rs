//! Merges the pages of several hubs: rows in the order of each hub, cut where one hub with all rows would cut.
//! It knows neither the kind of rows nor the counts beside them.
//!
//! A hub whose page continues may have rows right after its end, so the merged page stops at the earliest such
//! end.

use muster_contract::DeviceKey;
use muster_contract::history::DeviceChange;
use muster_contract::query::DeviceLine;
use muster_contract::status::TargetStatus;
use muster_contract::why::Because;

use super::super::silence_order::SilenceCursor;
use super::super::status::StatusCursor;

/// A row with a place in the order of all.
pub trait SortedRow {
    /// The place, which is also where a page ends.
    type SortKey: Ord + Clone;
    /// The key by which rows are sorted.
    fn sort_key(&self) -> Self::SortKey;
}

/// A device in a list by silence.
#[derive(Debug, Clone)]
pub struct SilentDevice(DeviceLine);

impl From<DeviceLine> for SilentDevice {
    fn from(line: DeviceLine) -> Self {
        Self(line)
    }
}

impl From<SilentDevice> for DeviceLine {
    fn from(device: SilentDevice) -> Self {
        device.0
    }
}

impl SortedRow for SilentDevice {
    type SortKey = SilenceCursor;
    fn sort_key(&self) -> SilenceCursor {
        SilenceCursor::of(&self.0)
    }
}

impl SortedRow for DeviceLine {
    type SortKey = DeviceKey;
    fn sort_key(&self) -> DeviceKey {
        self.key.clone()
    }
}

impl SortedRow for DeviceChange {
    type SortKey = DeviceKey;
    fn sort_key(&self) -> DeviceKey {
        self.key.clone()
    }
}

impl SortedRow for Because {
    type SortKey = DeviceKey;
    fn sort_key(&self) -> DeviceKey {
        self.key.clone()
    }
}

impl SortedRow for TargetStatus {
    type SortKey = StatusCursor;
    fn sort_key(&self) -> StatusCursor {
        StatusCursor::after(self)
    }
}

/// The page that the hubs' pages give. It never holds more rows than were asked for, besides those of the page that comes in.
#[derive(Debug)]
pub struct Pages<T: SortedRow> {
    limit: usize,
    rows: Vec<T>,
    /// The earliest end of the pages that continue.
    end: Option<T::SortKey>,
    /// Rows were left out.
    more: bool,
}

impl<T: SortedRow> Pages<T> {
    /// An empty page of at most so many rows.
    pub const fn new(limit: usize) -> Self {
        Self { limit: if limit == 0 { 1 } else { limit }, rows: Vec::new(), end: None, more: false }
    }

    /// Applies a hub's page of up to as many rows, and its end if it continues.
    pub fn add_page(&mut self, rows: Vec<T>, end: Option<T::SortKey>) {
        self.rows.extend(rows);
        // The earlier rows are sorted already, and so are the new ones.
        self.rows.sort_by_cached_key(SortedRow::sort_key);
        self.end = match (self.end.take(), end) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        };
        let seen = self
            .end
            .as_ref()
            .map_or(self.rows.len(), |end| self.rows.partition_point(|row| row.sort_key() <= *end));
        self.more |= self.rows.len() > seen.min(self.limit);
        self.rows.truncate(seen.min(self.limit));
    }

    /// How many rows it has.
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// True where there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows, or fewer of them, and the end if there is more: a full or cut page ends with its last row.
    pub fn cut(&self, most: usize) -> (&[T], Option<T::SortKey>) {
        let rows = &self.rows[..self.rows.len().min(most)];
        let cut = rows.len() < self.rows.len();
        let more = cut || self.more || self.end.is_some();
        let end = match rows.last() {
            Some(last) if cut || rows.len() >= self.limit => Some(last.sort_key()),
            _ => self.end.clone(),
        };
        (rows, end.filter(|_| more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Row(u32);

    impl SortedRow for Row {
        type SortKey = u32;
        fn sort_key(&self) -> u32 {
            self.0
        }
    }

    type Given = (&'static [u32], Option<u32>);

    #[test]
    fn a_merged_page_ends_at_the_first_hubs_end_or_its_last_row() {
        // How many rows are wanted, the pages of hubs, and what they give.
        let table: [(usize, &[Given], Given); 9] = [
            (9, &[], (&[], None)),
            (9, &[(&[1, 4], None), (&[2, 3], None)], (&[1, 2, 3, 4], None)),
            (4, &[(&[1, 4], None), (&[2, 3], None)], (&[1, 2, 3, 4], None)),
            (3, &[(&[1, 4], None), (&[2, 3], None)], (&[1, 2, 3], Some(3))),
            (2, &[(&[1, 4], Some(4)), (&[2, 3], Some(3))], (&[1, 2], Some(2))),
            (2, &[(&[5, 6], None), (&[], None)], (&[5, 6], None)),
            // A hub that visited enough devices and found few rows or none.
            (9, &[(&[1, 4], Some(4)), (&[2, 7], None)], (&[1, 2, 4], Some(4))),
            (9, &[(&[], Some(3)), (&[2, 4], None)], (&[2], Some(3))),
            (2, &[(&[3, 4], Some(4)), (&[1], Some(2))], (&[1], Some(2))),
        ];
        for (limit, given, (rows, end)) in table {
            for given in [given.to_vec(), given.iter().rev().copied().collect()] {
                let mut pages = Pages::new(limit);
                given
                    .iter()
                    .for_each(|(rows, end)| pages.add_page(rows.iter().copied().map(Row).collect(), *end));
                let seen: Vec<u32> = pages.cut(usize::MAX).0.iter().map(|row| row.0).collect();
                assert_eq!((&*seen, pages.cut(usize::MAX).1), (rows, end), "{limit} of {given:?}");
                if let [first, _, ..] = rows {
                    assert_eq!(pages.cut(1), (&[Row(*first)][..], Some(*first)), "a message holds fewer");
                }
            }
        }
    }
}
