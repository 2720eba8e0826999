//! The process runtime, with real processes: readiness, ends and stops.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod runtime_kit;

use std::fs;
use std::time::Duration;

use muster_agent::runtime::{Runtime, Started, Stopped, code};
use runtime_kit::{DEADLINE, Device, beside, job, lives, own_zombies, script, shell, unit, until};
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const READY_AND_STAY: &str = "touch ready; exec sleep 600";

#[tokio::test]
async fn a_job_is_ready_when_it_has_ended_well() {
    let mut device = Device::new();
    let job = job("job", "sleep 0.2; echo done >> trace");
    device.start(&job).await;
    assert_eq!(device.lines(&job, "trace"), ["done"]);
    assert_eq!(device.exit_told(), None, "an end that was wanted is no exit");
    device.start(&job).await;
    assert_eq!(device.lines(&job, "trace"), ["done"], "its work is done");
}

/// While a unit writes as fast as it can, its log and `.1` together stay within their limits and what is written between two
/// checks.
#[tokio::test]
async fn a_unit_that_floods_its_log_stays_within_a_bound_in_one_run() {
    const BOUND: u64 = (16 + 4) * 1024 * 1024;
    const BETWEEN_LOOKS: u64 = 40 * 1024 * 1024;
    let device = Device::new();
    let flood = "touch ready; while :; do head -c 4000000 /dev/zero; sleep 0.05; done";
    let web = script("web", flood);
    device.start(&web).await;
    let file = device.log(&web, "out");
    let size = |path: &std::path::Path| fs::metadata(path).map_or(0, |file| file.len());
    let (begun, mut most, mut emptied) = (Instant::now(), 0, 0);
    let mut before = 0;
    while begun.elapsed() < DEADLINE && emptied < 3 {
        let now = size(&file);
        emptied += u32::from(now < before);
        before = now;
        most = most.max(now + size(&file.with_extension("out.1")));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(emptied >= 3, "it was emptied {emptied} times, at most {most} bytes");
    assert!(most < BOUND + BETWEEN_LOOKS, "{most} bytes");
}

#[tokio::test]
async fn a_service_is_ready_when_it_has_stayed_up() {
    let device = Device::new();
    let begun = Instant::now();
    let readiness = json!({"type": "uptime", "for": "300ms"});
    device.start(&unit("web", json!({"command": "sleep", "args": ["600"], "readiness": readiness}))).await;
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(device.pids().len(), 1);
}

#[tokio::test]
async fn a_service_is_ready_when_its_file_is_there() {
    let device = Device::new();
    let web = script("web", "echo a >> trace; sleep 0.2; echo b >> trace; touch ready; exec sleep 600");
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace"), ["a", "b"]);
}

#[tokio::test]
async fn a_file_left_by_an_earlier_run_is_no_readiness() {
    let device = Device::new();
    let web = script("web", READY_AND_STAY);
    device.start(&web).await;
    device.stop(&web.name(), DEADLINE).await;
    let error = device.try_start(&script("web", "sleep 0.1; exit 4")).await.unwrap_err();
    assert_eq!(error.code, code::EXITED);
}

#[tokio::test]
async fn a_service_is_ready_when_its_port_accepts() {
    let device = Device::new();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let readiness = json!({"type": "tcp", "port": port});
    let web = unit("web", json!({"command": "sleep", "args": ["600"], "readiness": readiness}));
    let never = CancellationToken::new();
    let mut start = device.runtime.start(&web, &never);
    beside(&mut start, until("the process", || (device.pids().len() == 1).then_some(()))).await;
    let _listener = socket.listen(8).unwrap();
    assert_eq!(tokio::time::timeout(DEADLINE, start).await.expect("readiness"), Ok(Started::Ready));
}

#[tokio::test]
async fn an_open_port_of_somebody_else_is_no_readiness() {
    let device = Device::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let readiness = json!({"type": "tcp", "port": other.local_addr().unwrap().port()});
    let web = unit("web", shell("echo address in use >&2; sleep 0.1; exit 98", readiness));
    let error = device.try_start(&web).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.source.as_str()), (code::EXITED, "web"));
    assert!(error.message.contains("exit code 98") && error.message.contains("address in use"), "{error:?}");
}

