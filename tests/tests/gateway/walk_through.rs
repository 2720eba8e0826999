//! The walk-through of REST.md, with curl alone, on a secured hub with all services, a device and a rejected report.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use muster_bus::{Bus, Outgoing};
use muster_identity::Role;
use muster_tests::rollouts::PLANNER;
use muster_tests::server::device;
use muster_tests::system::program;
use muster_tests::wait::{soon, until};
use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::login::{ask, with_services_of};

/// Longest time for all blocks, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(180);
const WEB: &str = "\
id: web
metadata: {name: web}
spec:
  applicationId: com-example-web
  deploymentProfile: {type: simulated, components: [{name: main, properties: {}}]}
";
const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: ours, site: plant7, approval: before}]
";

/// The blocks of the walk-through as one script.
fn script() -> String {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../services/gateway/REST.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("\n## Walk-through\n").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    "set -euo pipefail\n".to_owned() + &blocks.collect::<String>()
}

/// Runs the script in a folder; what it printed.
async fn run(folder: &Path, gateway: &str) -> String {
    let tools = program("muster").parent().unwrap().display().to_string();
    let path = format!("{tools}:{}", std::env::var("PATH").unwrap());
    let script = folder.join("walk-through.sh");
    std::fs::write(&script, self::script()).unwrap();
    let mut command = Command::new("bash");
    command
        .args(["-x", script.to_str().unwrap()])
        .current_dir(folder)
        .env("PATH", path)
        .env("GATEWAY", gateway);
    let output = command.kill_on_drop(true).stdin(Stdio::null()).output();
    let output = timeout(PATIENCE, output).await.expect("the walk-through ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_through_of_rest_runs_with_curl_alone() {
    let (mut stage, _repository) = with_services_of(WEB, ROLLOUT).await;
    let scheduler = stage.hub.creds(Role::Scheduler).display().to_string();
    stage.spawn(Role::Planner, PLANNER, &["--plans-creds", &scheduler, "--every", "200ms"]);
    let key = device("press-4");
    let creds = stage.hub.enroll(&key, "1h");
    let data = stage.hub.dir().join("press-4").display().to_string();
    let own = ["--site", "plant7", "--device", "press-4", "--data-dir", &data, "--runtime", "simulated"];
    stage.spawn_with(&creds, "muster-agent", &[&own[..], &["--heartbeat", "1s"]].concat());
    let token = stage.token(&stage.hub.creds(Role::Operator)).unwrap();
    for path in ["/api/v1/plans", "/api/v1/fleet"] {
        let ready = async || ask(stage.addr, "GET", path, &token).await.status;
        until("the planner and the rollup answer", ready, |status| *status == 200).await;
    }
    let bus =
        soon("a connection", Bus::connect(stage.hub.device_config(&key), &CancellationToken::new())).await;
    let report = Outgoing::new("muster.report.plant7.press-4", b"no report".to_vec());
    soon("a report", bus.unwrap().publish(report)).await.unwrap();

    let folder = stage.hub.dir().join("walk");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(stage.hub.creds(Role::Operator), folder.join("robot.creds")).unwrap();
    let said = run(&folder, &format!("http://{}", stage.addr)).await;
    assert!(said.contains("There is no such thing"), "the last address is gone: {said}");

    let plan = ask(stage.addr, "GET", "/api/v1/plans/cache", &token).await;
    let by = plan.json()["plan"]["revisions"][0]["requestedBy"].clone();
    assert_eq!((&by["role"], &by["onBehalfOf"]["name"]), (&json!("gateway"), &json!("operator")), "{plan:?}");
}
