//! Repeats an operation until it succeeds, with the delays of [`crate::backoff`] between attempts. Each failure is logged
//! with the time of the next attempt.
//!
//! An operation that lasts, such as a reader, resets the backoff whenever it made progress. Nothing gives up: a stop
//! token, or dropping the future, ends the attempts. A loop that does more than wait between two attempts, such as a
//! state machine with a deadline, keeps a [`FullJitter`] of its own.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::backoff::FullJitter;
use crate::error::{BoxError, chain};

/// The upper bounds of the delay before the next attempt.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// The first upper bound; it doubles with each failure.
    pub min: Duration,
    /// The longest one.
    pub max: Duration,
}

/// Lets an operation reset the delay before its next attempt. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    has_progressed: Arc<AtomicBool>,
}

impl Backoff {
    /// Starts again from the shortest delay: the operation made progress.
    pub fn reset(&self) {
        self.has_progressed.store(true, Ordering::Relaxed);
    }
}

/// Repeats `operation` until it succeeds. `failure` says in the log what failed: `cannot read LEDGER yet`.
pub async fn retry<T, E, F>(
    policy: RetryPolicy,
    failure: impl Display,
    mut operation: impl FnMut(Backoff) -> F,
) -> T
where
    E: Into<BoxError>,
    F: Future<Output = Result<T, E>>,
{
    let mut attempts = Attempts::new(policy, failure);
    loop {
        match operation(attempts.backoff.clone()).await {
            Ok(value) => return value,
            Err(error) => attempts.wait_after(error.into()).await,
        }
    }
}

/// As [`retry`], until `stop`; `None` if that came first.
pub async fn retry_until<T, E, F>(
    stop: &CancellationToken,
    policy: RetryPolicy,
    failure: impl Display,
    operation: impl FnMut(Backoff) -> F,
) -> Option<T>
where
    E: Into<BoxError>,
    F: Future<Output = Result<T, E>>,
{
    stop.run_until_cancelled(retry(policy, failure, operation)).await
}

/// As [`retry`], but an error that is not transient ends it.
///
/// # Errors
/// The first error that is not transient.
pub async fn retry_transient<T, E, F>(
    policy: RetryPolicy,
    failure: impl Display,
    mut is_transient: impl FnMut(&E) -> bool,
    mut operation: impl FnMut(Backoff) -> F,
) -> Result<T, E>
where
    E: Into<BoxError>,
    F: Future<Output = Result<T, E>>,
{
    let mut attempts = Attempts::new(policy, failure);
    loop {
        match operation(attempts.backoff.clone()).await {
            Err(error) if is_transient(&error) => attempts.wait_after(error.into()).await,
            end => return end,
        }
    }
}

/// As [`retry`], of an operation that changes a state. Its future is boxed, because it borrows the state.
pub async fn retry_with<S, T, E: Into<BoxError>>(
    policy: RetryPolicy,
    failure: impl Display,
    state: &mut S,
    mut operation: impl for<'s> FnMut(&'s mut S, Backoff) -> BoxFuture<'s, Result<T, E>>,
) -> T {
    let mut attempts = Attempts::new(policy, failure);
    loop {
        match operation(state, attempts.backoff.clone()).await {
            Ok(value) => return value,
            Err(error) => attempts.wait_after(error.into()).await,
        }
    }
}

/// The attempts of one operation.
struct Attempts<D> {
    delays: FullJitter,
    rng: Rng,
    backoff: Backoff,
    failure: D,
}

impl<D: Display> Attempts<D> {
    fn new(policy: RetryPolicy, failure: D) -> Self {
        let delays = FullJitter::new(policy.min, policy.max);
        Self { delays, rng: Rng::new(), backoff: Backoff::default(), failure }
    }

    /// Logs a failed attempt, and waits until the next one.
    async fn wait_after(&mut self, error: BoxError) {
        if self.backoff.has_progressed.swap(false, Ordering::Relaxed) {
            self.delays.reset();
        }
        let retry_in = self.delays.next(&mut self.rng);
        tracing::warn!(error = chain(&*error), ?retry_in, "{}", self.failure);
        tokio::time::sleep(retry_in).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const POLICY: RetryPolicy = RetryPolicy { min: Duration::from_secs(1), max: Duration::from_secs(8) };

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_repeated_until_it_succeeds() {
        let mut attempts = 0;
        let value = retry(POLICY, "cannot count yet", |_| {
            attempts += 1;
            std::future::ready(if attempts == 5 { Ok(attempts) } else { Err("too few") })
        });
        assert_eq!(value.await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_starts_again_from_the_shortest_delay() {
        let (mut last, mut attempts) = (Instant::now(), 0);
        retry(POLICY, "cannot go on", |backoff| {
            assert!(last.elapsed() <= POLICY.min, "attempt {attempts} after {:?}", last.elapsed());
            (last, attempts) = (Instant::now(), attempts + 1);
            backoff.reset();
            std::future::ready(if attempts == 200 { Ok(()) } else { Err("not yet") })
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_is_not_transient_ends_the_attempts() {
        let mut attempts = 0;
        let is_transient = |error: &&str| *error == "busy";
        let end = retry_transient(POLICY, "cannot read", is_transient, |_| {
            attempts += 1;
            std::future::ready(Err::<(), _>(if attempts < 3 { "busy" } else { "gone" }))
        });
        assert_eq!(end.await, Err("gone"));
        assert_eq!(attempts, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_token_ends_the_attempts() {
        let stop = CancellationToken::new();
        let begun = Instant::now();
        let mut attempts = 0;
        let end = retry_until(&stop, POLICY, "cannot stop", |_| {
            attempts += 1;
            if attempts == 20 {
                stop.cancel();
            }
            std::future::ready(Err::<(), _>("never"))
        });
        assert_eq!(end.await, None);
        assert!(begun.elapsed() <= 20 * POLICY.max);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_may_retry_what_changes_its_state() {
        let retrying = tokio::spawn(async {
            let mut count = 0_u8;
            retry_with(POLICY, "cannot count", &mut count, |count, _| {
                async move {
                    *count += 1;
                    if *count < 3 { Err("too few") } else { Ok(()) }
                }
                .boxed()
            })
            .await;
            count
        });
        assert_eq!(retrying.await.unwrap(), 3);
    }
}
