//! The closing table: rates with their spread, and ratios.

use muster_tests::bench::{median, ratio, spread};

use super::{Figures, GROUP, Pair};

/// The table as text.
pub(crate) fn render(kept: usize, rounds: usize, figures: &Figures) -> String {
    let lines = [
        format!(
            "{kept} reports a round in rows of {} bytes with standings of {}, median of {rounds} rounds (spread = (max - min) / median)",
            figures.row_bytes, figures.standing_bytes
        ),
        String::new(),
        "| durable reports/s | bare SQLite | outbox | ratio |".to_owned(),
        "|---|---:|---:|---:|".to_owned(),
        line("one at a time", &figures.single),
        line(&format!("{GROUP} in one transaction"), &figures.grouped),
        line(&format!("{GROUP} callers, each waits for its own"), &figures.waiting),
        pages(figures.pages),
        String::new(),
        format!(
            "The disk makes 4 KiB durable in {:.2} ms (written over) and {:.2} ms (file grows).",
            figures.syncs.0.as_secs_f64() * 1000.0,
            figures.syncs.1.as_secs_f64() * 1000.0
        ),
    ];
    lines.join("\n")
}

fn line(name: &str, Pair { bare, outbox }: &Pair) -> String {
    let ratio = ratio(outbox, bare);
    format!("| {name} | {} | {} | {ratio:.2} |", rate(bare), rate(outbox))
}

fn pages((bare, outbox): (f64, f64)) -> String {
    format!("| pages of the log a report | {bare:.1} | {outbox:.1} | {:.2} |", outbox / bare)
}

fn rate(rates: &[f64]) -> String {
    format!("{:.0} (± {:.0} %)", median(rates), spread(rates))
}
