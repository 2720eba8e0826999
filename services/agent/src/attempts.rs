//! What was tried to reach a target and how it went: attempts, since when, the last error, and whether that is a crash loop.
//! Pure. It is part of the standing, so it is kept in the transaction of the report that tells of it.
//!
//! A component's attempts are counted from its first start at a target, and anew after a success that held: ready for the
//! whole window of the rule. A flap, a restart of the agent and a document with the same target change nothing. A crash loop
//! stays one until then, however long the delays between its attempts become.

use std::time::Duration;

use muster_contract::limits::{CRASH_LOOP_FAILURES, CRASH_LOOP_WINDOW, RETRIES_MAX, SUCCESS_HELD_AFTER};
use muster_contract::retry::{LastError, Retry};
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, Timestamp};
use serde::{Deserialize, Serialize};

/// So many failures within so long are a crash loop; ready for so long, a success has held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashLoopRule {
    /// How many.
    pub failures: u32,
    /// Within how long.
    pub window: Duration,
}

const _: () =
    assert!(CRASH_LOOP_WINDOW.as_secs() == SUCCESS_HELD_AFTER.as_secs(), "the agent has one window for both");

impl Default for CrashLoopRule {
    fn default() -> Self {
        Self { failures: CRASH_LOOP_FAILURES, window: CRASH_LOOP_WINDOW }
    }
}

/// The attempts at a target: of each component that was begun, and of the deployment as a whole where that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempts(Vec<Attempt>);

/// The attempts of a component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    /// None for the deployment as a whole.
    component: Option<ComponentName>,
    attempt: u32,
    since: Timestamp,
    last_error: Option<LastError>,
    /// The last attempt has failed, and none has begun since.
    has_failed: bool,
    /// The failures within the window.
    failures: Vec<Timestamp>,
    crash_loop: bool,
    ready_at: Option<Timestamp>,
}

impl Attempt {
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
    /// Nothing was begun.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A component is being started. After a failure that is another attempt only once [`Self::try_again`] says so.
    pub fn begin(&mut self, component: &ComponentName, now: Timestamp) {
        self.entry(Some(component), now).ready_at = None;
    }

    /// A component is ready.
    pub fn ready(&mut self, component: &ComponentName, now: Timestamp) {
        self.entry(Some(component), now).ready_at = Some(now);
    }

    /// A component, or the deployment as a whole, has failed.
    pub fn fail(
        &mut self,
        component: Option<&ComponentName>,
        error: &StatusError,
        rule: CrashLoopRule,
        now: Timestamp,
    ) {
        let entry = self.entry(component, now);
        entry.last_error = Some(LastError::of(error, now));
        entry.ready_at = None;
        entry.failures.retain(|at| is_within(*at, now, rule.window));
        // Whatever else goes wrong at one attempt, it fails once.
        if !std::mem::replace(&mut entry.has_failed, true) {
            entry.failures.push(now);
        }
        entry.crash_loop |= entry.failures.len() >= rule.failures as usize;
        if entry.crash_loop {
            // It stays one: when its failures were is of no use any more.
            entry.failures.clear();
        }
    }

    /// What has failed is tried again.
    pub fn try_again(&mut self) {
        for entry in self.0.iter_mut().filter(|entry| entry.has_failed) {
            entry.attempt = entry.attempt.saturating_add(1);
            entry.has_failed = false;
        }
    }

    /// The success of a component, or of the deployment as a whole, has held; true where the hub was told of attempts before.
    pub fn hold(&mut self, component: Option<&ComponentName>) -> bool {
        let was_told =
            self.0.iter().any(|entry| entry.component.as_ref() == component && entry.last_error.is_some());
        self.0.retain(|entry| entry.component.as_ref() != component);
        was_told
    }

