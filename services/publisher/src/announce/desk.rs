//! The way to the announcer, for who has a commit or a request: one order at a time, each with its answer.

use muster_contract::query::{ErrorBody, PublishAnswer};
use muster_contract::{DeviceKey, Generation};
use tokio::sync::{mpsc, oneshot};

use crate::problems::Problems;
use crate::requests::{Request, not_ready};
use crate::source::Fleet;

/// Orders that wait while a round is under way.
const ORDERS_WAITING: usize = 64;

/// What the announcer is told.
pub(super) enum Order {
    /// Git wants this now. The answer is whether it can have it; publishing comes after.
    Commit(Fleet, oneshot::Sender<Result<(), Problems>>),
    /// The poller wants to know which commit was published last.
    LastPublished(oneshot::Sender<Option<String>>),
    /// Devices are at these generations.
    Heard(Vec<(DeviceKey, Generation)>),
    /// Somebody wants this, and an answer.
    Change(Request, oneshot::Sender<Result<PublishAnswer, ErrorBody>>),
}

/// The way to the announcer. Clones lead to the same one.
#[derive(Debug, Clone)]
pub struct Desk(mpsc::Sender<Order>);

impl Desk {
    /// A way, and its other end.
    pub(super) fn new() -> (Self, mpsc::Receiver<Order>) {
        let (desk, orders) = mpsc::channel(ORDERS_WAITING);
        (Self(desk), orders)
    }

    /// Hands a commit over. Waits while the announcer is busy, but not until the commit is published.
    ///
    /// # Errors
    /// Why it is refused as a whole, after all: what devices run by request already counts as well.
    pub async fn commit(&self, fleet: Fleet) -> Result<(), Problems> {
        let (answer, answered) = oneshot::channel();
        // Without an announcer the process is leaving; the next one starts with this commit.
        if self.0.send(Order::Commit(fleet, answer)).await.is_err() {
            return Ok(());
        }
        answered.await.unwrap_or(Ok(()))
    }

    /// The commit of the newest document from Git, if there is one.
    pub async fn last_published(&self) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Order::LastPublished(answer)).await.ok()?;
        answered.await.ok()?
    }

    /// Tells at which generations devices are; false where nobody listens any more.
    pub async fn heard(&self, beats: Vec<(DeviceKey, Generation)>) -> bool {
        self.0.send(Order::Heard(beats)).await.is_ok()
    }

    /// Has a change made.
    ///
    /// # Errors
    /// Why it was not made, for who asked.
    pub async fn change(&self, request: Request) -> Result<PublishAnswer, ErrorBody> {
        let leaving = || not_ready("the publisher is stopping: ask again");
        let (answer, answered) = oneshot::channel();
        self.0.send(Order::Change(request, answer)).await.map_err(|_| leaving())?;
        answered.await.unwrap_or_else(|_| Err(leaving()))
    }
}
