//! Asks the checks behind waves, each by its interval, until all of them have passed or one has failed.
//!
//! The answers in between are this process's alone: a planner that starts anew begins the count again. Rounds do not wait for
//! answers: each question runs in a task of its own, which ends with its time limit or once the wave is no longer checked.

use std::collections::BTreeMap;

use muster_contract::rollout::{Check, CheckRequest, CheckResult};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::asker::{Asker, CheckOutcome};
use crate::metrics::Metrics;
use crate::rollouts::RolloutKey;
use crate::services::Requests;

/// A wave of a rollout.
type WaveKey = (RolloutKey, String);

/// The checks of all waves that are being checked.
pub(crate) struct Checks<R> {
    asker: Asker<R>,
    metrics: Metrics,
    waves: BTreeMap<WaveKey, Vec<Run>>,
}

/// One check and its answers.
struct Run {
    check: Check,
    answers: Answers,
    /// The time of the next question.
    due: Instant,
    asked: Option<AbortOnDropHandle<CheckOutcome>>,
}

/// The answers to one check so far.
#[derive(Debug, Default)]
struct Answers {
    /// Passes in a row.
    passes: u32,
    last: Option<CheckOutcome>,
}

impl<R: Requests> Checks<R> {
    /// No checks.
    pub(crate) const fn new(asker: Asker<R>, metrics: Metrics) -> Self {
        Self { asker, metrics, waves: BTreeMap::new() }
    }

    /// Collects the answers that have come, and asks the checks that are due. Returns the result of the wave's checks, if there is
    /// one, and the reason.
    pub(crate) async fn advance(
        &mut self,
        wave: WaveKey,
        checks: &[Check],
        question: &CheckRequest,
    ) -> Option<(CheckResult, String)> {
        let runs = self.waves.entry(wave.clone()).or_default();
        // A commit may have changed the checks of a running wave.
        if !runs.iter().map(|run| &run.check).eq(checks) {
            *runs = checks.iter().cloned().map(Run::new).collect();
        }
        for run in runs.iter_mut() {
            run.collect(&self.metrics).await;
            run.ask(&self.asker, question);
        }
        let result = result_of(runs);
        if result.as_ref().is_some_and(|(result, _)| *result != CheckResult::Inconclusive) {
            self.waves.remove(&wave);
        }
        result
    }

    /// Ends the checks of all waves but these.
    pub(crate) fn retain(&mut self, is_checked: impl Fn(&WaveKey) -> bool) {
        self.waves.retain(|wave, _| is_checked(wave));
    }
}

impl Run {
    fn new(check: Check) -> Self {
        Self { check, answers: Answers::default(), due: Instant::now(), asked: None }
    }

    /// Collects the answer, if it has come.
    async fn collect(&mut self, metrics: &Metrics) {
        let Some(asked) = self.asked.take_if(|asked| asked.is_finished()) else { return };
        let outcome =
            asked.await.unwrap_or_else(|_| CheckOutcome::inconclusive("the question was interrupted"));
        metrics.checks.inc();
        let is_inconclusive = outcome.result == CheckResult::Inconclusive;
        metrics.inconclusive.inc_by(u64::from(is_inconclusive));
        // A check without an answer is asked for days: each reason is logged once.
        if is_inconclusive && self.answers.last.as_ref() != Some(&outcome) {
            let (check, reason) = (self.check.name(), &outcome.reason);
            tracing::info!(check, reason, "a check was inconclusive");
        }
        self.answers.record(outcome);
    }

    /// Asks the check, if it is due.
    fn ask<R: Requests>(&mut self, asker: &Asker<R>, question: &CheckRequest) {
        let now = Instant::now();
        if self.asked.is_some() || self.due > now || self.answers.is_passed(self.check.count.get()) {
            return;
        }
        self.due = now + self.check.interval;
        let (asker, check, question) = (asker.clone(), self.check.clone(), question.clone());
        let asked = tokio::spawn(async move { asker.ask(&check, &question).await });
        self.asked = Some(AbortOnDropHandle::new(asked));
    }
}

impl Answers {
    fn record(&mut self, outcome: CheckOutcome) {
        self.passes = if outcome.result == CheckResult::Pass { self.passes.saturating_add(1) } else { 0 };
        self.last = Some(outcome);
    }

    const fn is_passed(&self, count: u32) -> bool {
        self.passes >= count
    }
}

/// The result of a wave's checks: failed if one failed, else inconclusive if one is, else passed; `None` before all have ended.
fn result_of(runs: &[Run]) -> Option<(CheckResult, String)> {
    let with = |result: CheckResult| {
        let is_such = |run: &&Run| run.answers.last.as_ref().is_some_and(|last| last.result == result);
        let run = runs.iter().find(is_such)?;
        let reason = run.answers.last.as_ref().map_or("", |last| &last.reason);
        Some((result, format!("{} is {}: {reason}", run.check.name(), result.as_str())))
    };
    let passed = || {
        let are_passed = runs.iter().all(|run| run.answers.is_passed(run.check.count.get()));
        let names: Vec<_> = runs.iter().map(|run| run.check.name()).collect();
        are_passed.then(|| (CheckResult::Pass, format!("{} passed", names.join(", "))))
    };
    with(CheckResult::Fail).or_else(|| with(CheckResult::Inconclusive)).or_else(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(count: u32, answers: &[CheckResult]) -> Run {
        let check = serde_json::json!({ "request": "muster.check.smoke", "count": count });
        let mut run = Run::new(serde_json::from_value(check).unwrap());
        for result in answers {
            run.answers.record(CheckOutcome { result: *result, reason: "r".to_owned() });
        }
        run
    }

    fn result(runs: &[Run]) -> Option<CheckResult> {
        result_of(runs).map(|(result, _)| result)
    }

    #[tokio::test]
    async fn checks_pass_once_each_has_passed_so_often_in_a_row() {
        use CheckResult::{Fail, Inconclusive, Pass};
        assert_eq!(result(&[run(1, &[])]), None);
        assert_eq!(result(&[run(2, &[Pass])]), None);
        assert_eq!(result(&[run(2, &[Pass, Pass])]), Some(Pass));
        assert_eq!(result(&[run(2, &[Pass, Inconclusive, Pass])]), None, "an unknown begins the count again");
        assert_eq!(result(&[run(1, &[Pass]), run(1, &[])]), None);
        assert_eq!(result(&[run(1, &[Pass]), run(1, &[Inconclusive])]), Some(Inconclusive));
        assert_eq!(result(&[run(1, &[Inconclusive]), run(1, &[Fail])]), Some(Fail));
    }
}
