//! The real program, killed again and again while it writes reports: what it leaves behind is whole every time, and the
//! next life goes on from there. It has no hub.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod killed_kit;

use std::path::Path;
use std::time::Duration;

use muster_agent::db::Db;
use muster_agent::outbox::{self, Outbox, ReadRequest, Row};
use muster_agent::record::DeploymentRecord;
use muster_agent::report::Body;
use muster_agent::store;
use muster_contract::desired::DesiredDeployment;
use serde_json::json;

/// Lives of the agent that told something, each killed at another moment.
const LIVES: u64 = 12;
/// Lives at most: on a busy machine some end before they begin.
const ATTEMPTS: u64 = 100;
/// Deployments that come and go on their own, so that there is always something to report.
const DEPLOYMENTS: [&str; 3] = ["a", "b", "c"];

/// Opens database and outbox, while no agent runs.
async fn open(dir: &Path) -> (Db, Outbox) {
    let db = killed_kit::open(dir);
    let outbox = Outbox::open(db.clone(), outbox::Limits::default()).await.unwrap();
    (db, outbox)
}

/// A deployment whose component starts and crashes all the time.
fn entry(id: &str) -> DesiredDeployment {
    let properties = json!({ "startDelay": "5ms", "crashAfter": "5ms" });
    let component = json!({ "name": "main", "properties": properties });
    killed_kit::entry((id, 1), ("simulated", &[component]), (false, 0))
}

/// Every row, by number.
async fn rows(outbox: &Outbox) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let except = rows.iter().map(|row| row.seq).collect();
        let ask = ReadRequest {
            except,
            rows: outbox::READ_ROWS_MAX,
            bytes: outbox::READ_BYTES_MAX,
            ..ReadRequest::default()
        };
        let batch = outbox.read(ask).await.unwrap();
        if batch.rows.is_empty() {
            assert_eq!(batch.head, rows.len() as u64, "every number is there once, and no other");
            return rows;
        }
        rows.extend(batch.rows);
    }
}

/// A standing says what the last report of its deployment says.
fn assert_agree(standing: &DeploymentRecord, rows: &[Row]) {
    let told = |row: &Row| row.body.read().unwrap();
    let last = rows.iter().rev().find(|row| told(row).deployment() == Some(standing.id())).unwrap();
    let Body::Status(told) = told(last) else { panic!("a status, please") };
    assert!(last.newest);
    assert_eq!(told.components, standing.components);
    assert_eq!(told.status.state, standing.state());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_instant_it_loses_no_report_and_invents_none() {
    let dir = tempfile::tempdir().unwrap();
    killed_kit::accept(dir.path(), 1, DEPLOYMENTS.map(entry).to_vec()).await;
    let mut before: Vec<Row> = Vec::new();
    let mut lives = 0;
    for attempt in 0..ATTEMPTS {
        let agent = killed_kit::start(dir.path(), "simulated");
        // Not a wait for a result: the moment of death is the thing that varies.
        tokio::time::sleep(Duration::from_millis(150 + 37 * (attempt % 7))).await;
        drop(agent);
        let (db, outbox) = open(dir.path()).await;
        let rows = rows(&outbox).await;
        lives += u64::from(rows.len() > before.len());
        let same = |(old, new): (&Row, &Row)| (old.seq, &old.body) == (new.seq, &new.body);
        assert!(before.iter().zip(&rows).all(same), "what was told stays as it was told");
        let standings = store::records(&db).await.unwrap();
        standings.iter().for_each(|standing| assert_agree(standing, &rows));
        db.close().await;
        before = rows;
        if lives == LIVES {
            break;
        }
    }
    assert_eq!(lives, LIVES, "they tell something");
    assert_eq!(
        before.iter().filter(|row| row.body.read().unwrap().deployment().is_none()).count(),
        1,
        "capabilities, once"
    );
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("damaged")), "{names:?}");
}
