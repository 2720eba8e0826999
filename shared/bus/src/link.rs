//! The link to the server as a watched value, and the count of requests without an answer. The client library reconnects;
//! this module only observes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The library may drop events, so the watched value is compared with its state this often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Events that may wait for [`follow`].
pub(crate) const EVENT_QUEUE_MAX: usize = 64;

/// Requests in a row, each sent after the one before timed out, after which a bus counts as stalled. Pings find a server
/// that is gone; this finds a client or a server that answers pings and nothing else.
pub(crate) const UNANSWERED_MAX: u32 = 3;

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Connected; the count rises with every new connection.
    Up {
        /// Connections made so far, this one included.
        since_count: u64,
    },
    /// Not connected; the bus reconnects by itself.
    Down,
}

impl Link {
    /// True when connected.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }

    pub(crate) fn now(client: &Client) -> Self {
        match client.connection_state() {
            State::Connected => Self::up(client),
            _ => Self::Down,
        }
    }

    fn up(client: &Client) -> Self {
        Self::Up { since_count: client.statistics().connects.load(Ordering::Relaxed) }
    }
}

/// Completes when the link is no longer `at`.
pub(crate) async fn lost(mut link: watch::Receiver<Link>, at: Link) {
    // An error means that the bus is gone, and its link with it.
    let _ = link.wait_for(|now| *now != at).await;
}

/// Counts requests in a row that got no answer.
#[derive(Debug)]
pub(crate) struct Silence {
    unanswered: watch::Sender<Unanswered>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unanswered {
    count: u32,
    /// When the last of them timed out.
    at: Option<Instant>,
}

impl Silence {
    pub(crate) fn new() -> Self {
        Self { unanswered: watch::Sender::default() }
    }

    /// Resets the count: an answer came.
    pub(crate) fn answered(&self) {
        if self.unanswered.borrow().count > 0 {
            self.unanswered.send_replace(Unanswered::default());
        }
    }

    /// Counts a request that was sent at `asked` and timed out. Requests that were open together count once.
    pub(crate) fn count_unanswered(&self, asked: Instant) {
        self.unanswered.send_if_modified(|seen| {
            let counts = seen.at.is_none_or(|at| asked >= at);
            if counts {
                *seen = Unanswered { count: seen.count + 1, at: Some(Instant::now()) };
            }
            counts
        });
    }

    /// Completes when [`UNANSWERED_MAX`] requests in a row got no answer.
    pub(crate) async fn stalled(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.unanswered.subscribe().wait_for(|seen| seen.count >= UNANSWERED_MAX).await;
    }
}

/// Updates the watched value from the library's events until `stop`, and logs them with the connection's `name`: a process may
/// have several.
pub(crate) async fn follow(
    client: Client,
    name: String,
    mut events: mpsc::Receiver<Event>,
    link: watch::Sender<Link>,
    refused: watch::Sender<Option<String>>,
    stop: CancellationToken,
) {
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    loop {
        let now = tokio::select! {
            () = stop.cancelled() => return,
            _ = check.tick() => Link::now(&client),
            event = events.recv() => match event {
                // The library's task is gone, which only a panic there does; the last handle of the bus cancels `stop`.
                None => {
                    tracing::error!(nats.client = name, "connection to NATS ended for good: this is a defect; restart the process");
                    link.send_replace(Link::Down);
                    return stop.cancelled().await;
                }
                Some(Event::Connected) => Link::up(&client),
                Some(Event::Disconnected | Event::Closed) => Link::Down,
                Some(event) => {
                    if let Event::ServerError(error) = &event {
                        refused.send_replace(Some(error.to_string()));
                    }
                    log_event(&name, &event);
                    continue;
                }
            },
        };
        let changed = link.send_if_modified(|before| std::mem::replace(before, now) != now);
        if changed {
            log_change(&name, now);
        }
    }
}

fn log_change(name: &str, now: Link) {
    match now {
        Link::Up { since_count } => {
            tracing::info!(nats.client = name, nats.connects = since_count, "connected to NATS");
        }
        Link::Down => tracing::warn!(nats.client = name, "connection to NATS lost; reconnecting"),
    }
}

fn log_event(name: &str, event: &Event) {
    match event {
        Event::ClientError(error) => {
            tracing::warn!(nats.client = name, %error, "cannot reach NATS; trying again");
        }
        // The server reports a missing permission only here: the publish or read itself gets no answer.
        Event::ServerError(error) => {
            tracing::warn!(nats.client = name, %error, "NATS refused an operation");
        }
        Event::SlowConsumer(_) => {
            tracing::warn!(nats.client = name, "dropped messages: a subscription was read too slowly");
        }
        Event::LameDuckMode => tracing::info!(nats.client = name, "the NATS server announced that it stops"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_requests_sent_one_after_another_make_a_bus_stalled() {
        let silence = Silence::new();
        let count = || silence.unanswered.borrow().count;
        let begin = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        (0..50).for_each(|_| silence.count_unanswered(begin));
        assert_eq!(count(), 1, "a whole window that timed out at once counts once");
        silence.count_unanswered(Instant::now());
        silence.answered();
        assert_eq!(count(), 0);
        for _ in 0..UNANSWERED_MAX {
            assert!(tokio::time::timeout(Duration::from_secs(1), silence.stalled()).await.is_err());
            silence.count_unanswered(Instant::now());
        }
        silence.stalled().await;
    }
}
