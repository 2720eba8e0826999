//! Keeps plans: folds PLANS and LEDGER, decides about requests one after another, appends the documents that follow by themselves,
//! and has orders sent. It is one task, and only it changes the state. The rules are in `muster_domain::plans`.

use std::sync::Arc;
use std::time::Duration;

use muster_contract::RequestedBy;
use muster_contract::query::ErrorCode;
use muster_contract::question::{ANSWER_BYTES_MAX, fewer};
use muster_domain::plans::{Decision, HookRun, PlansDocument, PlansRead, PlansRequest, PlansState};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::{Health, Latch};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_util::sync::CancellationToken;

use super::call::{PlansCall, PlansQuestion, PlansReply};
use super::hooks::Hooks;
use super::ledger_evidence::LedgerEvidence;
use super::log::{AppendError, LogEvent, PlansLog};
use super::orders::Orders;
use super::refusal::{not_ready, refusal};
use crate::checkpoint::Checkpoint;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::read_end::{self, BEHIND_AFTER, Lag, ReadEnd};
use crate::services::{Requests, Services};

/// The part of the planner's health that shows whether plans are kept and orders sent.
pub(super) const HEALTH_PART: &str = "plans";
/// Documents that the keeper appends by itself between two requests, at most.
const DOCUMENTS_AT_ONCE: usize = 1024;
/// Time between two checks for steps that only time allows.
const TICK: Duration = Duration::from_millis(500);
/// Attempts to decide about a request while another planner appends, at most.
const ATTEMPTS_MAX: usize = 16;
/// Time to wait for the message of another planner after a conflict.
const CONFLICT_READ_WITHIN: Duration = Duration::from_secs(2);

/// Keeps plans.
#[derive(Debug)]
pub(crate) struct PlansKeeper<P, R, L> {
    log: P,
    ledger: L,
    orders: Orders<R>,
    hooks: Hooks<R>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    state: PlansState,
    /// Sequence of the last message of PLANS in the state.
    last: u64,
    is_read: bool,
    /// The ends of PLANS. PLANS has a connection and credentials of its own, so LEDGER's end tells nothing about it.
    log_end: ReadEnd<Instant>,
    evidence: LedgerEvidence,
    /// Whether something has changed since orders were last sent: to compare all instances takes long.
    is_order_due: bool,
    /// Whether hooks may be due: time has passed, or answers are recorded.
    is_hook_due: bool,
    /// Shows whether orders are sent.
    health: Option<Health>,
    /// The logged reason why no order is sent; `None` while orders are sent.
    logged: Option<String>,
}

