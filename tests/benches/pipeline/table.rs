//! The closing table: figures with their spread, and ratios.

use muster_tests::bench::{median, thousands};

use super::Figures;
use super::load::{DEVICES, EVENTS_PER_SECOND, Latency};

/// The table as text.
pub(crate) fn render(reports: usize, rounds: usize, figures: &Figures) -> String {
    let Figures { raw_rates, muster_rates, raw_latency, muster_latency } = figures;
    let ratio = median(muster_rates) / median(raw_rates);
    let mut lines = vec![
        format!(
            "{reports} reports of {DEVICES} devices, median of {rounds} rounds (spread = (max - min) / median)"
        ),
        String::new(),
        "| from report to view | bare hops | Muster | ratio |".to_owned(),
        "|---|---:|---:|---:|".to_owned(),
        format!("| events/s | {} | {} | {ratio:.2} |", thousands(raw_rates), thousands(muster_rates)),
    ];
    for (name, share) in [("p50", 500), ("p99", 990)] {
        lines.push(latency_line(name, share, raw_latency, muster_latency));
    }
    let samples = (raw_latency.samples(), muster_latency.samples());
    lines.push(String::new());
    lines.push(format!(
        "Latency at {EVENTS_PER_SECOND} events/s, {} and {} events: from publish to the last hop's reader, and to a watcher of the view.",
        samples.0, samples.1
    ));
    lines.join("\n")
}

fn latency_line(name: &str, share: usize, raw: &Latency, muster: &Latency) -> String {
    let (raw, muster) = (raw.per_mille(share), muster.per_mille(share));
    format!("| latency {name}, ms | {raw:.2} | {muster:.2} | {:.2} |", muster / raw)
}
