//! A database of an older format keeps its contents when it is opened, and an older agent refuses it from then on.

use rusqlite::Connection;

use super::model::Model;
use super::*;

/// The tables of format 2, as agents of that format created them.
const FORMAT_2: &str = "
CREATE TABLE desired (
    only INTEGER PRIMARY KEY CHECK (only = 1), generation INTEGER NOT NULL, document BLOB NOT NULL);
CREATE TABLE standing (deployment TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    state INTEGER NOT NULL, round INTEGER NOT NULL, bytes INTEGER NOT NULL, observed INTEGER NOT NULL, sent INTEGER,
    covered INTEGER, message_id TEXT NOT NULL, coalesced TEXT, body TEXT NOT NULL);
CREATE TABLE owner (device TEXT NOT NULL);
PRAGMA user_version=2;
";

/// State, round, sent and covered of each row, from number 3 on; 4 was folded into 5.
type Told = (u64, &'static str, State, i64, u64, Option<i64>, Option<i64>);
const ROWS: [Told; 7] = [
    (3, "a", Installing, 2, 0, Some(10), Some(20)),
    (5, "a", Failed, 2, 0, Some(10), Some(20)),
    (6, "a", Installed, 1, 1, Some(30), None),
    (7, "b", Pending, 1, 1, Some(30), None),
    (8, "b", Installing, 0, 1, Some(15), None),
    (9, "b", Failed, 0, 0, None, None),
    (10, "c", Installed, 0, 0, None, None),
];

/// A file of format 2 with these rows. The newest of `c` was deleted: the rest of it is no longer the newest.
fn old_file(dir: &std::path::Path) {
    let connection = Connection::open(dir.join("agent.db")).unwrap();
    connection.execute_batch("PRAGMA journal_mode=WAL").unwrap();
    connection.execute_batch(FORMAT_2).unwrap();
    connection.execute("INSERT INTO owner VALUES ('plant7/press-4')", []).unwrap();
    for (name, value) in [("epoch", "77"), ("head", "12"), ("renewed", "5")] {
        connection.execute("INSERT INTO memory VALUES (?1, ?2)", [name, value]).unwrap();
    }
    for (seq, deployment, state, passed, round, sent, covered) in ROWS {
        let NewReport { body, change } = entry(deployment, state, seq);
        let RecordChange::Store(record) = change else { unreachable!("none is removed") };
        let text = rows::to_text(&body).unwrap();
        let folded = (seq == 5).then_some("[[4,4]]");
        let bytes = rows::bytes_of(&text, folded);
        let newest = [6, 9].contains(&seq);
        let insert = "INSERT INTO outbox VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)";
        let values = rusqlite::params![
            seq,
            deployment,
            newest,
            body.is_terminal(),
            passed,
            round,
            bytes,
            at(0).as_millisecond(),
            sent,
            covered,
            format!("id-{seq}"),
            folded,
            text
        ];
        connection.execute(insert, values).unwrap();
        let record = serde_json::to_vec(&record).unwrap();
        connection
            .execute("REPLACE INTO standing VALUES (?1, ?2)", rusqlite::params![deployment, record])
            .unwrap();
    }
}

fn expected() -> Model {
    let mut model = Model { head: 12, epoch: Epoch::new(77), renewed: Some(5), ..Model::default() };
    for (seq, deployment, state, passed, round, sent, covered) in ROWS {
        let NewReport { body, change } = entry(deployment, state, seq);
        let RecordChange::Store(record) = change else { unreachable!("none is removed") };
        model.records.insert(record.id().clone(), *record);
        let coalesced = if seq == 5 { SeqRanges::span(4, 4) } else { SeqRanges::new() };
        let newest = [6, 9].contains(&seq);
        let group = model::DeploymentRows { body, newest, state: passed, round, coalesced, sent, covered };
        model.deployments.insert(seq, group);
    }
    model
}

#[tokio::test]
async fn a_file_of_format_2_is_opened_with_all_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    old_file(dir.path());
    for life in 0..2 {
        let (db, outbox) = open(dir.path(), AMPLE).await;
        assert_eq!(db.run(outbox.job(Model::of)).await.unwrap(), expected(), "life {life}");
        let ids: Vec<_> =
            outbox.read(all()).await.unwrap().rows.into_iter().map(|row| (row.seq, row.message_id)).collect();
        let ids_expected = [(9, "id-9"), (8, "id-8"), (10, "id-10")].map(|(seq, id)| (seq, id.to_owned()));
        assert_eq!(ids, ids_expected, "life {life}: a row keeps its id");
        db.close().await;
    }
    let connection = Connection::open(dir.path().join("agent.db")).unwrap();
    let format: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(format, 3, "an agent that knows format 2 only refuses it");
}

#[tokio::test]
async fn a_file_of_format_2_for_which_the_disk_has_no_room_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    old_file(dir.path());
    let connection = Connection::open(dir.path().join("agent.db")).unwrap();
    // A name that the migration needs is taken: it fails half-way, as on a full disk.
    connection.execute_batch("CREATE TABLE standing_3 (taken)").unwrap();
    drop(connection);
    let device = "plant7/press-4".parse().unwrap();
    let error = Db::open(dir.path(), &device, &crate::app::schema(), at(0)).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error:?}");
    let connection = Connection::open(dir.path().join("agent.db")).unwrap();
    let left: (i64, u64) = connection
        .query_row(
            "SELECT (SELECT user_version FROM pragma_user_version), count(state) FROM outbox",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(left, (2, ROWS.len() as u64));
    connection.execute_batch("DROP TABLE standing_3").unwrap();
    drop(connection);
    let (db, outbox) = open(dir.path(), AMPLE).await;
    assert_eq!(db.run(outbox.job(Model::of)).await.unwrap(), expected());
}
