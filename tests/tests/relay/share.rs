//! A device's share of UPLINK and its quota, from the outbox to LEDGER: nothing is lost, nobody waits for another's backlog, and
//! a device beyond its quota sends no faster than that.

use std::time::{Duration, Instant};

use muster_contract::limits::{IN_FLIGHT_MAX, UPLINK_SHARE};
use muster_contract::partition::partition_of;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeviceKey, Timestamp};
use muster_tests::backlog::Sender;
use muster_tests::bench::{say, setting};
use muster_tests::server::device;
use muster_tests::streams::keep_all_of_uplink;
use muster_tests::wait::within;

use super::*;

/// Reports of a backlog: several times the share. `SHARE_ROWS=100000` measures; with `SHARE_OFF=1`, without a share.
const ROWS_DEFAULT: usize = 8_000;
/// How long a backlog may take on a loaded machine.
const DRAINED_WITHIN: Duration = Duration::from_secs(180);

/// A device whose first report the hub knows, with a backlog of so many more, and its highest number.
async fn away_with_a_backlog(hub: &Hub, key: DeviceKey, rows: usize) -> (Backlog, u64) {
    let backlog = Backlog::new(key, 8).await;
    let sender = send(hub, &backlog);
    first_is_known(hub, &backlog).await;
    sender.end().await;
    backlog.tell_history(rows).await;
    let head = backlog.summary().await.head;
    (backlog, head)
}

fn send(hub: &Hub, backlog: &Backlog) -> Sender {
    backlog.send(hub.settings(backlog, hub.address()), None)
}

async fn first_is_known(hub: &Hub, backlog: &Backlog) {
    hub.desire(backlog).await;
    hub.knows(backlog, 1).await;
}

/// Waits until so many rows are left in the outbox at most; how long that took.
async fn left(backlog: &Backlog, most: u64) -> Duration {
    let begin = Instant::now();
    let unsent = async || backlog.summary().await.unsent;
    within(DRAINED_WITHIN, "the outbox drains", unsent, |unsent| *unsent <= most).await;
    begin.elapsed()
}

async fn all_received(hub: &Hub, backlog: &Backlog, head: u64) {
    let account = async || {
        let line = hub.asked.device(&backlog.device).await.ok()?.device;
        Some((line.account.received, line.account.missing.count()))
    };
    within(DRAINED_WITHIN, "the hub has all", account, |account| *account == Some((head, 0))).await;
}

