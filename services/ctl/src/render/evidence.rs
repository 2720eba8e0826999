//! The table of evidence: targets by origin and fidelity of their last report, if some device does not send every change itself.

use muster_contract::evidence::{EvidenceCounts, by_origin, left_out};

use super::colour::{DIM, UNSURE};
use super::table::{Cell, Table};

/// The table after an empty line; empty if every device sends every change. The last column adds up to all targets.
pub(super) fn table(counts: &EvidenceCounts, targets: u64, width: Option<usize>) -> String {
    if by_origin(counts).next().is_none() {
        return String::new();
    }
    let mut table = Table::new(&["EVIDENCE BY", ">EVENT", ">SNAPSHOT", ">SAMPLED", ">TARGETS"]);
    for (origin, row) in by_origin(counts) {
        let [event, snapshot, sampled] = row.map(|count| Cell::marked(count, UNSURE));
        table.row([origin.as_str().into(), event, snapshot, sampled, Cell::count(row.iter().sum())]);
    }
    let of_all = |name: Cell, count: u64| [name, "".into(), "".into(), "".into(), Cell::count(count)];
    table.row(of_all("every change sent, or no report".into(), left_out(counts, targets)));
    table.row(of_all(Cell::styled("all targets", DIM), targets));
    format!("\n{}", table.within(width))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_contract::evidence::{Fidelity, Provenance};

    use super::*;

    #[test]
    fn origins_and_fidelities_add_up_to_the_targets() {
        let counts = EvidenceCounts::from([
            (Provenance::Push, BTreeMap::from([(Fidelity::Snapshot, 2)])),
            (Provenance::Pull, BTreeMap::from([(Fidelity::Sampled, 3)])),
        ]);
        let shown = anstream::adapter::strip_str(&table(&counts, 120, None)).to_string();
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["push", "-", "2", "-", "2"], "{shown}");
        assert_eq!(lines[3], ["pull", "-", "-", "3", "3"], "{shown}");
        assert!(shown.contains("every change sent, or no report") && lines[4].ends_with(&["115"]), "{shown}");
        assert_eq!(lines[5], ["all", "targets", "120"], "{shown}");
    }

    #[test]
    fn there_is_no_table_if_every_device_sends_every_change() {
        assert_eq!(table(&EvidenceCounts::new(), 120, None), "");
    }
}
