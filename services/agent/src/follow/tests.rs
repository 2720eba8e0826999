//! Tests of a follower without a hub.

use muster_contract::decode::to_bytes;
use muster_contract::desired_refusal::DesiredRefusalCode;
use muster_contract::version::ApiVersion;
use muster_contract::{SeqRanges, Timestamp};
use muster_service::clock::ManualClock;

use super::refusal::CONFIRM_AFTER;
use super::*;
use crate::outbox::{Limits, NewReport, RecordChange};
use crate::report::{Body, CapabilitiesBody};

async fn follower(dir: &std::path::Path) -> Follower {
    let device: DeviceKey = "plant7/press-4".parse().unwrap();
    let db = Db::open(dir, &device, &crate::app::schema(), Timestamp::UNIX_EPOCH).unwrap();
    let outbox = Outbox::open(db.clone(), Limits::default()).await.unwrap();
    Follower {
        device,
        connected: watch::channel(None).1,
        phase: watch::channel(SchedulePhase::Open).1,
        poll: None,
        db,
        outbox,
        clock: Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap())),
        desired: watch::channel(None).0,
        receipt_fetched: watch::channel(false).0,
        metrics: Metrics::default(),
        rng: fastrand::Rng::with_seed(7),
        accepted: None,
        refused: watch::channel(None).0,
        rejected_document: None,
        identity: None,
        rejected_credential: None,
        refused_reports: Vec::new(),
        has_read_failed: false,
        is_identity_duplicate: false,
        token: watch::channel(None).1,
        hub_compares: false,
        receipt_read_at: None,
        read_again_at: None,
    }
}

fn report() -> NewReport {
    let body = CapabilitiesBody {
        observed_at: Timestamp::UNIX_EPOCH,
        properties: serde_json::Map::new(),
        labels: Default::default(),
        agent_version: String::new(),
    };
    NewReport { body: Body::Capabilities(body), change: RecordChange::None }
}

#[tokio::test]
async fn a_receipt_of_another_epoch_refuses_no_report_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = follower(dir.path()).await;
    follower.outbox.append(Arc::new(vec![report()])).await.unwrap();
    let epoch = follower.outbox.fix_epoch(follower.clock.now()).await.unwrap();
    let refused = vec![RefusedNumbers { ranges: SeqRanges::span(1, 1), reason: "quarantineFull".to_owned() }];
    let receipt = |epoch| Receipt {
        api_version: ApiVersion::V1,
        kind: Default::default(),
        epoch,
        through: 1,
        missing: SeqRanges::span(1, 1),
        refused: refused.clone(),
        batches: Vec::new(),
        generation: None,
    };
    assert!(follower.receipt(&to_bytes(&receipt(Epoch::FIRST)), Origin::Pushed).await);
    assert_eq!(follower.refused_reports, [], "of an earlier epoch");
    follower
        .outbox
        .read(crate::outbox::ReadRequest { rows: 1, bytes: 1, ..Default::default() })
        .await
        .unwrap();
    assert!(follower.receipt(&to_bytes(&receipt(epoch)), Origin::Pushed).await);
    assert_eq!(follower.refused_reports, refused);
}

#[tokio::test]
async fn a_receipt_that_names_a_newer_desired_state_causes_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = follower(dir.path()).await;
    let receipt = |generation: Option<u64>| {
        let named = generation.map_or(String::new(), |generation| format!(r#","generation":{generation}"#));
        format!(r#"{{"apiVersion":"muster/v1","kind":"Receipt","epoch":1,"through":0,"missing":[]{named}}}"#)
    };
    for (generation, origin, reads, poll) in [
        (None, Origin::Pushed, false, POLL_INTERVAL),
        (Some(0), Origin::Pushed, false, POLL_INTERVAL_COMPARED),
        // A read of the desired state follows anyway.
        (Some(3), Origin::Stored, false, POLL_INTERVAL_COMPARED),
        (Some(3), Origin::Pushed, true, POLL_INTERVAL_COMPARED),
        // Not again so soon.
        (Some(3), Origin::Pushed, false, POLL_INTERVAL_COMPARED),
        (None, Origin::Pushed, false, POLL_INTERVAL),
    ] {
        follower.receipt(receipt(generation).as_bytes(), origin).await;
        assert_eq!(follower.read_again_at.take().is_some(), reads, "{generation:?} {origin:?}");
        assert_eq!(follower.poll_interval(), poll, "{generation:?}");
    }
    follower.receipt_read_at = None;
    follower.desired(document(3), Origin::Stored).await;
    follower.receipt(receipt(Some(3)).as_bytes(), Origin::Pushed).await;
    assert_eq!(follower.read_again_at, None, "it holds that one");
}

fn document(generation: u64) -> Bytes {
    let document = serde_json::json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
        "issuedAt": "2026-11-21T00:00:00Z", "source": { "kind": "git", "revision": "a" }, "deployments": [],
    });
    document.to_string().into()
}

#[tokio::test]
async fn an_older_document_is_refused_only_once_a_later_read_shows_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = follower(dir.path()).await;
    let refused = |follower: &Follower| follower.refused.borrow().as_ref().map(|refusal| refusal.code);
    follower.desired(document(8), Origin::Pushed).await;
    assert_eq!(follower.accepted.as_ref().map(|accepted| accepted.generation.get()), Some(8));

    // A replica that is behind answers, and then one that is not.
    follower.desired(document(7), Origin::Stored).await;
    assert_eq!(refused(&follower), None);
    let again_in = follower.read_again_at.take().unwrap() - Instant::now();
    assert!(again_in <= CONFIRM_AFTER, "{again_in:?}");
    follower.desired(document(8), Origin::Stored).await;
    assert!(follower.rejected_document.is_none());
    assert_eq!(follower.read_again_at, None);

    // The hub was set back: every read shows the older one.
    for _ in 0..2 {
        follower.desired(document(7), Origin::Stored).await;
        assert_eq!(refused(&follower), None, "the reads are not far enough apart");
        assert!(follower.read_again_at.take().is_some());
    }
    follower.rejected_document.as_mut().unwrap().read_at -= CONFIRM_AFTER;
    follower.desired(document(7), Origin::Stored).await;
    assert_eq!(refused(&follower), Some(DesiredRefusalCode::Older));
    follower.desired(document(7), Origin::Stored).await;
    assert_eq!(follower.read_again_at, None, "it is refused already");
    follower.desired(document(8), Origin::Stored).await;
    assert_eq!(refused(&follower), None);
}
