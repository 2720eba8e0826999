//! Corridor: desired state and what runs → the plan → operations → what changed. The plan is the domain's, the work is
//! [`operation`]'s; here is only who is at work on what.
//!
//! ```text
//! desired ─┐                        ┌─► operation (one a deployment, at most OPERATIONS_MAX at work) ─► runtime
//! exits ───┼─► slots ─► plan ─► steps ┘            │
//! timers ──┘     ▲──────────── progress ───────────┘   every change of a slot ─► observe
//! ```
//!
//! All standings are owned by one task. What operations say arrives over one channel, ends of components over another
//! that is always read first; so an end is never overtaken by a later start, and one that overtakes the word "ready"
//! is remembered ([`slot`]).
//!
//! A newer version cancels the operation on the older; the next plan begins when that has ended. After a restart of the
//! agent nothing is started that runs: operations adopt. What runs for nobody is stopped first ([`sweep`]).

mod ending;
mod operation;
mod slot;
mod steps;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::desired::DesiredState;
use muster_contract::{DeploymentId, DeviceKey, State};
use muster_domain::eligibility::Capabilities;
use muster_domain::plan::plan;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::operation::Progress;
use self::slot::Slot;
use self::steps::refusal;
use self::sweep::{Sweep, Swept};
use crate::attempts::CrashLoopRule;
use crate::observe::Observer;
use crate::runtime::{Exit, Running, Runtime, UnitName, code};
use crate::standing::Standing;

/// Deployments worked on at once.
pub const OPERATIONS_MAX: usize = 16;
/// News of operations that wait to be taken in.
const PROGRESS_WAITING_MAX: usize = 64;
/// How long nothing to wait for lasts.
const IDLE: Duration = Duration::from_secs(60 * 60);

/// How failures are tried again: the bounds of the delay before that, and what a crash loop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Of the first attempt.
    pub min: Duration,
    /// Of any attempt.
    pub max: Duration,
    /// From when on a component that fails again and again counts as failed.
    pub crash_loop: CrashLoopRule,
}

/// What happens to workloads when the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// They go on; the next agent adopts them.
    Keep,
    /// They are stopped; the next agent starts them again.
    Stop,
}

/// What the reconciler is told once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whose workloads these are.
    pub device: DeviceKey,
    /// When failures are tried again.
    pub retry: Retry,
    /// What happens at the end.
    pub on_exit: OnExit,
    /// What the device says of itself: a deployment may ask for more.
    pub capabilities: Arc<Capabilities>,
}

/// The document that is to be applied, if any was ever accepted.
pub type Wanted = Option<Arc<DesiredState>>;

/// Keeps what runs as it is desired.
pub struct Reconciler {
    settings: Settings,
    runtime: Arc<dyn Runtime>,
    observer: Observer,
    desired: watch::Receiver<Wanted>,
    exits: mpsc::Receiver<Exit>,
    chance: fastrand::Rng,
    slots: BTreeMap<DeploymentId, Slot>,
    operations: JoinSet<DeploymentId>,
    progress: (mpsc::Sender<Progress>, mpsc::Receiver<Progress>),
    permits: Arc<Semaphore>,
    sweep: Sweep,
    adopted: bool,
}

impl Reconciler {
    /// A reconciler that goes on from these standings.
    pub fn new(
        settings: Settings,
        runtime: Arc<dyn Runtime>,
        observer: Observer,
        desired: watch::Receiver<Wanted>,
        exits: mpsc::Receiver<Exit>,
        standings: Vec<Standing>,
        chance: fastrand::Rng,
    ) -> Self {
        let now = observer.now();
        let slot = |mut standing: Standing| {
            standing.attempts.resume(settings.retry.crash_loop, now);
            (standing.id().clone(), Slot::new(standing, settings.retry))
        };
        Self {
            slots: standings.into_iter().map(slot).collect(),
            sweep: Sweep::new(settings.retry, Instant::now()),
            adopted: false,
            settings,
            runtime,
            observer,
            desired,
            exits,
            chance,
            operations: JoinSet::new(),
            progress: mpsc::channel(PROGRESS_WAITING_MAX),
            permits: Arc::new(Semaphore::new(OPERATIONS_MAX)),
        }
    }

    /// Works until `stop`. What runs then goes on or is stopped, as the settings say.
    pub async fn run(mut self, stop: CancellationToken) {
        self.retry_failures();
        self.follow_plan().await;
        while !stop.is_cancelled() {
            self.step(&stop).await;
            self.confirm_successes().await;
            self.follow_plan().await;
        }
        self.finish().await;
    }

