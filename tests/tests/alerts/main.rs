//! Alerts and the dashboard on a real Prometheus: the shipped files are valid, each alert has a rule test and a row in the
//! guide, and on a running fleet alerts fire when something breaks and clear when it is mended.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod breakage;
mod fleet;
mod scripted;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use fleet::Fleet;
use muster_tests::not_run::not_run;
use muster_tests::prometheus::{self, PROMTOOL};
use muster_tests::python::interpreter;
use serde_json::{Value, json};

/// The name of these tests where they are listed as not run.
const NAME: &str = "alerts on Prometheus";
/// Metrics of the panels that the dashboard begins with, before those of the hub's parts.
const FIRST: [&str; 12] = [
    "muster_fleet_deployments",
    "muster_fleet_targets",
    "muster_fleet_overdue",
    "muster_fleet_missing_reports",
    "muster_fleet_silent_sites",
    "muster_fleet_silent_devices",
    "muster_rollup_pulse_age_seconds",
    "muster_fleet_oldest_silence_seconds",
    "muster_ingest_quarantine_reports",
    "muster_rollup_view_lag_seconds",
    "muster_renewer_first_end_timestamp_seconds",
    "muster_renewer_tokens_ending",
];
/// Panels of Grafana's dashboard share a grid of so many columns.
const COLUMNS: u64 = 24;

/// The names of all alerts.
fn alerts() -> BTreeSet<String> {
    let rules = prometheus::file("alerts.yaml");
    let names = rules.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

/// The panels of the dashboard.
fn panels() -> Vec<Value> {
    let dashboard = prometheus::file("grafana/dashboards/fleet.json");
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Runs promtool, which must succeed; what it says.
fn promtool(args: &[&str]) -> String {
    let output = Command::new(prometheus::tool(PROMTOOL).unwrap()).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "promtool {}: {said}", args.join(" "));
    said
}

#[test]
fn prometheus_accepts_its_files_and_the_rules_pass_their_tests() {
    if !prometheus::is_there(NAME) {
        return;
    }
    // The path of the rules is that of the container.
    let dir = tempfile::tempdir().unwrap();
    let rules = prometheus::folder().join("alerts.yaml");
    let config =
        prometheus::file("prometheus.yaml").replace("/etc/prometheus/alerts.yaml", rules.to_str().unwrap());
    let file = dir.path().join("prometheus.yaml");
    std::fs::write(&file, config).unwrap();
    let said = promtool(&["check", "config", file.to_str().unwrap()]);
    assert!(said.contains(&format!("{} rules found", alerts().len())), "{said}");
    promtool(&["test", "rules", prometheus::folder().join("alerts_test.yaml").to_str().unwrap()]);
}

#[test]
fn every_alert_has_a_rule_test_and_a_row_in_the_guide() {
    let tests = prometheus::file("alerts_test.yaml");
    let guide = std::fs::read_to_string(prometheus::folder().join("../../services/README.md")).unwrap();
    for alert in alerts() {
        let tested = tests.matches(&format!("alertname: {alert}\n")).count();
        assert!(tested > 0, "alerts_test.yaml does not let {alert} fire");
        assert!(guide.contains(&format!("\n| `{alert}` | ")), "services/README.md has no row for {alert}");
    }
}

#[test]
fn the_dashboard_begins_with_the_state_of_deployments_and_devices() {
    let mut panels = panels();
    panels.sort_by_key(|panel| ["y", "x"].map(|axis| panel["gridPos"][axis].as_u64()));
    let queries = |panel: &Value| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect::<String>()
    };
    let place = |metric: &str| panels.iter().position(|panel| queries(panel).contains(metric)).unwrap();
    let places = FIRST.map(place);
    assert_eq!(places[..2], [0, 1], "deployments by verdict, then targets by standing and freshness");
    let hub = ["muster_ingest_lag", "muster_rollup_lag_messages", "muster_link_faults_total"].map(place);
    assert!(places.iter().max() < hub.iter().min(), "{places:?}, then {hub:?}");
}

/// The places that do not fit Grafana's model of dashboards.
fn faults(dashboard: &Value) -> Vec<String> {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/grafana-dashboard.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    schema.iter_errors(dashboard).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn the_dashboard_fits_grafanas_model_of_dashboards() {
    let dashboard = prometheus::file("grafana/dashboards/fleet.json");
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    assert_eq!(faults(&dashboard), Vec::<String>::new());
    for (path, wrong) in [
        ("/panels/0/gridPos/w", json!(25)),
        ("/panels/0/targets/0/expr", json!(1)),
        ("/panels/1/fieldConfig", json!({ "defaults": { "units": "s" } })),
        ("/panels/2/type", json!("graph")),
        ("/refresh", json!("soon")),
    ] {
        let mut broken = dashboard.clone();
        *broken.pointer_mut(path).unwrap() = wrong;
        let faults = faults(&broken);
        assert!(faults.len() == 1 && faults[0].starts_with(path), "{path}: {faults:?}");
    }
}

/// The fields that the types which Grafana publishes do not know.
fn unknown_to_grafana(dashboard: &Value) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/alerts/dashboard_model.py");
    let mut types = Command::new(interpreter())
        .arg(script)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    serde_json::to_writer(types.stdin.take().unwrap(), dashboard).unwrap();
    let output = types.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn grafanas_published_types_know_every_field_of_the_dashboard() {
    let mut dashboard: Value =
        serde_json::from_str(&prometheus::file("grafana/dashboards/fleet.json")).unwrap();
    assert_eq!(unknown_to_grafana(&dashboard), "");
    dashboard["panels"][1]["fieldConfig"]["defaults"]["units"] = json!("s");
    assert_eq!(unknown_to_grafana(&dashboard), "/panels/1/fieldConfig/defaults/units");
}

#[test]
fn the_dashboard_is_one_that_grafana_can_show() {
    not_run(
        "Grafana",
        "no package registry has it: panels are checked one by one, and their queries run on Prometheus",
    );
    let provisioned = |path: &str| -> Value { serde_norway::from_str(&prometheus::file(path)).unwrap() };
    let boards = provisioned("grafana/provisioning/dashboards/fleet.yaml");
    assert_eq!(boards["providers"][0]["type"], "file", "{boards}");
    let source = provisioned("grafana/provisioning/datasources/prometheus.yaml");
    let sources: Vec<&str> = source["datasources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|source| source["uid"].as_str().unwrap())
        .collect();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: another panel has its id");
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()), "{title}");
        let uid = panel["datasource"]["uid"].as_str().unwrap();
        assert!(sources.contains(&uid), "{title}: no data source has the uid {uid}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= COLUMNS, "{title} is wider than the grid");
        let own = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        own.for_each(|cell| assert!(cells.insert(cell), "{title} covers another panel at {cell:?}"));
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert!(!targets.is_empty() && names.len() == targets.len(), "{title}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_and_clear_on_a_running_fleet_and_every_panel_has_data() {
    if !prometheus::is_there(NAME) {
        return;
    }
    let mut fleet = Fleet::start().await;
    fleet.none_fires().await;
    for panel in panels() {
        for target in panel["targets"].as_array().unwrap() {
            fleet.has_series(target["expr"].as_str().unwrap()).await;
        }
    }
    breakage::devices_and_deployments(&mut fleet).await;
    breakage::services(&mut fleet).await;
    breakage::server(&mut fleet).await;
    breakage::ledger(&mut fleet).await;
    breakage::reports_and_facts_wait(&mut fleet).await;
    assert_eq!(fleet.fired, alerts(), "each alert fires on a fleet, and clears");
}
