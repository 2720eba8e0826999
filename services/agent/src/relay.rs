//! Corridor: outbox → what to send next ([`sending`]) → the bus → the outbox again, which notes what the bus holds. Hearts
//! beat here too, because a heartbeat says how far the outbox goes.
//!
//! Every connection begins with a heartbeat, then come the rows. An attempt ends with the link, with the first transient
//! failure, or with a new epoch; then everything under way is forgotten and the next one begins after a delay.
//! Nothing is ever queued behind a link that is down: the outbox is the queue.

mod message;
pub mod sending;

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Link, PublishError, Stored};
use muster_contract::limits::HEARTBEAT_JITTER;
use muster_contract::presence::Heartbeat;
use muster_contract::version::ApiVersion;
use muster_contract::{DeviceKey, Epoch};
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::sending::{Next, Sending, Window};
use crate::db;
use crate::metrics::Metrics;
use crate::outbox::{News, Outbox};
use crate::reconcile::Wanted;

/// Bounds of the delay before the next attempt over the same connection.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// A delay that is worth a word.
const LONG_DELAY: Duration = Duration::from_secs(5);
/// An attempt that lasts this long went well: the delay after it is the least again.
const GOOD_ATTEMPT: Duration = Duration::from_secs(10);
/// How long acknowledged rows wait for others to be noted with.
const NOTE_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two looks at what was sent and never confirmed.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// Time for what is left when the agent stops.
const FLUSH: Duration = Duration::from_secs(3);

const _: () = assert!(NOTE_INTERVAL.as_millis() < GOOD_ATTEMPT.as_millis());

/// What a relay works with.
pub struct Relay {
    /// The device it speaks for.
    pub device: DeviceKey,
    /// The connection.
    pub bus: Bus,
    /// What to send.
    pub outbox: Outbox,
    /// What time it is, for the heartbeat and the outbox.
    pub clock: Arc<dyn Clock>,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// What the device shall run: its generation goes into the heartbeat; a retired device has none.
    pub desired: watch::Receiver<Wanted>,
    /// True once the hub's last receipt has been asked for. No epoch may be fixed before.
    pub greeted: watch::Receiver<bool>,
    /// What is counted.
    pub metrics: Metrics,
    /// For jitter.
    pub chance: fastrand::Rng,
}

/// Why an attempt is over.
enum End {
    /// The agent stops and everything that could be sent was.
    Stopped,
    /// The connection is another or gone.
    Link,
    /// Something failed; the next attempt waits a little.
    Failed,
}

impl Relay {
    /// Sends until `stop`, then what is left, if it goes quickly.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut sending = Sending::new(Window::default());
        let mut delays = FullJitter::new(RETRY.0, RETRY.1);
        let mut link = self.bus.link();
        let mut last = Link::Down;
        loop {
            let Some(over) = until_up(&mut link, &stop).await else { return };
            if over != last {
                sending.reconnected();
                last = over;
            }
            self.metrics.link(true);
            let begun = Instant::now();
            let end = Attempt::begin(&mut self, &mut sending).run(&mut link, over, &stop).await;
            if begun.elapsed() >= GOOD_ATTEMPT {
                delays.reset();
            }
            match end {
                End::Stopped => return,
                End::Failed if stop.is_cancelled() => return,
                End::Link => self.metrics.link(false),
                End::Failed => {
                    let delay = delays.next(&mut self.chance);
                    // Short troubles are everyday life on a thin link; long ones are somebody's business.
                    if delay >= LONG_DELAY {
                        tracing::warn!(
                            retry.seconds = delay.as_secs_f64(),
                            "reports do not get through although there is a connection: is UPLINK full, or a permission \
                             missing? They are kept here"
                        );
                    }
                    sleep(delay).await;
                }
            }
        }
    }

    async fn beat(&mut self, epoch: Epoch) -> Result<(), db::Error> {
        let summary = self.outbox.summary().await?;
        self.metrics.outbox(&summary);
        let (generation, retired) = match &*self.desired.borrow() {
            Some(document) => (document.generation.get(), document.retired),
            None => (0, false),
        };
        if retired {
            return Ok(());
        }
        let heartbeat = Heartbeat {
            api_version: ApiVersion::V1,
            kind: Default::default(),
            epoch,
            head: summary.head,
            unsent: summary.unsent.min(summary.head),
            oldest_unsent_at: summary.oldest_unsent_at,
            generation,
            agent_version: muster_service::VERSION.to_owned(),
        };
        let beat = message::heartbeat(&self.device, &heartbeat, self.clock.now());
        // One that does not get through is made up for by the next; whether the link is up is known elsewhere.
        if let Err(error) = self.bus.publish_core(&beat.subject, beat.headers, beat.payload).await {
            tracing::debug!(error = chain(&error), "a heartbeat was not sent");
        }
        Ok(())
    }

    fn next_beat(&mut self) -> Instant {
        let spread = HEARTBEAT_JITTER * (2.0 * self.chance.f64() - 1.0);
        Instant::now() + self.heartbeat.mul_f64(1.0 + spread)
    }
}