impl<P: PlansLog, R: Requests, L: Ledger> PlansKeeper<P, R, L> {
    /// A keeper that has read nothing.
    pub(crate) fn new(
        log: P,
        ledger: L,
        services: Services<R>,
        hooks: Hooks<R>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Self {
        let orders = Orders::new(services, metrics.clone());
        Self {
            log,
            ledger,
            orders,
            hooks,
            clock,
            metrics,
            state: PlansState::default(),
            last: 0,
            is_read: false,
            log_end: ReadEnd::default(),
            evidence: LedgerEvidence::default(),
            is_order_due: true,
            is_hook_due: true,
            health: None,
            logged: Some(String::new()),
        }
    }

    /// The same keeper; `health` shows whether it sends orders.
    #[must_use]
    pub(crate) fn with_health(self, health: &Health) -> Self {
        Self { health: Some(health.clone()), ..self }
    }

    /// The same keeper, whose fold of LEDGER goes on after a checkpoint.
    #[must_use]
    pub(crate) fn resumed(self, checkpoint: Option<Checkpoint>) -> Self {
        let evidence = checkpoint.map(|checkpoint| LedgerEvidence(checkpoint.into_evidence()));
        Self { evidence: evidence.unwrap_or_default(), ..self }
    }

    /// Keeps plans until `stop`. The latch is released once PLANS is read.
    pub(crate) async fn run(
        mut self,
        mut calls: mpsc::Receiver<PlansCall>,
        ready: Latch,
        stop: CancellationToken,
    ) {
        let (mut ready, mut ticks) = (Some(ready), interval(TICK));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = self.log.next() => self.fold(event),
                Some(call) = calls.recv() => self.answer(call).await,
                event = self.ledger.next() => {
                    let changed = self.evidence.apply(event);
                    if changed.all { self.state.time_passed() } else { self.state.nodes_changed(&changed.nodes) }
                    self.is_order_due |= changed.orders;
                }
                () = self.orders.ended() => self.is_order_due = true,
                answered = self.hooks.answered() => {
                    if let Some(run) = answered { self.record(run).await }
                }
                _ = ticks.tick() => {
                    self.state.time_passed();
                    (self.is_order_due, self.is_hook_due) = (true, true);
                }
            }
            self.is_order_due |= self.state.has_changes();
            if self.is_read {
                ready.take().into_iter().for_each(Latch::release);
                self.advance().await;
                if std::mem::take(&mut self.is_hook_due) {
                    self.hooks.ask(&mut self.state, self.clock.now());
                }
            }
            if self.may_order() && std::mem::take(&mut self.is_order_due) {
                self.order();
            }
        }
    }

    /// Applies an event of PLANS. Messages that this planner has appended are in the state already.
    fn fold(&mut self, event: LogEvent) {
        match event {
            LogEvent::Messages(messages) => {
                for (seq, document) in messages {
                    if seq <= self.last {
                        continue;
                    }
                    self.last = seq;
                    if let Some(document) = document {
                        self.state.apply(document);
                    }
                }
            }
            LogEvent::Read => self.is_read = true,
            LogEvent::End { last_seq, asked_at } => self.log_end.observe(last_seq, asked_at),
            LogEvent::Restarted => {
                (self.state, self.last, self.is_read) = (PlansState::default(), 0, false);
                self.log_end = ReadEnd::default();
            }
        }
        self.log_end.advance_to(self.last);
    }

    /// Appends the documents that follow by themselves.
    async fn advance(&mut self) {
        let evidence = self.evidence.at(self.orders.refusals(), Instant::now());
        // A clock that runs fast ends no wait without evidence.
        let now = self.evidence.0.judgement_time(self.clock.now());
        let made = self.state.advance(&evidence, now, DOCUMENTS_AT_ONCE);
        if made.is_empty() {
            return;
        }
        let (documents, before): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        if let Err(error) = self.append(documents, before).await {
            tracing::info!(error = chain(&error), "resumed deciding about plans");
            self.read_conflict().await;
            self.state.time_passed();
        }
    }

    /// Records the answers of the hooks of a plan. If another planner appends first, they are asked again where that is needed.
    async fn record(&mut self, mut run: HookRun) {
        let recorded = self.state.record_hooks(&mut run, self.clock.now()).filter(|_| self.is_read);
        if let Some((hook, reason)) = run.inconclusive() {
            self.metrics.inconclusive.inc();
            tracing::info!(plan = %run.plan(), hook, reason, "a hook was inconclusive");
        }
        let Some(document) = recorded else { return };
        self.is_hook_due = true;
        let answers = match &document {
            PlansDocument::Plan(plan) => plan.hook_answers.as_deref(),
            _ => None,
        };
        // Instances beyond the allowed nodes need further answers.
        if answers.is_some_and(|answers| !answers.nodes.is_empty()) {
            self.hooks.ask_soon(run.plan());
        }
        let before = self.state.apply(document.clone());
        if let Err(error) = self.append(vec![document], vec![before]).await {
            tracing::info!(plan = %run.plan(), error = chain(&error), "cannot record the answers of hooks");
            self.read_conflict().await;
        }
    }

    /// Appends documents that the state has already, and undoes those that are not stored.
    async fn append(
        &mut self,
        documents: Vec<PlansDocument>,
        before: Vec<Option<PlansDocument>>,
    ) -> Result<(), AppendError> {
        let (stored, error) = self.log.append(self.last, &documents).await;
        self.last += stored;
        self.metrics.appended.inc_by(stored);
        let lost = documents.iter().zip(before).skip(usize::try_from(stored).unwrap_or(usize::MAX));
        for (document, before) in lost.collect::<Vec<_>>().into_iter().rev() {
            self.state.undo(&document.subject(), before);
        }
        match error {
            Some(error) => {
                self.metrics.conflicts.inc();
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Folds the message of another planner after a conflict.
    async fn read_conflict(&mut self) {
        let until = Instant::now() + CONFLICT_READ_WITHIN;
        while let Ok(event) = timeout_at(until, self.log.next()).await {
            let is_end = matches!(event, LogEvent::End { .. });
            self.fold(event);
            if !is_end {
                return;
            }
        }
    }

    async fn answer(&mut self, PlansCall { question, reply }: PlansCall) {
        let answer = match question {
            _ if !self.is_read => Err(not_ready("the planner reads PLANS: ask again")),
            PlansQuestion::Change(request, by) => self.change(&request, by.as_ref()).await,
            question => self.read(&question),
        };
        // The requester may have gone.
        let _ = reply.send(answer);
    }

    /// Decides about a change, again while other planners append.
    async fn change(&mut self, request: &PlansRequest, by: Option<&RequestedBy>) -> PlansReply {
        for _ in 0..ATTEMPTS_MAX {
            let document = match self.state.decide(request, by.cloned(), self.clock.now())? {
                Decision::Unchanged(document) => return Ok(document.to_bytes()),
                Decision::Append(document) => *document,
            };
            let before = self.state.apply(document.clone());
            match self.append(vec![document.clone()], vec![before]).await {
                Ok(()) => return Ok(document.to_bytes()),
                Err(AppendError::Conflict) => self.read_conflict().await,
                Err(error) => {
                    let sentence = format!("{}: ask again with the same requestId", chain(&error));
                    return Err(refusal(ErrorCode::Internal, sentence));
                }
            }
        }
        let sentence = format!("other planners have changed PLANS during {ATTEMPTS_MAX} attempts: ask again");
        Err(refusal(ErrorCode::Conflict, sentence))
    }

    /// Answers a request that changes nothing.
    fn read(&self, question: &PlansQuestion) -> PlansReply {
        let evidence = self.evidence.at(self.orders.refusals(), Instant::now());
        let read = PlansRead { state: &self.state, evidence: &evidence, now: self.clock.now() };
        match question {
            PlansQuestion::Plan(query) => json(&read.plan(query)?),
            PlansQuestion::Explain(query) => json(&read.explain(query)?),
            PlansQuestion::Plans(limit, query) => page(*limit, |limit| json(&read.plans(query, limit))),
            PlansQuestion::Instances(limit, query) => {
                page(*limit, |limit| json(&read.instances(query, limit)))
            }
            PlansQuestion::Operations(limit, query) => {
                page(*limit, |limit| json(&read.operations(query, limit)))
            }
            PlansQuestion::Inventory(limit, query) => {
                page(*limit, |limit| json(&read.inventory(query, limit)))
            }
            PlansQuestion::Change(..) => Err(not_ready("a change is no query")),
        }
    }

    /// Whether PLANS and LEDGER are read to their ends: a planner with an old fold of either would undo another planner's orders.
    /// Exports the answer, and logs it once it changes.
    fn may_order(&mut self) -> bool {
        let now = Instant::now();
        let of_plans = read_end::check_current(self.log_end.current_at(), now).err().map(behind_plans);
        let of_ledger = || self.evidence.check_current(now).err().map(|behind| behind.to_string());
        let why = of_plans.or_else(of_ledger);
        self.metrics.plans_behind.set(i64::from(why.is_some()));
        if self.logged != why {
            match &why {
                Some(why) => tracing::warn!(why, "stopped orders of plans"),
                None => tracing::info!(plans.seq = self.last, "started orders of plans"),
            }
            if let Some(health) = &self.health {
                let no_orders = |why: &String| format!("kept, and no order is sent: {why}");
                health.note(HEALTH_PART, why.as_ref().map_or_else(|| "kept".to_owned(), no_orders));
            }
            self.logged.clone_from(&why);
        }
        self.is_read && why.is_none()
    }

    /// Sends the orders that LEDGER does not show yet.
    fn order(&mut self) {
        let now = Instant::now();
        let evidence = self.evidence.at(self.orders.refusals(), now);
        let effects = self.state.effects(&evidence, self.evidence.ordered());
        self.metrics.orders_open.set(i64::try_from(effects.len()).unwrap_or(i64::MAX));
        self.orders.send(effects, now);
    }
}

/// Why no order is sent while the fold of PLANS is not current.
fn behind_plans(lag: Lag) -> String {
    match lag {
        Lag::Reading => "reading PLANS for the first time".to_owned(),
        Lag::Late => format!(
            "the end of PLANS was not read within {BEHIND_AFTER:?}: check the link to NATS and --plans-creds"
        ),
    }
}

fn json<T: Serialize>(answer: &T) -> PlansReply {
    serde_json::to_vec(answer).map_err(|error| refusal(ErrorCode::Internal, error.to_string()))
}

/// A page that fits into a message.
fn page(mut limit: usize, answer: impl Fn(usize) -> PlansReply) -> PlansReply {
    loop {
        let reply = answer(limit)?;
        if reply.len() <= ANSWER_BYTES_MAX || limit == 1 {
            return Ok(reply);
        }
        limit = fewer(limit, reply.len());
    }
}

#[cfg(test)]
mod tests;
