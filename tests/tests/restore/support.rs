//! The file of `muster support`: it says how the hub is, and holds no secret that lay anywhere near.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use flate2::read::GzDecoder;
use muster_tests::command::muster;
use muster_tests::system::program;
use serde_json::Value;

use super::hub::{DRAIN, Hub, key};

/// Secrets of every form, each in a file or variable of its own.
fn planted() -> Vec<String> {
    vec![
        format!("SU{}", "AZ5TQ2".repeat(9)),
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJqdGkiOiJY.c2ln".to_owned(),
        "correct-horse-1".to_owned(),
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a".to_owned(),
        "MIIEvQIBADANBgkqhkiG9w0B".to_owned(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_for_support_says_how_the_hub_is_and_holds_no_secret() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let hub = Hub::start().await;
    let (ingest, rollup) = (hub.ingest().await, hub.rollup().await);
    hub.report(&key(), 1, 1).await;
    let secrets = planted();
    let [seed, token, password, random, pem] = secrets.as_slice() else { panic!() };
    let log = format!(
        "INFO started\nkey {seed}\n{token}\nnats://hub:{password}@hub:4222\npassword = \"{password}\"\n\
         using {random}\n-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----\nWARN ended ledger.seq=4711\n"
    );
    fs::write(place.path().join("ingest.log"), log).unwrap();
    fs::write(place.path().join("hub.creds"), format!("{token}\n{seed}\n")).unwrap();
    let (output, log) = (path("support.tar.gz"), path("ingest.log"));
    let mut command = Command::new(program("muster"));
    command.args([
        "support",
        "-o",
        &output,
        "--log",
        &log,
        "--log",
        "/no/such/log",
        "--metrics",
        "127.0.0.1:1",
    ]);
    command.args(["--nats-url", &hub.server.url().replace("nats://", &format!("nats://hub:{password}@"))]);
    command.current_dir(place.path()).env("MUSTER_GIT_TOKEN", random).env("MUSTER_AUTH_DIR", place.path());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    ingest.drain(DRAIN).await;
    rollup.drain(DRAIN).await;

    let file = place.path().join("support.tar.gz");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mut text = String::new();
    GzDecoder::new(fs::File::open(&file).unwrap()).read_to_string(&mut text).unwrap();
    for secret in &secrets {
        assert!(!text.contains(secret), "{secret}");
    }
    for told in ["INFO started", "ledger.seq=4711", "no_such_log", "max_msgs_per_subject", "\"steps\""] {
        assert!(text.contains(told), "{told}");
    }
    let unpacked = Command::new("tar").args(["-tzf", &output]).output().unwrap();
    let names = String::from_utf8(unpacked.stdout).unwrap();
    assert!(unpacked.status.success(), "{names}");
    for name in
        ["version.json", "streams/LEDGER.stream.json", "answers/fleet.json", "restore.json", "errors.txt"]
    {
        assert!(names.lines().any(|line| line == name), "{name}: {names}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_for_support_of_a_dead_hub_says_so_and_is_bounded() {
    let place = tempfile::tempdir().unwrap();
    let (output, log) = (place.path().join("support.tar.gz"), place.path().join("long.log"));
    fs::write(&log, "a line that is the same\n".repeat(1 << 20)).unwrap();
    let (name, log) = (output.display().to_string(), log.display().to_string());
    let words = ["support", "-o", &name, "--log", &log, "--format", "json"];
    let said = muster("nats://127.0.0.1:1", &words).await;
    assert_eq!(said.code, 0, "{said:?}");
    let result: Value = serde_json::from_str(&said.out).unwrap();
    assert!(result["errors"][0].as_str().unwrap().contains("no NATS server can be reached"), "{result}");
    let mut text = Vec::new();
    GzDecoder::new(fs::File::open(&output).unwrap()).read_to_end(&mut text).unwrap();
    assert!(text.len() < 9 << 20, "of a log of 24 MiB: {}", text.len());
    let again = muster("nats://127.0.0.1:1", &words).await;
    assert!(again.code != 0 && again.err.contains("cannot write"), "a file that is there stays: {again:?}");
}
