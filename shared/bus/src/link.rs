//! The link to the server as a watched value, and whether anybody answers over it. Reconnecting is the library's; this
//! only tells.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The library may drop events, so its state is compared with ours this often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Events that may wait to be looked at.
pub(crate) const EVENTS_WAITING: usize = 64;

/// Questions in a row, each asked after the one before was given up, that make a bus a stalled one. Pings find a server
/// that is gone; this finds a client or a server that answers pings and nothing else.
pub const UNANSWERED_MAX: u32 = 3;

/// Whether there is a connection.
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

/// Completes when the link is no longer the given one.
pub(crate) async fn lost(mut link: watch::Receiver<Link>, at: Link) {
    // An error means that the bus is gone, and its link with it.
    let _ = link.wait_for(|now| *now != at).await;
}

/// How long nobody has answered.
#[derive(Debug)]
pub(crate) struct Silence {
    seen: watch::Sender<Seen>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    unanswered: u32,
    /// When the last of them was given up.
    at: Option<Instant>,
}

impl Silence {
    pub(crate) fn new() -> Self {
        Self { seen: watch::Sender::default() }
    }

    /// Something came.
    pub(crate) fn broken(&self) {
        if self.seen.borrow().unanswered > 0 {
            self.seen.send_replace(Seen::default());
        }
    }

    /// A question asked at `asked` has been given up. Questions that were open together count once.
    pub(crate) fn unanswered(&self, asked: Instant) {
        self.seen.send_if_modified(|seen| {
            let counts = seen.at.is_none_or(|at| asked >= at);
            if counts {
                *seen = Seen { unanswered: seen.unanswered + 1, at: Some(Instant::now()) };
            }
            counts
        });
    }

    /// Completes when nobody has answered [`UNANSWERED_MAX`] times in a row.
    pub(crate) async fn long(&self) {
        // An error means that the bus is gone, which holds this.
        let _ = self.seen.subscribe().wait_for(|seen| seen.unanswered >= UNANSWERED_MAX).await;
    }
}

/// Keeps the watched value true until `stop`.
pub(crate) async fn follow(
    client: Client,
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
                // The connection has ended for good, and waits for its last handle to go.
                None => {
                    link.send_replace(Link::Down);
                    return stop.cancelled().await;
                }
                Some(Event::Connected) => Link::up(&client),
                Some(Event::Disconnected | Event::Closed) => Link::Down,
                Some(event) => {
                    if let Event::ServerError(error) = &event {
                        refused.send_replace(Some(error.to_string()));
                    }
                    tell(&event);
                    continue;
                }
            },
        };
        let changed = link.send_if_modified(|before| std::mem::replace(before, now) != now);
        if changed {
            tell_change(now);
        }
    }
}

fn tell_change(now: Link) {
    match now {
        Link::Up { since_count } => tracing::info!(nats.connects = since_count, "connected to NATS"),
        Link::Down => tracing::warn!("connection to NATS lost; reconnecting"),
    }
}

fn tell(event: &Event) {
    match event {
        Event::ClientError(error) => tracing::warn!(%error, "NATS not reached; trying again"),
        // Refused permissions come this way only: the publish or read itself just gets no answer.
        Event::ServerError(error) => tracing::warn!(%error, "NATS refused something"),
        Event::SlowConsumer(_) => tracing::warn!("messages dropped: a subscription was read too slowly"),
        Event::LameDuckMode => tracing::info!("the NATS server is about to stop"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_questions_asked_one_after_another_make_a_silence() {
        let silence = Silence::new();
        let count = || silence.seen.borrow().unanswered;
        let begin = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        (0..50).for_each(|_| silence.unanswered(begin));
        assert_eq!(count(), 1, "a whole window given up at once is one");
        silence.unanswered(Instant::now());
        silence.broken();
        assert_eq!(count(), 0);
        for _ in 0..UNANSWERED_MAX {
            assert!(tokio::time::timeout(Duration::from_secs(1), silence.long()).await.is_err());
            silence.unanswered(Instant::now());
        }
        silence.long().await;
    }
}
