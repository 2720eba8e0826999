//! Tests that checkpoints come back unchanged, that damage is detected and explained, and that another LEDGER's
//! file is set aside.

use std::io;

use tempfile::TempDir;

use super::*;
use crate::history::pack::{PART_RECORDS, Packer};
use crate::store::tests::{fleet, ledger_time};
use crate::store::{Changes, Store};

pub(crate) const ROOM: Room = Room { count: 8, bytes: u64::MAX };

/// Checkpoints of fleets of these sizes, each made from the snapshot of its time.
pub(crate) fn kept(directory: &TempDir, sizes: &[u64], room: Room) -> (Store, Checkpoints) {
    let (mut store, _) = Store::open(directory.path()).unwrap();
    let mut checkpoints = Checkpoints::open(directory.path(), ledger_time(), room).unwrap();
    for size in sizes {
        keep(&mut store, &mut checkpoints, *size);
    }
    (store, checkpoints)
}

/// One more, of a fleet of this size alone.
fn keep(store: &mut Store, checkpoints: &mut Checkpoints, size: u64) {
    let (as_of, fleet_digest) = saved(store, size);
    checkpoints.keep(&Packed::of_snapshot(store).unwrap(), as_of, fleet_digest).unwrap();
}

/// Makes a snapshot of a fleet of this size.
pub(crate) fn saved(store: &mut Store, size: u64) -> (AsOf, Digest) {
    let fleet = fleet(size);
    let fleet_digest = fleet.fleet_view().tally.digest;
    let (records, hearing) = (fleet.records().collect(), fleet.hearing_state().clone());
    let (as_of, created_at) = (fleet.as_of(), ledger_time());
    store
        .save(&Changes {
            afresh: true,
            created_at,
            as_of,
            fleet_digest,
            hearing,
            timeline: (0, Vec::new()),
            records,
        })
        .unwrap();
    (as_of, fleet_digest)
}

fn text(fleet: &Fleet) -> String {
    serde_json::to_string(&fleet.records().collect::<Vec<_>>()).unwrap()
}

#[test]
fn every_checkpoint_round_trips_also_across_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = [1, 7, 2 * PART_RECORDS as u64 + 3];
    let (store, checkpoints) = kept(&directory, &sizes, ROOM);
    drop((store, checkpoints));
    let checkpoints = Checkpoints::open(directory.path(), ledger_time(), ROOM).unwrap();
    assert_eq!(checkpoints.marks().len(), 3);
    for (mark, size) in checkpoints.marks().iter().zip(sizes) {
        let loaded = checkpoints.load(*mark).unwrap();
        assert_eq!((loaded.as_of(), mark.devices), (fleet(size).as_of(), size));
        assert_eq!(text(&loaded), text(&fleet(size)));
    }
}

#[test]
fn checkpoints_are_compressed_and_bounded_in_number() {
    let directory = tempfile::tempdir().unwrap();
    let room = Room { count: 3, bytes: u64::MAX };
    let (_store, checkpoints) = kept(&directory, &[1000, 1001, 1002, 1003, 1004], room);
    let seqs: Vec<_> = checkpoints.marks().iter().map(|mark| mark.as_of.ledger_seq).collect();
    assert_eq!((seqs.len(), seqs.last()), (3, Some(&1004)));
    let parts = "SELECT count(DISTINCT ledger_seq) FROM part";
    assert_eq!(checkpoints.connection.query_row(parts, (), |row| row.get::<_, i64>(0)).unwrap(), 3);
    let newest = checkpoints.marks().last().unwrap();
    assert!(newest.bytes * 10 < text(&fleet(1004)).len() as u64, "{} bytes", newest.bytes);
}

#[test]
fn a_damaged_checkpoint_is_not_used() {
    let flip = "UPDATE part SET packed = ?1";
    let fewer = "UPDATE checkpoint SET devices = devices + 1";
    let other = "UPDATE checkpoint SET fleet_digest = 'sha256:0'";
    for (sql, what) in [(flip, "part"), (fewer, "match"), (other, "match"), ("DELETE FROM part", "match")] {
        let directory = tempfile::tempdir().unwrap();
        let (_store, checkpoints) = kept(&directory, &[300], ROOM);
        let mark = checkpoints.marks()[0];
        checkpoints.load(mark).unwrap();
        if sql == flip {
            let part = "SELECT packed FROM part";
            let mut packed: Vec<u8> = checkpoints.connection.query_row(part, (), |row| row.get(0)).unwrap();
            let middle = packed.len() / 2;
            packed[middle] ^= 0x5a;
            checkpoints.connection.execute(sql, [packed]).unwrap();
        } else {
            checkpoints.connection.execute_batch(sql).unwrap();
        }
        drop(checkpoints);
        // The list of checkpoints is read when the file is opened.
        let mut checkpoints = Checkpoints::open(directory.path(), ledger_time(), ROOM).unwrap();
        let mark = checkpoints.marks()[0];
        let error = checkpoints.load(mark).err().unwrap_or_else(|| panic!("{sql}: is believed")).to_string();
        assert!(error.contains(what), "{sql}: {error}");
        checkpoints.remove(mark.as_of.ledger_seq).unwrap();
        assert!(checkpoints.marks().is_empty());
    }
}

