//! The states of a rollout by its decisions, and the bounds of the record.

use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::rollout::{Approvers, Wave};

fn decision(verb: RolloutVerb, second: i64) -> RolloutDecision {
    let at = Timestamp::from_second(second).unwrap();
    RolloutDecision::new(verb, at)
}

fn approval(by: &str, second: i64) -> RolloutDecision {
    RolloutDecision {
        wave: "quarter".parse().ok(),
        requested_by: Some(RequestedBy::new(by, by, Some("operator"))),
        ..decision(RolloutVerb::Approve, second)
    }
}

fn record(verbs: &[RolloutVerb]) -> RolloutRecord {
    let mut record = RolloutRecord::new(Digest::of_bytes(b"v2"), "fleet/rollout.yaml".to_owned());
    for verb in verbs {
        record.decide(decision(*verb, 0), &Approvals::default()).unwrap();
    }
    record
}

#[test]
fn each_state_allows_the_decisions_that_make_sense_in_it() {
    use RolloutVerb::{Abort, Begin, Finish, Pause, Resume, Retry, Rollback, Stop, Supersede};
    let phase = |verbs: &[RolloutVerb]| record(verbs).phase();
    assert_eq!(phase(&[]), RolloutPhase::Running);
    assert_eq!(phase(&[Pause]), RolloutPhase::Paused);
    assert_eq!(phase(&[Pause, Resume]), RolloutPhase::Running);
    assert_eq!(phase(&[Pause, Stop]), RolloutPhase::Stopped);
    assert_eq!(phase(&[Stop, Rollback]), RolloutPhase::RolledBack);
    assert_eq!(phase(&[Stop, Abort]), RolloutPhase::Aborted);
    assert_eq!(phase(&[Abort, Rollback]), RolloutPhase::RolledBack);
    assert_eq!(phase(&[Abort, Retry]), RolloutPhase::Running);
    assert_eq!(phase(&[Rollback, Retry]), RolloutPhase::Running);
    assert_eq!(phase(&[Finish, Supersede]), RolloutPhase::Superseded);
    assert_eq!(phase(&[Finish, Supersede, Begin]), RolloutPhase::Running, "Git wants it again");
    for (verbs, verb) in [
        (&[Stop][..], Pause),
        (&[Stop], Resume),
        (&[Stop], Supersede),
        (&[Rollback], Stop),
        (&[Rollback], Abort),
        (&[Abort], Resume),
        (&[], Retry),
        (&[Pause], Retry),
        (&[Finish], Begin),
    ] {
        let refused = record(verbs).decide(decision(verb, 1), &Approvals::default());
        assert!(refused.is_err(), "{verb:?} after {verbs:?}");
    }
    let words = record(&[Stop]).decide(decision(Resume, 1), &Approvals::default()).unwrap_err().to_string();
    assert_eq!(
        words,
        "the rollout is stopped, so 'resume' is not possible: `muster rollout retry` continues it"
    );
}

#[test]
fn the_same_decision_again_changes_nothing() {
    use RolloutVerb::{Begin, Finish, Pause, Resume, Rollback, Stop};
    for verb in [Pause, Stop, Rollback, Finish] {
        let mut once = record(&[verb]);
        assert_eq!(once.decide(decision(verb, 9), &Approvals::default()), Ok(false), "{verb:?}");
        assert_eq!(once.decisions.len(), 1);
    }
    assert_eq!(record(&[]).decide(decision(Resume, 9), &Approvals::default()), Ok(false));
    let mut again = record(&[Stop, RolloutVerb::Retry]);
    assert_eq!(again.decide(decision(RolloutVerb::Retry, 9), &Approvals::default()), Ok(false));
    let begin = RolloutDecision { wave: "canary".parse().ok(), ..decision(Begin, 0) };
    let mut begun = record(&[]);
    assert_eq!(begun.decide(begin.clone(), &Approvals::default()), Ok(true));
    assert_eq!(begun.decide(begin, &Approvals::default()), Ok(false));
}

