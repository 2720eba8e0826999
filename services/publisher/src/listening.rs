//! Listening to a stream for as long as the process does: the newest message of each subject, then each as it comes; over
//! again, a little later each time, whenever that fails. What is heard, and what becomes of it, is the listener's.

use std::future::Future;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

/// Messages taken at once.
const BATCH: usize = 1000;
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// Who listens. Each answer is false where nobody wants to know any more.
pub(crate) trait Listener {
    /// The stream.
    const STREAM: &str;
    /// The subjects.
    const SUBJECTS: &str;
    /// What is read, for the log.
    const WHAT: &str;

    /// What follows is of the stream from its beginning: positions of before may mean something else.
    fn begin(&self) -> impl Future<Output = bool> + Send;

    /// Messages, in their order.
    fn hear(&self, deliveries: &[Delivery]) -> impl Future<Output = bool> + Send;
}

/// Has somebody listen until `stop`.
pub(crate) async fn run<L: Listener>(bus: Bus, listener: L, mut chance: Rng, stop: CancellationToken) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    let listening = async {
        while let Err(error) = listen(&bus, &listener, &mut retry).await {
            let retry_in = retry.next(&mut chance);
            tracing::warn!(error = chain(&error), ?retry_in, "cannot read {}", L::WHAT);
            tokio::time::sleep(retry_in).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Ends well only when nobody wants to know any more.
async fn listen<L: Listener>(bus: &Bus, listener: &L, retry: &mut FullJitter) -> Result<(), ReadError> {
    let mut replay = bus.replay(L::STREAM, &[L::SUBJECTS], Start::LastPerSubject).await?;
    let mut is_wanted = listener.begin().await;
    while is_wanted {
        let deliveries = replay.next_batch(BATCH).await?;
        retry.reset();
        is_wanted = listener.hear(&deliveries).await;
    }
    Ok(())
}
