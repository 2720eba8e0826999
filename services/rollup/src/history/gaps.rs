//! Finds missing checkpoints. It does no IO.
//!
//! No checkpoint is made while much is read at once, and a snapshot may be slow, so two neighbours may lie too
//! far apart. The space between them is filled later, nearest to the present first, as far as there is room.
//! Checkpoints that retention removed are not made again: before that point nothing is filled.

use super::checkpoint_retention::{Mark, Room, surplus};

/// Two neighbours may lie further apart than the cadence by this fraction of it, for facts read while a
/// snapshot is made.
const SLACK: u64 = 4;

/// A place for a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The start of the walk: the checkpoint before it, or none for LEDGER's first fact.
    pub from: Option<Mark>,
    /// The sequence at which it should lie.
    pub to: u64,
}

impl Gap {
    /// The sequence after which is read to reach it.
    pub fn after(&self) -> u64 {
        self.from.map_or(0, |mark| mark.as_of.ledger_seq)
    }
}

/// The checkpoints held, and the room for them.
#[derive(Debug, Clone, Copy)]
pub struct HeldMarks<'a> {
    /// All checkpoints, in ascending order.
    pub marks: &'a [Mark],
    /// Retention has removed checkpoints up to this sequence.
    pub thinned_to: u64,
    /// Room for them.
    pub room: Room,
}

/// LEDGER's content, and the intended density of checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct MarkSpacing<'a> {
    /// LEDGER's first sequence.
    pub first_seq: u64,
    /// The position up to which LEDGER is read. Later checkpoints are left of a past that was taken back:
    /// LEDGER does not lead to them.
    pub read_to: u64,
    /// Facts between two checkpoints.
    pub facts: u64,
    /// Places that turned out not to be reached.
    pub out_of_reach: &'a [Gap],
}

/// The next place to fill in.
pub fn next(held: HeldMarks<'_>, wanted: MarkSpacing<'_>) -> Option<Gap> {
    let before = std::iter::once(None).chain(held.marks.iter().copied().map(Some));
    let pairs = before.zip(held.marks).filter(|(_, end)| end.as_of.ledger_seq <= wanted.read_to);
    let pairs: Vec<_> = pairs.collect();
    let gap = pairs
        .into_iter()
        .rev()
        .filter_map(|(from, end)| within(from, end, wanted.first_seq, wanted.facts))
        .find(|gap| !wanted.out_of_reach.contains(gap))?;
    (gap.to > held.thinned_to && fits(held, gap)).then_some(gap)
}

/// The first of the evenly spaced places between two neighbours that lie too far apart, if LEDGER leads on from the
/// first neighbour.
fn within(from: Option<Mark>, end: &Mark, first_seq: u64, facts: u64) -> Option<Gap> {
    let after = from.map_or(0, |mark| mark.as_of.ledger_seq);
    let width = end.as_of.ledger_seq.saturating_sub(after);
    let allowed = facts.saturating_add(facts / SLACK);
    (width > allowed && after + 1 >= first_seq)
        .then(|| Gap { from, to: after + width / width.div_ceil(facts) })
}

