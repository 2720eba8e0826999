//! One deployment's place in the reconciler: its standing, the operation on it, and when a failure is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeviceKey, Generation, State, Timestamp};
use muster_domain::plan::{Actual, Step};
use muster_service::backoff::FullJitter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Retry;
use super::operation::News;
use crate::attempts::CrashLoopRule;
use crate::observe::Observer;
use crate::runtime::Exit;
use crate::standing::Standing;

/// Beside the standing, everything that a restart of the agent may forget.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) standing: Standing,
    pub(super) operation: Option<Ongoing>,
    /// An error of the deployment as a whole that was taken back for another attempt, as long as nobody was told: the hub
    /// and the database still hold it.
    owed: Option<StatusError>,
    delays: FullJitter,
    retry_at: Option<Instant>,
    installed_at: Option<Instant>,
    /// Since when what has attempts is ready without a break: each component, and the deployment as a whole.
    ready_since: BTreeMap<Option<ComponentName>, Instant>,
    crash_loop: CrashLoopRule,
    /// Ends that came while an operation was at work: it may not have said yet that the component was ready.
    exits: BTreeMap<ComponentName, StatusError>,
    /// [`crate::runtime::Unit::digest_prefix`] of each component.
    versions: BTreeMap<ComponentName, String>,
}

/// What an operation works towards, and how to stop it.
#[derive(Debug)]
pub(super) struct Ongoing {
    pub(super) cancel: CancellationToken,
    pub(super) digest: Digest,
    pub(super) generation: Generation,
    pub(super) leaving: bool,
}

impl Ongoing {
    /// Whether this operation does what the step asks for.
    pub(super) fn serves(&self, step: &Step, document: &DesiredState) -> bool {
        let wanted = document.deployments.iter().find(|entry| entry.id == *step.deployment());
        match wanted {
            None => self.leaving,
            Some(wanted) => {
                !self.leaving && self.digest == wanted.digest && self.generation >= wanted.target_generation
            }
        }
    }
}

impl Slot {
    pub(super) fn new(standing: Standing, retry: Retry) -> Self {
        let delays = FullJitter::new(retry.min, retry.max);
        let (exits, versions) = (BTreeMap::new(), BTreeMap::new());
        let mut slot = Self {
            standing,
            operation: None,
            owed: None,
            delays,
            retry_at: None,
            installed_at: None,
            ready_since: BTreeMap::new(),
            crash_loop: retry.crash_loop,
            exits,
            versions,
        };
        slot.track_readiness();
        slot
    }

    /// What the plan wants to know.
    pub(super) fn actual(&self, now: Instant) -> Actual {
        self.standing.actual(self.retry_at.is_some_and(|at| at <= now))
    }