#[test]
fn approvals_count_by_requester_and_expire_and_end_with_the_run() {
    let approvals = Approvals {
        need: NonZeroU32::new(2).unwrap(),
        expires_after: Duration::from_secs(60),
        ..Approvals::default()
    };
    let mut record = record(&[]);
    let wave = "quarter".parse().unwrap();
    let count = |record: &RolloutRecord, second| {
        record.approvals(&wave, Timestamp::from_second(second).unwrap(), None, &Approvals::default())
    };
    assert_eq!(record.decide(approval("UA", 0), &approvals), Ok(true));
    assert_eq!(record.decide(approval("UA", 50), &approvals), Ok(false), "one requester approves once");
    assert_eq!(count(&record, 0), 1);
    assert_eq!(record.decide(approval("UB", 55), &approvals), Ok(true));
    assert_eq!((count(&record, 0), count(&record, 1)), (2, 1));
    assert_eq!(record.decide(approval("UA", 100), &approvals), Ok(true), "the first approval has expired");
    assert_eq!(count(&record, 1), 2);
    assert_eq!(count(&record, 101), 0);
    let other = record.approvals(&"canary".parse().unwrap(), Timestamp::MIN, None, &Approvals::default());
    assert_eq!(other, 0, "an approval of another wave");
    for verb in [RolloutVerb::Rollback, RolloutVerb::Retry] {
        record.decide(decision(verb, 101), &approvals).unwrap();
    }
    assert_eq!(count(&record, 0), 0, "a run that begins again needs new approvals");
}

#[test]
fn one_person_approves_once_with_and_without_a_gateway() {
    let mut record = record(&[]);
    let through = |person: &str, second| {
        let mut approval = approval("UGATEWAY", second);
        let by = approval.requested_by.as_mut().unwrap();
        by.on_behalf_of = Some(crate::OnBehalfOf::new(person, person, "operator"));
        approval
    };
    for (decision, is_new) in [
        (approval("UA", 0), true),
        (through("UA", 1), false),
        (through("UB", 2), true),
        (approval("UB", 3), false),
        (approval("UC", 4), true),
    ] {
        assert_eq!(record.decide(decision.clone(), &Approvals::default()), Ok(is_new), "{decision:?}");
    }
    assert_eq!(record.approvals(&"quarter".parse().unwrap(), Timestamp::MIN, None, &Approvals::default()), 3);
}

#[test]
fn records_and_decisions_are_bounded_and_the_newest_stay() {
    let mut all = RolloutDecisions::new("web".parse().unwrap());
    let of = |at: usize| RolloutRecord::new(Digest::of_bytes(&[at as u8]), "rollout.yaml".to_owned());
    for at in 0..2 * ROLLOUT_RECORDS_MAX {
        assert!(all.store(of(at), |digest| digest == of(0).digest));
    }
    assert_eq!(all.rollouts.len(), ROLLOUT_RECORDS_MAX);
    assert!(all.of(of(2 * ROLLOUT_RECORDS_MAX - 1).digest).is_some());
    assert!(all.of(of(0).digest).is_some(), "a content in use keeps its decisions");
    assert!(!all.store(of(99), |_| true), "no room where all are in use");
    let mut record = record(&[]);
    for at in 0..2 * DECISIONS_MAX as i64 {
        let verb = if at % 2 == 0 { RolloutVerb::Pause } else { RolloutVerb::Resume };
        record.decide(decision(verb, at), &Approvals::default()).unwrap();
    }
    assert_eq!((record.decisions.len(), record.phase()), (DECISIONS_MAX, RolloutPhase::Running));
    record.decide(decision(RolloutVerb::Pause, 500), &Approvals::default()).unwrap();
    for at in 0..2 * DECISIONS_MAX {
        record.decide(approval(&format!("U{at}"), 501), &Approvals::default()).unwrap();
    }
    assert_eq!(record.phase(), RolloutPhase::Paused, "no number of approvals ends a pause");
}

