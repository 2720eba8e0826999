//! The output of `muster` about rollouts that are verified, explained and followed, as golden files under `tests/golden/ctl/`.
//! `UPDATE_GOLDEN=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::PathBuf;

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::plans::{OperationState, OperationType};
use muster_contract::rollout::{GateEvidence, RolloutDecisions, RolloutPhase, RolloutVerb};
use muster_ctl::config::RolloutWord;
use muster_ctl::render::frame::Frame;
use muster_ctl::render::rollout;
use muster_ctl::rollout::{
    ApprovalEvent, ApprovalEventKind, ApprovalRequest, PendingApproval, PendingOperation, RolloutSnapshot,
    RolloutWhy, RolloutsFrame, Verification, VerifiedDecision, VerifiedRollout, VerifyResult, WaveBar,
};
use muster_domain::rollout::{ApprovalCount, Gate};
use muster_tests::golden;
use muster_tests::schemas::example;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test ctl_rollout_render";
const FILE: &str = "fleet/rollout.yaml";

#[test]
fn a_verification_names_decisions_that_differ_with_both_numbers() {
    let recorded: RolloutDecisions = example("RolloutDecisions.rolled-back");
    let record = &recorded.rollouts[0];
    let verified = |at: usize, result, recomputed, reason: Option<&str>| {
        let decision = record.decisions[at].clone();
        VerifiedDecision {
            verb: decision.verb,
            wave: decision.wave,
            at: decision.at,
            requested_by: decision.requested_by,
            recorded: decision.evidence,
            result,
            recomputed,
            reason: reason.map(str::to_owned),
        }
    };
    let evidence = |at: usize| record.decisions[at].evidence.clone();
    let other = evidence(1).map(|counts| GateEvidence { confirmed: 1, soaked: 1, failed: 0, ..counts });
    let mut decisions = vec![
        verified(0, VerifyResult::Same, evidence(0), None),
        verified(1, VerifyResult::Different, other, Some("the rules give no such decision: done")),
        verified(
            0,
            VerifyResult::Unverifiable,
            None,
            Some("ledger 4711 is too old: LEDGER has forgotten what led to it"),
        ),
    ];
    decisions[2].verb = RolloutVerb::Finish;
    decisions[2].wave = None;
    let found = Verification {
        deployment: recorded.deployment,
        same: 1,
        different: 1,
        unverifiable: 1,
        without_evidence: 2,
        rollouts: vec![VerifiedRollout { digest: record.digest, rollout: FILE.to_owned(), decisions }],
    };
    golden("rollout-verify", &rollout::verification(&found, now().into()));
}

#[test]
fn a_watch_distinguishes_confirmed_possible_failed_and_silent_devices() {
    let before =
        frame(&[bar("canary", [1, 0, 0, 0, 0], Gate::Open), bar("quarter", [0, 0, 0, 0, 12], Gate::Shut)]);
    let now_frame =
        frame(&[bar("canary", [1, 0, 0, 0, 0], Gate::Open), bar("quarter", [5, 3, 1, 2, 1], Gate::Shut)]);
    golden("rollout-watch", &rollout::bars(&now_frame, Frame::from(now())));
    golden("rollout-watch-lines", &rollout::changed(Some(&before), &now_frame));
    golden(
        "rollout-watch-of-nothing",
        &rollout::bars(&RolloutsFrame { rollouts: Vec::new(), ..before }, now().into()),
    );
}

#[test]
fn an_explanation_is_one_line_and_an_approval_comes_with_its_command() {
    let why = RolloutWhy {
        deployment: "web".parse().unwrap(),
        digest: Digest::of_bytes(b"v2"),
        rollout: FILE.to_owned(),
        revision: "3f2a91c".to_owned(),
        phase: RolloutPhase::Running,
        ledger_seq: 4711,
        why: "the gate behind wave quarter needs 10 of 12 confirmed and has 5, at most 11".to_owned(),
        deadline: None,
        unbounded: false,
        blocked: None,
        devices: Vec::new(),
    };
    let mut text = rollout::why(&[why]);
    let wave = PendingApproval::Wave(ApprovalRequest {
        deployment: "web".parse().unwrap(),
        digest: Digest::of_bytes(b"v2"),
        rollout: FILE.to_owned(),
        wave: "quarter".to_owned(),
        devices: 12,
        approvals: ApprovalCount { given: 1, needed: 2, void: 0 },
    });
    let mut moved = operation();
    (moved.operation_type, moved.from_node) =
        (OperationType::Relocate, Some("plant7/press-1".parse().unwrap()));
    let [operation, moved] = [operation(), moved].map(PendingApproval::Operation);
    for (request, state) in [(&wave, None), (&operation, Some(OperationState::Rejected))] {
        for event in [ApprovalEventKind::Waiting, ApprovalEventKind::Approved, ApprovalEventKind::Ended] {
            let state = state.filter(|_| event == ApprovalEventKind::Ended);
            text += &rollout::approval(&ApprovalEvent { event, request: request.clone(), state, at: now() });
        }
    }
    text += "--\n";
    text += &rollout::approvals(&[wave, moved], None);
    text += &rollout::approvals(&[], None);
    text += &rollout::approvals(&[], Some("operations of plans are not followed"));
    golden("rollout-why-and-approvals", &text);
}

fn operation() -> PendingOperation {
    let id = "create-0d6e4f2a-91c3-8b57-a6d4-3f2c1b0a9e8d";
    PendingOperation {
        plan: "web".parse().unwrap(),
        instance: "web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d".parse().unwrap(),
        display_name: "Web-DW5PKpHDi1em1D8sGwqejQ".to_owned(),
        operation: id.parse().unwrap(),
        operation_type: OperationType::Create,
        node: Some("plant7/press-4".parse().unwrap()),
        from_node: None,
        since: Some(now()),
        expires_at: Some("2026-11-26T05:00:00Z".parse().unwrap()),
        message: "Operation is pending approval".to_owned(),
        command: format!("muster operation approve {id}"),
    }
}

fn frame(waves: &[WaveBar]) -> RolloutsFrame {
    RolloutsFrame {
        deployment: "web".parse().unwrap(),
        revision: "3f2a91c".to_owned(),
        ledger_seq: 4711,
        at: now(),
        rollouts: vec![RolloutSnapshot {
            digest: Digest::of_bytes(b"v2"),
            rollout: FILE.to_owned(),
            state: RolloutWord::Running,
            why: "the gate behind wave quarter needs 10 of 12 confirmed and has 5, at most 11".to_owned(),
            waves: waves.to_vec(),
        }],
    }
}

fn bar(name: &str, numbers: [u64; 5], gate: Gate) -> WaveBar {
    let [confirmed, possible, failed, dark, not_released] = numbers;
    WaveBar {
        name: name.to_owned(),
        gate,
        forced: false,
        targets: numbers.iter().sum(),
        confirmed,
        possible,
        failed,
        dark,
        not_released,
        left_out: 0,
        approvals: None,
    }
}

fn now() -> Timestamp {
    "2026-11-26T04:00:00Z".parse().unwrap()
}

#[track_caller]
fn golden(name: &str, text: &str) {
    let text = anstream::adapter::strip_str(text).to_string();
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/ctl/{name}.txt"));
    let difference = golden::difference(&file, &text, SWITCH);
    assert!(difference.is_none(), "{}if that is wanted: `{REMEDY}`", difference.unwrap_or_default());
}
