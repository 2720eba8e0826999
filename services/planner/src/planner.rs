//! Follows LEDGER and the publisher, judges each rollout that has changed, and takes its next step: the planner requests a release
//! or records a decision.
//!
//! The publisher answers a repeated release or decision as done, so a planner that dies at any point starts again without harm. Two
//! planners that run at once request the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeploymentId;
use muster_contract::rollout::TargetsAnswer;
use muster_domain::rollout::{Blocked, LiveRollout, Step};
use muster_service::blocking::block_in_place_if_large;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::{Health, Latch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::asker::Asker;
use crate::checkpoint::{Checkpoint, Checkpointer, Checkpoints};
use crate::checks::Checks;
use crate::error::PlannerError;
use crate::evidence::{Document, Evidence};
use crate::ledger::{Ledger, LedgerEvent};
use crate::metrics::Metrics;
use crate::rollouts::{Listing, RolloutKey, TrackedRollout, TrackedRollouts};
use crate::services::{Requests, Services};

mod judge;

/// Events of LEDGER that the planner applies between two judgements, at most.
const EVENTS_AT_ONCE_MAX: usize = 16;
/// The part of the planner's health that shows whether it decides.
const HEALTH_PART: &str = "decisions";

/// A page of targets.
type Page = Result<TargetsAnswer, PlannerError>;

/// A list of targets, and the running request for its next page.
struct RunningListing {
    listing: Listing,
    page: Pin<Box<dyn Future<Output = Page> + Send>>,
}

/// Work that may fail again and again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// The question for the deployments with rollouts.
    Poll,
    /// A list of the targets of a deployment.
    Listing(DeploymentId),
    /// The next step of a rollout.
    Step(RolloutKey),
}

/// The planner.
pub struct Planner<R, L> {
    services: Services<R>,
    ledger: L,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// Shows whether the planner decides.
    health: Option<Health>,
    evidence: Evidence,
    rollouts: TrackedRollouts,
    /// Writes checkpoints, if the planner has a folder for them.
    checkpointer: Option<Checkpointer>,
    /// The checks behind waves.
    checks: Checks<R>,
    /// Deployments whose targets must be listed, and the running request.
    to_list: VecDeque<DeploymentId>,
    listing: Option<RunningListing>,
    /// Documents that LEDGER delivered while targets were listed.
    documents: Vec<Document>,
    /// Time between two questions to the publisher, and time of the next one.
    every: Duration,
    poll_at: Instant,
    /// The rollout that was judged last: the next round of judgements begins after it.
    judged_last: Option<RolloutKey>,
    /// Whether the publisher has answered about every rollout.
    is_complete: bool,
    /// The logged error of each kind of work, until it succeeds.
    logged_errors: BTreeMap<Work, String>,
    /// The logged reason why nothing is decided; `None` while rollouts are decided.
    logged: Option<String>,
}

impl<R: Requests, L: Ledger> Planner<R, L> {
    /// A planner that has read nothing.
    pub fn new(
        services: Services<R>,
        asker: Asker<R>,
        ledger: L,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Self {
        let checks = Checks::new(asker, metrics.clone());
        Self {
            services,
            ledger,
            clock,
            metrics,
            health: None,
            evidence: Evidence::default(),
            rollouts: TrackedRollouts::default(),
            checkpointer: None,
            checks,
            to_list: VecDeque::new(),
            listing: None,
            documents: Vec::new(),
            every: Duration::ZERO,
            poll_at: Instant::now(),
            judged_last: None,
            is_complete: false,
            logged_errors: BTreeMap::new(),
            logged: Some(String::new()),
        }
    }

    /// The same planner; `health` shows whether it decides.
    #[must_use]
    pub fn with_health(self, health: &Health) -> Self {
        Self { health: Some(health.clone()), ..self }
    }

    /// The same planner, which keeps checkpoints in a folder, with the state of the one that was restored from there.
    #[must_use]
    pub fn with_checkpoints(mut self, checkpoints: Checkpoints, restored: Option<Checkpoint>) -> Self {
        let now = Instant::now();
        let stored = restored.as_ref().map_or(0, |checkpoint| checkpoint.mark.position);
        self.checkpointer = Some(Checkpointer::new(checkpoints, stored, now));
        if let Some(checkpoint) = restored {
            (self.evidence, self.rollouts) = checkpoint.into_state(now);
        }
        self
    }

    /// Plans until `stop`, and writes a last checkpoint then. The latch is released once every rollout was judged.
    pub async fn run(mut self, every: Duration, ready: Latch, stop: CancellationToken) {
        self.plan(every, ready, stop).await;
        if let Some(checkpointer) = self.checkpointer.take() {
            let devices = self.evidence.devices();
            block_in_place_if_large(devices, || checkpointer.finish(&mut self.evidence, &self.rollouts));
        }
    }

    async fn plan(&mut self, every: Duration, ready: Latch, stop: CancellationToken) {
        let mut ready = Some(ready);
        self.every = every;
        while !stop.is_cancelled() {
            let wakes_at = self.wakes_at();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = self.ledger.next() => self.follow(event),
                page = next_page(&mut self.listing) => self.add_page(page),
                () = sleep_until(wakes_at) => {}
            }
            if let Some(checkpointer) = &mut self.checkpointer {
                checkpointer.step(&mut self.evidence, &self.rollouts, Instant::now());
            }
            if self.may_decide() {
                self.list_next();
                // Judged before the publisher is polled: the evidence may end during its answers.
                let are_judged = self.judge(&stop).await;
                if self.poll_at <= Instant::now() {
                    let polled = self.poll().await;
                    self.report(Work::Poll, polled);
                    self.poll_at = Instant::now() + self.every;
                }
                let is_listed = self.is_complete && self.listing.is_none() && self.to_list.is_empty();
                // The targets of a checkpoint are due once the publisher has answered about decisions.
                if are_judged && is_listed && !self.rollouts.has_due(Instant::now()) {
                    ready.take().into_iter().for_each(Latch::release);
                }
            }
        }
    }

