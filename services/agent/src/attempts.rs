//! Counts the attempts to reach a target: per component, since when, with the last error, and whether they are a
//! crash loop. Pure. The attempts are part of the deployment record, so they are stored in the transaction of the
//! report that lists them.
//!
//! Attempts of a component count from its first start at a target. They are cleared after a success has held: the
//! component was ready for the whole window. A short failure, a restart of the agent and a document with the same
//! target clear nothing. A crash loop lasts until a success has held, however long the delays between the attempts
//! become.

use std::time::Duration;

use muster_contract::limits::{CRASH_LOOP_FAILURES, CRASH_LOOP_WINDOW, RETRIES_MAX, SUCCESS_HELD_AFTER};
use muster_contract::retry::{LastError, Retry};
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, Timestamp};
use serde::{Deserialize, Serialize};

/// The rule of crash loops: this number of failures within the window. A success has held after one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashLoopRule {
    /// Failures.
    pub failures: u32,
    /// Window.
    pub window: Duration,
}

const _: () =
    assert!(CRASH_LOOP_WINDOW.as_secs() == SUCCESS_HELD_AFTER.as_secs(), "the agent has one window for both");

impl Default for CrashLoopRule {
    fn default() -> Self {
        Self { failures: CRASH_LOOP_FAILURES, window: CRASH_LOOP_WINDOW }
    }
}

/// The attempts at a target: per started component, and one entry for the deployment as a whole if that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempts(Vec<ComponentAttempts>);

/// The attempts of a component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ComponentAttempts {
    /// `None` for the deployment as a whole.
    component: Option<ComponentName>,
    attempt: u32,
    since: Timestamp,
    last_error: Option<LastError>,
    /// The last attempt failed, and none has begun since.
    has_failed: bool,
    /// Failures within the window.
    failures: Vec<Timestamp>,
    crash_loop: bool,
    ready_at: Option<Timestamp>,
}

impl ComponentAttempts {
    const fn first(component: Option<ComponentName>, since: Timestamp) -> Self {
        Self {
            component,
            attempt: 1,
            since,
            last_error: None,
            has_failed: false,
            failures: Vec::new(),
            crash_loop: false,
            ready_at: None,
        }
    }

    fn retry(&self) -> Option<Retry> {
        let last_error = self.last_error.clone()?;
        let Self { component, attempt, since, crash_loop, .. } = self.clone();
        Some(Retry { component, attempt, since, last_error, crash_loop })
    }
}

impl Attempts {
    /// No component was started.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that a component is being started. After a failure it counts as a new attempt only after
    /// [`Self::start_retry`].
    pub(crate) fn record_start(&mut self, component: &ComponentName, now: Timestamp) {
        self.entry(Some(component), now).ready_at = None;
    }

    /// Records that a component is ready.
    pub(crate) fn record_ready(&mut self, component: &ComponentName, now: Timestamp) {
        self.entry(Some(component), now).ready_at = Some(now);
    }

    /// Records that a component, or the deployment as a whole, failed.
    pub(crate) fn record_failure(
        &mut self,
        component: Option<&ComponentName>,
        error: &StatusError,
        rule: CrashLoopRule,
        now: Timestamp,
    ) {
        let entry = self.entry(component, now);
        entry.last_error = Some(LastError::of(error, now));
        entry.ready_at = None;
        entry.failures.retain(|at| is_recent(*at, now, rule.window));
        // One attempt counts as one failure, whatever else goes wrong.
        if !std::mem::replace(&mut entry.has_failed, true) {
            entry.failures.push(now);
        }
        entry.crash_loop |= entry.failures.len() >= rule.failures as usize;
        if entry.crash_loop {
            // The crash loop lasts: its failures are no longer needed.
            entry.failures.clear();
        }
    }

    /// Begins another attempt at everything that failed.
    pub(crate) fn start_retry(&mut self) {
        for entry in self.0.iter_mut().filter(|entry| entry.has_failed) {
            entry.attempt = entry.attempt.saturating_add(1);
            entry.has_failed = false;
        }
    }

    /// Clears the attempts of a component, or of the deployment as a whole, after its success has held. True if
    /// reports listed them.
    pub fn confirm_success(&mut self, component: Option<&ComponentName>) -> bool {
        let was_reported =
            self.0.iter().any(|entry| entry.component.as_ref() == component && entry.last_error.is_some());
        self.0.retain(|entry| entry.component.as_ref() != component);
        was_reported
    }

    /// Clears, after a restart of the agent, the attempts that had held: ready at the first attempt for the whole window.
    pub fn resume(&mut self, rule: CrashLoopRule, now: Timestamp) {
        let has_held = |entry: &ComponentAttempts| {
            entry.last_error.is_none() && entry.ready_at.is_some_and(|at| !is_recent(at, now, rule.window))
        };
        self.0.retain(|entry| !has_held(entry));
    }

    /// The components with attempts; `None` for the deployment as a whole.
    pub fn components(&self) -> impl Iterator<Item = Option<&ComponentName>> {
        self.0.iter().map(|entry| entry.component.as_ref())
    }

