//! Sending over one connection until something goes wrong, or everything is sent and the agent stops.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use muster_bus::{Bus, Link, PublishError, PublishErrorKind, Stored};
use muster_contract::Epoch;
use muster_contract::limits::IN_FLIGHT_MAX;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Relay;
use super::budget::Allowance;
use super::message::Letterhead;
use super::sending::{Next, WIDTH_MIN};
use crate::db;
use crate::outbox::{Ask, Batch, News, Row};

/// How long acknowledged rows wait for others to be noted with.
const NOTE_INTERVAL: Duration = Duration::from_millis(100);
/// How long they wait after they could not be noted.
const NOTE_RETRY: Duration = Duration::from_secs(1);
/// Time between two looks at what was sent and never confirmed.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// Time for what is left when the agent stops.
const FLUSH: Duration = Duration::from_secs(3);

/// Rows from which a backlog is long: then one answer may stand for many of them.
const BATCH_ROWS_MIN: u64 = 500;
/// Answers to a window of a batch: a full window must never wait for rows that are to come.
const BATCH_ANSWERS: usize = 4;
/// Bounds of the pause while the device's share of UPLINK is full. Ingest makes room within tens of milliseconds; of a device
/// beyond its quota, at the quota's rate.
const FULL_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A batch that pauses longer is ended, because the server forgets one that is silent for ten seconds.
const BATCH_PAUSE_MAX: Duration = Duration::from_secs(3);

const _: () =
    assert!(BATCH_ANSWERS >= 2 && WIDTH_MIN >= BATCH_ANSWERS && BATCH_ROWS_MIN > IN_FLIGHT_MAX as u64);
const _: () =
    assert!(NOTE_INTERVAL.as_millis() < NOTE_RETRY.as_millis() && NOTE_RETRY.as_millis() < FLUSH.as_millis());

/// Why an attempt is over.
pub(super) enum End {
    /// The agent stops and everything that could be sent was.
    Stopped,
    /// The connection is another or gone.
    Link,
    /// The connection is given up.
    Cut,
    /// Something failed; the next attempt waits a little.
    Failed,
}

/// What an attempt waits for.
enum Happening {
    Answer(Sent, Result<Stored, PublishError>),
    News,
    FillDue,
    ResumeDue,
    NoteDue,
    Noted(Noted),
    BeatDue,
    TidyDue,
    Stop,
    TimeUp,
    LinkLost,
    Cut,
}

/// What is sent over, and when that is over.
pub(super) struct Connection<'a> {
    pub(super) bus: &'a Bus,
    pub(super) link: watch::Receiver<Link>,
    /// The link everything goes over.
    pub(super) over: Link,
    /// The connection is given up.
    pub(super) cut: &'a CancellationToken,
    /// The agent stops.
    pub(super) stop: &'a CancellationToken,
}

/// A row under way.
#[derive(Debug, Clone, Copy)]
struct Sent {
    seq: u64,
    at: Instant,
}

/// Rows, and whether the outbox has noted them.
struct Noted {
    seqs: Vec<u64>,
    result: Result<(), db::Error>,
}

/// Sending over one connection until something goes wrong.
pub(super) struct Attempt<'a> {
    relay: &'a mut Relay,
    connection: Connection<'a>,
    window: muster_bus::Window<Sent>,
    letterhead: Letterhead,
    /// A long backlog is under way.
    long: bool,
    /// When backlog may go on.
    next_fill: Option<Instant>,
    /// How long the next pauses are while the share is full.
    full_pauses: FullJitter,
    /// When sending goes on after such a pause.
    next_resume: Option<Instant>,
    next_beat: Instant,
    next_note: Option<Instant>,
    /// The next rows of a backlog, read while those before them are on their way.
    ahead: Option<AbortOnDropHandle<Result<Batch, db::Error>>>,
    /// Acknowledged rows that are being noted, while others are sent.
    noting: Option<Pin<Box<dyn Future<Output = Noted> + Send>>>,
    note_failed: bool,
    next_tidy: Instant,
    flush_until: Option<Instant>,
}

