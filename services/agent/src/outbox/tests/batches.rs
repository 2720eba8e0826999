//! Tests what a receipt says of batches, and that packed rows are the reports that go alone.

use muster_contract::dictionary::REPORTS_1;
use muster_contract::limits::BATCH_TEXT_BYTES_MAX;
use muster_contract::packed::unpack;

use super::*;

#[tokio::test]
async fn once_the_hub_reads_no_batches_what_it_does_not_hold_goes_again_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 6]).await;
    assert!(!outbox.read(all()).await.unwrap().hub_reads_batches, "before it says so");
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    let reads = Receipt { batches: vec!["later".to_owned(), "zstd".to_owned()], ..receipt(epoch, 0, &[]) };
    outbox.receive(reads, at(0)).await.unwrap();
    assert!(outbox.read(all()).await.unwrap().hub_reads_batches);
    send_all(&outbox, at(0)).await;
    append(&outbox, &[("b", Pending)]).await;
    let refused = vec![RefusedNumbers { ranges: SeqRanges::span(3, 3), reason: "quarantineFull".to_owned() }];
    let single = Receipt { refused, ..receipt(epoch, 4, &[(2, 3)]) };
    for requeued in [3, 0] {
        let outcome = outbox.receive(single.clone(), at(1)).await.unwrap();
        assert_eq!(outcome, ReceiptOutcome::Applied { requeued }, "once");
    }
    let batch = outbox.read(ReadRequest { newest_first: false, ..all() }).await.unwrap();
    let rows: Vec<_> = batch.rows.iter().map(|row| (row.seq, row.is_repeated)).collect();
    assert_eq!(rows, [(2, true), (5, true), (6, true), (7, false)]);
    assert!(!batch.hub_reads_batches);
}

#[tokio::test]
async fn packed_rows_are_the_reports_that_go_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    outbox.append(one(capabilities())).await.unwrap();
    append(&outbox, &[("a", Pending), ("b", Pending), ("a", Installing), ("c", Failed), ("a", Installed)])
        .await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    let batch = outbox.read(all()).await.unwrap();
    let packed = pack_rows(&batch.rows, epoch, batch.head, Encoding::Zstd).unwrap();
    let unpacked = unpack(&zstd::bulk::decompress(&packed.bytes, BATCH_TEXT_BYTES_MAX).unwrap()).unwrap();
    let mut rows = batch.rows;
    rows.sort_by_key(|row| row.seq);
    let alone: Vec<_> = rows.iter().map(|row| row.serialize(epoch, batch.head).unwrap()).collect();
    let parsed =
        |reports: &[Vec<u8>]| Vec::from_iter(reports.iter().map(|report| Report::parse(report).unwrap()));
    assert_eq!(parsed(&unpacked), parsed(&alone));
    assert_eq!(pack_rows(&rows[..1], epoch, batch.head, Encoding::Zstd), None, "one report goes alone");
    assert_eq!(pack_rows(&rows, epoch, 0, Encoding::Zstd), None, "no report can have this head");
}

#[tokio::test]
async fn a_hub_with_the_dictionary_gets_less_than_half() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending), ("b", Installing)]).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    assert!(!outbox.read(all()).await.unwrap().hub_has_dictionary, "before it says so");
    let reads = Receipt { batches: vec!["zstd-r1".to_owned()], ..receipt(epoch, 0, &[]) };
    outbox.receive(reads, at(0)).await.unwrap();
    let batch = outbox.read(all()).await.unwrap();
    assert!(batch.hub_has_dictionary);
    let mut reader = zstd::bulk::Decompressor::with_dictionary(REPORTS_1).unwrap();
    let plain = batch.rows[0].serialize(epoch, batch.head).unwrap();
    let alone = batch.rows[0].encode(epoch, batch.head, Encoding::Reports1).unwrap();
    assert_eq!(reader.decompress(&alone.bytes, plain.len()).unwrap(), plain);
    assert!(2 * alone.bytes.len() < plain.len(), "{} of {}", alone.bytes.len(), plain.len());
    let packed = pack_rows(&batch.rows, epoch, batch.head, Encoding::Reports1).unwrap();
    let text = reader.decompress(&packed.bytes, BATCH_TEXT_BYTES_MAX).unwrap();
    assert_eq!((unpack(&text).unwrap().len(), packed.encoding), (2, Encoding::Reports1));
}
