//! Recomputed decisions: right ones, wrong ones, and those that cannot be recomputed.

use muster_contract::rollout::{Approvals, Rollout};
use muster_contract::view::Standing;
use serde_json::json;

use super::super::tests::line_of;
use super::*;

const JUDGED: &str = "2026-11-26T03:00:00Z";

fn rollout() -> Rollout {
    let waves = json!([{ "name": "canary", "devices": ["a/d0"] }, { "name": "half", "percent": "50%" }]);
    let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves });
    serde_json::from_value(document).unwrap()
}

fn content() -> Digest {
    Digest::of_bytes(b"v2")
}

fn commit() -> TargetsAnswer {
    let target = |at: usize| RolloutTarget {
        key: format!("a/d{at}").parse().unwrap(),
        labels: Default::default(),
        rollout: "fleet/rollout.yaml".to_owned(),
        wanted: Some(content()),
        published: None,
        target_generation: None,
        published_at: None,
        refused: None,
    };
    TargetsAnswer {
        revision: "c1".to_owned(),
        rollouts: [("fleet/rollout.yaml".to_owned(), rollout())].into(),
        targets: (0..4).map(target).collect(),
        decisions: Vec::new(),
        waits_for: Default::default(),
        next: None,
    }
}

/// LEDGER at 9: the first device has the content and stands so, the others have an older one.
fn past(standing: Standing) -> PastLines {
    let mut past = PastLines::default();
    past.lines.ledger_seq = 9;
    for at in 0..4 {
        let key: DeviceKey = format!("a/d{at}").parse().unwrap();
        let line = line_of(
            &key,
            &json!({
                "standing": if at == 0 { standing } else { Standing::Installed },
                "targetGeneration": if at == 0 { 2 } else { 1 },
                "changedAt": Timestamp::UNIX_EPOCH,
            }),
        );
        past.lines.of_devices.insert(key.clone(), line);
        let older = Digest::of_bytes(b"v1");
        past.contents.insert(key, if at == 0 { content() } else { older });
    }
    past
}

/// The decision of a planner at that state, recorded.
fn record(verb: RolloutVerb, wave: Option<&str>, confirmed: u64, failed: u64) -> RolloutRecord {
    let judged_at: Timestamp = JUDGED.parse().unwrap();
    let decision = |verb, wave: Option<&str>, evidence| RolloutDecision {
        wave: wave.map(|wave| wave.parse().unwrap()),
        evidence,
        ..RolloutDecision::new(verb, judged_at)
    };
    let mut record = RolloutRecord::new(content(), "fleet/rollout.yaml".to_owned());
    record.decide(decision(RolloutVerb::Begin, Some("canary"), None), &Approvals::default()).unwrap();
    let evidence = GateEvidence {
        ledger_seq: 9,
        ledger_through: None,
        revision: Some("c1".to_owned()),
        judged_at: Some(judged_at),
        targets: 1,
        released: 1,
        confirmed,
        soaked: confirmed,
        failed,
        debt: 0,
        dark: Some(0),
        debt_of_all: None,
    };
    record.decide(decision(verb, wave, Some(evidence)), &Approvals::default()).unwrap();
    record
}

fn recomputed(record: &RolloutRecord, past: &PastLines) -> Result<Recomputed, NotRecomputable> {
    recompute(&"web".parse().unwrap(), record, 1, &commit(), past)
}

#[test]
fn a_right_decision_recomputes_to_itself() {
    for (verb, wave, standing, confirmed, failed) in [
        (RolloutVerb::Begin, Some("half"), Standing::Installed, 1, 0),
        (RolloutVerb::Force, Some("canary"), Standing::Failed, 0, 1),
        (RolloutVerb::Pause, None, Standing::Failed, 0, 1),
    ] {
        let record = record(verb, wave, confirmed, failed);
        let found = recomputed(&record, &past(standing)).unwrap();
        assert_eq!(found.contradiction, None, "{verb:?}");
        assert_eq!(Some(found.counts), record.decisions[1].evidence, "{verb:?}");
    }
}

#[test]
fn a_wrong_count_is_named_with_both_numbers() {
    let record = record(RolloutVerb::Begin, Some("half"), 1, 0);
    let found = recomputed(&record, &past(Standing::Installing)).unwrap();
    assert_eq!((found.counts.confirmed, found.counts.targets), (0, 1));
    assert_eq!(found.contradiction.unwrap(), "the gate behind wave canary is not open: shut");
}

