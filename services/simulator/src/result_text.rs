//! The result of the demo as text: three lines, and one for each rollout. Programs read its JSON.

use crate::result::{DemoResult, RolloutResult, TimeToTruth};

/// Whether it converged, the faults and commits, the rollouts, and the times to truth.
pub(crate) fn text(result: &DemoResult) -> String {
    let rollouts: String = result.rollouts.iter().map(rollout_text).collect();
    let time = time_to_truth_text(&result.time_to_truth);
    format!("{}\n{}\n{rollouts}{time}\n", outcome(result), faults_text(result))
}

fn rollout_text(rollout: &RolloutResult) -> String {
    let RolloutResult { release, word, why, waves, .. } = rollout;
    let targets = |has_begun: bool| -> u64 {
        let some = waves.iter().filter(|wave| wave.has_begun || !has_begun);
        some.map(|wave| wave.targets).sum()
    };
    let (released, all) = (targets(true), targets(false));
    format!("Release {release} {}; it went to {released} of {all} devices: {why}.\n", word.words())
}

fn outcome(result: &DemoResult) -> String {
    let (fresh, of) = (result.devices.fresh, result.devices.total());
    let (missing, head) = (result.accounting.missing, result.accounting.head);
    let there = result.deployments.iter().filter(|deployment| deployment.is_converged()).count();
    let word = if result.converged { "Converged" } else { "Not converged" };
    format!(
        "{word}: {fresh} of {of} devices are fresh, {there} of {} deployments have converged, {missing} of {head} reports are missing.",
        result.deployments.len()
    )
}

fn faults_text(result: &DemoResult) -> String {
    let (links, commits, seed) = (result.links, result.commits, result.seed);
    format!(
        "In {} s: {} cuts and {} stalls of links, {} releases ({} refused on purpose); --seed {seed} repeats the faults.",
        result.seconds, links.cuts, links.stalls, commits.made, commits.bad
    )
}

fn time_to_truth_text(time: &TimeToTruth) -> String {
    let all = time.samples + time.unresolved;
    let bounds = match (time.p50_ms, time.p99_ms) {
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
        "Time to truth, from a device's new connection after a cut until the hub knows all about it: {bounds}{unresolved}; after {} cuts the hub had missed nothing.",
        time.known_at_once
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_contract::rollout::RolloutPhase;
    use muster_contract::view::Split;

    use super::*;
    use crate::result::{Accounting, Commits, Faults, WaveResult};

    fn result(converged: bool, time_to_truth: TimeToTruth) -> DemoResult {
        DemoResult {
            converged,
            seed: 7,
            seconds: 45,
            devices: Split { fresh: 19, stale: 1, never: 0 },
            deployments: Vec::new(),
            accounting: Accounting { head: 90, received: 87, missing: 3, ..Accounting::default() },
            links: Faults { cuts: 30, stalls: 9 },
            commits: Commits { made: 5, bad: 1 },
            rollouts: Vec::new(),
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
        assert_eq!(text(&result(false, time)), expected);
        let unmeasured = text(&result(true, TimeToTruth::of(0, 0, Vec::new())));
        assert!(
            unmeasured.starts_with("Converged: ") && unmeasured.contains("no cut was measured"),
            "{unmeasured}"
        );
    }

    #[test]
    fn a_rollout_has_a_line_with_its_reason() {
        let wave = |name: &str, targets, has_begun| WaveResult { name: name.to_owned(), targets, has_begun };
        let rollout = RolloutResult {
            release: 4,
            id: "telemetry@sha256:1a".to_owned(),
            word: RolloutPhase::RolledBack,
            why: "wave canary has failed: too many failures (site-1/device-1)".to_owned(),
            waves: vec![wave("canary", 1, true), wave("rest", 19, false)],
            has_ended: true,
        };
        let text = text(&DemoResult { rollouts: vec![rollout], ..result(true, TimeToTruth::default()) });
        let line = "Release 4 is rolled back; it went to 1 of 20 devices: wave canary has failed: too many failures \
                    (site-1/device-1).";
        assert_eq!(text.lines().nth(2), Some(line), "{text}");
    }

    #[test]
    fn the_text_counts_unresolved_cuts() {
        let text = |unresolved| {
            time_to_truth_text(&TimeToTruth::of(4, unresolved, vec![Duration::from_millis(120)]))
        };
        let one = text(1);
        for part in ["120 ms at most in half of 2 cuts, no bound in 99", "1 of them ended unresolved"] {
            assert!(one.contains(part), "{part} is missing: {one}");
        }
        assert!(text(9).contains("no bound in half of 10 cuts; 9 of them"), "{}", text(9));
        assert!(!text(0).contains("unresolved"), "{}", text(0));
    }
}