#[test]
fn a_byte_that_was_altered_anywhere_is_noticed_or_changes_nothing() {
    const PLACES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let (_store, checkpoints) = kept(&directory, &[300], ROOM);
    let mark = checkpoints.marks()[0];
    let whole = text(&checkpoints.load(mark).unwrap());
    let part = "SELECT packed FROM part";
    let packed: Vec<u8> = checkpoints.connection.query_row(part, (), |row| row.get(0)).unwrap();
    let mut noticed = 0;
    for at in (0..packed.len()).step_by(packed.len() / PLACES) {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x5a;
        checkpoints.connection.execute("UPDATE part SET packed = ?1", [damaged]).unwrap();
        match checkpoints.load(mark) {
            Ok(fleet) => assert_eq!(text(&fleet), whole, "byte {at}"),
            Err(_) => noticed += 1,
        }
    }
    assert!(noticed > PLACES / 2, "{noticed}");
}

#[test]
fn a_file_of_another_ledger_or_format_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    drop(kept(&directory, &[3], ROOM));
    let aside = directory.path().join("history.db.set-aside");
    let now = "2026-11-21T08:00:00Z".parse().unwrap();
    assert!(Checkpoints::open(directory.path(), now, ROOM).unwrap().marks().is_empty());
    assert!(aside.exists());
    // Format 1 had records without what was added since, and they looked whole.
    let other = ["PRAGMA user_version = 1", "PRAGMA user_version = 99"];
    for sql in other.into_iter().chain(["PRAGMA application_id = 7", "DROP TABLE ledger"]) {
        fs::remove_file(&aside).unwrap();
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        connection.execute_batch(sql).unwrap();
        drop(connection);
        assert!(Checkpoints::open(directory.path(), now, ROOM).unwrap().marks().is_empty(), "{sql}");
        assert!(aside.exists(), "{sql}");
    }
}

#[test]
fn another_past_starts_anew_and_sets_old_checkpoints_aside() {
    let directory = tempfile::tempdir().unwrap();
    let (store, mut checkpoints) = kept(&directory, &[3, 5], ROOM);
    let now = "2026-11-21T08:00:00Z".parse().unwrap();
    checkpoints.start_over(now).unwrap();
    assert!(checkpoints.marks().is_empty());
    drop((store, checkpoints));
    assert!(Checkpoints::open(directory.path(), now, ROOM).unwrap().marks().is_empty());
    assert!(
        directory.path().join("history.db.set-aside").exists(),
        "they may be all that is left of the past"
    );
}

#[test]
fn a_checkpoint_replaces_all_at_or_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, mut checkpoints) = kept(&directory, &[3, 5, 9], ROOM);
    for size in [5, 4] {
        keep(&mut store, &mut checkpoints, size);
        let seqs: Vec<_> = checkpoints.marks().iter().map(|mark| mark.as_of.ledger_seq).collect();
        assert_eq!(seqs, [3, size]);
        for table in ["part", "checkpoint"] {
            let count = format!("SELECT count(*) FROM {table}");
            let count: i64 = checkpoints.connection.query_row(&count, (), |row| row.get(0)).unwrap();
            assert_eq!(count, 2, "{table} after {size}");
        }
        assert_eq!(text(&checkpoints.load(checkpoints.marks()[1]).unwrap()), text(&fleet(size)));
    }
}

/// Fills in a checkpoint of a fleet of this size.
fn fill(checkpoints: &mut Checkpoints, size: u64) -> Option<Mark> {
    let (fleet, mut packer) = (fleet(size), Packer::default());
    fleet.records().for_each(|record| packer.pack_record(&record).unwrap());
    let digest = fleet.fleet_view().tally.digest;
    checkpoints.fill(&packer.finish(fleet.hearing_state().clone()).unwrap(), fleet.as_of(), digest).unwrap()
}

