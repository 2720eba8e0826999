//! Tests of an outbox whose database is an old copy of itself.

use super::*;

#[tokio::test]
async fn an_old_database_copy_begins_an_epoch_with_everything_the_hub_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    outbox.append(one(capabilities())).await.unwrap();
    append(&outbox, &[("a", Installed), ("b", Pending), ("b", Installed)]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    outbox.receive(receipt(epoch, 2, &[]), at(1)).await.unwrap();
    // The hub holds ten reports of this epoch; only four were ever written here.
    let renewed = outbox.receive(receipt(epoch, 10, &[]), at(2)).await.unwrap();
    let ReceiptOutcome::Renewed(second) = renewed else { panic!("{renewed:?}") };
    assert!(second > epoch);
    let batch = outbox.read(all()).await.unwrap();
    assert_eq!((batch.epoch, batch.head), (Some(second), 4));
    let mut told: Vec<_> = batch
        .rows
        .iter()
        .map(|row| (row.seq, row.body.read().unwrap().deployment().map(ToString::to_string)))
        .collect();
    told.sort();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(told, [(1, None), (2, name("b")), (3, name("b")), (4, name("a"))]);
    let chased = outbox.receive(receipt(second.next(), 1, &[]), at(3)).await.unwrap();
    let ReceiptOutcome::DuplicateIdentity { retry_in } = chased else {
        panic!("two devices of one name chase each other: {chased:?}")
    };
    assert_eq!(retry_in, RENEWAL_INTERVAL - Duration::from_secs(1));
    outbox.mark_sent(epoch, vec![1, 2, 3], at(4)).await.unwrap();
    assert_eq!(
        outbox.summary().await.unwrap().unsent,
        4,
        "an answer to the old numbers says nothing of the new"
    );
}

#[tokio::test]
async fn a_receipt_for_a_report_that_was_never_sent_reveals_an_old_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    outbox.append(one(capabilities())).await.unwrap();
    append(&outbox, &[("a", Installed)]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    outbox.receive(receipt(epoch, 2, &[]), at(1)).await.unwrap();
    // The hub holds a third report from before the database was set back; the present third one was not sent yet.
    append(&outbox, &[("a", Failed)]).await;
    let renewed = outbox.receive(receipt(epoch, 3, &[]), at(2)).await.unwrap();
    assert!(matches!(renewed, ReceiptOutcome::Renewed(_)), "{renewed:?}");
    let batch = outbox.read(all()).await.unwrap();
    let last = batch.rows.iter().max_by_key(|row| row.seq).unwrap().body.read().unwrap();
    assert!(matches!(last, Body::Status(body) if body.status.state == Failed), "the hub gets it");
}
