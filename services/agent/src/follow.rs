//! Corridor: what the hub publishes for this device → judged → kept → told to the reconciler. Receipts come the same way
//! and go to the outbox.
//!
//! ```text
//! live subscription ─┐   desired ─► judge ─► database ─► reconciler
//! direct get at every├─► receipt ─► outbox
//! connection, and    │   credential ─► identity
//! now and then       ─┘
//! ```
//!
//! Outside of the polling hours desired state is neither asked for nor taken, however it comes; what was accepted before
//! stays in force. Receipts are taken at any hour, because reports are sent at any hour.
//!
//! A desired state is accepted only if its generation is greater than the one kept and all of it is valid; it is kept
//! before anybody acts on it. Otherwise the old one stays, and that is said, once for each refused document.

mod credential;
pub mod judge;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Delivery, Link, ReadError, Subscription};
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Generation, decode};
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::judge::{Verdict, judge};
use crate::db::{self, Db};
use crate::metrics::Metrics;
use crate::outbox::{Outbox, Received};
use crate::reconcile::Wanted;
use crate::schedule::Phase;
use crate::store::{self, Accepted};

/// Part of the time between two looks by which it varies.
const LOOK_JITTER: f64 = 0.2;
/// Time over which the first looks of a fleet spread when its polling hours begin, unless it polls more often.
const OPENING_SPREAD: Duration = Duration::from_secs(60);
/// Bounds of the delay before another attempt to look.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

const _: () = assert!(RETRY.1.as_secs() < OPENING_SPREAD.as_secs());

/// What a follower works with.
pub struct Follower {
    /// The device it listens for.
    pub device: DeviceKey,
    /// The connection, while there is one.
    pub connected: watch::Receiver<Option<Bus>>,
    /// What may be done now.
    pub phase: watch::Receiver<Phase>,
    /// Time between two looks at what is stored, whether or not anything was heard.
    pub poll: Duration,
    /// Where what is accepted is kept.
    pub db: Db,
    /// Where receipts go.
    pub outbox: Outbox,
    /// What time it is, for the outbox.
    pub clock: Arc<dyn Clock>,
    /// Who acts on what is accepted.
    pub desired: watch::Sender<Wanted>,
    /// Set once the hub's last receipt has been asked for.
    pub greeted: watch::Sender<bool>,
    /// What is counted.
    pub metrics: Metrics,
    /// For jitter.
    pub chance: fastrand::Rng,
    /// What was accepted last.
    pub accepted: Option<Accepted>,
    /// Digest of the document refused last: it is spoken of once.
    pub refused: Option<Digest>,
    /// Where this device's identity is kept, if it is kept here.
    pub identity: Option<PathBuf>,
    /// Digest of the JWT refused last.
    pub refused_credential: Option<Digest>,
    /// Looking failed the last time: that is spoken of once, too.
    pub blind: bool,
    /// Another device uses this one's name: spoken of once until the hub takes something from here again.
    pub chased: bool,
    /// When a new epoch may begin, if the hub still knows more by then.
    pub look_again_at: Option<Instant>,
}