#[test]
fn a_decision_against_the_rules_is_contradicted_despite_right_counts() {
    for (verb, standing, counts) in [
        (RolloutVerb::Rollback, Standing::Failed, (0, 1)),
        (RolloutVerb::Pause, Standing::Installed, (1, 0)),
        (RolloutVerb::Finish, Standing::Installed, (1, 0)),
    ] {
        let record = record(verb, None, counts.0, counts.1);
        let found = recomputed(&record, &past(standing)).unwrap();
        assert!(found.contradiction.is_some(), "{verb:?}");
    }
}

#[test]
fn a_decision_without_its_inputs_is_never_right() {
    let with = |change: &dyn Fn(&mut GateEvidence)| {
        let mut record = record(RolloutVerb::Begin, Some("half"), 1, 0);
        change(record.decisions[1].evidence.as_mut().unwrap());
        recomputed(&record, &past(Standing::Installed)).unwrap_err()
    };
    assert_eq!(with(&|counts| counts.revision = None), NotRecomputable::OlderRecord);
    assert_eq!(with(&|counts| counts.judged_at = None), NotRecomputable::OlderRecord);
    assert_eq!(with(&|counts| counts.ledger_through = Some(12)), NotRecomputable::SeveralSequences(9, 12));
    let far = with(&|counts| counts.judged_at = Some(Timestamp::UNIX_EPOCH));
    assert!(matches!(far, NotRecomputable::ClocksApart(..)), "{far}");
    let mut stripped = record(RolloutVerb::Begin, Some("half"), 1, 0);
    stripped.decisions[1].evidence = None;
    let error = recomputed(&stripped, &past(Standing::Installed)).unwrap_err();
    assert_eq!(error, NotRecomputable::NoEvidence);
    assert!(rests_on_evidence(&stripped.decisions[1]), "a begin without evidence is not a person's word");
}

#[test]
fn a_target_whose_desired_state_is_gone_makes_no_decision_right() {
    let record = record(RolloutVerb::Begin, Some("half"), 1, 0);
    let mut past = past(Standing::Installed);
    past.unreadable.insert("a/d3".parse().unwrap());
    assert_eq!(recomputed(&record, &past).unwrap_err(), NotRecomputable::Unreadable(1));
}

#[test]
fn a_wave_that_began_without_its_approvals_is_contradicted() {
    let record = record(RolloutVerb::Begin, Some("half"), 1, 0);
    let mut commit = commit();
    let rollout = commit.rollouts.values_mut().next().unwrap();
    rollout.waves[1].approval = muster_contract::rollout::Approval::Before;
    let id = "web".parse().unwrap();
    let found = recompute(&id, &record, 1, &commit, &past(Standing::Installed)).unwrap();
    assert_eq!(found.contradiction.unwrap(), "wave half had 0 of 1 approvals");
}

#[test]
fn a_wave_with_approved_evidence_begins_without_approvals() {
    let mut commit = commit();
    let rollout = commit.rollouts.values_mut().next().unwrap();
    rollout.waves[0].approval = Approval::After;
    rollout.waves[1].approval = Approval::After;
    let id = "web".parse().unwrap();
    let contradiction = |verb, wave, standing| {
        let record = record(verb, wave, u64::from(standing == Standing::Installed), 0);
        recompute(&id, &record, 1, &commit, &past(standing)).unwrap().contradiction
    };
    assert_eq!(contradiction(RolloutVerb::Ready, Some("canary"), Standing::Installed), None);
    let early = contradiction(RolloutVerb::Ready, Some("canary"), Standing::Installing).unwrap();
    assert_eq!(early, "wave canary is not at its gate: shut");
    let unapproved = contradiction(RolloutVerb::Begin, Some("half"), Standing::Installed).unwrap();
    assert_eq!(unapproved, "the gate behind wave canary is not open: needs approval");
    let mut begun = commit.clone();
    begun.rollouts.values_mut().next().unwrap().waves[0].approval = Approval::None;
    let record = record(RolloutVerb::Begin, Some("half"), 1, 0);
    let found = recompute(&id, &record, 1, &begun, &past(Standing::Installed)).unwrap();
    assert_eq!(found.contradiction, None, "the approvals of its evidence come later");
}