impl<'a> Attempt<'a> {
    pub(super) fn begin(relay: &'a mut Relay, connection: Connection<'a>) -> Self {
        let window = connection.bus.window(IN_FLIGHT_MAX);
        let (letterhead, now) = (Letterhead::of(&relay.device), Instant::now());
        Self {
            relay,
            connection,
            window,
            letterhead,
            long: false,
            next_fill: None,
            full_pauses: FullJitter::new(FULL_PAUSE.0, FULL_PAUSE.1),
            next_resume: None,
            next_beat: now,
            next_note: None,
            ahead: None,
            noting: None,
            note_failed: false,
            next_tidy: now,
            flush_until: None,
        }
    }

    pub(super) async fn run(mut self) -> End {
        let worked = self.work().await;
        self.relay.batches &= self.window.can_batch();
        match worked {
            Ok(end) => end,
            Err(error) => {
                tracing::error!(error = chain(&error), "the outbox cannot be read; sending pauses");
                End::Failed
            }
        }
    }

    async fn work(&mut self) -> Result<End, db::Error> {
        let epoch = match self.epoch().await? {
            Ok(epoch) => epoch,
            Err(end) => return Ok(end),
        };
        self.relay.sending.begin(epoch);
        let mut news = self.relay.outbox.news();
        let waiting = self.beat(epoch).await?;
        self.long = self.relay.batches && waiting >= BATCH_ROWS_MIN;
        loop {
            if !self.fill(epoch).await? {
                return Ok(End::Failed);
            }
            if self.flush_until.is_some() && self.relay.sending.is_idle() {
                return self.say_goodbye(epoch).await;
            }
            match self.wait(&mut news).await {
                Happening::Answer(sent, answer) => {
                    if self.answered(sent, answer).await == Next::Restart {
                        return Ok(End::Failed);
                    }
                }
                Happening::News => self.hear_news(),
                Happening::FillDue => {}
                Happening::ResumeDue => self.resume(),
                Happening::NoteDue => self.begin_note(),
                Happening::Noted(noted) => self.noted(noted),
                Happening::BeatDue => _ = self.beat(epoch).await?,
                Happening::TidyDue => self.tidy().await,
                Happening::Stop => self.flush_until = Some(Instant::now() + FLUSH),
                Happening::TimeUp => return self.say_goodbye(epoch).await,
                Happening::LinkLost => {
                    self.note().await;
                    return Ok(End::Link);
                }
                Happening::Cut => {
                    self.note().await;
                    return Ok(End::Cut);
                }
            }
        }
    }

    async fn wait(&mut self, news: &mut watch::Receiver<News>) -> Happening {
        let stopping = self.flush_until.is_some();
        let Connection { link, over, cut, stop, .. } = &mut self.connection;
        tokio::select! {
            Some((sent, answer)) = self.window.next(), if !self.window.is_empty() => Happening::Answer(sent, answer),
            Ok(()) = news.changed() => Happening::News,
            () = until(self.next_fill) => Happening::FillDue,
            () = until(self.next_resume) => Happening::ResumeDue,
            () = until(self.next_note) => Happening::NoteDue,
            noted = noting(&mut self.noting) => Happening::Noted(noted),
            () = sleep_until(self.next_beat) => Happening::BeatDue,
            // The hub must not go on believing what this device can no longer tell.
            Ok(()) = self.relay.trouble.changed() => Happening::BeatDue,
            () = sleep_until(self.next_tidy) => Happening::TidyDue,
            () = stop.cancelled(), if !stopping => Happening::Stop,
            () = until(self.flush_until) => Happening::TimeUp,
            () = cut.cancelled() => Happening::Cut,
            _ = link.wait_for(|now| now != over) => Happening::LinkLost,
        }
    }

    /// Lets the heart beat and gives the number of rows that wait.
    async fn beat(&mut self, epoch: Epoch) -> Result<u64, db::Error> {
        let waiting = self.relay.beat(self.connection.bus, epoch, &self.letterhead).await?;
        self.next_beat = self.relay.next_beat();
        Ok(waiting)
    }

