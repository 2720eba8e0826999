//! Asks the hooks of plans that wait for them: one plan's hooks one after another, several plans at once. It decides nothing, and a
//! planner that starts anew asks again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::limits::PLAN_HOOKS_MAX;
use muster_contract::rollout::CHECK_TIMEOUT;
use muster_contract::{PlanName, Timestamp};
use muster_domain::plans::{HookRun, PlansState};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::asker::Asker;
use crate::metrics::Metrics;
use crate::services::Requests;

/// Plans whose hooks are asked at once.
const RUNS_AT_ONCE: usize = 32;
/// Time before the hooks of a plan are asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The same, after answers that were new: more instances may wait for a node.
const SOON_AFTER: Duration = Duration::from_secs(1);
/// Time after which a run whose end is not known counts as lost.
const RUN_WITHIN: Duration = Duration::from_secs(600);

const _: () = assert!(CHECK_TIMEOUT.as_secs() * (PLAN_HOOKS_MAX as u64) < RUN_WITHIN.as_secs());

/// Asks hooks.
#[derive(Debug)]
pub(super) struct Hooks<R> {
    asker: Asker<R>,
    metrics: Metrics,
    running: JoinSet<HookRun>,
    /// The time from which the hooks of a plan may be asked again.
    again_at: BTreeMap<PlanName, Instant>,
}

impl<R: Requests> Hooks<R> {
    pub(super) fn new(asker: Asker<R>, metrics: Metrics) -> Self {
        Self { asker, metrics, running: JoinSet::new(), again_at: BTreeMap::new() }
    }

    /// Waits for the answers to the questions about a plan; forever if none are asked. Cancel-safe.
    pub(super) async fn answered(&mut self) -> Option<HookRun> {
        match self.running.join_next().await {
            Some(Ok(run)) => {
                self.again_at.insert(run.plan().clone(), Instant::now() + AGAIN_AFTER);
                Some(run)
            }
            Some(Err(error)) => {
                tracing::error!(%error, "cannot finish the questions to the hooks of a plan");
                None
            }
            None => std::future::pending().await,
        }
    }

    /// Lets the hooks of a plan be asked again soon.
    pub(super) fn ask_soon(&mut self, plan: &PlanName) {
        self.again_at.insert(plan.clone(), Instant::now() + SOON_AFTER);
    }

    /// Asks the hooks of the plans that wait for them and are due. This looks at each instance of each plan with hooks.
    pub(super) fn ask(&mut self, state: &mut PlansState, at: Timestamp) {
        let (now, awaiting) = (Instant::now(), state.awaiting_hooks());
        self.again_at.retain(|plan, _| awaiting.contains(plan));
        for plan in due(awaiting, &self.again_at, now) {
            if self.running.len() >= RUNS_AT_ONCE {
                break;
            }
            let run = state.hook_run(&plan, at);
            // The end of a run sets an earlier time.
            let until = if run.is_some() { RUN_WITHIN } else { SOON_AFTER };
            self.again_at.insert(plan, now + until);
            if let Some(run) = run {
                let (asker, metrics) = (self.asker.clone(), self.metrics.clone());
                self.running.spawn(asked(asker, metrics, run));
            }
        }
    }
}

/// The plans whose hooks may be asked now: those never asked first, then the ones that have been due longest.
fn due(awaiting: BTreeSet<PlanName>, again_at: &BTreeMap<PlanName, Instant>, now: Instant) -> Vec<PlanName> {
    let timed = awaiting.into_iter().map(|plan| (again_at.get(&plan).copied(), plan));
    let due: BTreeSet<_> = timed.filter(|(at, _)| at.is_none_or(|at| at <= now)).collect();
    due.into_iter().map(|(_, plan)| plan).collect()
}

/// Asks the hooks of a run until it ends.
async fn asked<R: Requests>(asker: Asker<R>, metrics: Metrics, mut run: HookRun) -> HookRun {
    while let Some((hook, question)) = run.question() {
        let answer = asker.ask_hook(hook, question).await;
        metrics.checks.inc();
        run.answer(answer);
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_never_asked_come_first_then_the_ones_due_longest() {
        let (now, name) = (Instant::now() + AGAIN_AFTER, |name: &str| -> PlanName { name.parse().unwrap() });
        let awaiting = ["a", "b", "c", "y", "z"].map(name);
        let again_at =
            [("a", now), ("b", now - SOON_AFTER), ("c", now + SOON_AFTER), ("y", now - AGAIN_AFTER)];
        let again_at = again_at.map(|(plan, at)| (name(plan), at)).into();
        let due = due(awaiting.into(), &again_at, now);
        assert_eq!(due, ["z", "y", "b", "a"].map(name));
    }
}
