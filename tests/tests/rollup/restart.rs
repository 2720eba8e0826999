//! Tests that a rollup's state survives restarts, kills, damaged snapshots and a LEDGER created anew.

use std::fs;

use muster_contract::subjects::stream;
use muster_simulator::child::{Child, Spec};
use muster_tests::server::Server;
use muster_tests::system::{ROLLUP, program};
use muster_tests::wait::until;

use crate::ledger::{Device, small_fleet};
use crate::{Hub, Rollup};

async fn ledger_end(hub: &Hub) -> u64 {
    hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_when_it_has_read_what_ledger_holds() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let end = ledger_end(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    assert!(rollup.handle.projection.read(|now| now.fleet.as_of().ledger_seq) >= end);
    hub.answers_say_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_reads_only_what_came_since_the_snapshot() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let first = Rollup::start(&hub, dir.path()).await;
    first.ready().await;
    first.reads_to(ledger_end(&hub).await).await;
    assert_eq!(first.facts_read(), ledger_end(&hub).await);
    first.drain().await;

    devices[1].reports(&hub, "db", "installed").await;
    devices[1].is(&hub, "stale").await;
    let second = Rollup::start(&hub, dir.path()).await;
    second.ready().await;
    second.reads_to(ledger_end(&hub).await).await;
    assert_eq!(second.facts_read(), 2);
    hub.bucket_says_what_ledger_gives().await;
    hub.answers_say_what_ledger_gives().await;
    second.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_say_what_a_snapshot_holds_before_any_fact_comes() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let first = Rollup::start(&hub, dir.path()).await;
    first.ready().await;
    let end = ledger_end(&hub).await;
    first.reads_to(end).await;
    first.drain().await;

    let second = Rollup::start(&hub, dir.path()).await;
    second.ready().await;
    let metrics = &second.handle.metrics;
    assert_eq!((metrics.ledger_seq.get(), metrics.devices.get()), (end as i64, 3));
    assert_eq!(second.facts_read(), 0);
    second.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_moment_ends_in_the_same_digests() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let mut replayed = Vec::new();
    for round in 0..4 {
        let cadence = ["--snapshot-every", "100ms", "--snapshot-facts", "7"];
        let rollup = Rollup::start_with(&hub, dir.path(), &cadence).await;
        for step in 0..25 {
            let state = ["installing", "installed", "failed"][(round + step) % 3];
            devices[step % 3].reports(&hub, "db", state).await;
        }
        if round == 3 {
            rollup.reads_to(ledger_end(&hub).await).await;
            hub.bucket_says_what_ledger_gives().await;
            assert_eq!(rollup.digests(), crate::digests(&hub.folded().await));
        }
        replayed.push(rollup.facts_read());
        rollup.crash().await;
    }
    assert!(replayed[3] < ledger_end(&hub).await, "a snapshot was used: {replayed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_comes_back_with_the_same_views() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let (url, data) = (hub.server.url(), dir.path().join("data").display().to_string());
    let args =
        ["--nats-url", &url, "--data-dir", &data, "--snapshot-every", "100ms", "--snapshot-facts", "5"];
    let args = args.map(str::to_owned).to_vec();
    let spec = Spec { name: ROLLUP.to_owned(), program: program(ROLLUP), args };
    for round in 0..3 {
        let child = Child::start(spec.clone(), dir.path()).unwrap();
        for step in 0..30 {
            let state = ["installing", "failed", "installed"][(round + step) % 3];
            devices[step % 3].reports(&hub, "web", state).await;
        }
        child.kill().await.unwrap();
    }
    let child = Child::start(spec, dir.path()).unwrap();
    hub.answers_say_what_ledger_gives().await;
    hub.bucket_says_what_ledger_gives().await;
    assert!(child.stop().await.unwrap().success(), "SIGTERM ends it with 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn m34_two_rollups_that_run_say_the_same_of_one_ledger() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let (one_dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = Rollup::start(&hub, one_dir.path()).await;
    for step in 0..20 {
        devices[step % 3].reports(&hub, "db", ["failed", "installed"][step % 2]).await;
    }
    let other = Rollup::start(&hub, other_dir.path()).await;
    let end = ledger_end(&hub).await;
    one.reads_to(end).await;
    other.reads_to(end).await;
    assert_eq!(one.digests(), other.digests());
    hub.bucket_says_what_ledger_gives().await;
    one.drain().await;
    other.drain().await;
    hub.bucket_says_what_ledger_gives().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_rollup_is_a_hot_standby_while_the_first_is_dead() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let (dir, standby_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (url, data) = (hub.server.url(), dir.path().join("data").display().to_string());
    let args = ["--nats-url", &url, "--data-dir", &data].map(str::to_owned).to_vec();
    let first = Spec { name: ROLLUP.to_owned(), program: program(ROLLUP), args };
    let first = Child::start(first, dir.path()).unwrap();
    hub.answers_say_what_ledger_gives().await;
    hub.bucket_says_what_ledger_gives().await;
    let standby = Rollup::start(&hub, standby_dir.path()).await;
    standby.ready().await;
    standby.reads_to(ledger_end(&hub).await).await;
    let read_before = standby.facts_read();

    // It dies with a change under way, and nobody starts it again.
    devices[0].reports(&hub, "db", "installing").await;
    first.kill().await.unwrap();
    devices[0].reports(&hub, "db", "installed").await;
    hub.answers_say_what_ledger_gives().await;
    hub.bucket_says_what_ledger_gives().await;
    assert_eq!(standby.facts_read() - read_before, 2, "it had read everything else before");
    standby.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_is_set_aside_and_ledger_read_again() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.drain().await;

    let file = dir.path().join("snapshot.db");
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(5000);
    fs::write(&file, bytes).unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(ledger_end(&hub).await).await;
    assert_eq!(rollup.facts_read(), ledger_end(&hub).await);
    assert!(dir.path().join("snapshot.db.set-aside").exists());
    hub.bucket_says_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_another_ledger_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let (there, here) = (Hub::start().await, Hub::start().await);
    small_fleet(&there).await;
    Device::new("plant1.saw-1").wants(&here, &["web"]).await;
    let rollup = Rollup::start(&there, dir.path()).await;
    rollup.ready().await;
    rollup.drain().await;
    let rollup = Rollup::start(&here, dir.path()).await;
    rollup.ready().await;
    here.bucket_says_what_ledger_gives().await;
    assert!(dir.path().join("snapshot.db.set-aside").exists());
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_it_changes_nothing() {
    let mut hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.server.kill();
    hub.server.restart();
    let up = || async { hub.bus.link().borrow().is_up() };
    until("the link again", up, |up| *up).await;
    devices[0].reports(&hub, "db", "installed").await;
    hub.bucket_says_what_ledger_gives().await;
    hub.answers_say_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_without_a_server_is_clean_and_keeps_the_snapshot() {
    let mut hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start_with(&hub, dir.path(), &["--snapshot-every", "1h"]).await;
    rollup.ready().await;
    rollup.reads_to(ledger_end(&hub).await).await;
    hub.server.kill();
    rollup.drain().await;
    hub.server.restart();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    assert_eq!(rollup.facts_read(), 0);
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_made_anew_under_it_is_read_from_its_start() {
    let mut hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;
    hub.server.kill();
    fs::remove_dir_all(hub.server.store()).unwrap();
    hub.server.restart();
    until("the streams again", || async { hub.bus.converge().await.is_ok() }, |done| *done).await;
    Device::new("plant1.saw-1").wants(&hub, &["mill"]).await;
    hub.bucket_says_what_ledger_gives().await;
    hub.answers_say_what_ledger_gives().await;
    rollup.drain().await;

    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    assert_eq!(rollup.facts_read(), 0, "its snapshot is of the new one");
    rollup.drain().await;
}

/// Does something to the files of a server that is down meanwhile.
async fn while_down<T>(hub: &mut Hub, work: impl FnOnce(&Server) -> T) -> T {
    let link = hub.bus.link();
    let up = || async { link.borrow().is_up() };
    hub.server.stop();
    until("no link", up, |up| !up).await;
    let result = work(&hub.server);
    hub.server.restart();
    until("the link again", up, |up| *up).await;
    until("the streams again", || async { hub.bus.converge().await.is_ok() }, |done| *done).await;
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_ledger_is_read_anew_even_if_it_has_grown_since() {
    let mut hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let backup = while_down(&mut hub, Server::back_up).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    for _ in 0..3 {
        devices[0].reports(&hub, "db", "failed").await;
    }
    let read_to = ledger_end(&hub).await;
    rollup.reads_to(read_to).await;
    rollup.drain().await;

    while_down(&mut hub, |server| server.set_back(&backup)).await;
    while ledger_end(&hub).await <= read_to {
        devices[1].reports(&hub, "db", "installed").await;
    }
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(ledger_end(&hub).await).await;
    assert_eq!(rollup.digests(), crate::digests(&hub.folded().await));
    hub.bucket_says_what_ledger_gives().await;
    hub.answers_say_what_ledger_gives().await;
    rollup.drain().await;
}