    /// The epoch. If it has to be fixed yet, waits until the hub was asked which one it knows.
    async fn epoch(&mut self) -> Result<Result<Epoch, End>, db::Error> {
        if self.relay.outbox.summary().await?.epoch.is_none() {
            let Connection { link, over, cut, stop, .. } = &mut self.connection;
            tokio::select! {
                biased;
                greeted = self.relay.greeted.wait_for(|greeted| *greeted) => if greeted.is_err() {
                    return Ok(Err(End::Stopped));
                },
                _ = link.wait_for(|now| now != over) => return Ok(Err(End::Link)),
                () = cut.cancelled() => return Ok(Err(End::Cut)),
                // Without an epoch nothing was ever sent, and nothing can be now.
                () = stop.cancelled() => return Ok(Err(End::Stopped)),
            }
        }
        self.relay.outbox.fix_epoch(self.relay.clock.now()).await.map(Ok)
    }

    /// Sends as much as fits and as the budget allows; false when a new epoch has begun meanwhile.
    async fn fill(&mut self, epoch: Epoch) -> Result<bool, db::Error> {
        self.next_fill = None;
        while let Some(mut ask) = self.relay.sending.ask() {
            match self.relay.budget.allowance(Instant::now()) {
                Allowance::Bytes(bytes) => ask.bytes = ask.bytes.min(bytes),
                Allowance::From(due) => {
                    self.hold_back(due).await;
                    break;
                }
            }
            let batch = self.read(ask).await?;
            let head = batch.head;
            let Some(rows) = self.relay.sending.offer(batch) else { return Ok(false) };
            if rows.is_empty() {
                self.long = false;
                self.window.end_batch().await;
                break;
            }
            if self.long && self.relay.sending.width() >= WIDTH_MIN {
                self.window.batch_by(self.relay.sending.width() / BATCH_ANSWERS).await;
            }
            for row in rows {
                self.send(&row, epoch, head).await;
            }
            self.read_ahead();
        }
        Ok(true)
    }

    /// What was read ahead, or else what is asked for.
    async fn read(&mut self, ask: Ask) -> Result<Batch, db::Error> {
        match self.ahead.take() {
            Some(ahead) => ahead.await.unwrap_or(Err(db::Error::Closed)),
            None => self.relay.outbox.read(ask).await,
        }
    }

    /// Begins to read what goes next, so that a full window does not wait for the database. Not under a limit: there it
    /// would not wait, and how much may go is known only when it goes.
    fn read_ahead(&mut self) {
        if self.relay.budget.is_unlimited()
            && let Some(ask) = self.relay.sending.ask_ahead()
        {
            let outbox = self.relay.outbox.clone();
            self.ahead = Some(AbortOnDropHandle::new(tokio::spawn(async move { outbox.read(ask).await })));
        }
    }

    /// What was read ahead may no longer be what goes next.
    fn hear_news(&mut self) {
        self.ahead = None;
        self.relay.sending.news();
    }

    /// Backlog waits for the budget.
    async fn hold_back(&mut self, due: Instant) {
        self.relay.sending.held_back();
        self.next_fill = Some(due);
        if due > Instant::now() + BATCH_PAUSE_MAX {
            self.window.end_batch().await;
        }
    }

    async fn send(&mut self, row: &Row, epoch: Epoch, head: u64) {
        if let Some(message) = self.letterhead.report(row, epoch, head) {
            let at = Instant::now();
            self.relay.budget.charge(message.wire_bytes(), at);
            self.window.send(message, Sent { seq: row.seq, at }).await;
        }
    }