/// What an attempt waits for.
enum Happening {
    Answer(u64, Result<Stored, PublishError>),
    News,
    NoteDue,
    BeatDue,
    TidyDue,
    Stop,
    TimeUp,
    LinkLost,
}

/// Sending over one connection until something goes wrong.
struct Attempt<'a> {
    relay: &'a mut Relay,
    sending: &'a mut Sending,
    window: muster_bus::Window<u64>,
    next_beat: Instant,
    next_note: Option<Instant>,
    next_tidy: Instant,
    flush_until: Option<Instant>,
}

impl<'a> Attempt<'a> {
    fn begin(relay: &'a mut Relay, sending: &'a mut Sending) -> Self {
        let window = relay.bus.window(muster_contract::limits::IN_FLIGHT_MAX);
        let now = Instant::now();
        Self { relay, sending, window, next_beat: now, next_note: None, next_tidy: now, flush_until: None }
    }

    async fn run(mut self, link: &mut watch::Receiver<Link>, over: Link, stop: &CancellationToken) -> End {
        match self.work(link, over, stop).await {
            Ok(end) => end,
            Err(error) => {
                tracing::error!(error = chain(&error), "the outbox cannot be read; sending pauses");
                End::Failed
            }
        }
    }

    async fn work(
        &mut self,
        link: &mut watch::Receiver<Link>,
        over: Link,
        stop: &CancellationToken,
    ) -> Result<End, db::Error> {
        let Some(epoch) = self.epoch(link, over, stop).await? else { return Ok(End::Link) };
        self.sending.begin(epoch);
        let mut news = self.relay.outbox.news();
        self.relay.beat(epoch).await?;
        self.next_beat = self.relay.next_beat();
        loop {
            if !self.fill(epoch).await? {
                return Ok(End::Failed);
            }
            if self.flush_until.is_some() && self.sending.is_idle() {
                return self.say_goodbye(epoch).await;
            }
            match self.wait(&mut news, link, over, stop).await {
                Happening::Answer(seq, answer) => {
                    if self.answered(seq, answer).await? == Next::Restart {
                        return Ok(End::Failed);
                    }
                }
                Happening::News => self.sending.news(),
                Happening::NoteDue => self.note().await?,
                Happening::BeatDue => {
                    self.relay.beat(epoch).await?;
                    self.next_beat = self.relay.next_beat();
                }
                Happening::TidyDue => {
                    self.relay.outbox.tidy(self.relay.clock.now()).await?;
                    self.next_tidy = Instant::now() + TIDY_INTERVAL;
                }
                Happening::Stop => self.flush_until = Some(Instant::now() + FLUSH),
                Happening::TimeUp => return self.say_goodbye(epoch).await,
                Happening::LinkLost => {
                    self.note().await?;
                    return Ok(End::Link);
                }
            }
        }
    }

    async fn wait(
        &mut self,
        news: &mut watch::Receiver<News>,
        link: &mut watch::Receiver<Link>,
        over: Link,
        stop: &CancellationToken,
    ) -> Happening {
        let stopping = self.flush_until.is_some();
        tokio::select! {
            Some((seq, answer)) = self.window.next(), if !self.window.is_empty() => Happening::Answer(seq, answer),
            Ok(()) = news.changed() => Happening::News,
            () = until(self.next_note) => Happening::NoteDue,
            () = sleep_until(self.next_beat) => Happening::BeatDue,
            () = sleep_until(self.next_tidy) => Happening::TidyDue,
            () = stop.cancelled(), if !stopping => Happening::Stop,
            () = until(self.flush_until) => Happening::TimeUp,
            _ = link.wait_for(|now| *now != over) => Happening::LinkLost,
        }
    }

