//! Tests that a stored fleet comes back, that a file that does not fit is set aside, and that other failures
//! say what to do.

use muster_contract::fact::Fact;
use muster_contract::subjects::LedgerSubject;
use muster_domain::fold::Position;
use tempfile::TempDir;

use super::*;

/// When LEDGER was made, and everything in it stored.
pub(crate) fn ledger_time() -> Timestamp {
    "2026-11-20T08:00:00Z".parse().unwrap()
}

/// A fleet with so many devices.
pub(crate) fn fleet(devices: u64) -> Fleet {
    let mut fleet = Fleet::default();
    (1..=devices).for_each(|number| hear(&mut fleet, number));
    fleet
}

/// A fleet hears of one device more, with the fact of that number.
pub(crate) fn hear(fleet: &mut Fleet, number: u64) {
    let subject = LedgerSubject::parse(&format!("muster.liveness.plant7.press-{number}")).unwrap();
    let fact = format!(
        r#"{{"apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh", "epoch": 1,
                "lastHeardAt": "2026-11-20T08:00:00Z", "head": {number}}}"#
    );
    let at = Position { ledger_seq: number, stored_at: ledger_time() };
    fleet.apply(at, &subject, Fact::parse(&subject, fact.as_bytes()).unwrap());
}

/// Runs SQL on an open store, which is locked for others.
pub(crate) fn run(store: &Store, sql: &str) {
    store.connection.execute_batch(sql).unwrap();
}

fn changes(fleet: &Fleet, afresh: bool, skip: usize) -> Changes {
    Changes {
        afresh,
        created_at: ledger_time(),
        as_of: fleet.as_of(),
        fleet_digest: fleet.fleet_view().tally.digest,
        hearing: fleet.hearing_state().clone(),
        timeline: (0, Vec::new()),
        records: fleet.records().skip(skip).collect(),
    }
}

fn saved(directory: &TempDir, devices: u64) {
    let (mut store, _) = Store::open(directory.path()).unwrap();
    store.save(&changes(&fleet(devices), false, 0)).unwrap();
}

fn restored(directory: &TempDir) -> Fleet {
    match Store::open(directory.path()).unwrap().1 {
        StoredSnapshot::Snapshot { created_at, fleet, .. } => {
            assert_eq!(created_at, ledger_time());
            *fleet
        }
        other => panic!("{other:?}"),
    }
}

/// Damages the file with SQL and gives why it was set aside.
fn aside_after(sql: &str) -> Damage {
    let directory = tempfile::tempdir().unwrap();
    saved(&directory, 3);
    let connection = Connection::open(directory.path().join(FILE)).unwrap();
    connection.execute_batch(sql).unwrap();
    drop(connection);
    match Store::open(directory.path()).unwrap() {
        (store, StoredSnapshot::SetAside { damage, to }) => {
            assert!(to.exists() && store.path().exists());
            damage
        }
        (_, other) => panic!("{other:?}"),
    }
}

#[test]
fn a_saved_fleet_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Store::open(directory.path()).unwrap().1, StoredSnapshot::Nothing));
    saved(&directory, 3);
    let found = restored(&directory);
    assert_eq!(found.as_of().ledger_seq, 3);
    assert_eq!(found.records().collect::<Vec<_>>(), fleet(3).records().collect::<Vec<_>>());
}

#[test]
fn only_changes_are_saved_unless_it_is_another_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(directory.path()).unwrap();
    store.save(&changes(&fleet(3), false, 0)).unwrap();
    store.save(&changes(&fleet(5), false, 3)).unwrap();
    drop(store);
    assert_eq!(restored(&directory).devices_known(), 5);

    let (mut store, _) = Store::open(directory.path()).unwrap();
    store.save(&changes(&fleet(1), true, 0)).unwrap();
    drop(store);
    assert_eq!(restored(&directory).devices_known(), 1);
}

