//! An open server, where everybody may do everything: what is for hubs with accounts says that it has no use there.

use std::process::Command;
use std::time::Duration;

use muster_bus::{Bus, MIRRORED};
use muster_simulator::child::{Child, Spec};
use muster_tests::server::Server;
use muster_tests::system::{ROLLUP, program};
use muster_tests::wait::{soon, until};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn readers_credentials_on_an_open_server_make_no_mirrors_and_a_log_line() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let auth = dir.path().join("auth");
    let made = Command::new(program("muster")).args(["auth", "init", "--dir"]).arg(&auth).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (keeper, data) = (auth.join("creds/keeper.creds"), dir.path().join("rollup"));
    let (url, keeper, data) = (server.url(), keeper.display().to_string(), data.display().to_string());
    let args =
        ["--nats-url", &url, "--data-dir", &data, "--readers-creds", &keeper].map(str::to_owned).into();
    let spec = Spec { name: ROLLUP.to_owned(), program: program(ROLLUP), args };
    let rollup = Child::start(spec, dir.path()).unwrap();
    let log = async || std::fs::read_to_string(rollup.log()).unwrap_or_default();
    let is_said = |log: &String| log.contains("cannot keep mirrors: this server needs no credentials");
    until("the log says so", log, is_said).await;
    // It serves none the less, from the streams themselves.
    let stop = CancellationToken::new();
    let bus = soon("a connection", Bus::connect(server.config("test"), &stop)).await.unwrap();
    let fleet = async || bus.request("muster.query.fleet", "".into(), PATIENCE).await;
    until("an answer about the fleet", fleet, Result::is_ok).await.unwrap();
    for stream in MIRRORED {
        let info = bus.request(&format!("$JS.API.STREAM.INFO.{stream}"), "".into(), PATIENCE).await.unwrap();
        let info: Value = serde_json::from_slice(&info).unwrap();
        assert!(info["config"]["mirror"].is_null() && info["error"].is_null(), "{info}");
    }
}
