//! Reports that a receipt refuses: they stay, and go again when the hub asks for them.

use super::*;

#[tokio::test]
async fn a_refused_report_that_is_asked_for_goes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 5]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    let asking = receipt(epoch, 5, &[(2, 4)]);
    let ranges = SeqRanges::span(2, 3);
    let refusing = Receipt {
        refused: vec![RefusedNumbers { ranges, reason: "quarantineFull".to_owned() }],
        ..asking.clone()
    };
    for (receipt, second, requeued) in [(refusing, 1, 0), (asking.clone(), 2, 2), (asking, 3, 0)] {
        let outcome = outbox.receive(receipt, at(second)).await.unwrap();
        assert_eq!(outcome, ReceiptOutcome::Applied { requeued }, "{second}");
    }
    assert_eq!(seqs(&outbox.read(all()).await.unwrap()), [2, 3], "the other one may be under way");
}

#[tokio::test]
async fn refused_reports_stay_and_go_when_asked_for_or_rarely_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let (_db, outbox) = open(dir.path(), AMPLE).await;
    append(&outbox, &[("a", Pending); 5]).await;
    send_all(&outbox, at(0)).await;
    let epoch = outbox.fix_epoch(at(0)).await.unwrap();
    let refused = RefusedNumbers { ranges: SeqRanges::span(2, 3), reason: "quarantineFull".to_owned() };
    let receipt = receipt(epoch, 5, &[(2, 4)]);
    let refusing = Receipt { refused: vec![refused.clone()], ..receipt.clone() };
    for second in [31, 600] {
        let taken = outbox.receive(refusing.clone(), at(second)).await.unwrap();
        assert_eq!(
            taken,
            ReceiptOutcome::Applied { requeued: u64::from(second == 31) },
            "only 4, at {second} s"
        );
    }
    assert_eq!(outbox.summary().await.unwrap().refused, [refused]);
    assert_eq!(seqs(&outbox.read(all()).await.unwrap()), [4]);
    outbox.maintain(at(10 * 60 + 1)).await.unwrap();
    assert_eq!(seqs(&outbox.read(all()).await.unwrap()).len(), 3, "after ten minutes by itself");
    send_all(&outbox, at(700)).await;
    assert_eq!(
        outbox.receive(receipt, at(800)).await.unwrap(),
        ReceiptOutcome::Applied { requeued: 3 },
        "asked for"
    );
    assert_eq!(outbox.summary().await.unwrap().refused, []);
}
