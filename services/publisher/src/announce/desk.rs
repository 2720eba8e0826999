//! The way to the announcer, for who has a commit or a request: one order at a time, each with its answer.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_contract::query::{ErrorBody, PublishAnswer};
use muster_contract::{DeviceKey, Generation};
use muster_service::life::DRAIN_DEADLINE;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::copies::LedgerCopy;
use crate::foreign::StoredDocument;
use crate::problems::Problems;
use crate::requests::{Request, not_ready};
use crate::source::Fleet;

/// Orders that wait while a round is under way.
const ORDERS_WAITING: usize = 64;
/// How long a change waits for the announcer to know what is published: less than `muster` waits for an answer (5 s where
/// nothing is said).
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

// Whoever waits when the process is to end is answered before its time is up.
const _: () = assert!(2 * KNOWN_WITHIN.as_secs() < DRAIN_DEADLINE.as_secs());

/// What the announcer is told.
pub(super) enum Order {
    /// Git wants this now. The answer is whether it can have it; publishing comes after.
    Commit(Fleet, oneshot::Sender<Result<(), Problems>>),
    /// Git wanted this before the start. The answer is whether it still can have it.
    Resume(Fleet, oneshot::Sender<Result<(), Problems>>),
    /// The poller wants to know which commits others have published that were not seen here.
    Unseen(oneshot::Sender<BTreeSet<String>>),
    /// This commit came after those others.
    Follows(String, BTreeSet<String>),
    /// The poller wants to know which commit was published last.
    LastPublished(oneshot::Sender<Option<String>>),
    /// Devices are at these generations.
    Heard(Vec<(DeviceKey, Generation)>),
    /// DOWNLINK holds these; true where it is another DOWNLINK than before.
    Verify(Vec<StoredDocument>, bool),
    /// DOWNLINK holds documents of these devices and of no others.
    Listed(BTreeSet<DeviceKey>),
    /// Documents of these devices were stored a moment ago.
    StoredLately(BTreeSet<DeviceKey>),
    /// LEDGER holds these.
    InLedger(Vec<LedgerCopy>),
    /// What LEDGER holds is read from its beginning.
    LedgerAnew,
    /// A device's document was put in its own place by this process: it stood at the first sequence and stands at the second.
    Renewed(DeviceKey, u64, u64),
    /// Somebody wants this, and an answer.
    Change(Request, oneshot::Sender<Result<PublishAnswer, ErrorBody>>),
}

/// The way to the announcer. Clones lead to the same one.
#[derive(Debug, Clone)]
pub struct Desk {
    orders: mpsc::Sender<Order>,
    /// Whether the announcer knows what is published.
    knows: watch::Receiver<bool>,
}

impl Desk {
    /// A way, its other end, and where the announcer says that it knows what is published.
    pub(super) fn new() -> (Self, mpsc::Receiver<Order>, watch::Sender<bool>) {
        let ((orders, waiting), (known, knows)) = (mpsc::channel(ORDERS_WAITING), watch::channel(false));
        (Self { orders, knows }, waiting, known)
    }

    /// Waits until it is known what is published: whatever Git is asked after that says no less.
    pub async fn known(&self) {
        // An error means that the announcer has left, and the process with it.
        let _ = self.knows.clone().wait_for(|knows| *knows).await;
    }

    /// Hands over a commit. Waits while the announcer is busy, but not until the commit is published.
    ///
    /// # Errors
    /// Why it is refused as a whole, after all: what devices run by request already counts as well.
    pub async fn commit(&self, fleet: Fleet) -> Result<(), Problems> {
        self.hand_over(|answer| Order::Commit(fleet, answer)).await
    }

    /// The commits that others have published and that were not handed over here.
    pub async fn unseen(&self) -> BTreeSet<String> {
        let (answer, answered) = oneshot::channel();
        // Without an announcer the process is leaving.
        let _ = self.orders.send(Order::Unseen(answer)).await;
        answered.await.unwrap_or_default()
    }

    /// Tells that the commit which was handed over last came after all of `older`.
    pub async fn follows(&self, revision: String, older: BTreeSet<String>) {
        // Without an announcer the process is leaving.
        let _ = self.orders.send(Order::Follows(revision, older)).await;
    }

    /// Hands over the commit that was published last before the start.
    ///
    /// # Errors
    /// Why it is refused as a whole: also that something was published since.
    pub async fn resume(&self, fleet: Fleet) -> Result<(), Problems> {
        self.hand_over(|answer| Order::Resume(fleet, answer)).await
    }

    async fn hand_over(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), Problems>>) -> Order,
    ) -> Result<(), Problems> {
        let (answer, answered) = oneshot::channel();
        // Without an announcer the process is leaving; the next one starts with this commit.
        if self.orders.send(order(answer)).await.is_err() {
            return Ok(());
        }
        answered.await.unwrap_or(Ok(()))
    }

    /// The commit of the newest document from Git, if there is one: what may be [resumed](Self::resume).
    pub async fn last_published(&self) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::LastPublished(answer)).await.ok()?;
        answered.await.ok()?
    }

    /// Tells at which generations devices are; false where nobody listens any more.
    pub async fn heard(&self, beats: Vec<(DeviceKey, Generation)>) -> bool {
        self.orders.send(Order::Heard(beats)).await.is_ok()
    }

    /// Has documents verified as DOWNLINK holds them, of another DOWNLINK than before where it `is_new`; false where nobody
    /// listens any more.
    pub async fn verify(&self, documents: Vec<StoredDocument>, is_new: bool) -> bool {
        self.orders.send(Order::Verify(documents, is_new)).await.is_ok()
    }

    /// Tells which devices DOWNLINK holds documents of; false where nobody listens any more.
    pub async fn listed(&self, devices: BTreeSet<DeviceKey>) -> bool {
        self.orders.send(Order::Listed(devices)).await.is_ok()
    }

    /// Has DOWNLINK asked whether it still holds documents that it stored a moment ago; false where nobody listens any more.
    pub async fn stored_lately(&self, devices: BTreeSet<DeviceKey>) -> bool {
        self.orders.send(Order::StoredLately(devices)).await.is_ok()
    }

    /// Tells what LEDGER holds; false where nobody listens any more.
    pub async fn in_ledger(&self, copies: Vec<LedgerCopy>) -> bool {
        self.orders.send(Order::InLedger(copies)).await.is_ok()
    }

    /// Tells that what LEDGER holds is told from its beginning; false where nobody listens any more.
    pub async fn ledger_anew(&self) -> bool {
        self.orders.send(Order::LedgerAnew).await.is_ok()
    }

    /// Tells that a device's document was put in its own place, from one sequence to another.
    pub async fn renewed(&self, key: DeviceKey, before: u64, now: u64) {
        // Without an announcer the process is leaving; the next one reads where it stands.
        let _ = self.orders.send(Order::Renewed(key, before, now)).await;
    }

    /// Has a change made.
    ///
    /// # Errors
    /// Why it was not made, for who asked.
    pub async fn change(&self, request: Request) -> Result<PublishAnswer, ErrorBody> {
        let leaving = || not_ready("the publisher is stopping: ask again");
        let mut knows = self.knows.clone();
        if timeout(KNOWN_WITHIN, knows.wait_for(|knows| *knows)).await.is_err() {
            return Err(not_ready(
                "the publisher cannot read yet what is published (DOWNLINK and LEDGER); its log says why. Ask again",
            ));
        }
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::Change(request, answer)).await.map_err(|_| leaving())?;
        answered.await.unwrap_or_else(|_| Err(leaving()))
    }
}
