//! Tests of the condition of a watch: when it holds, and when it never will.

use muster_contract::query::{GitStatus, HeldBack, Problem, RefusedCommit, SomeDevices};

use super::*;
use crate::error::NO;

const WANTED: &str = "9f2c1e5d0b7a4c38e6f1d2a3b4c5d6e7f8091a2b";
const OTHER: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567";

fn commit() -> CommitName {
    WANTED[..7].parse().unwrap()
}

fn git() -> GitStatus {
    GitStatus {
        hanging_since: None,
        url: "/fleet".to_owned(),
        branch: "main".to_owned(),
        applied: Some(OTHER.to_owned()),
        applied_through: Some(40),
        replaced: None,
        refused: None,
        held_back: None,
        held: Vec::new(),
        held_omitted: 0,
        open_rollouts: Vec::new(),
        open_omitted: 0,
        rollout_deployments: Vec::new(),
        has_more_deployments: false,
        polled_at: Some(Timestamp::UNIX_EPOCH),
        failures: 0,
        error: None,
    }
}

fn saying(git: Option<GitStatus>) -> PublisherStatus {
    let (left_over, unreadable) = (SomeDevices::default(), SomeDevices::default());
    PublisherStatus { git, devices: 1, in_git: None, retired: 0, left_over, unreadable, published: 1 }
}

fn judge(git: GitStatus) -> Result<Option<u64>, CommitError> {
    judged(&saying(Some(git)), &commit(), &mut Polls::default())
}

#[test]
fn only_the_commit_itself_opens_the_gate_and_only_once_it_is_in_ledger() {
    assert_eq!(judge(git()).unwrap(), None, "another one is in LEDGER");
    let applied = Some(WANTED.to_owned());
    let published = GitStatus { applied, applied_through: None, ..git() };
    assert_eq!(judge(published.clone()).unwrap(), None);
    assert_eq!(judge(GitStatus { applied_through: Some(41), ..published }).unwrap(), Some(41));
}

#[test]
fn a_commit_that_is_refused_is_not_waited_for() {
    let problem = Problem {
        file: "fleet/web.yaml".to_owned(),
        line: Some(3),
        field: "id".to_owned(),
        rule: "is missing".to_owned(),
    };
    let refused =
        |revision: &str| RefusedCommit { revision: revision.to_owned(), problems: vec![problem.clone()] };
    let error = judge(GitStatus { refused: Some(refused(WANTED)), ..git() }).unwrap_err();
    let error = CtlError::from(error);
    assert_eq!(error.code(), NO);
    let words = error.words().unwrap();
    assert!(words.contains(WANTED) && words.contains("fleet/web.yaml:3: id: is missing"), "{words}");
    assert_eq!(judge(GitStatus { refused: Some(refused(OTHER)), ..git() }).unwrap(), None);
}

#[test]
fn a_commit_that_some_devices_cannot_use_opens_no_gate() {
    let rule = "is missing".to_owned();
    let problem =
        Problem { file: "sites/a/two/web.yaml".to_owned(), line: Some(3), field: "id".to_owned(), rule };
    let devices = SomeDevices { count: 1, first: vec!["a/two".parse().unwrap()] };
    let held_back = HeldBack { revision: WANTED.to_owned(), devices, problems: vec![problem] };
    let published = GitStatus { applied: Some(WANTED.to_owned()), held_back: Some(held_back), ..git() };
    let error = CtlError::from(judge(published).unwrap_err());
    assert_eq!(error.code(), NO);
    let words = error.words().unwrap();
    assert!(
        words.contains("not to a/two") && words.contains("sites/a/two/web.yaml:3: id: is missing"),
        "{words}"
    );
}

#[test]
fn a_replaced_commit_is_given_up_once_git_was_certainly_polled_again() {
    let mut polls = Polls::default();
    let mut say = |second| {
        let polled_at = Some(Timestamp::from_second(second).unwrap());
        let git = GitStatus { replaced: Some(WANTED.to_owned()), polled_at, ..git() };
        judged(&saying(Some(git)), &commit(), &mut polls)
    };
    // Another publisher answers in between, whose poll was earlier.
    for second in [20, 20, 30, 20, 30] {
        assert_eq!(say(second).unwrap(), None, "one poll may have been under way");
    }
    let error = say(40).unwrap_err();
    assert!(error.to_string().contains(&format!("--commit {OTHER}")), "{error}");
}

#[test]
fn without_a_repository_no_commit_is_waited_for() {
    let error = judged(&saying(None), &commit(), &mut Polls::default()).unwrap_err();
    assert!(error.to_string().contains("no Git repository"), "{error}");
}

#[test]
fn a_verdict_counts_from_the_commit_on() {
    let gate = |through| Some(Gate { commit: commit(), through, news: mpsc::channel(1).1 });
    let as_of = |ledger_seq| Some(AsOf { ledger_seq, at: Timestamp::UNIX_EPOCH });
    let (converged, failing) = (Some(Verdict::Converged), Some(Verdict::Failing));
    let goal = |through| Goal { fail_on: Vec::new(), verdict: converged, gate: gate(through) };
    assert!(!goal(None).is_met(converged, as_of(99)), "nobody knows as of where");
    assert!(!goal(Some(41)).is_met(converged, as_of(40)));
    assert!(!goal(Some(41)).is_met(converged, None));
    assert!(!goal(Some(41)).is_met(failing, as_of(41)));
    assert!(goal(Some(41)).is_met(converged, as_of(41)));
    assert!(Goal::until(converged).is_met(converged, None), "no commit is named");
    assert!(!Goal::until(None).is_met(None, None), "nothing is waited for");
    let either = Goal { fail_on: vec![Verdict::Failing], ..goal(Some(41)) };
    assert!(
        !either.is_met(failing, as_of(40)) && either.is_met(failing, as_of(41)),
        "failures count from it, too"
    );
    assert!(either.is_failure(failing) && !either.is_failure(converged) && !either.is_failure(None));
}