    /// The next moment at which the loop must run without an event.
    fn wakes_at(&mut self) -> Instant {
        let now = Instant::now();
        let next = self.next_judgement(now);
        self.checkpointer.as_ref().map_or(next, |checkpointer| next.min(checkpointer.wakes_at(now)))
    }

    /// The next moment at which a rollout is due, the publisher is asked, or the evidence ends.
    fn next_judgement(&mut self, now: Instant) -> Instant {
        if self.evidence.check_current(now).is_err() {
            // Only an event of LEDGER makes the evidence current again.
            return now + self.every;
        }
        let (poll_at, listing) = (self.poll_at, self.listing.is_none() && !self.to_list.is_empty());
        let of_rollout = |rollout: &mut TrackedRollout| {
            if rollout.is_due(now) { Some(now) } else { rollout.due }
        };
        let rollouts = self.rollouts.all().filter_map(of_rollout);
        let next = rollouts.chain([poll_at]).chain(listing.then_some(now)).min().unwrap_or(poll_at);
        // The evidence is still current at `end` itself.
        self.evidence.ends_at().map_or(next, |end| next.min(end + Duration::from_millis(1)))
    }

    /// Applies an event of LEDGER.
    fn follow(&mut self, event: LedgerEvent) {
        let is_restart = matches!(event, LedgerEvent::Restarted);
        if let (Some(checkpointer), LedgerEvent::Opened { created_at }) = (&mut self.checkpointer, &event) {
            block_in_place_if_large(self.evidence.devices(), || checkpointer.opened(*created_at));
        }
        if is_restart {
            if let Some(checkpointer) = &mut self.checkpointer {
                block_in_place_if_large(self.evidence.devices(), || checkpointer.restarted());
            }
            // The running list would lack documents of the new LEDGER.
            self.documents.clear();
            self.is_complete = false;
            if let Some(RunningListing { listing, .. }) = self.listing.take() {
                self.to_list.push_front(listing.id);
            }
        }
        let touched = self.evidence.apply(event);
        if self.listing.is_some() {
            self.documents.extend(touched.documents.iter().cloned());
        }
        self.rollouts.observe(&touched, &self.evidence);
        if is_restart {
            // The new LEDGER may hold other documents.
            self.rollouts = TrackedRollouts::default();
            self.poll_at = Instant::now();
        }
        self.metrics.ledger_seq.set(i64::try_from(self.evidence.ledger_seq()).unwrap_or(i64::MAX));
    }

    /// Applies waiting events of LEDGER.
    async fn follow_waiting(&mut self) {
        for _ in 0..EVENTS_AT_ONCE_MAX {
            let event = tokio::select! {
                biased;
                event = self.ledger.next() => event,
                () = std::future::ready(()) => return,
            };
            self.follow(event);
        }
    }

    /// Whether the evidence is current. Exports the answer, and logs it once it changes.
    fn may_decide(&mut self) -> bool {
        let why = self.evidence.check_current(Instant::now()).err().map(|behind| behind.to_string());
        self.metrics.behind.set(i64::from(why.is_some()));
        if self.logged != why {
            match &why {
                Some(why) => tracing::warn!(why, "stopped decisions"),
                None => tracing::info!(ledger.seq = self.evidence.ledger_seq(), "started decisions"),
            }
            if let Some(health) = &self.health {
                let state = why.as_ref().map_or_else(|| "made".to_owned(), |why| format!("none: {why}"));
                health.note(HEALTH_PART, state);
            }
            self.logged.clone_from(&why);
        }
        why.is_none()
    }

