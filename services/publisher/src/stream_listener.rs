//! Follows a stream for the life of the process: the newest message of each subject, then each later one. A failed read is
//! repeated with backoff. The listener decides what to do with the messages.

use std::future::Future;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

/// Messages read at once.
const BATCH: usize = 1000;
/// Least upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest upper bound of that delay.
const RETRY_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

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
pub(crate) async fn run<L: StreamListener>(bus: Bus, listener: L, mut rng: Rng, stop: CancellationToken) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    let listening = async {
        while let Err(error) = listen(&bus, &listener, &mut retry).await {
            let retry_in = retry.next(&mut rng);
            tracing::warn!(error = chain(&error), ?retry_in, "cannot read {}", L::WHAT);
            tokio::time::sleep(retry_in).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Returns `Ok` only when the listener wants no more messages.
async fn listen<L: StreamListener>(bus: &Bus, listener: &L, retry: &mut FullJitter) -> Result<(), ReadError> {
    let mut replay = bus.replay(L::STREAM, &[L::SUBJECTS], Start::LastPerSubject).await?;
    let mut is_wanted = listener.on_start().await;
    while is_wanted {
        let deliveries = replay.next_batch(BATCH).await?;
        retry.reset();
        is_wanted = listener.on_messages(&deliveries).await;
    }
    Ok(())
}
