//! Drives the relay over the bus and the outbox: waits for events, hands them to [`RelayCore`](super::core::RelayCore) as
//! inputs, and carries out its effects in their order. It decides nothing itself.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use muster_bus::{Bus, Link, Outgoing, PublishError, PublishErrorKind, Stored, Window};
use muster_contract::Epoch;
use muster_contract::limits::IN_FLIGHT_MAX;
use muster_contract::presence::Heartbeat;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Relay;
use super::core::{DeviceStatus, Effect, Input, OutgoingReport, Ticket};
use super::message::{HeartbeatForm, MessageBuilder};
use crate::db;
use crate::outbox::{Batch, OutboxChange, ReadRequest};
use crate::token::CurrentToken;

/// A delay between two sessions from which the driver logs a warning.
const LONG_DELAY: Duration = Duration::from_secs(5);

/// An event that the driver waits for.
enum DriverEvent {
    Answer(Ticket, Answer),
    OutboxChanged,
    StateChanged,
    Marked(Result<(), db::Error>),
    ReceiptFetched(bool),
    Deadline,
    Stop,
    Cut,
    LinkChanged,
}

/// UPLINK's answer to a report.
type Answer = Result<Stored, PublishError>;
/// Rows being marked as sent, concurrently.
type Marking = Pin<Box<dyn Future<Output = Result<(), db::Error>> + Send>>;

/// A heartbeat is complete at least this often: after a downgrade the hub reads only complete ones, and only they name a token
/// that does not end soon.
const COMPLETE_HEARTBEAT_EVERY: Duration = Duration::from_secs(30 * 60);

/// A relay over one bus.
pub(super) struct Driver<'a> {
    relay: &'a mut Relay,
    bus: &'a Bus,
    link: watch::Receiver<Link>,
    /// The connection that the core knows of.
    known_link: Link,
    changes: watch::Receiver<OutboxChange>,
    messages: MessageBuilder,
    window: Window<Ticket>,
    ahead: Option<AbortOnDropHandle<Result<Batch, db::Error>>>,
    marking: Option<Marking>,
    /// The follower, which fetches the receipt, has not ended.
    has_follower: bool,
    /// When the last complete heartbeat was sent over this connection.
    complete_heartbeat_at: Option<Instant>,
    /// The hub reads short heartbeats.
    hub_compares: bool,
    /// The token that the last heartbeat with one named.
    sent_token: CurrentToken,
    is_stopping: bool,
    is_cut: bool,
}

impl<'a> Driver<'a> {
    pub(super) fn new(relay: &'a mut Relay, bus: &'a Bus) -> Self {
        Self {
            bus,
            link: bus.link(),
            known_link: Link::Down,
            changes: relay.outbox.changes(),
            messages: MessageBuilder::of(&relay.device),
            window: bus.window(IN_FLIGHT_MAX),
            ahead: None,
            marking: None,
            has_follower: true,
            complete_heartbeat_at: None,
            hub_compares: false,
            sent_token: None,
            is_stopping: false,
            is_cut: false,
            relay,
        }
    }

    pub(super) async fn run(mut self, cut: &CancellationToken, stop: &CancellationToken) {
        self.link_changed();
        loop {
            self.run_effects().await;
            let is_over = self.is_cut && !self.relay.core.is_in_session();
            if is_over || self.relay.core.has_stopped() {
                break;
            }
            let event = self.wait(cut, stop).await;
            self.handle(event);
        }
        self.relay.metrics.set_link(false);
    }

    async fn wait(&mut self, cut: &CancellationToken, stop: &CancellationToken) -> DriverEvent {
        let (core, is_fetched) = (&self.relay.core, self.relay.core.is_receipt_fetched());
        let (is_in_session, deadline, known) = (core.is_in_session(), core.deadline(), self.known_link);
        tokio::select! {
            Some((ticket, answer)) = self.window.next(), if !self.window.is_empty() => DriverEvent::Answer(ticket, answer),
            Ok(()) = self.changes.changed(), if is_in_session => DriverEvent::OutboxChanged,
            marked = marking(&mut self.marking) => DriverEvent::Marked(marked),
            () = until(deadline) => DriverEvent::Deadline,
            // The next heartbeat carries the refusal, the token, and whether the device can store reports: it must not wait.
            Ok(()) = self.relay.storage_failure.changed(), if is_in_session => DriverEvent::StateChanged,
            Ok(()) = self.relay.refused.changed(), if is_in_session => DriverEvent::StateChanged,
            Ok(()) = self.relay.token.changed(), if is_in_session => DriverEvent::StateChanged,
            fetched = self.relay.receipt_fetched.wait_for(|fetched| *fetched), if self.has_follower && !is_fetched => {
                DriverEvent::ReceiptFetched(fetched.is_ok())
            }
            () = stop.cancelled(), if !self.is_stopping => DriverEvent::Stop,
            () = cut.cancelled(), if !self.is_cut => DriverEvent::Cut,
            changed = self.link.wait_for(|now| *now != known), if !self.is_cut => match changed {
                Ok(_) => DriverEvent::LinkChanged,
                // The bus is gone.
                Err(_) => DriverEvent::Cut,
            },
        }
    }

