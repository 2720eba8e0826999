//! Tests of storing reports on a disk that is full for a while.

use muster_contract::{DeviceKey, Timestamp};
use muster_service::clock::ManualClock;

use super::*;
use crate::db::{Connection, Db, SqlResult};
use crate::outbox::{Limits, READ_BYTES_MAX, READ_ROWS_MAX, ReadRequest};

/// Reports: more than the remaining pages can hold.
const REPORTS: u32 = 100;

/// SQLite's own limit has the same error as a full disk.
async fn limit_pages(db: &Db, more: u64) {
    let limit = move |connection: &Connection| -> SqlResult<()> {
        let pages: u64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
        connection.query_row(&format!("PRAGMA max_page_count={}", pages + more), [], |_| Ok(()))
    };
    db.run(limit).await.unwrap();
}

async fn agent(dir: &std::path::Path) -> (Db, Outbox, ReportSender, ReportWriter) {
    let device: DeviceKey = "plant7/press-4".parse().unwrap();
    let db = Db::open(dir, &device, &crate::app::schema(), Timestamp::UNIX_EPOCH).unwrap();
    let outbox = Outbox::open(db.clone(), Limits::default()).await.unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
    let (observer, writer) = queue(outbox.clone(), clock, Metrics::default());
    limit_pages(&db, 0).await;
    (db, outbox, observer, writer)
}

fn report(number: u32) -> NewReport {
    let body = CapabilitiesBody {
        observed_at: Timestamp::UNIX_EPOCH,
        properties: serde_json::Map::new(),
        labels: [("number".to_owned(), format!("{number} {}", "x".repeat(4_000)))].into(),
        agent_version: String::new(),
    };
    NewReport { body: Body::Capabilities(body), change: RecordChange::None }
}

#[tokio::test]
async fn what_a_full_disk_refuses_is_kept_in_order_once_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let (db, outbox, observer, writer) = agent(dir.path()).await;
    let metrics = writer.metrics.clone();
    let keeping = tokio::spawn(writer.run(CancellationToken::new(), fastrand::Rng::with_seed(7)));
    for number in 0..REPORTS {
        observer.send(report(number)).await;
    }
    while metrics.storage_failures() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(outbox.summary().await.unwrap().head < u64::from(REPORTS));
    limit_pages(&db, 100_000).await;
    drop(observer);
    keeping.await.unwrap();
    let ask = ReadRequest { rows: READ_ROWS_MAX, bytes: READ_BYTES_MAX, ..ReadRequest::default() };
    let told = outbox.read(ask).await.unwrap().rows.into_iter().map(|row| row.body.read().unwrap());
    assert!(told.eq((0..REPORTS).map(|number| report(number).body)), "all, in order");
}

#[tokio::test]
async fn an_agent_that_stops_does_not_wait_for_ever_for_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox, observer, writer) = agent(dir.path()).await;
    let stopping = CancellationToken::new();
    stopping.cancel();
    for number in 0..REPORTS {
        observer.send(report(number)).await;
    }
    drop(observer);
    writer.run(stopping, fastrand::Rng::with_seed(7)).await;
    assert!(outbox.summary().await.unwrap().head < u64::from(REPORTS));
}
