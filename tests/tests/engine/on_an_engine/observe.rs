//! The fleet in containers has every metric that dashboards and alerts ask for.

use std::collections::BTreeSet;

use muster_tests::containers::{Stack, docker};
use muster_tests::prometheus;

/// Names of metrics in a text: words that begin with `muster_`.
fn metrics(text: &str) -> BTreeSet<String> {
    let word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let words = text.split(|byte| !word(byte)).filter(|name| name.starts_with("muster_"));
    words.map(str::to_owned).collect()
}

pub(super) fn every_metric_that_is_looked_at_is_there(stack: &Stack) {
    let mut there = BTreeSet::new();
    for service in
        ["publisher", "ingest", "rollup", "planner", "gateway", "renewer", "link", "admit", "agent"]
    {
        let id = stack.containers(service).remove(0);
        there.extend(metrics(&docker(&["exec", &id, "/bin/muster-probe", "127.0.0.1:9100", "/metrics"])));
    }
    let files = ["alerts.yaml", "grafana/dashboards/fleet.json"];
    let asked: BTreeSet<String> = files.iter().flat_map(|file| metrics(&prometheus::file(file))).collect();
    assert!(asked.len() > 8, "{asked:?}");
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "nobody has {missing:?}");
}