#[test]
fn a_record_of_the_longest_decisions_keeps_the_newest_that_fit() {
    let person = crate::OnBehalfOf::new(&"U".repeat(56), &"\u{1f600}".repeat(64), "subscriber");
    let by = RequestedBy::new(&"U".repeat(56), &"\u{1f600}".repeat(64), Some("gateway"));
    let by = RequestedBy { on_behalf_of: Some(person), ..by };
    let mut record = record(&[]);
    for at in 0..DECISIONS_MAX {
        let verb = if at % 2 == 0 { RolloutVerb::Pause } else { RolloutVerb::Resume };
        let longest = RolloutDecision {
            reason: Some("\u{1}".repeat(DECISION_REASON_BYTES_MAX)),
            requested_by: Some(by.clone()),
            ..decision(verb, at as i64)
        };
        assert_eq!(record.decide(longest, &Approvals::default()), Ok(true));
    }
    assert!(serde_json::to_vec(&record).unwrap().len() <= ROLLOUT_RECORD_BYTES_MAX);
    assert!(record.decisions.len() > 1 && record.last().unwrap().at.as_second() == DECISIONS_MAX as i64 - 1);
}

#[test]
fn a_request_names_a_wave_if_its_verb_is_about_one_and_a_bounded_reason() {
    let request = |verb, wave: Option<&str>, reason: &str| DecideRequest {
        deployment: "web".parse().unwrap(),
        digest: Digest::of_bytes(b"v2"),
        rollout: "rollout.yaml".to_owned(),
        verb,
        wave: wave.and_then(|wave| wave.parse().ok()),
        reason: Some(reason.to_owned()),
        evidence: None,
        result: None,
        expected: None,
        revision: None,
        record: None,
    };
    assert_eq!(request(RolloutVerb::Pause, None, "").check(), Ok(()));
    assert_eq!(request(RolloutVerb::Approve, Some("quarter"), "").check(), Ok(()));
    let long = "r".repeat(DECISION_REASON_BYTES_MAX + 1);
    for (request, words) in [
        (request(RolloutVerb::Approve, None, ""), "wave: is missing"),
        (request(RolloutVerb::Stop, Some("quarter"), ""), "wave: is of no use"),
        (request(RolloutVerb::Stop, None, &long), "reason: has"),
    ] {
        let refused = request.check().unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let evidence = serde_json::json!({
        "ledgerSeq": 1, "targets": 1, "released": 1, "confirmed": 1, "soaked": 1, "failed": 0,
        "revision": "c".repeat(COMMIT_BYTES_MAX + 1),
    });
    let evidence = serde_json::from_value(evidence).unwrap();
    let begin = DecideRequest { evidence, ..request(RolloutVerb::Begin, Some("quarter"), "") };
    assert!(begin.check().unwrap_err().to_string().contains("evidence.revision: has 65 bytes"));
}

#[test]
fn results_of_checks_replace_inconclusive_ones_and_end_with_their_run() {
    use RolloutVerb::{Check, Pause, Ready, Resume, Retry, Stop};
    let of = |verb: RolloutVerb, second, result| RolloutDecision {
        wave: verb.has_wave().then(|| "canary".parse().unwrap()),
        result,
        ..decision(verb, second)
    };
    let (fail, pass, unknown) =
        (Some(CheckResult::Fail), Some(CheckResult::Pass), Some(CheckResult::Inconclusive));
    let mut record = record(&[]);
    let mut decide =
        |verb, second, result| record.decide(of(verb, second, result), &Approvals::default()).unwrap();
    assert!(decide(Check, 1, unknown) && !decide(Check, 2, unknown), "the same result is no news");
    assert!(decide(Check, 3, fail) && decide(Pause, 4, None) && decide(Resume, 5, None));
    assert!(decide(Check, 6, fail), "after a resume the same failure is a new one");
    assert!(decide(Pause, 7, None) && decide(Resume, 8, None) && decide(Check, 9, pass));
    assert!(decide(Ready, 10, None) && !decide(Ready, 11, None));
    assert!(!decide(Check, 11, fail) && !decide(Check, 11, unknown), "a late result changes nothing");
    assert_eq!(record.decisions.iter().filter(|decision| decision.result == unknown).count(), 0);
    assert_eq!(record.checked("canary").unwrap().result, pass);
    assert_eq!((record.ready("canary").unwrap().as_second(), record.ready("other")), (10, None));
    for verb in [Stop, Retry] {
        record.decide(of(verb, 12, None), &Approvals::default()).unwrap();
    }
    assert_eq!((record.checked("canary"), record.ready("canary")), (None, None));
    record.decide(of(RolloutVerb::Supersede, 13, None), &Approvals::default()).unwrap();
    record.decide(of(Check, 14, pass), &Approvals::default()).unwrap();
    assert_eq!(
        record.checked("canary").unwrap().at.as_second(),
        14,
        "devices may have the content before a begin"
    );
}

#[test]
fn a_result_belongs_to_checks_alone() {
    let request = |verb: &str, result: serde_json::Value| -> Result<(), String> {
        let request = serde_json::json!({
            "deployment": "web", "digest": Digest::of_bytes(b"v2"), "rollout": "rollout.yaml", "verb": verb,
            "wave": "canary", "result": result,
        });
        serde_json::from_value::<DecideRequest>(request)
            .unwrap()
            .check()
            .map_err(|refused| refused.to_string())
    };
    assert_eq!(request("check", "pass".into()), Ok(()));
    assert!(request("check", serde_json::Value::Null).unwrap_err().contains("result: is missing"));
    assert!(request("begin", "pass".into()).unwrap_err().contains("result: is of no use"));
}

#[test]
fn who_requests_a_run_or_forces_a_gate_is_none_of_several_approvers() {
    let of = |need: u32| Approvals { need: NonZeroU32::new(need).unwrap(), ..Approvals::default() };
    let by = |verb, person: &str, second| RolloutDecision {
        wave: RolloutVerb::has_wave(verb).then(|| "quarter".parse().unwrap()),
        requested_by: Some(RequestedBy::new(person, person, Some("operator"))),
        ..decision(verb, second)
    };
    let wave = "quarter".parse().unwrap();
    let count = |record: &RolloutRecord, approvals: &Approvals| {
        record.approvals(&wave, Timestamp::MIN, None, approvals)
    };
    let mut record = record(&[]);
    for decision in [by(RolloutVerb::Stop, "UC", 0), by(RolloutVerb::Retry, "UA", 1)] {
        record.decide(decision, &of(2)).unwrap();
    }
    for (at, person) in ["UA", "UB", "UC"].into_iter().enumerate() {
        record.decide(approval(person, 2 + at as i64), &of(2)).unwrap();
    }
    assert_eq!(count(&record, &of(2)), 2, "the person who asked for the run is none");
    assert_eq!(count(&record, &of(1)), 3, "one approval may be that of the requester");
    record.decide(by(RolloutVerb::Force, "UB", 9), &of(2)).unwrap();
    assert_eq!(count(&record, &of(2)), 1, "neither is the person who forced the gate");
    let one_name = Approvals { of: Some(Approvers::Persons(vec!["UA".into(), "anna".into()])), ..of(2) };
    let anna = |key: &str| RequestedBy::new(key, "anna", Some("operator"));
    record.decisions[1].requested_by = Some(anna("UX"));
    assert!(record.is_own_request("quarter", &anna("UY"), &one_name), "two keys of one entry are one person");
    assert!(!record.is_own_request("canary", &RequestedBy::new("UB", "UB", None), &of(2)), "of another wave");
}

#[test]
fn a_gate_is_forced_with_a_reason_and_for_one_run() {
    let force = DecideRequest {
        deployment: "web".parse().unwrap(),
        digest: Digest::of_bytes(b"v2"),
        rollout: "fleet/rollout.yaml".to_owned(),
        verb: RolloutVerb::Force,
        wave: "quarter".parse().ok(),
        reason: None,
        evidence: None,
        result: None,
        expected: None,
        revision: None,
        record: None,
    };
    let rule = force.check().unwrap_err().to_string();
    assert!(rule.contains("reason"), "{rule}");
    assert_eq!(DecideRequest { reason: Some("known".to_owned()), ..force }.check(), Ok(()));
    let mut record = record(&[]);
    let force = RolloutDecision { wave: "quarter".parse().ok(), ..decision(RolloutVerb::Force, 0) };
    assert_eq!(record.decide(force.clone(), &Approvals::default()), Ok(true));
    assert_eq!(record.decide(force, &Approvals::default()), Ok(false));
    assert!(record.forced("quarter").is_some() && record.forced("canary").is_none());
    for verb in [RolloutVerb::Stop, RolloutVerb::Retry] {
        record.decide(decision(verb, 1), &Approvals::default()).unwrap();
    }
    assert!(record.forced("quarter").is_none(), "the next run has gates of its own");
}

#[test]
fn an_end_has_one_word() {
    use RolloutVerb::{Abort, Finish, Pause, Rollback, Stop, Supersede};
    let of = |verb, counts: Option<u64>| {
        let evidence = counts.map(|debt| GateEvidence {
            debt_of_all: (debt > 0).then_some(debt),
            ..serde_json::from_value(json!({
                "ledgerSeq": 1, "targets": 1, "released": 1, "confirmed": 1, "soaked": 1, "failed": 0,
            }))
            .unwrap()
        });
        let mut record = record(&[]);
        record.decide(RolloutDecision { evidence, ..decision(verb, 1) }, &Approvals::default()).unwrap();
        record.end()
    };
    assert_eq!(of(Pause, Some(0)), None);
    assert_eq!(of(Finish, Some(0)), Some(RolloutEnd::Succeeded));
    assert_eq!(of(Finish, Some(2)), Some(RolloutEnd::SucceededWithDebt));
    assert_eq!(of(Stop, Some(0)), Some(RolloutEnd::Failed), "it was stopped on evidence");
    assert_eq!(of(Stop, None), Some(RolloutEnd::Cancelled), "a person has stopped it");
    assert_eq!(of(Abort, None), Some(RolloutEnd::Aborted));
    assert_eq!(of(Rollback, Some(0)), Some(RolloutEnd::RolledBack));
    assert_eq!(of(Supersede, None), Some(RolloutEnd::Superseded));
}

#[test]
fn a_wave_waits_for_approval_until_it_or_the_next_one_begins() {
    use RolloutVerb::{Begin, Finish, Ready, Stop};
    let waits = |approval: &str, decisions: &[(RolloutVerb, &str)]| {
        let wave = json!({ "name": "quarter", "count": 1, "approval": approval });
        let mut record = record(&[]);
        for (verb, wave) in decisions {
            let made = RolloutDecision { wave: wave.parse().ok(), ..decision(*verb, 1) };
            record.decide(made, &Approvals::default()).unwrap();
        }
        serde_json::from_value::<Wave>(wave).unwrap().waits_for_approval(Some(&record))
    };
    for (approval, decisions, expected) in [
        ("before", &[(Begin, "canary")][..], true),
        ("before", &[], true),
        ("before", &[(Stop, "")], true),
        ("before", &[(Begin, "quarter")], false),
        ("before", &[(Finish, "")], false),
        ("after", &[], false),
        ("after", &[(Begin, "quarter")], false),
        ("after", &[(Begin, "quarter"), (Ready, "quarter")], true),
        ("after", &[(Begin, "quarter"), (Ready, "quarter"), (Begin, "half")], false),
        ("after", &[(Begin, "quarter"), (Ready, "quarter"), (Finish, "")], false),
        ("none", &[], false),
    ] {
        assert_eq!(waits(approval, decisions), expected, "{approval} {decisions:?}");
    }
}
