//! Waiting for facts: never longer than needed, never for ever, and a failure says what was seen last.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long a fact may take on a loaded machine.
pub const FACT_DEADLINE: Duration = Duration::from_secs(30);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Looks until the predicate holds of what is seen, and returns that.
///
/// # Panics
///
/// If it does not hold within [`FACT_DEADLINE`]; with what was seen last.
pub async fn until<T, F>(what: &str, look: impl FnMut() -> F, holds: impl Fn(&T) -> bool) -> T
where
    T: Debug,
    F: Future<Output = T>,
{
    within(FACT_DEADLINE, what, look, holds).await
}

/// The same for a fact that takes its time by design.
///
/// # Panics
///
/// If it does not hold within `limit`; with what was seen last.
pub async fn within<T, F>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
    holds: impl Fn(&T) -> bool,
) -> T
where
    T: Debug,
    F: Future<Output = T>,
{
    let deadline = Instant::now() + limit;
    loop {
        let seen = look().await;
        if holds(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}; seen last: {seen:?}");
        sleep(LOOK_INTERVAL).await;
    }
}

/// The result of a future that has to come.
///
/// # Panics
///
/// If it does not come within [`FACT_DEADLINE`].
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(FACT_DEADLINE, future).await {
        Ok(result) => result,
        Err(_) => panic!("not within {FACT_DEADLINE:?}: {what}"),
    }
}
