//! The demo's closing words for a person: three lines. For programs the tally itself is the answer.

use crate::tally::{Tally, TimeToTruth};

/// Whether it converged, what was done to it, and how long the truth took.
pub fn words(tally: &Tally) -> String {
    format!("{}\n{}\n{}\n", outcome(tally), deeds(tally), truth(&tally.time_to_truth))
}

fn outcome(tally: &Tally) -> String {
    let (fresh, of) = (tally.devices.fresh, tally.devices.total());
    let (missing, head) = (tally.accounting.missing, tally.accounting.head);
    let there = tally.deployments.iter().filter(|deployment| deployment.is_converged()).count();
    let word = if tally.converged { "Converged" } else { "Not converged" };
    format!(
        "{word}: {fresh} of {of} devices are fresh, {there} of {} deployments have converged, {missing} of {head} reports are missing.",
        tally.deployments.len()
    )
}

fn deeds(tally: &Tally) -> String {
    let (links, commits, seed) = (tally.links, tally.commits, tally.seed);
    format!(
        "In {} s: {} cuts and {} stalls of links, {} releases ({} refused on purpose); --seed {seed} repeats the faults.",
        tally.seconds, links.cuts, links.stalls, commits.made, commits.bad
    )
}

fn truth(time: &TimeToTruth) -> String {
    let all = time.samples + time.unresolved;
    let told = match (time.p50_ms, time.p99_ms) {
        (Some(half), Some(most)) => {
            format!("{half} ms at most in half of {all} cuts, {most} ms in 99 of 100")
        }
        (Some(half), None) => format!("{half} ms at most in half of {all} cuts, no bound in 99 of 100"),
        _ if all > 0 => format!("no bound in half of {all} cuts"),
        _ => "no cut was measured".to_owned(),
    };
    let unresolved = match time.unresolved {
        0 => String::new(),
        count => format!("; {count} of them ended unresolved, with the next fault or with the run"),
    };
    format!(
        "Time to truth, from a device's new connection after a cut until the hub knows all about it: {told}{unresolved}; after {} cuts the hub had missed nothing.",
        time.known_at_once
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_contract::view::Split;

    use super::*;
    use crate::tally::{Accounting, Commits, Faults};

    fn tally(converged: bool, time_to_truth: TimeToTruth) -> Tally {
        Tally {
            converged,
            seed: 7,
            seconds: 45,
            devices: Split { fresh: 19, stale: 1, never: 0 },
            deployments: Vec::new(),
            accounting: Accounting { head: 90, received: 87, missing: 3, ..Accounting::default() },
            links: Faults { cuts: 30, stalls: 9 },
            commits: Commits { made: 5, bad: 1 },
            time_to_truth,
        }
    }

    #[test]
    fn three_lines_say_how_it_went() {
        let time = TimeToTruth::of(4, 0, vec![Duration::from_millis(120), Duration::from_millis(900)]);
        let expected = "\
Not converged: 19 of 20 devices are fresh, 0 of 0 deployments have converged, 3 of 90 reports are missing.
In 45 s: 30 cuts and 9 stalls of links, 5 releases (1 refused on purpose); --seed 7 repeats the faults.
Time to truth, from a device's new connection after a cut until the hub knows all about it: 120 ms at most in half of \
2 cuts, 900 ms in 99 of 100; after 4 cuts the hub had missed nothing.
";
        assert_eq!(words(&tally(false, time)), expected);
        let unmeasured = words(&tally(true, TimeToTruth::of(0, 0, Vec::new())));
        assert!(
            unmeasured.starts_with("Converged: ") && unmeasured.contains("no cut was measured"),
            "{unmeasured}"
        );
    }

    #[test]
    fn what_was_not_resolved_is_told() {
        let told = |unresolved| truth(&TimeToTruth::of(4, unresolved, vec![Duration::from_millis(120)]));
        let one = told(1);
        for part in ["120 ms at most in half of 2 cuts, no bound in 99", "1 of them ended unresolved"] {
            assert!(one.contains(part), "{part} is missing: {one}");
        }
        assert!(told(9).contains("no bound in half of 10 cuts; 9 of them"), "{}", told(9));
        assert!(!told(0).contains("unresolved"), "{}", told(0));
    }
}
