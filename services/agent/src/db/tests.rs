//! Tests of the database file: its lock, its owner, damage, and commits.

use super::*;

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY);";

/// More than fits on the first pages of the file.
const MANY: &str = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s LIMIT 5000) \
                    INSERT INTO numbers SELECT n FROM s";

/// A change to the bytes of the file.
type Damage = fn(&mut Vec<u8>);

fn schema() -> Schema {
    Schema { tables: SCHEMA.to_owned(), migrations: &[] }
}

/// A schema that reads files of [`file_of_format_2`]: numbers were stored less one.
fn migrating() -> Schema {
    const MIGRATIONS: [Migration; 1] = [Migration {
        from_format: 2,
        sql: "UPDATE old_numbers SET n = n + 10;
              CREATE TABLE numbers (n INTEGER PRIMARY KEY);
              INSERT INTO numbers SELECT n - 9 FROM old_numbers;
              DROP TABLE old_numbers;",
    }];
    Schema { migrations: &MIGRATIONS, ..schema() }
}

fn file_of_format_2(dir: &Path) {
    let connection = Connection::open(dir.join(FILE)).unwrap();
    let tables = "CREATE TABLE old_numbers (n INTEGER); INSERT INTO old_numbers VALUES (2), (3); PRAGMA user_version=2;";
    connection.execute_batch(tables).unwrap();
}

fn format_of(dir: &Path) -> i64 {
    let connection = Connection::open(dir.join(FILE)).unwrap();
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
}

fn device(name: &str) -> DeviceKey {
    format!("plant7/{name}").parse().unwrap()
}

fn open(dir: &Path) -> Result<Db, Error> {
    Db::open(dir, &device("press-4"), &schema(), Timestamp::UNIX_EPOCH)
}

fn add(n: i64) -> impl FnOnce(&Connection) -> rusqlite::Result<usize> + Send + 'static {
    move |connection| connection.execute("INSERT INTO numbers VALUES (?1)", [n])
}

async fn numbers(db: &Db) -> Vec<i64> {
    let read = |connection: &Connection| {
        let mut statement = connection.prepare("SELECT n FROM numbers ORDER BY n")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    db.run(read).await.unwrap()
}

fn set_aside_files(dir: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.contains(".damaged-")).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_was_answered_is_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    for n in 0..10 {
        db.run(add(n)).await.unwrap();
    }
    db.close().await;
    assert!(matches!(db.run(add(99)).await, Err(Error::Closed)));
    assert_eq!(numbers(&open(dir.path()).unwrap()).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn of_jobs_that_share_a_commit_only_the_one_that_fails_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    db.run(add(1)).await.unwrap();
    // The first job holds the writer, so the others gather behind it.
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let first = db.run(move |_| {
        _ = hold.recv();
        Ok(())
    });
    let half = |connection: &Connection| {
        connection.execute("INSERT INTO numbers VALUES (5)", [])?;
        connection.execute("INSERT INTO numbers VALUES (1)", [])
    };
    let (_, _, failed, _, ()) = tokio::join!(first, db.run(add(2)), db.run(half), db.run(add(3)), async {
        drop(held);
    });
    assert!(matches!(failed, Err(Error::Write { .. })), "{failed:?}");
    assert_eq!(numbers(&db).await, [1, 2, 3]);
}

#[tokio::test]
async fn one_agent_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    let message = open(dir.path()).unwrap_err().to_string();
    assert!(message.contains(&format!("another agent (process {})", std::process::id())), "{message}");
    db.close().await;
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn a_directory_of_another_device_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).unwrap().close().await;
    let other = Db::open(dir.path(), &device("press-5"), &schema(), Timestamp::UNIX_EPOCH);
    let message = other.unwrap_err().to_string();
    assert!(message.contains("belongs to plant7/press-4, not to plant7/press-5"), "{message}");
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn a_file_of_a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).unwrap().close().await;
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    connection.execute_batch("PRAGMA user_version=99").unwrap();
    drop(connection);
    let message = open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("has format 99"), "{message}");
    assert!(set_aside_files(dir.path()).is_empty());
}

#[tokio::test]
async fn a_file_of_a_format_that_no_release_wrote_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    file_of_format_2(dir.path());
    let opened =
        Db::open(dir.path(), &device("press-4"), &crate::app::schema(), Timestamp::UNIX_EPOCH).unwrap_err();
    let message = opened.to_string();
    assert!(message.contains("has format 2") && message.contains("move the file away"), "{message}");
    assert!(matches!(opened, Error::Older { found: 2, oldest: FORMAT, .. }), "{opened:?}");
    assert!(set_aside_files(dir.path()).is_empty());
    assert_eq!(format_of(dir.path()), 2);
}

#[tokio::test]
async fn a_file_of_an_older_format_is_migrated_with_all_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    file_of_format_2(dir.path());
    for life in 0..2 {
        let db = Db::open(dir.path(), &device("press-4"), &migrating(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(numbers(&db).await, [3, 4], "life {life}");
        db.close().await;
    }
    assert_eq!(format_of(dir.path()), FORMAT, "an agent that knows format 2 only refuses it");
}

#[test]
fn a_migration_that_fails_half_way_leaves_the_file_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    file_of_format_2(dir.path());
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    // The migration needs this name: it fails half-way, as on a full disk.
    connection.execute_batch("CREATE TABLE numbers (taken)").unwrap();
    drop(connection);
    let error = Db::open(dir.path(), &device("press-4"), &migrating(), Timestamp::UNIX_EPOCH).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error:?}");
    assert_eq!(format_of(dir.path()), 2);
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    let left: i64 = connection.query_row("SELECT sum(n) FROM old_numbers", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 5);
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let message = open(&file.join("agent")).unwrap_err().to_string();
    assert!(message.contains("cannot use the data directory") && message.contains("writable"), "{message}");
}

