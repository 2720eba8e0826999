//! Follows a stream for the life of the process: the newest message of each subject, then each later one. A failed read is
//! repeated with backoff. The listener decides what to do with the messages.

use std::future::Future;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_service::retry::{Backoff, RetryPolicy, retry_until};
use tokio_util::sync::CancellationToken;

/// Messages read at once.
const BATCH: usize = 1000;
/// Delays before another attempt to read.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(200), max: Duration::from_secs(30) };

/// Handles the messages of a stream. Each method returns false once no more messages are wanted.
pub(crate) trait StreamListener {
    /// The stream.
    const STREAM: &str;
    /// The subjects.
    const SUBJECTS: &str;
    /// The messages in words, for the log.
    const WHAT: &str;

    /// Reading starts from the beginning: earlier positions may mean something else.
    fn on_start(&self) -> impl Future<Output = bool> + Send;

    /// Handles messages, in stream order.
    fn on_messages(&self, deliveries: &[Delivery]) -> impl Future<Output = bool> + Send;
}

/// Passes messages to a listener until `stop`.
pub(crate) async fn run<L: StreamListener>(bus: Bus, listener: L, stop: CancellationToken) {
    let listen = |backoff| listen(&bus, &listener, backoff);
    retry_until(&stop, RETRY, format!("cannot read {}", L::WHAT), listen).await;
}

/// Returns `Ok` only when the listener wants no more messages.
async fn listen<L: StreamListener>(bus: &Bus, listener: &L, backoff: Backoff) -> Result<(), ReadError> {
    let mut replay = bus.replay(L::STREAM, &[L::SUBJECTS], Start::LastPerSubject).await?;
    let mut is_wanted = listener.on_start().await;
    while is_wanted {
        let deliveries = replay.next_batch(BATCH).await?;
        backoff.reset();
        is_wanted = listener.on_messages(&deliveries).await;
    }
    Ok(())
}