    fn handle(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::Answer(ticket, answer) => self.handle_answers(ticket, answer),
            DriverEvent::OutboxChanged => self.feed(Input::OutboxChanged),
            DriverEvent::StateChanged => self.feed(Input::StateChanged),
            DriverEvent::Marked(marked) => self.marked(&marked),
            DriverEvent::ReceiptFetched(true) => self.feed(Input::ReceiptFetched),
            // The receipt will not be fetched any more: the agent stops.
            DriverEvent::ReceiptFetched(false) => {
                self.has_follower = false;
                self.stop();
            }
            DriverEvent::Stop => self.stop(),
            DriverEvent::Deadline => {}
            DriverEvent::Cut => {
                self.is_cut = true;
                self.feed(Input::Link(Link::Down));
            }
            DriverEvent::LinkChanged => self.link_changed(),
        }
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        self.feed(Input::Stop);
    }

    fn feed(&mut self, input: Input) {
        self.relay.core.handle(input, Instant::now());
    }

    fn link_changed(&mut self) {
        self.known_link = *self.link.borrow_and_update();
        self.complete_heartbeat_at = None;
        self.relay.metrics.set_link(self.known_link.is_up());
        self.feed(Input::Link(self.known_link));
    }

    /// Handles an answer, and all others that have arrived.
    fn handle_answers(&mut self, ticket: Ticket, answer: Answer) {
        let mut next = Some((ticket, answer));
        while let Some((ticket, answer)) = next {
            match &answer {
                Ok(_) => self.relay.metrics.reports_sent(self.relay.core.reports_of(&ticket)),
                Err(error) => {
                    log_failure(ticket.seq(), error);
                    if error.kind == PublishErrorKind::SubjectFull {
                        self.relay.metrics.report_held_back();
                    }
                }
            }
            self.feed(Input::Answer(ticket, answer.map(drop).map_err(|error| error.kind)));
            next = self.window.try_next();
        }
    }

    fn marked(&mut self, marked: &Result<(), db::Error>) {
        self.marking = None;
        if let Err(error) = marked {
            self.relay.metrics.storage_failed();
            tracing::debug!(error = chain(error), "cannot mark reports as sent yet");
        }
        self.feed(Input::Marked(marked.is_ok()));
    }

    /// Carries out every effect that is due, one after the other.
    async fn run_effects(&mut self) {
        loop {
            let now = Instant::now();
            let Some(effect) = self.relay.core.next_effect(now) else { break };
            self.execute(effect, now).await;
        }
    }

    async fn execute(&mut self, effect: Effect, now: Instant) {
        match effect {
            Effect::ReadStatus => {
                let status = self.status().await.map(Input::Status);
                self.feed_read(status);
            }
            Effect::FixEpoch => {
                let fixed = self.relay.outbox.fix_epoch(self.relay.clock.now()).await.map(Input::EpochFixed);
                self.feed_read(fixed);
            }
            Effect::SendHeartbeat(heartbeat) => self.send_heartbeat(heartbeat, now).await,
            Effect::ReadRows(request) => {
                self.ahead = None;
                let rows = self.relay.outbox.read(request).await.map(Input::Rows);
                self.feed_read(rows);
            }
            Effect::ReadAhead(request) => self.read_ahead(request),
            Effect::TakeReadAhead => {
                let rows = match self.ahead.take() {
                    Some(ahead) => ahead.await.unwrap_or(Err(db::Error::Closed)),
                    None => Err(db::Error::Closed),
                };
                self.feed_read(rows.map(Input::Rows));
            }
            Effect::BeginBatch(flow) => self.window.batch_by(flow).await,
            Effect::SendReport(report, ticket) => self.send_report(&report, ticket, now).await,
            Effect::SendBatch(batch, ticket) => {
                let message = self.messages.batch(&batch);
                self.send_message(message, ticket, now).await;
            }
            Effect::EndBatch => self.window.end_batch().await,
            Effect::MarkSent(epoch, seqs) => self.start_marking(epoch, seqs),
            Effect::MaintainOutbox => {
                if let Err(error) = self.relay.outbox.maintain(self.relay.clock.now()).await {
                    tracing::debug!(error = chain(&error), "cannot maintain the outbox yet");
                }
            }
            Effect::EndSession(delay) => self.end_session(delay),
        }
    }

    /// Hands in the answer of the outbox, or that it failed.
    fn feed_read(&mut self, read: Result<Input, db::Error>) {
        let input = read.unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "cannot read the outbox; sending pauses");
            Input::StorageFailed
        });
        self.feed(input);
    }

    async fn status(&mut self) -> Result<DeviceStatus, db::Error> {
        let summary = self.relay.outbox.summary().await?;
        self.hub_compares = summary.hub_compares;
        self.relay.metrics.set_outbox(&summary);
        let (generation, is_retired) = match &*self.relay.desired.borrow() {
            Some(document) => (document.generation.get(), document.retired),
            None => (0, false),
        };
        let is_storing = self.relay.storage_failure.borrow_and_update().is_none();
        let refused = self.relay.refused.borrow_and_update().clone();
        let token = *self.relay.token.borrow_and_update();
        Ok(DeviceStatus { summary, generation, is_retired, is_storing, refused, token })
    }

    /// A heartbeat that may be brief names the token only if that ends soon.
    async fn send_heartbeat(&mut self, mut heartbeat: Heartbeat, now: Instant) {
        let is_token_sent = std::mem::replace(&mut self.sent_token, heartbeat.token) == heartbeat.token;
        let is_recent = self.complete_heartbeat_at.is_some_and(|at| now - at < COMPLETE_HEARTBEAT_EVERY);
        let may_be_brief = is_usual(&heartbeat) && is_token_sent && is_recent;
        if may_be_brief {
            let now = self.relay.clock.now();
            heartbeat.token = heartbeat.token.filter(|token| token.ends_soon(now));
        } else {
            self.complete_heartbeat_at = Some(now);
        }
        let form = match (may_be_brief, self.hub_compares) {
            (false, _) => HeartbeatForm::Complete,
            (true, true) => HeartbeatForm::Short,
            (true, false) if self.relay.core.hub_has_dictionary() => HeartbeatForm::Brief,
            (true, false) => HeartbeatForm::Complete,
        };
        let message = self.messages.heartbeat(&heartbeat, form);
        let Outgoing { subject, headers, payload, .. } = self.charged(message, now);
        // The next heartbeat replaces a lost one, and `link` says whether there is a connection.
        if let Err(error) = self.bus.publish_core(&subject, headers, payload).await {
            tracing::debug!(error = chain(&error), "cannot send a heartbeat");
        }
    }

    async fn send_report(&mut self, report: &OutgoingReport, ticket: Ticket, now: Instant) {
        let message = self.messages.report(report);
        self.send_message(message, ticket, now).await;
    }

    async fn send_message(&mut self, message: Option<Outgoing>, ticket: Ticket, now: Instant) {
        match message {
            Some(message) => {
                let message = self.charged(message, now);
                self.window.send(message, ticket).await;
            }
            // No report can have this number, now or ever; or the reports do not fit into a batch.
            None => self.relay.core.handle(Input::Answer(ticket, Err(PublishErrorKind::Permanent)), now),
        }
    }

    /// Charges a message to the budget of the core.
    fn charged(&mut self, message: Outgoing, now: Instant) -> Outgoing {
        self.relay.core.handle(Input::Written(message.wire_bytes()), now);
        message
    }

    fn read_ahead(&mut self, request: ReadRequest) {
        let outbox = self.relay.outbox.clone();
        self.ahead = Some(AbortOnDropHandle::new(tokio::spawn(async move { outbox.read(request).await })));
    }

    /// Begins to mark rows as sent. If that cannot be stored (disk full), the core asks for it again later.
    fn start_marking(&mut self, epoch: Epoch, seqs: Vec<u64>) {
        let (outbox, now) = (self.relay.outbox.clone(), self.relay.clock.now());
        self.marking = Some(Box::pin(async move { outbox.mark_sent(epoch, seqs, now).await }));
    }

    fn end_session(&mut self, delay: Option<Duration>) {
        if !self.window.can_batch() {
            self.feed(Input::BatchFailed);
        }
        self.window = self.bus.window(IN_FLIGHT_MAX);
        self.ahead = None;
        // Short failures are normal on a slow link; long ones need a person.
        if let Some(delay) = delay.filter(|delay| *delay >= LONG_DELAY) {
            tracing::warn!(
                retry.seconds = delay.as_secs_f64(),
                "UPLINK confirms no reports although the agent is connected: is it full, or is a permission missing? \
                 The reports stay in the outbox"
            );
        }
    }
}

/// The result of the marks under way; pending while there are none.
async fn marking(under_way: &mut Option<Marking>) -> Result<(), db::Error> {
    match under_way {
        Some(marking) => marking.await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn log_failure(seq: u64, error: &PublishError) {
    match error.kind {
        PublishErrorKind::Permanent => tracing::error!(
            report.seq = seq,
            error = chain(error),
            "UPLINK rejects this report for good: it stays in the outbox, the others are sent, and the hub shows it as missing"
        ),
        PublishErrorKind::SubjectFull => {
            tracing::debug!(
                report.seq = seq,
                "cannot store a report in UPLINK, because the device's share is full; retrying"
            );
        }
        _ => tracing::debug!(
            report.seq = seq,
            error = chain(error),
            "cannot confirm a report in UPLINK; retrying"
        ),
    }
}

/// Whether the heartbeat reports nothing unusual, so that a hub that cannot read it misses nothing: every report is stored and
/// sent.
const fn is_usual(heartbeat: &Heartbeat) -> bool {
    heartbeat.storing && heartbeat.unsent == 0
}