    /// When it has to be looked at again, if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|_| self.operation.is_none());
        let held = self.ready_since.values().min().map(|since| *since + self.crash_loop.window);
        retry.into_iter().chain(held).min()
    }

    /// Forgets the attempts before successes that have held; true where the hub has to be told.
    pub(super) fn confirm_successes(&mut self, now: Instant) -> bool {
        let has_held = |since: &Instant| now.duration_since(*since) >= self.crash_loop.window;
        let held: Vec<_> =
            self.ready_since.iter().filter(|(_, since)| has_held(since)).map(|(of, _)| of.clone()).collect();
        let mut is_news = false;
        for of in held {
            is_news |= self.standing.attempts.hold(of.as_ref());
            self.ready_since.remove(&of);
        }
        is_news
    }

    /// Records which of what has attempts is ready, and since when.
    fn track_readiness(&mut self) {
        let standing = &self.standing;
        let is_ready = |of: &Option<&ComponentName>| match of {
            Some(name) => standing.component(name) == Some(State::Installed),
            None => standing.state() == State::Installed,
        };
        let ready: BTreeSet<_> =
            standing.attempts.components().filter(is_ready).map(Option::<&_>::cloned).collect();
        self.ready_since.retain(|of, _| ready.contains(of));
        for of in ready {
            self.ready_since.entry(of).or_insert_with(Instant::now);
        }
    }

    /// Tries a failure again at once: after a restart of the agent the reason may be gone.
    pub(super) fn retry_now(&mut self, now: Instant) {
        self.retry_at = Some(now);
    }

    /// Puts what failed back in line. That the deployment's own error is over is told with the next change, or at the
    /// end: not before, because the attempt may meet it again.
    pub(super) fn retry(&mut self) {
        if let Some(error) = self.standing.retry() {
            self.owed = Some(error);
        }
    }

    /// Another target: attempts at the one before count for nothing.
    pub(super) fn set_target(&mut self, standing: Standing) {
        self.standing = standing;
        self.track_readiness();
    }

    /// Tells how it stands.
    pub(super) async fn tell(&mut self, observer: &Observer) {
        self.owed = None;
        observer.tell(&self.standing).await;
    }

    /// Whether the hub still has to be told that an error is over.
    pub(super) fn owes_a_word(&self) -> bool {
        self.owed.is_some()
    }

    /// An operation begins.
    pub(super) fn begin(&mut self, device: &DeviceKey) -> CancellationToken {
        let cancel = CancellationToken::new();
        self.operation = Some(Ongoing {
            cancel: cancel.clone(),
            digest: self.standing.entry.digest,
            generation: self.standing.generation,
            leaving: self.standing.leaving,
        });
        self.retry_at = None;
        self.exits.clear();
        let units = self.standing.units(device).unwrap_or_default();
        self.versions = units.iter().map(|unit| (unit.component.clone(), unit.digest_prefix())).collect();
        cancel
    }

    /// The operation is over. Says when it is tried again, if it failed and may be.
    pub(super) fn end(&mut self, retry: Retry, chance: &mut fastrand::Rng, now: Instant) -> Option<Duration> {
        let cut_short = self.operation.take().is_some_and(|operation| operation.cancel.is_cancelled());
        if cut_short && let Some(error) = self.owed.take() {
            // Nobody knows whether it is over, so what the hub holds still counts.
            self.standing.error = Some(error);
        }
        // An error of the deployment as a whole may be over without any component having changed.
        self.track_readiness();
        match self.standing.state() {
            State::Failed => self.schedule(retry, chance, now),
            State::Installed => {
                self.installed_at = Some(now);
                None
            }
            _ => None,
        }
    }

    /// Takes in what an operation says; true where that is news.
    pub(super) fn progress(&mut self, news: News, at: Timestamp) -> bool {
        let (component, mut state, mut error) = match news {
            News::Failed(error) => {
                self.standing.attempts.fail(None, &error, self.crash_loop, at);
                let before = self.standing.error.replace(error);
                self.track_readiness();
                return before != self.standing.error;
            }
            News::Component(component, state, error) => (component, state, error),
        };
        match state {
            State::Installing => _ = self.exits.remove(&component),
            State::Installed => {
                if let Some(exit) = self.exits.remove(&component) {
                    (state, error) = (State::Failed, Some(exit));
                }
            }
            _ => {}
        }
        self.set(&component, state, error, at)
    }

    /// Sets the state of a component and counts its attempts; false where that says nothing new.
    fn set(
        &mut self,
        component: &ComponentName,
        state: State,
        error: Option<StatusError>,
        at: Timestamp,
    ) -> bool {
        let failure = error.clone().filter(|_| state == State::Failed);
        let is_news = self.standing.set(component, state, error);
        if is_news {
            let attempts = &mut self.standing.attempts;
            match (state, failure) {
                (State::Installing, _) => attempts.begin(component, at),
                (State::Installed, _) => attempts.ready(component, at),
                (_, Some(error)) => attempts.fail(Some(component), &error, self.crash_loop, at),
                _ => {}
            }
            self.track_readiness();
        }
        is_news
    }

    /// Takes in that a component ended; true where that is news.
    pub(super) fn exited(&mut self, exit: Exit, at: Timestamp) -> bool {
        let component = exit.name.component;
        if self.versions.get(&component) != Some(&exit.digest_prefix) || self.standing.leaving {
            return false;
        }
        if self.operation.is_some() {
            self.exits.insert(component.clone(), exit.error.clone());
        }
        self.standing.component(&component) == Some(State::Installed)
            && self.set(&component, State::Failed, Some(exit.error), at)
    }

    /// Plans the next attempt after a failure. What had run for long begins again with the least delay.
    pub(super) fn schedule(
        &mut self,
        retry: Retry,
        chance: &mut fastrand::Rng,
        now: Instant,
    ) -> Option<Duration> {
        if self.installed_at.take().is_some_and(|since| now.duration_since(since) >= retry.max) {
            self.delays.reset();
        }
        let delay = self.standing.may_retry().then(|| self.delays.next(chance))?;
        self.retry_at = Some(now + delay);
        Some(delay)
    }

    /// The components that the hub takes for installed.
    pub(super) fn ready(&self) -> BTreeSet<ComponentName> {
        let installed =
            self.standing.components.iter().filter(|component| component.state == State::Installed);
        installed.map(|component| component.name.clone()).collect()
    }
}
