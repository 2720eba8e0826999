//! Dashboards and alerts look at metrics that exist; Prometheus' own tool takes its files, where that is installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_tests::containers::{Stack, docker};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose/observe")
}

/// Names of metrics in a text: words that begin with `muster_`.
fn metrics(text: &str) -> BTreeSet<String> {
    let word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let words = text.split(|byte| !word(byte)).filter(|name| name.starts_with("muster_"));
    words.map(str::to_owned).collect()
}

pub(super) fn every_metric_that_is_looked_at_is_there(stack: &Stack) {
    let mut there = BTreeSet::new();
    for service in ["publisher", "ingest", "rollup", "planner", "renewer", "link", "admit", "agent"] {
        let id = stack.containers(service).remove(0);
        there.extend(metrics(&docker(&["exec", &id, "/bin/muster-probe", "127.0.0.1:9100", "/metrics"])));
    }
    let files = ["alerts.yaml", "grafana/dashboards/fleet.json"];
    let asked: BTreeSet<String> = files
        .iter()
        .flat_map(|file| metrics(&std::fs::read_to_string(folder().join(file)).unwrap()))
        .collect();
    assert!(asked.len() > 8, "{asked:?}");
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "nobody has {missing:?}");
}

#[test]
fn prometheus_takes_its_files_and_the_alerts_say_what_happens() {
    let version = Command::new("promtool").arg("--version").output();
    assert!(version.is_ok(), "promtool is not installed: .ci/engine installs Debian's prometheus");
    // The path of the rules is that of the container.
    let dir = tempfile::tempdir().unwrap();
    let rules = folder().join("alerts.yaml");
    let config = std::fs::read_to_string(folder().join("prometheus.yaml")).unwrap();
    let file = dir.path().join("prometheus.yaml");
    std::fs::write(&file, config.replace("/etc/prometheus/alerts.yaml", rules.to_str().unwrap())).unwrap();
    let checked = Command::new("promtool").args(["check", "config"]).arg(&file).output().unwrap();
    let said =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    assert!(said.contains("15 rules found"), "{said}");
    let tests = folder().join("alerts_test.yaml");
    let tested = Command::new("promtool").args(["test", "rules"]).arg(tests).output().unwrap();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stdout));
    let dashboard = std::fs::read(folder().join("grafana/dashboards/fleet.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
}