    /// The retries that a report lists: everything that failed since its first attempt. If there are too many, crash
    /// loops and the newest errors are kept.
    pub fn retries(&self) -> Vec<Retry> {
        let mut retries: Vec<Retry> = self.0.iter().filter_map(ComponentAttempts::retry).collect();
        if retries.len() > RETRIES_MAX {
            retries.sort_by_key(|retry| std::cmp::Reverse((retry.crash_loop, retry.last_error.at)));
            retries.truncate(RETRIES_MAX);
        }
        retries
    }

    fn entry(&mut self, component: Option<&ComponentName>, now: Timestamp) -> &mut ComponentAttempts {
        let known = self.0.iter().position(|entry| entry.component.as_ref() == component);
        let index = known.unwrap_or_else(|| {
            self.0.push(ComponentAttempts::first(component.cloned(), now));
            self.0.len() - 1
        });
        &mut self.0[index]
    }
}

/// Whether a time is less than the window ago. True after the clock was set back.
fn is_recent(at: Timestamp, now: Timestamp, window: Duration) -> bool {
    Duration::try_from(now.duration_since(at)).map_or(true, |passed| passed < window)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: CrashLoopRule = CrashLoopRule { failures: 3, window: Duration::from_secs(60) };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn web() -> ComponentName {
        "web".parse().unwrap()
    }

    fn error(message: &str) -> StatusError {
        StatusError::new("Exited", "web", message)
    }

    /// A failed start, and the next one under way.
    fn fail_and_retry(attempts: &mut Attempts, second: i64) {
        attempts.record_failure(Some(&web()), &error("ended"), RULE, at(second));
        attempts.start_retry();
        attempts.record_start(&web(), at(second));
    }

    #[test]
    fn attempts_count_from_the_first_start_and_are_listed_after_an_error() {
        let mut attempts = Attempts::default();
        attempts.record_start(&web(), at(10));
        assert_eq!(attempts.retries(), []);
        fail_and_retry(&mut attempts, 20);
        fail_and_retry(&mut attempts, 200);
        let [retry] = &attempts.retries()[..] else { panic!("{attempts:?}") };
        assert_eq!((retry.attempt, retry.since, retry.last_error.at), (3, at(10), at(200)));
        assert!(!retry.crash_loop, "two failures lie far apart");
    }

    #[test]
    fn ready_dead_ready_is_a_crash_loop_by_the_rule_until_a_success_has_held() {
        let mut attempts = Attempts::default();
        for second in [0, 20, 40] {
            attempts.record_start(&web(), at(second));
            attempts.record_ready(&web(), at(second + 1));
            assert!(attempts.retries().iter().all(|retry| !retry.crash_loop));
            fail_and_retry(&mut attempts, second + 2);
        }
        assert!(attempts.retries()[0].crash_loop);
        fail_and_retry(&mut attempts, 4_000);
        assert!(attempts.retries()[0].crash_loop, "long delays do not end it");
        assert_eq!(attempts.retries()[0].attempt, 5);
        attempts.record_ready(&web(), at(4_100));
        assert!(attempts.confirm_success(Some(&web())));
        assert!(attempts.is_empty());
        attempts.record_failure(Some(&web()), &error("ended"), RULE, at(9_000));
        let [anew] = &attempts.retries()[..] else { panic!("{attempts:?}") };
        assert_eq!((anew.attempt, anew.since), (1, at(9_000)));
    }

    #[test]
    fn failures_further_apart_than_the_window_are_no_crash_loop() {
        let mut attempts = Attempts::default();
        (0..9).for_each(|number| fail_and_retry(&mut attempts, number * 31));
        assert!(!attempts.retries()[0].crash_loop);
    }

    #[test]
    fn a_restart_of_the_agent_keeps_what_has_failed_and_forgets_what_had_held() {
        let mut attempts = Attempts::default();
        attempts.record_start(&web(), at(10));
        attempts.record_ready(&web(), at(20));
        let mut early = attempts.clone();
        early.resume(RULE, at(79));
        assert_eq!(early, attempts, "it has not held yet");
        attempts.resume(RULE, at(80));
        assert!(attempts.is_empty());
        fail_and_retry(&mut attempts, 100);
        attempts.record_ready(&web(), at(110));
        let text = serde_json::to_string(&attempts).unwrap();
        let mut read: Attempts = serde_json::from_str(&text).unwrap();
        read.resume(RULE, at(9_999));
        assert_eq!(read, attempts, "whether it ran meanwhile is not known");
    }

    #[test]
    fn a_report_without_room_lists_crash_loops_and_the_newest_errors_first() {
        let mut attempts = Attempts::default();
        for number in 0..=RETRIES_MAX {
            let name = format!("c{number}").parse().unwrap();
            attempts.record_failure(Some(&name), &error("ended"), RULE, at(number as i64));
        }
        let retries = attempts.retries();
        assert_eq!(retries.len(), RETRIES_MAX);
        assert!(retries.iter().all(|retry| retry.component.as_ref().unwrap().as_str() != "c0"));
    }
}