#[tokio::test]
async fn a_late_unit_is_stopped_and_its_error_names_what_is_missing() {
    let mut device = Device::new();
    let mut properties =
        shell("echo working on it >&2; exec sleep 600", json!({"type": "file", "path": "up"}));
    properties["timeout"] = "300ms".into();
    let error = device.try_start(&unit("web", properties)).await.unwrap_err();
    assert_eq!((error.code.as_str(), error.source.as_str()), (code::NOT_READY, "web"));
    for part in ["not ready within 300ms", "the file 'up' is not there", "working on it"] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    assert_eq!(device.pids(), [0; 0]);
    assert_eq!(device.exit_told(), None, "told once, by the start");
}

#[tokio::test]
async fn an_early_exit_reports_its_cause_and_the_last_lines() {
    let device = Device::new();
    for (script, code, parts) in [
        (
            "echo one >&2; echo no license >&2; exit 3",
            code::EXITED,
            ["exit code 3 before it was ready", "one\nno license"],
        ),
        ("kill -9 $$", code::KILLED, ["signal 9 (SIGKILL", "it wrote nothing to stderr"]),
        ("exit 0", code::EXITED, ["exit code 0", "readiness type 'exit'"]),
    ] {
        let error = device
            .try_start(&unit("web", shell(script, json!({"type": "file", "path": "ready"}))))
            .await
            .unwrap_err();
        assert_eq!((error.code.as_str(), error.source.as_str()), (code, "web"), "{script}");
        for part in parts {
            assert!(error.message.contains(part), "{part}: {}", error.message);
        }
    }
    let error = device.try_start(&job("job", "echo table is locked >&2; exit 1")).await.unwrap_err();
    assert!(error.message.contains("exit code 1") && error.message.contains("table is locked"), "{error:?}");
    assert_eq!(device.pids(), [0; 0]);
}

#[tokio::test]
async fn an_exit_after_readiness_carries_the_last_lines() {
    let mut device = Device::new();
    let web =
        script("web", "touch ready; while [ ! -e die ]; do sleep 0.02; done; echo out of paper >&2; exit 7");
    device.start(&web).await;
    fs::write(device.work(&web).join("die"), "").unwrap();
    let exit = device.exit().await;
    assert_eq!((exit.name, exit.digest_prefix), (web.name(), web.digest_prefix()));
    assert_eq!((exit.error.code.as_str(), exit.error.source.as_str()), (code::EXITED, "web"));
    assert!(exit.error.message.starts_with("ended with exit code 7;"), "{:?}", exit.error);
    assert!(exit.error.message.ends_with("out of paper"), "{:?}", exit.error);
    assert_eq!(device.inventory().await, []);
    fs::remove_file(device.work(&web).join("die")).unwrap();
    device.start(&web).await;
}

#[tokio::test]
async fn remaining_processes_end_before_the_exit_is_sent() {
    let mut device = Device::new();
    let web = script("web", "sleep 600 & touch ready; while [ ! -e die ]; do sleep 0.02; done");
    device.start(&web).await;
    fs::write(device.work(&web).join("die"), "").unwrap();
    device.exit().await;
    assert_eq!(device.pids(), [0; 0]);
}

#[tokio::test]
async fn a_stop_asks_first() {
    let mut device = Device::new();
    let web =
        script("web", "trap 'echo asked >> trace; exit 0' TERM; touch ready; while :; do sleep 0.02; done");
    device.start(&web).await;
    assert_eq!(device.stop(&web.name(), DEADLINE).await, Stopped::InTime);
    assert_eq!(device.lines(&web, "trace"), ["asked"]);
    assert_eq!(device.pids(), [0; 0]);
    assert_eq!(device.exit_told(), None, "an end that was asked for is no exit");
}

