//! The closing table: figures with their spread, and ratios.

use muster_tests::bench::{ratio, thousands};

use super::agents::AGENTS;
use super::load::{DEVICES, EVENTS_PER_SECOND, Latency, SHARED_DEPLOYMENTS};
use super::secured::Rates;
use super::{BareRates, Figures, Latencies};

/// The least share of an open hub's rate that a secured hub reaches: security may cost a quarter.
const SECURED_SHARE_MIN: f64 = 0.75;

/// The table as text.
pub(crate) fn render(reports: usize, rounds: usize, figures: &Figures) -> String {
    let Figures { document_rates, raw_rates, attributed_rates, alike_rates, different_rates, .. } = figures;
    let Latencies { raw, muster, agents, keeping } = &figures.latencies;
    let mut lines = vec![
        format!(
            "{reports} reports of {DEVICES} devices, median of {rounds} rounds (spread = (max - min) / median)"
        ),
        String::new(),
        "| from report to fold and view | documents alone | the same messages | messages of 0.1 | Muster | ratio |"
            .to_owned(),
        "|---|---:|---:|---:|---:|---:|".to_owned(),
        rates_line(
            &format!("{SHARED_DEPLOYMENTS} deployments"),
            [document_rates, raw_rates, attributed_rates, alike_rates],
        ),
        rates_line(
            "a deployment for each device",
            [document_rates, raw_rates, attributed_rates, different_rates],
        ),
    ];
    for (name, share) in [("p50", 500), ("p99", 990)] {
        lines.push(latency_line(&format!("latency {name}"), share, raw, muster));
        lines.push(latency_line(&format!("agent to view {name}"), share, raw, agents));
    }
    lines.extend(secured_lines(figures));
    let [raw, muster, agents] = [raw, muster, agents].map(Latency::samples);
    lines.push(String::new());
    lines.push(format!(
        "Ratios are to the hops with documents alone, in brackets to those with the same messages. Latency at {EVENTS_PER_SECOND} events/s, {raw} and {muster} events: from publish to the last hop's reader, and to a watcher of the view. Beside them {AGENTS} agents, {agents} events: from before a report is kept on the device's disk, which alone takes {:.2} (p50) and {:.2} ms (p99).",
        keeping.per_mille(500),
        keeping.per_mille(990)
    ));
    lines.join("\n")
}

/// The rates of the same work on secured hubs, beside an open one in the same rounds.
fn secured_lines(figures: &Figures) -> Vec<String> {
    let Rates { bare, alike, different, followed, lag } = &figures.secured;
    let line = |what: &str, open: &[f64], secured: &[f64]| {
        let share = ratio(secured, open);
        let missed = if share < SECURED_SHARE_MIN { " (MISSED)" } else { "" };
        format!("| {what} | {} | {} | {share:.2}{missed} |", thousands(open), thousands(secured))
    };
    let lag = Latency::of_samples(lag.clone());
    vec![
        String::new(),
        "| Muster, events/s | hub open | hub secured | ratio |".to_owned(),
        "|---|---:|---:|---:|".to_owned(),
        line(&format!("{SHARED_DEPLOYMENTS} deployments, no mirrors"), &figures.alike_rates, bare),
        line(&format!("{SHARED_DEPLOYMENTS} deployments, mirrors"), &figures.alike_rates, alike),
        line("a deployment for each device, mirrors", &figures.different_rates, different),
        line(
            &format!("{SHARED_DEPLOYMENTS} deployments, a mirror is followed"),
            &figures.alike_rates,
            followed,
        ),
        String::new(),
        format!(
            "A secured hub shall reach {SECURED_SHARE_MIN} of an open one. Mirrors against none, both secured: {:.2}. At this rate a fact is in the mirror {:.1} ms (p50) and {:.1} ms (p99) after LEDGER has it, {} samples.",
            ratio(alike, bare),
            lag.per_mille(500),
            lag.per_mille(990),
            lag.samples(),
        ),
    ]
}

/// The rates of the bare hops.
pub(crate) fn render_bare(reports: usize, rounds: usize, rates: &BareRates) -> String {
    let [documents, same, attributed] = rates;
    let shares = [same, attributed].map(|rates| format!("{:.2}", ratio(rates, documents)));
    let figures = rates.each_ref().map(|rates| thousands(rates)).join(" | ");
    [
        format!("{reports} reports of {DEVICES} devices over the bare hops, median of {rounds} rounds"),
        String::new(),
        "| documents alone | the same messages | messages of 0.1 | of documents alone |".to_owned(),
        "|---:|---:|---:|---:|".to_owned(),
        format!("| {figures} | {} |", shares.join(" and ")),
    ]
    .join("\n")
}

/// The latencies of several runs, a row each.
pub(crate) fn render_latencies(runs: &[Latencies]) -> String {
    let of = |latency: &Latency| {
        let shares = [500, 990, 999, 1000].map(|share| format!("{:.1}", latency.per_mille(share)));
        shares.join(", ")
    };
    let row = |(run, Latencies { raw, muster, agents, keeping }): (usize, &Latencies)| {
        format!("| {run} | {} | {} | {} | {} |", of(raw), of(muster), of(agents), of(keeping))
    };
    let head = [
        format!("Latency at {EVENTS_PER_SECOND} events/s in ms: p50, p99, p99.9, most"),
        String::new(),
        "| run | bare hops | from publish to the view | from an agent to the view | of that: kept by the agent |"
            .to_owned(),
        "|---:|---:|---:|---:|---:|".to_owned(),
    ];
    head.into_iter().chain((1..).zip(runs).map(row)).collect::<Vec<_>>().join("\n")
}

fn rates_line(fleet: &str, [documents, raw, attributed, muster]: [&[f64]; 4]) -> String {
    let (share, ratio) = (ratio(muster, documents), ratio(muster, raw));
    let figures = [documents, raw, attributed, muster].map(thousands).join(" | ");
    format!("| events/s, {fleet} | {figures} | {share:.2} ({ratio:.2}) |")
}

fn latency_line(name: &str, share: usize, raw: &Latency, muster: &Latency) -> String {
    let (raw, muster) = (raw.per_mille(share), muster.per_mille(share));
    format!("| {name}, ms | | {raw:.2} | | {muster:.2} | {:.2} |", muster / raw)
}
