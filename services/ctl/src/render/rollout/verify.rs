//! Renders recomputed decisions, with both numbers of those that differ.

use muster_contract::rollout::GateEvidence;

use crate::render::colour::{BAD, UNSURE, WELL, styled};
use crate::render::cut::short;
use crate::render::format::{clean, plural};
use crate::render::frame::Frame;
use crate::render::table::{Cell, Table};
use crate::rollout::{Verification, VerifiedDecision, VerifiedRollout, VerifyResult};

/// The decisions of each rollout, and the result of all.
pub fn verification(found: &Verification, frame: Frame) -> String {
    let shown = found.rollouts.iter().filter(|rollout| !rollout.decisions.is_empty());
    let mut text: String = shown.map(|rollout| one(found, rollout, frame) + "\n").collect();
    let Verification { same, different, unverifiable, without_evidence, .. } = *found;
    let themselves = if same == 1 { "itself" } else { "themselves" };
    let mut parts = vec![format!("{} recomputed to {themselves}", plural(same, "decision"))];
    if different > 0 {
        parts.push(styled(BAD, &format!("{different} did not")));
    }
    if unverifiable > 0 {
        parts.push(styled(UNSURE, &format!("{unverifiable} cannot be verified")));
    }
    if without_evidence > 0 {
        parts.push(format!("{without_evidence} rest on no evidence"));
    }
    text += &parts.join("; ");
    text + "\n"
}

fn one(found: &Verification, rollout: &VerifiedRollout, frame: Frame) -> String {
    let VerifiedRollout { digest, rollout, decisions } = rollout;
    let mut table = Table::new(&["AT", "DECISION", "WAVE", "BY", ">LEDGER", "RESULT"]);
    for decision in decisions {
        let VerifiedDecision { at, verb, wave, requested_by, recorded, result, .. } = decision;
        let (words, style) = match result {
            VerifyResult::Same => ("same", WELL),
            VerifyResult::Different => ("different", BAD),
            VerifyResult::Unverifiable => ("cannot be verified", UNSURE),
        };
        let by = clean(requested_by.as_ref().map_or("-", |by| by.label()));
        let row = [
            at.to_string().into(),
            verb.as_str().into(),
            wave.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string).into(),
            by.into(),
            recorded.as_ref().map_or_else(|| "-".to_owned(), |counts| counts.ledger_seq.to_string()).into(),
            Cell::styled(words, style),
        ];
        table.row_above(row, below(decision));
    }
    format!("{} {} by {}\n{}", found.deployment, short(digest), clean(rollout), table.within(frame.width))
}

/// Why a decision is not the same, with both numbers.
fn below(decision: &VerifiedDecision) -> String {
    let mut text = String::new();
    if let (Some(recorded), Some(recomputed)) = (&decision.recorded, &decision.recomputed)
        && recorded != recomputed
    {
        text += &format!(
            "  recorded: {}\n  LEDGER {} gives: {}\n",
            counts(recorded),
            recorded.ledger_seq,
            counts(recomputed)
        );
    }
    if let Some(reason) = &decision.reason {
        text += &format!("  {}\n", clean(reason));
    }
    text
}

fn counts(counts: &GateEvidence) -> String {
    let GateEvidence { targets, released, confirmed, soaked, failed, debt, dark, .. } = counts;
    let targets = plural(*targets, "target");
    let dark = dark.map_or_else(String::new, |dark| format!(", {dark} not heard"));
    format!(
        "{targets}, {released} released, {confirmed} confirmed, {soaked} soaked, {failed} failed, {debt} left out{dark}"
    )
}