/// Whether there is room for it without removing another. Its size is estimated as the larger of its
/// neighbours'.
fn fits(held: HeldMarks<'_>, gap: Gap) -> bool {
    let at = held.marks.partition_point(|mark| mark.as_of.ledger_seq < gap.to);
    let Some(end) = held.marks.get(at) else { return false };
    let bytes = gap.from.map_or(0, |mark| mark.bytes).max(end.bytes);
    let mut marks = held.marks.to_vec();
    let mut filled = Mark { bytes, ..*end };
    filled.as_of.ledger_seq = gap.to;
    marks.insert(at, filled);
    surplus(&marks, held.room).is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fastrand::Rng;
    use muster_contract::Timestamp;
    use muster_contract::view::AsOf;

    use super::*;

    const FACTS: u64 = 100;

    fn mark(ledger_seq: u64, bytes: u64) -> Mark {
        let at = Timestamp::from_second(ledger_seq as i64).unwrap();
        Mark { as_of: AsOf { ledger_seq, at }, devices: 1, bytes }
    }

    fn wanted(first_seq: u64, read_to: u64, out_of_reach: &[Gap]) -> MarkSpacing<'_> {
        MarkSpacing { first_seq, read_to, facts: FACTS, out_of_reach }
    }

    /// Checkpoints as they are kept, thinned and filled in.
    struct World {
        marks: Vec<Mark>,
        thinned: BTreeSet<u64>,
        filled: BTreeSet<u64>,
        room: Room,
    }

    impl World {
        fn new(room: Room) -> Self {
            Self { marks: Vec::new(), thinned: BTreeSet::new(), filled: BTreeSet::new(), room }
        }

        fn keep(&mut self, mark: Mark) {
            self.marks.push(mark);
            let gone = surplus(&self.marks, self.room);
            self.marks.retain(|mark| !gone.contains(&mark.as_of.ledger_seq));
            self.thinned.extend(gone);
        }

        fn next(&self, first_seq: u64) -> Option<Gap> {
            let thinned_to = self.thinned.last().copied().unwrap_or(0);
            let held = HeldMarks { marks: &self.marks, thinned_to, room: self.room };
            next(held, wanted(first_seq, u64::MAX, &[]))
        }

        /// Fills in all that is missing.
        fn fill(&mut self, bytes: impl Fn() -> u64) {
            while let Some(gap) = self.next(1) {
                assert!(self.thinned.iter().all(|gone| gap.to > *gone), "{gap:?} was thinned");
                assert!(self.filled.insert(gap.to), "{gap:?} is filled in again");
                let at = self.marks.partition_point(|mark| mark.as_of.ledger_seq < gap.to);
                assert_eq!(gap.from, at.checked_sub(1).map(|at| self.marks[at]), "the one before it");
                self.marks.insert(at, mark(gap.to, bytes()));
            }
        }

        fn widest(&self) -> u64 {
            let seqs = || self.marks.iter().map(|mark| mark.as_of.ledger_seq);
            std::iter::once(0).chain(seqs()).zip(seqs()).map(|(one, next)| next - one).max().unwrap_or(0)
        }
    }

    #[test]
    fn with_room_no_two_checkpoints_lie_too_far_apart() {
        let mut chance = Rng::with_seed(1);
        for _ in 0..200 {
            let mut world = World::new(Room { count: 10_000, bytes: u64::MAX });
            let mut seq = 0;
            for _ in 0..chance.usize(1..10) {
                seq += chance.u64(1..20 * FACTS);
                world.keep(mark(seq, 1));
                if chance.bool() {
                    world.fill(|| 1);
                }
            }
            world.fill(|| 1);
            assert!(world.widest() <= FACTS + FACTS / SLACK, "{:?}", world.marks);
        }
    }

    #[test]
    fn backfilled_checkpoints_lie_evenly_within_the_cadence() {
        for width in FACTS + FACTS / SLACK + 1..20 * FACTS {
            let mut world = World::new(Room { count: 10_000, bytes: u64::MAX });
            world.keep(mark(width, 1));
            world.fill(|| 1);
            assert!(world.widest() <= FACTS, "of {width}: {:?}", world.marks);
            assert_eq!(world.marks.len() as u64, width.div_ceil(FACTS), "of {width}: no more than it takes");
        }
    }

    #[test]
    fn a_checkpoint_removed_by_retention_is_never_made_again() {
        let mut chance = Rng::with_seed(2);
        for _ in 0..200 {
            let room = Room { count: chance.usize(1..20), bytes: chance.u64(1..60) };
            let (mut world, mut seq) = (World::new(room), 0);
            for _ in 0..60 {
                seq += chance.u64(1..5 * FACTS);
                world.keep(mark(seq, chance.u64(1..6)));
                // The new checkpoint is smaller than estimated, so there is room again.
                world.fill(|| 1);
            }
            assert!(!world.thinned.is_empty(), "there was not room for all");
        }
    }

    #[test]
    fn the_gap_nearest_the_present_that_ledger_reaches_comes_first() {
        let mut world = World::new(Room { count: 100, bytes: u64::MAX });
        for seq in [250, 350, 600, 700] {
            world.keep(mark(seq, 1));
        }
        let to = |world: &World, first_seq| world.next(first_seq).map(|gap| (gap.after(), gap.to));
        assert_eq!(to(&world, 1), Some((350, 433)));
        assert_eq!(to(&world, 351), Some((350, 433)), "the fact after the checkpoint is there");
        assert_eq!(to(&world, 352), None, "and now it is not");
        world.keep(mark(800, 1));
        world.marks.retain(|mark| mark.as_of.ledger_seq != 350 && mark.as_of.ledger_seq != 600);
        assert_eq!(to(&world, 1), Some((250, 340)));
        world.marks.retain(|mark| mark.as_of.ledger_seq == 250);
        assert_eq!((to(&world, 1), to(&world, 2)), (Some((0, 83)), None));
    }

    #[test]
    fn a_checkpoint_beyond_the_present_ends_no_gap() {
        let marks = [mark(50, 1), mark(300, 1), mark(900, 1)];
        let held = HeldMarks { marks: &marks, thinned_to: 0, room: Room { count: 100, bytes: u64::MAX } };
        let to = |read_to| next(held, wanted(1, read_to, &[])).map(|gap| (gap.after(), gap.to));
        assert_eq!(to(900), Some((300, 400)));
        assert_eq!(to(899), Some((50, 133)));
        assert_eq!(to(299), None);
    }

    #[test]
    fn an_unreachable_gap_leaves_older_ones_their_turn() {
        let marks = [mark(300, 1), mark(600, 1)];
        let held = HeldMarks { marks: &marks, thinned_to: 0, room: Room { count: 100, bytes: u64::MAX } };
        let nearest = next(held, wanted(1, 600, &[])).unwrap();
        let older = next(held, wanted(1, 600, &[nearest])).unwrap();
        assert_eq!((nearest.to, older.to), (400, 100));
        assert_eq!(next(held, wanted(1, 600, &[nearest, older])), None);
    }

    #[test]
    fn nothing_has_to_go_for_what_is_filled_in() {
        let mut world = World::new(Room { count: 3, bytes: u64::MAX });
        world.keep(mark(1000, 1));
        world.fill(|| 1);
        assert_eq!(world.marks.len(), 3);
        let mut world = World::new(Room { count: 100, bytes: 10 });
        world.keep(mark(1000, 4));
        world.fill(|| 4);
        assert_eq!(world.marks.len(), 2);
    }
}