#[test]
fn a_backfilled_checkpoint_lies_between_others_and_round_trips() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, mut checkpoints) = kept(&directory, &[3, 9], ROOM);
    for (size, seqs) in [(5, vec![3, 5, 9]), (1, vec![1, 3, 5, 9])] {
        let mark = fill(&mut checkpoints, size).unwrap();
        let held: Vec<_> = checkpoints.marks().iter().map(|mark| mark.as_of.ledger_seq).collect();
        assert_eq!(held, seqs);
        assert_eq!(text(&checkpoints.load(mark).unwrap()), text(&fleet(size)));
    }
    for size in [5, 9, 10] {
        assert_eq!(fill(&mut checkpoints, size), None, "{size} is there, or beyond all");
    }
    let marks = checkpoints.marks().to_vec();
    drop(checkpoints);
    let again = Checkpoints::open(directory.path(), ledger_time(), ROOM).unwrap();
    assert_eq!(again.marks(), marks);
}

#[test]
fn a_refused_backfill_is_remembered_until_there_is_more_room() {
    let directory = tempfile::tempdir().unwrap();
    let room = |count| Room { count, bytes: u64::MAX };
    let (mut store, mut checkpoints) = kept(&directory, &[3, 9], room(2));
    assert_eq!((fill(&mut checkpoints, 5), checkpoints.held().thinned_to), (None, 5));
    assert_eq!(checkpoints.marks().len(), 2);
    keep(&mut store, &mut checkpoints, 20);
    assert_eq!(checkpoints.held().thinned_to, 9, "thinning took it out");
    assert_eq!(fill(&mut checkpoints, 7), None, "nothing comes back up to there");
    drop(checkpoints);
    for (count, thinned_to) in [(2, 9), (1, 9), (3, 0)] {
        let checkpoints = Checkpoints::open(directory.path(), ledger_time(), room(count)).unwrap();
        assert_eq!(checkpoints.held().thinned_to, thinned_to, "room for {count}");
    }
}

#[test]
fn a_file_without_backfill_is_read_unchanged_and_then_backfilled() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, checkpoints) = kept(&directory, &[3, 9], ROOM);
    let tables = |checkpoints: &Checkpoints| {
        let count = "SELECT count(*) FROM sqlite_master WHERE name = 'thinning'";
        checkpoints.connection.query_row(count, (), |row| row.get::<_, u64>(0)).unwrap()
    };
    assert_eq!(tables(&checkpoints), 0, "as in a file of then");
    drop(checkpoints);
    let room = Room { count: 3, bytes: u64::MAX };
    let mut checkpoints = Checkpoints::open(directory.path(), ledger_time(), room).unwrap();
    assert_eq!((checkpoints.marks().len(), checkpoints.held().thinned_to, tables(&checkpoints)), (2, 0, 0));
    assert!(fill(&mut checkpoints, 5).is_some());
    assert_eq!((fill(&mut checkpoints, 7), tables(&checkpoints)), (None, 1));
    drop(checkpoints);
    let checkpoints = Checkpoints::open(directory.path(), ledger_time(), room).unwrap();
    assert_eq!(checkpoints.held().thinned_to, 7);
}

#[test]
fn retention_of_another_ledger_does_not_apply() {
    let directory = tempfile::tempdir().unwrap();
    let room = Room { count: 2, bytes: u64::MAX };
    let (store, checkpoints) = kept(&directory, &[3, 9, 20], room);
    assert_eq!(checkpoints.held().thinned_to, 9);
    // As a version begins anew that knows of no thinning.
    let now = "2026-11-21T08:00:00Z";
    checkpoints.connection.execute("UPDATE ledger SET created_at = ?1", [now]).unwrap();
    drop((store, checkpoints));
    let checkpoints = Checkpoints::open(directory.path(), now.parse().unwrap(), room).unwrap();
    assert_eq!(checkpoints.held().thinned_to, 0);
}

#[test]
fn only_damage_drops_a_checkpoint_not_a_failing_disk_or_memory() {
    let sqlite =
        |code| LoadError::Unreadable(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
    let part = |kind| LoadError::Part(io::Error::from(kind));
    for (error, is_damage) in [
        (sqlite(rusqlite::ffi::SQLITE_CORRUPT), true),
        (sqlite(rusqlite::ffi::SQLITE_IOERR), false),
        (sqlite(rusqlite::ffi::SQLITE_NOMEM), false),
        (sqlite(rusqlite::ffi::SQLITE_BUSY), false),
        (part(io::ErrorKind::UnexpectedEof), true),
        (part(io::ErrorKind::OutOfMemory), false),
        (LoadError::Part(io::Error::other("Allocation error : not enough memory")), false),
        (LoadError::Part(io::Error::other("Restored data doesn't match checksum")), true),
        (LoadError::Counts, true),
    ] {
        assert_eq!(error.is_damage(), is_damage, "{error:?}");
    }
}
