//! The order of service: how many facts of one device's backlog are in LEDGER before a report of another device that came
//! after the backlog.

use muster_bus::{Bus, Outgoing, Start};
use muster_contract::decode::{peek, to_bytes};
use muster_contract::subjects::{self, stream};
use muster_tests::hostile::bounds::FACTS_BEFORE_ANOTHER;
use muster_tests::hostile::good::Reporter;
use muster_tests::hostile::hub::{FLOOD_SITE, GOOD_SITE, HostileHub};
use muster_tests::system::INGEST;
use muster_tests::wait::soon;

/// Reports that the device with the backlog tries to send while ingest stands still.
const BACKLOG: u64 = 20_000;
/// Its reports under way at once.
const UNDER_WAY: usize = 256;
/// Messages that are read at once.
const BATCH: usize = 512;

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_delays_another_devices_report_by_a_bounded_number_of_facts() {
    let hub = HostileHub::start(super::SETTINGS.good_devices, super::SETTINGS.burst_reports).await;
    let mut facts = hub.inspector.replay(stream::LEDGER, &["muster.status.>"], Start::New).await.unwrap();
    hub.freeze(INGEST);
    let stored = send_backlog(&hub.attacker).await;
    assert_eq!(stored, FACTS_BEFORE_ANOTHER, "UPLINK stores a share of the backlog, and no more");
    for good in &hub.good {
        soon("a report is stored", good.send(1, || panic!("a good device's report was refused"))).await;
    }
    hub.thaw(INGEST);
    let (mut of_backlog, mut before) = (0, Vec::new());
    while before.len() < hub.good.len() {
        for fact in soon("facts", facts.next_batch(BATCH)).await.unwrap() {
            match fact.subject.split('.').nth(2) {
                Some(FLOOD_SITE) => of_backlog += 1,
                Some(GOOD_SITE) if peek(&fact.payload).seq == Some(1) => before.push(of_backlog),
                _ => {}
            }
        }
    }
    let most = before.iter().max().copied().unwrap_or_default();
    assert!(
        most <= FACTS_BEFORE_ANOTHER,
        "{most} facts of a backlog of {stored} came before a good device's, above {FACTS_BEFORE_ANOTHER}: {before:?}"
    );
}

/// Sends a backlog as an agent does; how many reports UPLINK stored. What it refuses, the device would keep.
async fn send_backlog(device: &Reporter) -> u64 {
    let bus: &Bus = &device.bus;
    let mut window = bus.window(UNDER_WAY);
    let mut stored = 0;
    for seq in 1..=BACKLOG {
        let report = Outgoing::new(subjects::report(&device.key), to_bytes(&device.report(seq)));
        soon("room", window.send(report, ())).await;
        while let Some((_, answer)) = window.try_next() {
            stored += u64::from(answer.is_ok());
        }
    }
    while let Some((_, answer)) = soon("an answer", window.next()).await {
        stored += u64::from(answer.is_ok());
    }
    stored
}