    /// The agent begins again. What had become ready at the first attempt long ago has held; all else has to prove it anew.
    pub fn resume(&mut self, rule: CrashLoopRule, now: Timestamp) {
        let has_held = |entry: &Attempt| {
            entry.last_error.is_none() && entry.ready_at.is_some_and(|at| !is_within(at, now, rule.window))
        };
        self.0.retain(|entry| !has_held(entry));
    }

    /// The components with attempts; none for the deployment as a whole.
    pub fn components(&self) -> impl Iterator<Item = Option<&ComponentName>> {
        self.0.iter().map(|entry| entry.component.as_ref())
    }

    /// What the hub is told: whatever has failed since its first attempt. Crash loops and the newest errors come first where
    /// there is no room for all.
    pub fn retries(&self) -> Vec<Retry> {
        let mut retries: Vec<Retry> = self.0.iter().filter_map(Attempt::retry).collect();
        if retries.len() > RETRIES_MAX {
            retries.sort_by_key(|retry| std::cmp::Reverse((retry.crash_loop, retry.last_error.at)));
            retries.truncate(RETRIES_MAX);
        }
        retries
    }

    fn entry(&mut self, component: Option<&ComponentName>, now: Timestamp) -> &mut Attempt {
        let known = self.0.iter().position(|entry| entry.component.as_ref() == component);
        let index = known.unwrap_or_else(|| {
            self.0.push(Attempt::first(component.cloned(), now));
            self.0.len() - 1
        });
        &mut self.0[index]
    }
}

/// Whether a moment is at most so long ago. A clock that was set back makes it so.
fn is_within(at: Timestamp, now: Timestamp, window: Duration) -> bool {
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

    /// A start that fails, and the next one under way.
    fn fail_and_retry(attempts: &mut Attempts, second: i64) {
        attempts.fail(Some(&web()), &error("ended"), RULE, at(second));
        attempts.try_again();
        attempts.begin(&web(), at(second));
    }

    #[test]
    fn attempts_count_from_the_first_start_and_nothing_is_told_before_an_error() {
        let mut attempts = Attempts::default();
        attempts.begin(&web(), at(10));
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
            attempts.begin(&web(), at(second));
            attempts.ready(&web(), at(second + 1));
            assert!(attempts.retries().iter().all(|retry| !retry.crash_loop));
            fail_and_retry(&mut attempts, second + 2);
        }
        assert!(attempts.retries()[0].crash_loop);
        fail_and_retry(&mut attempts, 4_000);
        assert!(attempts.retries()[0].crash_loop, "long delays do not end it");
        assert_eq!(attempts.retries()[0].attempt, 5);
        attempts.ready(&web(), at(4_100));
        assert!(attempts.hold(Some(&web())));
        assert!(attempts.is_empty());
        attempts.fail(Some(&web()), &error("ended"), RULE, at(9_000));
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
        attempts.begin(&web(), at(10));
        attempts.ready(&web(), at(20));
        let mut early = attempts.clone();
        early.resume(RULE, at(79));
        assert_eq!(early, attempts, "it has not held yet");
        attempts.resume(RULE, at(80));
        assert!(attempts.is_empty());
        fail_and_retry(&mut attempts, 100);
        attempts.ready(&web(), at(110));
        let text = serde_json::to_string(&attempts).unwrap();
        let mut read: Attempts = serde_json::from_str(&text).unwrap();
        read.resume(RULE, at(9_999));
        assert_eq!(read, attempts, "whether it ran meanwhile is not known");
    }

    #[test]
    fn a_report_lists_crash_loops_and_the_newest_errors_first_where_there_is_no_room() {
        let mut attempts = Attempts::default();
        for number in 0..=RETRIES_MAX {
            let name = format!("c{number}").parse().unwrap();
            attempts.fail(Some(&name), &error("ended"), RULE, at(number as i64));
        }
        let retries = attempts.retries();
        assert_eq!(retries.len(), RETRIES_MAX);
        assert!(retries.iter().all(|retry| retry.component.as_ref().unwrap().as_str() != "c0"));
    }
}