    /// The epoch. If it has to be fixed yet, waits until the hub was asked which one it knows.
    async fn epoch(
        &mut self,
        link: &mut watch::Receiver<Link>,
        over: Link,
        stop: &CancellationToken,
    ) -> Result<Option<Epoch>, db::Error> {
        if self.relay.outbox.summary().await?.epoch.is_none() {
            tokio::select! {
                greeted = self.relay.greeted.wait_for(|greeted| *greeted) => if greeted.is_err() { return Ok(None) },
                _ = link.wait_for(|now| *now != over) => return Ok(None),
                () = stop.cancelled() => return Ok(None),
            }
        }
        self.relay.outbox.fix_epoch(self.relay.clock.now()).await.map(Some)
    }

    /// Sends as much as fits; false when a new epoch has begun meanwhile.
    async fn fill(&mut self, epoch: Epoch) -> Result<bool, db::Error> {
        while let Some(ask) = self.sending.ask() {
            let batch = self.relay.outbox.read(ask).await?;
            let head = batch.head;
            let Some(rows) = self.sending.offer(batch) else { return Ok(false) };
            if rows.is_empty() {
                break;
            }
            for row in rows {
                if let Some(message) = message::report(&self.relay.device, &row, epoch, head) {
                    self.window.send(message, row.seq).await;
                }
            }
        }
        Ok(true)
    }

    /// Takes an answer, and all others that are there.
    async fn answered(&mut self, seq: u64, answer: Result<Stored, PublishError>) -> Result<Next, db::Error> {
        let mut next = Some((seq, answer));
        while let Some((seq, answer)) = next {
            if self.take(seq, answer) == Next::Restart {
                self.note().await?;
                return Ok(Next::Restart);
            }
            next = self.window.try_next();
        }
        if self.sending.should_note() {
            self.note().await?;
        }
        if self.next_note.is_none() && self.sending.acknowledged().is_some() {
            self.next_note = Some(Instant::now() + NOTE_INTERVAL);
        }
        Ok(Next::Continue)
    }

    fn take(&mut self, seq: u64, answer: Result<Stored, PublishError>) -> Next {
        let result = answer.map(drop).map_err(|error| {
            log_failure(seq, &error);
            error.kind
        });
        if result.is_ok() {
            self.relay.metrics.sent();
        }
        self.sending.answered(seq, result)
    }

    /// Notes in the outbox what the bus holds.
    async fn note(&mut self) -> Result<(), db::Error> {
        self.next_note = None;
        let Some((epoch, seqs)) = self.sending.acknowledged() else { return Ok(()) };
        self.relay.outbox.mark_sent(epoch, seqs.clone(), self.relay.clock.now()).await?;
        self.sending.noted(&seqs);
        Ok(())
    }

    /// The last heartbeat: how far it went.
    async fn say_goodbye(&mut self, epoch: Epoch) -> Result<End, db::Error> {
        self.note().await?;
        self.relay.beat(epoch).await?;
        Ok(End::Stopped)
    }
}

/// The next connection; `None` when the agent stops.
async fn until_up(link: &mut watch::Receiver<Link>, stop: &CancellationToken) -> Option<Link> {
    if stop.is_cancelled() {
        // What is left goes out if that is possible at once.
        let now = *link.borrow();
        return now.is_up().then_some(now);
    }
    tokio::select! {
        () = stop.cancelled() => None,
        up = link.wait_for(|link| link.is_up()) => up.ok().map(|up| *up),
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
        muster_bus::PublishErrorKind::Permanent => tracing::error!(
            ledger.seq = seq,
            error = chain(error),
            "the bus refuses this report for good: it stays here, the others go on, and the hub shows it as missing"
        ),
        _ => tracing::debug!(
            ledger.seq = seq,
            error = chain(error),
            "a report was not confirmed; sending again"
        ),
    }
}
