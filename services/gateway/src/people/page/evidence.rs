//! The table of evidence: targets by origin and fidelity of their last report, if some device does not send every change itself.

use maud::{Markup, html};
use muster_contract::evidence::{EvidenceCounts, Fidelity, by_origin, left_out};

use super::parts::{self, count, number};

/// The panel; nothing if every device sends every change. The last column adds up to all targets.
pub(super) fn panel(counts: &EvidenceCounts, targets: u64) -> Markup {
    let rows: Vec<_> = by_origin(counts).collect();
    if rows.is_empty() {
        return html! {};
    }
    let rest = left_out(counts, targets);
    let table = html! {
        table {
            thead { tr {
                th { "Last report by" }
                @for fidelity in Fidelity::ALL { th.right { (fidelity.as_str()) } }
                th.right { "Targets" }
            } }
            tbody {
                @for (origin, row) in &rows {
                    tr {
                        td.name { (origin.as_str()) }
                        @for (fidelity, count) in Fidelity::ALL.iter().zip(row) {
                            td.right.num data-label=(fidelity.as_str()) { (number(*count)) }
                        }
                        td.right.num data-label="targets" { (number(row.iter().sum())) }
                    }
                }
                (of_all("Every change sent, or no report", rest))
                (of_all("All targets", targets))
            }
        }
    };
    let sampled = html! { (number(targets.saturating_sub(rest))) " of " (count(targets, "target")) };
    parts::panel(html! { "Not every change is reported" }, sampled, None, table)
}

/// A row without fidelities.
fn of_all(name: &str, targets: u64) -> Markup {
    html! {
        tr {
            td.name colspan=(Fidelity::ALL.len() + 1) { (name) }
            td.right.num data-label="targets" { (number(targets)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_contract::evidence::Provenance;

    use super::*;

    #[test]
    fn origins_and_fidelities_add_up_to_the_targets() {
        let counts = EvidenceCounts::from([
            (Provenance::Push, BTreeMap::from([(Fidelity::Snapshot, 2)])),
            (Provenance::Pull, BTreeMap::from([(Fidelity::Sampled, 3)])),
        ]);
        let shown = panel(&counts, 120).into_string();
        assert!(shown.contains("5 of 120 targets"), "{shown}");
        let totals = shown.split("data-label=\"targets\">").skip(1);
        let totals: Vec<_> = totals.filter_map(|rest| rest.split('<').next()).collect();
        assert_eq!(totals, ["2", "3", "115", "120"], "{shown}");
        assert!(shown.contains("data-label=\"sampled\">3<"), "{shown}");
    }

    #[test]
    fn there_is_no_table_if_every_device_sends_every_change() {
        assert_eq!(panel(&EvidenceCounts::new(), 120).into_string(), "");
    }
}