/// Names of devices in a partition, or in any other.
fn devices_of(partition: u16, inside: bool) -> impl Iterator<Item = DeviceKey> {
    let names = (0..).map(|at| device(&format!("press-{at}")));
    names.filter(move |key| (partition_of(key) == partition) == inside)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_longer_than_the_share_drains_and_loses_nothing() {
    let hub = Hub::start().await;
    let (backlog, head) =
        away_with_a_backlog(&hub, device("press-4"), setting("SHARE_ROWS", ROWS_DEFAULT)).await;
    if setting("SHARE_OFF", 0) > 0 {
        keep_all_of_uplink(&hub.bus).await;
    }
    let begin = Instant::now();
    let sender = send(&hub, &backlog);
    let rate = |taken: Duration| head as f64 / taken.as_secs_f64();
    say(&format!("outbox → UPLINK: {:.0} reports/s", rate(left(&backlog, 0).await)));
    all_received(&hub, &backlog, head).await;
    say(&format!("outbox → view: {:.0} reports/s", rate(begin.elapsed())));
    sender.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_beyond_its_quota_sends_at_its_rate_and_loses_nothing() {
    const BURST: u64 = 1_000;
    const RATE: u64 = 400;
    let quota =
        ["--device-burst-reports=1000", "--device-reports-per-second=400", "--device-bytes-per-second=8MiB"];
    let hub = Hub::start_with(&quota).await;
    let (backlog, head) = away_with_a_backlog(&hub, device("press-4"), 4_000).await;
    let sender = send(&hub, &backlog);
    let taken = left(&backlog, 0).await;
    // Neither the burst nor what UPLINK holds of it has to be removed first.
    let least = Duration::from_secs((head - BURST - u64::from(UPLINK_SHARE)) / RATE);
    assert!(taken >= least, "{head} reports in {taken:?}");
    all_received(&hub, &backlog, head).await;
    let log = std::fs::read_to_string(hub.dir.path().join("logs/muster-ingest.log")).unwrap();
    let lines =
        log.lines().filter(|line| line.contains("throttled a device") && line.contains("press-4")).count();
    assert!((1..=4).contains(&lines), "one line a minute:\n{log}");
    sender.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_starts_again_lets_a_throttled_device_go_on() {
    // One report a second: the backlog drains within the deadline only by the burst and the share of each ingest.
    const BURST: u64 = 128;
    const BACKLOG: usize = 1_000;
    const _: () = assert!((BACKLOG as u64) < 2 * (BURST + UPLINK_SHARE as u64));
    let quota =
        ["--device-burst-reports=128", "--device-reports-per-second=1", "--device-bytes-per-second=1MiB"];
    let mut hub = Hub::start_with(&quota).await;
    let (backlog, head) = away_with_a_backlog(&hub, device("press-4"), BACKLOG).await;
    let sender = send(&hub, &backlog);
    left(&backlog, head - BURST - u64::from(UPLINK_SHARE)).await;
    assert!(backlog.summary().await.unsent > 300, "it is held back");
    hub.kill_ingest().await;
    hub.start_ingest();
    left(&backlog, 0).await;
    all_received(&hub, &backlog, head).await;
    sender.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_nobody_takes_care_of_holds_nothing_of_the_others() {
    const STALLED: u16 = 0;
    let hub = Hub::start_with(&["--partitions=1-15"]).await;
    let stalled = Backlog::new(devices_of(STALLED, true).next().unwrap(), 8).await;
    let waiting = send(&hub, &stalled);
    left(&stalled, 0).await;
    let (backlog, head) =
        away_with_a_backlog(&hub, devices_of(STALLED, false).next().unwrap(), 3 * UPLINK_SHARE as usize)
            .await;
    let sender = send(&hub, &backlog);
    left(&backlog, 0).await;
    all_received(&hub, &backlog, head).await;
    let held = async || hub.bus.stream_state(stream::UPLINK).await.unwrap().messages;
    until("only what nobody took is left", held, |held| *held == 1).await;
    sender.end().await;
    waiting.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_share_of_a_devices_backlog_is_ahead_of_another_device() {
    let mut hub = Hub::start().await;
    let mut names = devices_of(3, true);
    let (flood, head) = away_with_a_backlog(&hub, names.next().unwrap(), 20_000).await;
    hub.kill_ingest().await;
    let flooding = send(&hub, &flood);
    // One that the hub knows was removed from UPLINK when it was taken.
    let held = async || hub.bus.stream_state(stream::UPLINK).await.unwrap().messages;
    until("its share is full", held, |held| *held == u64::from(UPLINK_SHARE)).await;
    let mut good = Vec::new();
    for name in names.take(5) {
        let backlog = Backlog::new(name, 1).await;
        let sender = send(&hub, &backlog);
        left(&backlog, 0).await;
        good.push((backlog, sender));
    }
    assert!(flood.summary().await.unsent > 20_000 - 2 * u64::from(UPLINK_SHARE), "its outbox keeps the rest");
    hub.start_ingest();
    for (backlog, _) in &good {
        first_is_known(&hub, backlog).await;
        backlog.tell(Timestamp::now(), [(0, muster_contract::State::Installed)]).await;
    }
    for (backlog, _) in &good {
        hub.knows(backlog, 2).await;
    }
    left(&flood, 0).await;
    all_received(&hub, &flood, head).await;
    for (backlog, _) in &good {
        let ahead = ahead_of(&hub, &flood.device, &backlog.device).await;
        assert!(
            ahead <= UPLINK_SHARE as usize + 1,
            "{ahead} facts of the flood before the first of {}",
            backlog.device
        );
    }
    flooding.end().await;
    for (_, sender) in good {
        sender.end().await;
    }
}

/// Reports of one device in LEDGER before the first of another.
async fn ahead_of(hub: &Hub, flood: &DeviceKey, good: &DeviceKey) -> usize {
    let last = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let mut replay = hub.bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let (mut count, mut seen) = (0, 0);
    while seen < last {
        for delivery in soon("LEDGER", replay.next_batch(1_000)).await.unwrap() {
            seen = delivery.stream_seq;
            match LedgerSubject::parse(&delivery.subject) {
                Some(LedgerSubject::Status(device, _)) if device == *flood => count += 1,
                Some(LedgerSubject::Device(device)) if device == *good => return count,
                _ => {}
            }
        }
    }
    panic!("nothing of {good} in LEDGER");
}

const _: () = assert!(IN_FLIGHT_MAX < UPLINK_SHARE as usize);
