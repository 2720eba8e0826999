//! The demo with rollouts at a pace of its own: the same code as `make demo`, with fewer devices, shorter pauses and an end
//! after the first bad release.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use clap::Parser;
use muster_simulator::config::demo::RolloutPace;
use muster_simulator::config::{Cli, Settings};
use muster_simulator::demo;
use muster_tests::server;
use muster_tests::system::program;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const DEVICES: u64 = 8;
const PACE: RolloutPace = RolloutPace {
    pause: Duration::from_secs(2),
    soak: Duration::from_secs(1),
    plan_every: Duration::from_millis(200),
    releases: Some(4),
};

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_releases_in_waves_and_rolls_a_bad_one_back_at_the_canary() {
    let dir = tempfile::tempdir().unwrap();
    let (run, nats_server) = (dir.path().join("run"), server::binary());
    let words = ["muster-simulator", "demo", "--devices", "8", "--sites", "2", "--seed", "7", "--json"];
    let paths = ["--dir".as_ref(), run.as_os_str(), "--nats-server".as_ref(), nats_server.as_os_str()];
    let cli = Cli::parse_from(words.iter().map(AsRef::as_ref).chain(paths));
    let programs = program("muster-agent").parent().unwrap().to_owned();
    let Settings::Demo(mut config) = cli.check(0, programs).unwrap() else { panic!("`demo` was given") };
    config.rollouts = Some(PACE);

    let result = demo::run(&config, &CancellationToken::new()).await;
    let result = result.unwrap_or_else(|error| panic!("{}", muster_service::error::chain(&error)));
    assert!(result.converged, "{}", serde_json::to_string_pretty(&result).unwrap());
    let result = serde_json::to_value(&result).unwrap();
    println!("{result}");
    let [good, bad] = result["rollouts"].as_array().unwrap().as_slice() else { panic!("{result}") };

    assert_eq!((&good["release"], &good["word"]), (&json!(3), &json!("succeeded")), "{good}");
    let wave = |name: &str, targets: u64, has_begun: bool| json!({"name": name, "targets": targets, "hasBegun": has_begun});
    let quarter = good["waves"][1]["targets"].as_u64().unwrap();
    let waves =
        [wave("canary", 1, true), wave("quarter", quarter, true), wave("all", DEVICES - 1 - quarter, true)];
    assert_eq!(good["waves"], json!(waves), "{good}");

    assert_eq!((&bad["release"], &bad["word"]), (&json!(4), &json!("rolledBack")), "{bad}");
    let begun: Vec<_> = bad["waves"].as_array().unwrap().iter().map(|wave| &wave["hasBegun"]).collect();
    assert_eq!(begun, [true, false, false], "nobody but the canary has got it: {bad}");
    assert_eq!(bad["why"], "wave canary has failed: too many failures (site-1/device-1)");
    assert_ne!(good["id"], bad["id"]);
}
