//! The closing table of the bench, as text and as JSON.

use muster_tests::bench::HubKind;
use muster_tests::hostile::bounds::REPORTS_PER_SECOND;
use muster_tests::hostile::hub::SERVER;
use muster_tests::hostile::outcome::Outcome;
use muster_tests::hostile::trial::Settings;
use muster_tests::system::{INGEST, ROLLUP};
use serde_json::{Value, json};

const HEADER: &str = "| flood | LEDGER p50 ms | LEDGER p99 ms | view p99 ms | not in view | refused | server MB | ingest MB | rollup MB | LEDGER + messages | LEDGER + MB | views | out of bounds |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|";

/// The table and what each attacker did, as text.
pub(crate) fn render(settings: &Settings, calm: &Outcome, outcomes: &[Outcome]) -> String {
    let about = format!(
        "{} good devices with {REPORTS_PER_SECOND} reports/s each, {} s of each flood, each on a fresh hub",
        settings.good_devices,
        settings.time.as_secs()
    );
    let lines = [calm].into_iter().chain(outcomes).map(|outcome| line(outcome, calm));
    let details = outcomes.iter().map(|outcome| details(outcome, calm));
    let (lines, details): (Vec<_>, Vec<_>) = (lines.collect(), details.collect());
    format!("{about}\n\n{HEADER}\n{}\n\n{}", lines.join("\n"), details.join("\n"))
}

/// One line of the table.
pub(crate) fn line(outcome: &Outcome, calm: &Outcome) -> String {
    let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
    let memory = |name: &str| outcome.memory.get(name).map_or_else(String::new, |bytes| megabytes(*bytes));
    let broken = outcome.broken_counts(calm).len() + outcome.broken_latencies(calm).len();
    let cells = [
        outcome.name(),
        format!("{:.1}", outcome.ledger.p50),
        format!("{:.1}", outcome.ledger.p99),
        format!("{:.1}", outcome.view.p99),
        format!("{} of {}", outcome.reports - outcome.in_view, outcome.reports),
        outcome.refused.to_string(),
        memory(SERVER),
        memory(INGEST),
        memory(ROLLUP),
        outcome.ledger_messages.to_string(),
        megabytes(outcome.ledger_bytes),
        outcome.views.to_string(),
        if broken == 0 { "none".to_owned() } else { broken.to_string() },
    ];
    format!("| {} |", cells.join(" | "))
}

/// The attack, and the bounds that it broke.
pub(crate) fn details(outcome: &Outcome, calm: &Outcome) -> String {
    let mut parts = vec![outcome.attack.clone(), outcome.afterwards.clone()];
    parts.extend(outcome.facts.refusal.iter().map(|reason| format!("in quarantine: {reason}")));
    parts.extend(broken(outcome, calm).into_iter().map(|text| format!("out of bounds: {text}")));
    parts.retain(|part| !part.is_empty());
    format!("- {}: {}", outcome.name(), parts.join("; "))
}

/// The same for programs.
pub(crate) fn json(settings: &Settings, hub: HubKind, calm: &Outcome, outcomes: &[Outcome]) -> String {
    let outcome = |outcome: &Outcome| {
        let mut value = json!(outcome);
        value["outOfBounds"] = Value::from(broken(outcome, calm));
        value
    };
    let floods: Vec<_> = outcomes.iter().map(outcome).collect();
    let all = json!({ "hub": hub.to_string(), "goodDevices": settings.good_devices, "reportsPerSecond": REPORTS_PER_SECOND,
        "seconds": settings.time.as_secs(), "calm": outcome(calm), "floods": floods });
    format!("{all:#}\n")
}

fn broken(outcome: &Outcome, calm: &Outcome) -> Vec<String> {
    [outcome.broken_counts(calm), outcome.broken_latencies(calm)].concat()
}