    /// Waits for one thing to happen and takes it in.
    async fn step(&mut self, stop: &CancellationToken) {
        let now = Instant::now();
        let dues = self.slots.values().filter_map(Slot::due).chain(self.sweep.due(now));
        let due = dues.min().unwrap_or(now + IDLE);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(exit) = self.exits.recv() => self.exited(exit).await,
            Some(progress) = self.progress.1.recv() => self.progressed(progress).await,
            Some(ended) = self.operations.join_next() => self.ended(ended).await,
            Some(swept) = self.sweep.next() => self.swept(swept),
            Ok(()) = self.desired.changed() => {}
            () = sleep_until(due) => {}
        }
    }

    /// Tells of successes that have held.
    async fn confirm_successes(&mut self) {
        let now = Instant::now();
        for slot in self.slots.values_mut() {
            if slot.confirm_successes(now) {
                slot.tell(&self.observer).await;
            }
        }
    }

    /// Plans, and begins what can be begun.
    async fn follow_plan(&mut self) {
        let (document, now) = (self.desired.borrow_and_update().clone(), Instant::now());
        if let Some(document) = document {
            self.sweep.look(&self.runtime, now);
            if self.sweep.goes_first(now) {
                return;
            }
            self.follow(&document, now).await;
        }
        if !std::mem::replace(&mut self.adopted, true) {
            self.adopt();
        }
    }

    async fn follow(&mut self, document: &DesiredState, now: Instant) {
        let actual: Vec<_> = self.slots.values().map(|slot| slot.actual(now)).collect();
        let mut steps = plan(&document.deployments, &actual);
        steps.retain(|step| !self.sweep.holds(step.deployment()));
        for step in steps {
            match self.slots.get(step.deployment()).and_then(|slot| slot.operation.as_ref()) {
                Some(ongoing) if !ongoing.serves(&step, document) => ongoing.cancel.cancel(),
                Some(_) => {}
                None => self.begin(step, document).await,
            }
        }
    }

    async fn exited(&mut self, exit: Exit) {
        let id = exit.name.deployment.clone();
        let Some(slot) = self.slots.get_mut(&id) else { return };
        tracing::warn!(
            deployment.id = %id, component.name = %exit.name.component, error = exit.error.message,
            "a component ended by itself"
        );
        if !slot.exited(exit, self.observer.now()) {
            return;
        }
        slot.tell(&self.observer).await;
        if slot.operation.is_none() {
            let delay = slot.schedule(self.settings.retry, &mut self.chance, Instant::now());
            log_failure(&id, delay);
        }
    }

    async fn progressed(&mut self, progress: Progress) {
        let Some(slot) = self.slots.get_mut(&progress.deployment) else { return };
        if slot.progress(progress.news, self.observer.now()) {
            slot.tell(&self.observer).await;
        }
    }

    async fn ended(&mut self, ended: Result<DeploymentId, tokio::task::JoinError>) {
        // What the operation said last may still wait here, and its end is judged by that.
        while let Ok(progress) = self.progress.1.try_recv() {
            self.progressed(progress).await;
        }
        let id = match ended {
            Ok(id) => id,
            // An operation is never aborted, so it panicked: the process must not go on with a slot that waits for ever.
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let delay = slot.end(self.settings.retry, &mut self.chance, Instant::now());
        if slot.owes_a_word() {
            slot.tell(&self.observer).await;
        }
        match slot.standing.state() {
            State::Failed => log_failure(&id, delay),
            _ if slot.standing.is_gone() => _ = self.slots.remove(&id),
            _ => {}
        }
    }

    /// After a restart of the agent failures are tried again at once, also what this agent could not run before and can
    /// run now.
    fn retry_failures(&mut self) {
        let now = Instant::now();
        for slot in self.slots.values_mut().filter(|slot| slot.standing.state() == State::Failed) {
            let was_refused = slot.standing.error.as_ref().is_some_and(|error| {
                [code::UNSUPPORTED_PROFILE, code::NOT_ELIGIBLE].contains(&error.code.as_str())
            });
            let refusal = refusal(&slot.standing.entry, &*self.runtime, &self.settings.capabilities);
            let may_run_now = was_refused && refusal.is_none();
            if may_run_now || slot.standing.may_retry() {
                slot.retry_now(now);
            }
        }
    }

    /// Takes in what came of the sweep.
    fn swept(&mut self, swept: Swept) {
        let now = Instant::now();
        let done = match swept {
            Swept::Looked(Ok(running)) => {
                let strangers = self.strangers(running);
                if !strangers.is_empty() {
                    return self.sweep.stop(&self.runtime, strangers);
                }
                true
            }
            Swept::Looked(Err(error)) => {
                tracing::error!(
                    error = error.message,
                    "what runs here cannot be found out: it is tried again"
                );
                false
            }
            Swept::Stopped(all) => all,
        };
        self.sweep.end(done, &mut self.chance, now);
    }

    /// What runs for a deployment that is neither desired nor held.
    fn strangers(&self, running: Vec<Running>) -> Vec<UnitName> {
        let document = self.desired.borrow().clone();
        let wanted: BTreeSet<_> =
            document.iter().flat_map(|document| &document.deployments).map(|entry| &entry.id).collect();
        let known = |id: &DeploymentId| wanted.contains(id) || self.slots.contains_key(id);
        running.into_iter().map(|found| found.name).filter(|name| !known(&name.deployment)).collect()
    }
}

fn log_failure(id: &DeploymentId, delay: Option<Duration>) {
    match delay {
        Some(delay) => {
            tracing::warn!(deployment.id = %id, retry.seconds = delay.as_secs_f64(), "failed; it is tried again");
        }
        None => tracing::warn!(deployment.id = %id, "failed; it stays so until another generation comes"),
    }
}

#[cfg(test)]
mod tests;