#[test]
fn a_saved_timeline_is_restored_and_a_series_that_is_gone_is_not() {
    let (directory, web) = (tempfile::tempdir().unwrap(), ViewKey::Deployment("web".parse().unwrap()));
    let mut timeline = Timeline::default();
    timeline.advance(&fleet(3), "2026-11-20T09:00:00Z".parse().unwrap());
    let (up_to, mut series) = timeline.unsaved();
    let points = series[0].1.clone();
    assert_eq!((series.len(), &series[0].0, points.len()), (1, &ViewKey::Fleet, 1));
    series.push((web.clone(), points));
    let (mut store, _) = Store::open(directory.path()).unwrap();
    // A file of an earlier version has no such table.
    run(&store, "DROP TABLE timeline");
    drop(store);
    (store, _) = Store::open(directory.path()).unwrap();
    store.save(&Changes { timeline: (up_to, series), ..changes(&fleet(3), false, 0) }).unwrap();
    let gone = Changes { timeline: (up_to, vec![(web, Vec::new())]), ..changes(&fleet(4), false, 3) };
    let answers = |store: Store| {
        drop(store);
        let StoredSnapshot::Snapshot { fleet, timeline, .. } = Store::open(directory.path()).unwrap().1
        else {
            panic!("a snapshot was saved")
        };
        let id = "web".parse().unwrap();
        (timeline.answer(&fleet, None), timeline.answer(&fleet, Some(&id)).map(|answer| answer.points))
    };
    let (whole, of_web) = answers(store);
    assert_eq!((whole, of_web.map(|points| points.len())), (timeline.answer(&fleet(3), None), Some(2)));
    (store, _) = Store::open(directory.path()).unwrap();
    store.save(&gone).unwrap();
    assert_eq!(answers(store).1, None);
    (store, _) = Store::open(directory.path()).unwrap();
    store.save(&changes(&fleet(1), true, 0)).unwrap();
    assert_eq!(
        answers(store).0.map(|answer| answer.points.len()),
        Some(1),
        "of another LEDGER: the present alone"
    );
}

#[test]
fn a_snapshot_that_does_not_hold_is_set_aside_with_the_reason() {
    let flipped = "UPDATE device SET record = replace(record, '\"head\":2', '\"head\":9')";
    assert!(matches!(aside_after(flipped), Damage::Record { key } if key == "plant7/press-2"));
    assert!(matches!(aside_after("DELETE FROM device WHERE key = 'plant7/press-1'"), Damage::Counts));
    assert!(matches!(aside_after("UPDATE snapshot SET at = 'yesterday'"), Damage::Counts));
    assert!(matches!(aside_after("PRAGMA user_version = 99"), Damage::Format { found: 99, .. }));
    assert!(matches!(aside_after("PRAGMA application_id = 7"), Damage::Stranger));
    assert!(matches!(aside_after("DROP TABLE device"), Damage::Unreadable(_)));
}

#[test]
fn a_file_of_anything_else_is_set_aside_and_the_older_one_gives_way() {
    let directory = tempfile::tempdir().unwrap();
    for text in ["not a database at all, but long enough to look like something", ""] {
        fs::write(directory.path().join(FILE), text).unwrap();
        let (store, found) = Store::open(directory.path()).unwrap();
        assert!(matches!(found, StoredSnapshot::SetAside { .. }), "{found:?}");
        drop(store);
    }
    let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let aside = names.filter(|name| name.to_string_lossy().ends_with(ASIDE)).count();
    assert_eq!(aside, 1);
}

#[test]
fn a_torn_page_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    saved(&directory, 300);
    let path = directory.path().join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0x5a);
    fs::write(&path, bytes).unwrap();
    assert!(matches!(Store::open(directory.path()).unwrap().1, StoredSnapshot::SetAside { .. }));
}

#[test]
fn a_second_process_is_told_to_take_its_own_directory() {
    let directory = tempfile::tempdir().unwrap();
    let _first = Store::open(directory.path()).unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("--data-dir"));
}

#[test]
fn a_directory_that_cannot_be_used_is_named_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a-file");
    fs::write(&file, "").unwrap();
    // No user, not even root, can create a directory in /proc.
    for path in [file.join("below"), file, PathBuf::from("/proc/rollup")] {
        let shown = Store::open(&path).unwrap_err().to_string();
        let named = path.display().to_string();
        assert!(shown.contains(&named) && shown.contains("--data-dir"), "{shown}");
    }
}

#[test]
fn a_full_disk_leaves_the_snapshot_as_it_was_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(directory.path()).unwrap();
    store.save(&changes(&fleet(3), false, 0)).unwrap();
    // SQLite reports a file that may not grow like a disk that is full.
    let pages: i64 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.connection.pragma_update(None, "max_page_count", pages + 1).unwrap();
    let error = store.save(&changes(&fleet(2000), false, 0)).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("free some"));
    drop(store);
    assert_eq!(restored(&directory).devices_known(), 3);
}
