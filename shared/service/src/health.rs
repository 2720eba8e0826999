//! The readiness and the metrics of one process.
//!
//! Each part that the process needs before it is ready holds a [`Latch`] and releases it once. A connection that is lost
//! later does not make the process unready; [`Health::note`] keeps the state of such a part for the body of `/ready`.
//! The values of a metric's labels must be fixed in the code: no device, no deployment, no subject.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// Prefix of every metric's name.
const METRICS_PREFIX: &str = "muster";

/// Readiness and metrics of one process. Clones share them.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<HealthState>,
}

/// Keeps the process unready until it is released. If it is dropped without a release, the process stays unready.
#[derive(Debug)]
#[must_use = "the process is not ready until the latch is released"]
pub struct Latch {
    health: Health,
    part: Cow<'static, str>,
}

#[derive(Debug)]
struct HealthState {
    stop: CancellationToken,
    missing: Mutex<Vec<Cow<'static, str>>>,
    notes: Mutex<BTreeMap<&'static str, String>>,
    registry: Mutex<Registry>,
}

impl Health {
    /// The health of a process, which is not ready any more once `stop` is cancelled.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        let registry = Mutex::new(Registry::with_prefix(METRICS_PREFIX));
        Self {
            shared: Arc::new(HealthState {
                stop,
                missing: Mutex::default(),
                notes: Mutex::default(),
                registry,
            }),
        }
    }

    /// Makes the process unready until the latch is released. People read `part`, the name of the part.
    pub fn latch(&self, part: impl Into<Cow<'static, str>>) -> Latch {
        let part = part.into();
        lock(&self.shared.missing).push(part.clone());
        Latch { health: self.clone(), part }
    }

    /// Sets the state of a part for the body of `/ready`. It does not change whether the process is ready.
    pub fn note(&self, part: &'static str, state: impl Into<String>) {
        lock(&self.shared.notes).insert(part, state.into());
    }

    /// The parts that the process waits for before it is ready; empty if it is ready.
    pub fn missing(&self) -> Vec<String> {
        if self.shared.stop.is_cancelled() {
            return vec!["stopping".to_owned()];
        }
        lock(&self.shared.missing).iter().map(ToString::to_string).collect()
    }

    /// The state of each part that has one, by part.
    pub(crate) fn notes(&self) -> BTreeMap<&'static str, String> {
        lock(&self.shared.notes).clone()
    }

    /// Registers metrics. Their names get the prefix `muster_`; counters the suffix `_total`.
    pub fn metrics<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut lock(&self.shared.registry))
    }

    /// All metrics as OpenMetrics text.
    pub fn metrics_text(&self) -> String {
        let mut text = String::new();
        // This fails only if a metric cannot be encoded; the text then ends before it.
        let _ = encode(&mut text, &lock(&self.shared.registry));
        text
    }
}

impl Latch {
    /// Reports that the part is ready.
    pub fn release(self) {
        let mut missing = lock(&self.health.shared.missing);
        if let Some(at) = missing.iter().position(|part| *part == self.part) {
            missing.remove(at);
        }
    }
}

/// A panic of another holder does not spoil the data: each change is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