    /// Asks the publisher for the deployments with rollouts, their commit and their decisions. An error of one deployment holds up
    /// no other; the first one is returned at the end.
    async fn poll(&mut self) -> Result<(), PlannerError> {
        let ids = self.services.deployments().await?;
        self.rollouts.retain(&ids);
        let mut first_error = None;
        for id in &ids {
            match self.services.head(id).await {
                Ok(head) => {
                    let is_listed = self.listing.as_ref().is_some_and(|running| running.listing.id == *id);
                    let now = Instant::now();
                    let is_known = self.rollouts.set_head(id, &head, now, self.evidence.ledger_time(now));
                    if !is_known && !is_listed && !self.to_list.contains(id) {
                        self.to_list.push_back(id.clone());
                    }
                }
                Err(error) if error.is_of_one_deployment() => _ = first_error.get_or_insert(error),
                Err(error) => return Err(error),
            }
        }
        self.to_list.retain(|id| ids.contains(id));
        self.logged_errors.retain(|work, _| match work {
            Work::Poll => true,
            Work::Listing(id) | Work::Step((id, ..)) => ids.contains(id),
        });
        let seen: BTreeSet<_> = self.rollouts.all().map(|rollout| rollout.key()).collect();
        self.checks.retain(|(key, _)| seen.contains(key));
        self.is_complete = first_error.is_none();
        first_error.map_or(Ok(()), Err)
    }

    /// Begins to list the targets of the next deployment.
    fn list_next(&mut self) {
        if self.listing.is_some() {
            return;
        }
        if let Some(id) = self.to_list.pop_front() {
            self.request_page(Listing::new(id, Instant::now()));
        }
    }

    /// Requests the next page of a list.
    fn request_page(&mut self, listing: Listing) {
        let (services, id, after) =
            (self.services.clone(), listing.id.clone(), listing.after().map(str::to_owned));
        let page = Box::pin(async move { services.targets(&id, after).await });
        self.listing = Some(RunningListing { listing, page });
    }

    /// Adds a page to the running list, and inserts the list after its last page.
    fn add_page(&mut self, page: Page) {
        let Some(RunningListing { mut listing, .. }) = self.listing.take() else { return };
        let added = page.and_then(|page| listing.add(page, &mut self.rollouts, &self.evidence));
        if added.is_ok() && listing.after().is_some() {
            self.request_page(listing);
        } else {
            self.insert(listing, added);
        }
    }

    /// Inserts the targets of a deployment, if all pages were added.
    fn insert(&mut self, listing: Listing, added: Result<(), PlannerError>) {
        let id = listing.id.clone();
        if added.is_ok() {
            self.rollouts.insert(listing, Instant::now());
            // A page may be older than a document that LEDGER has.
            for document in std::mem::take(&mut self.documents) {
                self.rollouts.apply_document(&document);
            }
            self.rollouts.observe_deployment(&id, &self.evidence);
        } else {
            self.documents.clear();
            self.is_complete = false;
        }
        self.report(Work::Listing(id), added);
    }

    /// Counts and logs the error of some work, once until it changes or the work succeeds.
    fn report(&mut self, work: Work, result: Result<(), PlannerError>) {
        let Err(error) = result else {
            self.logged_errors.remove(&work);
            return;
        };
        let error = chain(&error);
        self.metrics.failures.inc();
        if self.logged_errors.get(&work) != Some(&error) {
            tracing::warn!(error, retry_in = ?self.every, "cannot evaluate all rollouts");
            self.logged_errors.insert(work, error);
        }
    }
}

/// The answer to the running request; pending forever if none is running.
async fn next_page(listing: &mut Option<RunningListing>) -> Page {
    match listing {
        Some(running) => running.page.as_mut().await,
        None => std::future::pending().await,
    }
}

/// The counts of rollouts.
#[derive(Default)]
struct Counts {
    rollouts: i64,
    stopped: i64,
    approvals: i64,
}

impl Counts {
    fn add(&mut self, rollout: &LiveRollout) {
        self.rollouts += 1;
        match rollout.state().step {
            _ if rollout.waits_for_person() => self.stopped += 1,
            Step::Fail { .. } | Step::Held { .. } | Step::RollBack { .. } => self.stopped += 1,
            Step::Release { needs_approval: true, .. }
            | Step::Ready { .. }
            | Step::Wait { because: Blocked::Approval, .. } => self.approvals += 1,
            Step::Release { .. } | Step::Check { .. } | Step::Wait { .. } | Step::Done => {}
        }
    }
}

#[cfg(test)]
mod tests;