impl Follower {
    /// Listens until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            // Whoever keeps the connection outlives those who follow.
            while let Some(bus) = self.next_bus().await {
                let mut connected = self.connected.clone();
                tokio::select! {
                    () = self.over(&bus) => {}
                    _ = connected.changed() => {}
                }
            }
        })
        .await;
    }

    async fn next_bus(&mut self) -> Option<Bus> {
        self.connected.wait_for(Option::is_some).await.ok()?;
        self.connected.borrow_and_update().clone()
    }

    /// Listens over one bus, for as long as there is one.
    async fn over(&mut self, bus: &Bus) {
        let mut link = bus.link();
        let mut subscription = self.subscribe(bus).await;
        while let Ok(over) = link.wait_for(|link| link.is_up()).await.map(|up| *up) {
            let mut lost = link.clone();
            tokio::select! {
                () = self.listen(bus, &mut subscription) => return,
                _ = lost.wait_for(|now: &Link| *now != over) => {}
            }
        }
    }

    async fn subscribe(&mut self, bus: &Bus) -> Subscription {
        let subject = subjects::live(&self.device);
        let mut delays = FullJitter::new(RETRY.0, RETRY.1);
        loop {
            match bus.subscribe(&subject).await {
                Ok(subscription) => return subscription,
                Err(error) => tracing::warn!(error = chain(&error), "cannot listen for desired state yet"),
            }
            sleep(delays.next(&mut self.chance)).await;
        }
    }

    /// Looks at what is stored, then takes what comes, and looks again now and then. Ends only with the bus.
    async fn listen(&mut self, bus: &Bus, subscription: &mut Subscription) {
        let mut delays = FullJitter::new(RETRY.0, RETRY.1);
        let mut next_look = Instant::now();
        loop {
            tokio::select! {
                biased;
                message = subscription.next() => match message {
                    Some(message) => {
                        self.take(message).await;
                        next_look = self.look_again_at.take().map_or(next_look, |at| at.min(next_look));
                    }
                    None => return,
                },
                Ok(()) = self.phase.changed() => {
                    let spread = OPENING_SPREAD.min(self.poll).mul_f64(self.chance.f64());
                    next_look = next_look.min(Instant::now() + spread);
                }
                () = sleep_until(next_look) => {
                    let delay = match self.look(bus).await {
                        Ok(()) => self.until_next_look(&mut delays),
                        Err(error) => self.after_failure(&error, &mut delays),
                    };
                    next_look = Instant::now() + delay;
                    next_look = self.look_again_at.take().map_or(next_look, |at| at.min(next_look));
                }
            }
        }
    }

    /// Gets what is stored for this device.
    async fn look(&mut self, bus: &Bus) -> Result<(), ReadError> {
        // The receipt first: the epoch of a new database waits for it.
        self.take_last(bus, subjects::receipt(&self.device)).await?;
        self.greeted.send_replace(true);
        if self.may_poll() {
            self.take_last(bus, subjects::desired(&self.device)).await?;
        }
        self.look_for_credential(bus).await;
        Ok(())
    }

    async fn take_last(&mut self, bus: &Bus, subject: String) -> Result<(), ReadError> {
        if let Some(message) = bus.last(stream::DOWNLINK, &subject).await? {
            self.take(message).await;
        }
        Ok(())
    }

    fn may_poll(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }

    fn until_next_look(&mut self, delays: &mut FullJitter) -> Duration {
        delays.reset();
        if std::mem::take(&mut self.blind) {
            tracing::info!("desired state can be looked up again");
        }
        self.poll.mul_f64(1.0 + LOOK_JITTER * (2.0 * self.chance.f64() - 1.0))
    }

    fn after_failure(&mut self, error: &ReadError, delays: &mut FullJitter) -> Duration {
        if !std::mem::replace(&mut self.blind, true) {
            tracing::warn!(
                error = chain(error),
                "cannot look for desired state; the last accepted one stays in force, and it is tried again"
            );
        }
        delays.next(&mut self.chance)
    }

    /// Takes a message of either kind.
    async fn take(&mut self, message: Delivery) {
        if message.subject == subjects::desired(&self.device) {
            // Outside of the hours it waits in DOWNLINK, where the next look finds it.
            if self.may_poll() {
                self.desired(message.payload).await;
            }
        } else if message.subject == subjects::receipt(&self.device) {
            self.receipt(&message.payload).await;
        } else if message.subject == subjects::credential(&self.device) {
            self.credential(message.payload).await;
        } else {
            tracing::debug!(nats.subject = message.subject, "a message of no known kind");
        }
    }

    async fn desired(&mut self, payload: Bytes) {
        match judge(self.accepted.as_ref(), &payload) {
            Verdict::Same => {}
            Verdict::Accept(document) => self.accept(document, payload).await,
            Verdict::Refuse(reason) => self.refuse(&reason, &payload),
        }
    }

    async fn accept(&mut self, document: DesiredState, payload: Bytes) {
        let generation = document.generation;
        if let Err(error) = store::accept(&self.db, generation, payload.to_vec()).await {
            self.metrics.storage_failed();
            return tracing::error!(
                error = chain(&error),
                desired.generation = generation.get(),
                "a desired state cannot be kept and is not acted on; the last accepted one stays in force"
            );
        }
        tracing::info!(
            desired.generation = generation.get(),
            desired.revision = document.source.revision,
            deployments.count = document.deployments.len(),
            "accepted a desired state"
        );
        if document.retired {
            tracing::warn!("this device is retired: everything is removed, and its heart beats no more");
        }
        self.metrics.generation(generation.get());
        self.accepted = Some(Accepted { generation, document: Some(document.clone()) });
        self.desired.send_replace(Some(Arc::new(document)));
    }

    fn refuse(&mut self, reason: &judge::Reason, payload: &[u8]) {
        let digest = Some(Digest::of_bytes(payload));
        if std::mem::replace(&mut self.refused, digest) == digest {
            return;
        }
        self.metrics.refused();
        let kept = self.accepted.as_ref().map(|accepted| accepted.generation).map_or(0, Generation::get);
        tracing::error!(
            reason = chain(reason),
            desired.generation = kept,
            "refused a desired state as a whole; the last accepted one stays in force"
        );
    }

    async fn receipt(&mut self, payload: &[u8]) {
        let receipt: Receipt = match decode::parse(payload) {
            Ok(receipt) => receipt,
            Err(refusal) => return tracing::warn!(reason = chain(&refusal), "ignored a receipt"),
        };
        match self.outbox.receive(receipt, self.clock.now()).await {
            Ok(received) => self.received(received),
            Err(error) => log_not_received(&error),
        }
    }

    fn received(&mut self, received: Received) {
        let chased = if let Received::Chased { again_in } = received { Some(again_in) } else { None };
        // The hub has said what it has to say: nothing else would make this device speak up once the other one is gone.
        self.look_again_at = chased.map(|again_in| Instant::now() + again_in).or(self.look_again_at);
        if chased.is_none() || !std::mem::replace(&mut self.chased, true) {
            log_received(received);
        }
        self.chased &= chased.is_some() || matches!(received, Received::OtherEpoch | Received::Renewed(_));
    }
}

fn log_received(received: Received) {
    match received {
        Received::Taken { requeued: 0 } | Received::OtherEpoch => {}
        Received::Taken { requeued } => {
            tracing::warn!(outbox.rows = requeued, "the hub asks for reports again: sending them");
        }
        Received::Renewed(epoch) => tracing::error!(
            device.epoch = epoch.get(),
            "the hub knows more than this database, which must be an old copy: a new epoch begins, and everything the \
             hub may lack is told again"
        ),
        Received::Chased { again_in } => tracing::error!(
            ?again_in,
            "the hub hears of this device from elsewhere, and takes nothing from here until a new epoch: stop the other \
             agent that uses its name"
        ),
    }
}

fn log_not_received(error: &db::Error) {
    tracing::warn!(error = chain(error), "a receipt could not be noted; the next one says the same");
}