    /// Takes an answer, and all others that are there.
    async fn answered(&mut self, sent: Sent, answer: Result<Stored, PublishError>) -> Next {
        let mut next = Some((sent, answer));
        while let Some((sent, answer)) = next {
            match self.take(sent, answer) {
                Next::Continue => {}
                Next::Pause => self.pause().await,
                Next::Restart => {
                    self.note().await;
                    return Next::Restart;
                }
            }
            next = self.window.try_next();
        }
        if self.relay.sending.should_note() && !self.note_failed {
            self.begin_note();
        }
        if self.next_note.is_none() && self.noting.is_none() && self.relay.sending.acknowledged().is_some() {
            self.next_note = Some(Instant::now() + NOTE_INTERVAL);
        }
        Next::Continue
    }

    fn take(&mut self, sent: Sent, answer: Result<Stored, PublishError>) -> Next {
        let result = answer.map(drop).map_err(|error| {
            log_failure(sent.seq, &error);
            error.kind
        });
        match &result {
            Ok(()) => {
                self.full_pauses.reset();
                self.relay.metrics.sent();
            }
            Err(PublishErrorKind::SubjectFull) => self.relay.metrics.held_back(),
            Err(_) => {}
        }
        self.relay.sending.answered(sent.seq, result, sent.at.elapsed())
    }

    /// The device's share is full: what waits goes on waiting for a moment.
    async fn pause(&mut self) {
        self.ahead = None;
        self.window.end_batch().await;
        self.next_resume = Some(Instant::now() + self.full_pauses.next(&mut self.relay.chance));
    }

    fn resume(&mut self) {
        self.next_resume = None;
        self.relay.sending.resume();
    }

    /// Begins to note in the outbox what the bus holds; sending goes on meanwhile. If that cannot be kept (disk full), it
    /// is remembered and noted later.
    fn begin_note(&mut self) {
        if self.noting.is_some() {
            return;
        }
        self.next_note = None;
        let Some((epoch, seqs)) = self.relay.sending.acknowledged() else { return };
        let (outbox, now) = (self.relay.outbox.clone(), self.relay.clock.now());
        self.noting = Some(Box::pin(async move {
            let result = outbox.mark_sent(epoch, seqs.clone(), now).await;
            Noted { seqs, result }
        }));
    }

    fn noted(&mut self, Noted { seqs, result }: Noted) {
        self.noting = None;
        match result {
            Ok(()) => {
                self.note_failed = false;
                self.relay.sending.noted(&seqs);
                if self.relay.sending.acknowledged().is_some() {
                    self.next_note = Some(Instant::now() + NOTE_INTERVAL);
                }
            }
            Err(error) => {
                self.note_failed = true;
                self.relay.metrics.storage_failed();
                tracing::debug!(error = chain(&error), "what was sent cannot be noted yet");
                self.next_note = Some(Instant::now() + NOTE_RETRY);
            }
        }
    }

    /// Notes everything now.
    async fn note(&mut self) {
        if self.noting.is_some() {
            let noted = noting(&mut self.noting).await;
            self.noted(noted);
        }
        self.begin_note();
        if self.noting.is_some() {
            let noted = noting(&mut self.noting).await;
            self.noted(noted);
        }
    }

    async fn tidy(&mut self) {
        self.next_tidy = Instant::now() + TIDY_INTERVAL;
        if let Err(error) = self.relay.outbox.tidy(self.relay.clock.now()).await {
            tracing::debug!(error = chain(&error), "the outbox cannot be tidied yet");
        }
    }

    /// The last heartbeat: how far it went.
    async fn say_goodbye(&mut self, epoch: Epoch) -> Result<End, db::Error> {
        self.note().await;
        self.beat(epoch).await?;
        Ok(End::Stopped)
    }
}

/// What becomes of the rows that are being noted; never, while none are.
async fn noting(under_way: &mut Option<Pin<Box<dyn Future<Output = Noted> + Send>>>) -> Noted {
    match under_way {
        Some(noting) => noting.await,
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
            "the bus refuses this report for good: it stays here, the others go on, and the hub shows it as missing"
        ),
        PublishErrorKind::SubjectFull => {
            tracing::debug!(report.seq = seq, "UPLINK holds as much of this device as it may; sending again");
        }
        _ => tracing::debug!(
            report.seq = seq,
            error = chain(error),
            "a report was not confirmed; sending again"
        ),
    }
}
