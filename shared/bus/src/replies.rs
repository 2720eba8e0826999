//! One inbox for the replies to all requests.
//!
//! The client library has such an inbox, but keeps a request that timed out for the life of the client, which is too
//! costly for a device that often loses its link. Here an entry is removed with its waiter.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Client, Message, Subject, Subscriber};
use futures_util::StreamExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(crate) struct Replies {
    inbox: String,
    next: AtomicU64,
    waiting: Waiting,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>;

/// A request that waits for its reply. Dropping it removes it from the inbox.
pub(crate) struct PendingReply {
    pub(crate) subject: Subject,
    pub(crate) reply: oneshot::Receiver<Message>,
    number: u64,
    waiting: Waiting,
}

impl Replies {
    /// Subscribes the inbox and routes its messages until `stop`.
    pub(crate) async fn open(
        client: &Client,
        stop: CancellationToken,
    ) -> Result<Self, async_nats::SubscribeError> {
        let inbox = client.new_inbox();
        let messages = client.subscribe(format!("{inbox}.*")).await?;
        let waiting = Waiting::default();
        tokio::spawn(route(messages, Arc::clone(&waiting), stop));
        Ok(Self { inbox, next: AtomicU64::new(1), waiting })
    }

    pub(crate) fn register(&self) -> PendingReply {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        locked(&self.waiting).insert(number, sender);
        let subject = Subject::from(format!("{}.{number}", self.inbox));
        PendingReply { subject, reply, number, waiting: Arc::clone(&self.waiting) }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        locked(&self.waiting).remove(&self.number);
    }
}

async fn route(mut messages: Subscriber, waiting: Waiting, stop: CancellationToken) {
    while let Some(Some(message)) = stop.run_until_cancelled(messages.next()).await {
        let waiter = number(&message.subject).and_then(|number| locked(&waiting).remove(&number));
        if let Some(waiter) = waiter {
            // A waiter that has just left wants no reply.
            let _ = waiter.send(message);
        }
    }
}

/// The number at the end of a reply subject.
pub(crate) fn number(subject: &str) -> Option<u64> {
    subject.rsplit('.').next()?.parse().ok()
}

/// The map has no state that a panic could leave half-made.
fn locked(waiting: &Waiting) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Message>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_requests_leave_nothing_behind() {
        let replies =
            Replies { inbox: "inbox".to_owned(), next: AtomicU64::new(1), waiting: Waiting::default() };
        let pending: Vec<_> = (0..1_000).map(|_| replies.register()).collect();
        assert_eq!(locked(&replies.waiting).len(), pending.len());
        drop(pending);
        assert!(locked(&replies.waiting).is_empty());
    }
}