#[tokio::test]
async fn a_stop_kills_what_does_not_listen() {
    let mut device = Device::new();
    let web = script("web", "trap '' TERM; touch ready; while :; do sleep 0.02; done");
    device.start(&web).await;
    let begun = Instant::now();
    assert_eq!(device.stop(&web.name(), Duration::from_millis(200)).await, Stopped::Killed);
    assert!(begun.elapsed() >= Duration::from_millis(200), "it had its time");
    assert_eq!(device.pids(), [0; 0]);
    assert_eq!(device.exit_told(), None);
}

#[tokio::test]
async fn a_stop_reaches_grandchildren_and_those_who_left_the_group() {
    let device = Device::new();
    let tree = "sleep 600 & (sleep 600 & sleep 600 & wait) & setsid sleep 600 & env -i sleep 600 & ";
    let web = script("web", &format!("{tree} sleep 0.2; touch ready; wait"));
    let other = script("other", READY_AND_STAY);
    device.start(&web).await;
    let tree = device.grouped();
    assert!(tree.len() > device.pids().len(), "one of {tree:?} hides its environment");
    device.start(&other).await;
    device.stop(&web.name(), DEADLINE).await;
    assert_eq!(device.pids().len(), 1, "the other unit is not touched");
    assert!(tree.iter().all(|pid| !lives(*pid)), "also those without a mark");
}

#[tokio::test]
async fn stopping_what_does_not_run_is_success() {
    let device = Device::new();
    device.stop(&script("web", "true").name(), DEADLINE).await;
    device.start(&script("web", READY_AND_STAY)).await;
    device.stop(&script("web", "another version").name(), DEADLINE).await;
    device.stop(&script("web", "true").name(), DEADLINE).await;
    assert_eq!(device.inventory().await, []);
}

#[tokio::test]
async fn nothing_that_has_ended_stays_a_zombie() {
    let device = Device::new();
    let web = script("web", READY_AND_STAY);
    device.start(&web).await;
    device.stop(&web.name(), DEADLINE).await;
    device.start(&job("job", "exit 0")).await;
    device.try_start(&script("web", "exit 1")).await.unwrap_err();
    until("no zombie left", || own_zombies().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_cancelled_start_leaves_the_process_for_the_next_one() {
    let device = Device::new();
    let web = script(
        "web",
        "echo $$ >> trace; while [ ! -e go ]; do sleep 0.02; done; touch ready; exec sleep 600",
    );
    let cancel = CancellationToken::new();
    let cancelled = {
        let mut start = device.runtime.start(&web, &cancel);
        beside(&mut start, device.until_lines(&web, "trace", 1)).await;
        cancel.cancel();
        start.await
    };
    assert_eq!(cancelled, Ok(Started::Cancelled));
    {
        let never = CancellationToken::new();
        let dropped =
            tokio::time::timeout(Duration::from_millis(50), device.runtime.start(&web, &never)).await;
        assert!(dropped.is_err(), "it cannot be ready yet");
    }
    fs::write(device.work(&web).join("go"), "").unwrap();
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace").len(), 1, "it was never started twice");
}

#[tokio::test]
async fn units_of_many_names_do_not_meet() {
    let device = Device::new();
    let units: Vec<_> = (0..6).map(|number| script(&format!("web-{number}"), READY_AND_STAY)).collect();
    let never = CancellationToken::new();
    let starts = units.iter().map(|unit| device.runtime.start(unit, &never));
    for started in futures_util::future::join_all(starts).await {
        assert_eq!(started, Ok(Started::Ready));
    }
    device.stop(&units[2].name(), DEADLINE).await;
    let left: Vec<_> = device.inventory().await.into_iter().map(|running| running.name).collect();
    let expected: Vec<_> =
        units.iter().map(|unit| unit.name()).filter(|name| *name != units[2].name()).collect();
    assert_eq!(left, expected);
}