#[tokio::test]
async fn damaged_files_are_moved_aside_and_never_deleted() {
    let torn = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    let scribbled = |bytes: &mut Vec<u8>| bytes[4096..].fill(0x5a);
    let foreign =
        |bytes: &mut Vec<u8>| *bytes = b"this is no database, and it is longer than a header".repeat(9);
    let damages: [(&str, Damage); 3] = [("torn", torn), ("scribbled", scribbled), ("foreign", foreign)];
    for (case, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let db = open(dir.path()).unwrap();
        // The file must have more than its first pages.
        db.run(|c| c.execute(MANY, [])).await.unwrap();
        db.close().await;
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let db = open(dir.path()).unwrap();
        assert!(numbers(&db).await.is_empty(), "{case}: a new database is empty");
        assert_eq!(set_aside_files(dir.path()), ["agent.db.damaged-19700101T000000Z"], "{case}");
        assert_eq!(
            std::fs::read(dir.path().join("agent.db.damaged-19700101T000000Z")).unwrap(),
            bytes,
            "{case}"
        );
        db.close().await;
        std::fs::write(&path, "again").unwrap();
        open(dir.path()).unwrap().close().await;
        assert_eq!(set_aside_files(dir.path()).len(), 2, "{case}: two of the same second");
    }
}

#[tokio::test]
async fn damage_found_in_use_is_marked_and_moved_aside_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    let corrupt = |_: &Connection| -> rusqlite::Result<()> {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        Err(rusqlite::Error::SqliteFailure(code, None))
    };
    assert!(matches!(db.run(corrupt).await, Err(Error::Damaged { .. })));
    db.damaged().await;
    db.close().await;
    let db = open(dir.path()).unwrap();
    assert_eq!(set_aside_files(dir.path()).len(), 1);
    db.close().await;
    open(dir.path()).unwrap();
    assert_eq!(set_aside_files(dir.path()).len(), 1, "the mark is gone");
}

#[tokio::test]
async fn a_full_disk_fails_the_write_and_passes() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    db.run(add(1)).await.unwrap();
    let pages: i64 = db.run(|c| c.query_row("PRAGMA page_count", [], |row| row.get(0))).await.unwrap();
    // SQLite's own limit answers like a full disk does: SQLITE_FULL.
    db.run(move |c| c.query_row(&format!("PRAGMA max_page_count={pages}"), [], |_| Ok(()))).await.unwrap();
    let fill = |c: &Connection| {
        c.execute_batch("CREATE TABLE big AS SELECT zeroblob(100000) FROM (VALUES (1), (2));")
    };
    let error = db.run(fill).await.unwrap_err();
    assert!(matches!(error, Error::Write { .. }) && error.to_string().contains("disk is full"), "{error:?}");
    db.run(|c| c.query_row("PRAGMA max_page_count=1000000", [], |_| Ok(()))).await.unwrap();
    db.run(fill).await.unwrap();
    db.run(add(2)).await.unwrap();
    assert_eq!(numbers(&db).await, [1, 2]);
}

#[tokio::test]
async fn a_rollback_that_fails_does_not_bar_what_comes_after_it() {
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};
    let dir = tempfile::tempdir().unwrap();
    let mut failed = false;
    let fail_once = move |context: AuthContext<'_>| match context.action {
        AuthAction::Transaction { operation: TransactionOperation::Rollback } if !failed => {
            failed = true;
            Authorization::Deny
        }
        _ => Authorization::Allow,
    };
    let prepare = |connection: &mut Connection| connection.authorizer(Some(fail_once)).unwrap();
    let db =
        Db::open_with(dir.path(), &device("press-4"), &schema(), Timestamp::UNIX_EPOCH, prepare).unwrap();
    let half = |connection: &Connection| {
        connection.execute("INSERT INTO numbers VALUES (5)", [])?;
        connection.execute("INSERT INTO nothing VALUES (5)", [])
    };
    db.run(half).await.unwrap_err();
    db.run(add(2)).await.unwrap();
    assert_eq!(numbers(&db).await, [2]);
}

#[tokio::test]
async fn in_memory_a_job_is_done_at_once_and_undone_if_it_fails() {
    let db = Db::in_memory(SCHEMA).unwrap();
    db.run(add(1)).await.unwrap();
    let half = |connection: &Connection| add(2)(connection).and_then(|_| add(1)(connection));
    assert!(matches!(db.run(half).await, Err(Error::Write { .. })));
    db.close().await;
    assert_eq!(numbers(&db.clone()).await, [1], "it lives as long as its clones");
}

#[tokio::test]
async fn only_this_user_reads_a_new_database() {
    use std::os::unix::fs::PermissionsExt as _;
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("site/device");
    let db = open(&dir).unwrap();
    db.run(add(1)).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for file in ["agent.db", "agent.db-wal"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
}
