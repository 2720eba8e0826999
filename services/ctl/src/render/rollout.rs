//! Renders rollouts: held changes, waves and their gates, releases, and decisions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    DecideAnswer, GateEvidence, HeldChange, RefusedRelease, ReleaseAnswer, RolloutDecision, RolloutRecord,
    RolloutVerb, RolloutWord,
};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{Gate, Known, RolloutProgress, Step, WaveState, listed};

use super::cut;
use super::frame::Frame;
use super::paint::{BAD, MOVING, UNSURE, WELL, styled};
use super::publisher::names;
use super::table::{Cell, Table};
use super::words::{age, plural};
use crate::rollout::{Decided, HeldChanges, History, StepTaken};

/// Characters of a digest that tell it apart for a person.
const DIGEST_WIDTH: usize = 20;

/// The held changes.
pub fn list(changes: &HeldChanges, now: Timestamp) -> String {
    if changes.held.is_empty() {
        return "No change waits for a release.\n".to_owned();
    }
    let mut text: String = changes.held.iter().map(|change| held(change, now)).collect();
    if changes.omitted > 0 {
        let _ = writeln!(text, "and {} more", plural(changes.omitted, "change"));
    }
    text
}

/// A held change, in one line with its line break.
pub fn held(change: &HeldChange, now: Timestamp) -> String {
    let HeldChange { deployment, digest, rollout, devices, since, state } = change;
    let what = digest.map_or_else(|| "removed".to_owned(), |digest| short(&digest));
    let waits = if state.is_running() {
        format!("waiting for a release since {since} ({})", age(now, *since))
    } else {
        state.words().to_owned()
    };
    let head = format!("held         {deployment} {what}: {waits}");
    let way_on = match state {
        RolloutWord::Paused => "resume",
        RolloutWord::Stopped | RolloutWord::RolledBack => "retry",
        RolloutWord::Running | RolloutWord::Succeeded => "next",
    };
    format!(
        "{}, by {}, on {} ({}), which keep what they have; `muster rollout {way_on} {deployment}`\n",
        styled(UNSURE, &head),
        super::words::clean(rollout),
        plural(devices.count, "device"),
        names(devices),
    )
}

/// The waves of rollouts, with the next step of each.
pub fn show(rollouts: &[RolloutProgress], frame: Frame) -> String {
    rollouts.iter().map(|rollout| one(rollout, frame)).collect::<Vec<_>>().join("\n")
}

fn one(rollout: &RolloutProgress, frame: Frame) -> String {
    let mut table =
        Table::new(&["WAVE", "GATE", ">TARGETS", ">RELEASED", ">CONFIRMED", ">FAILED", ">IN FLIGHT"]);
    for WaveState { name, tally, gate, .. } in &rollout.state.waves {
        table.row([
            name.as_str().into(),
            Cell::styled(gate.to_string(), style(*gate)),
            Cell::count(tally.targets),
            Cell::count(tally.released),
            Cell::count(tally.confirmed),
            Cell::marked(tally.failed, BAD),
            Cell::marked(tally.in_flight(), MOVING),
        ]);
    }
    let mut text = format!("{}\n{}\n{}\n", head(rollout), table.within(frame.width), rollout.why());
    let earlier = earlier(rollout);
    if !earlier.is_empty() {
        let _ = writeln!(text, "devices with other contents: {}", earlier.join(", "));
    }
    text
}

fn head(rollout: &RolloutProgress) -> String {
    let RolloutProgress { deployment, digest, file, revision, .. } = rollout;
    let digest = short(digest);
    format!(
        "{deployment} {digest} by {} in commit {}",
        super::words::clean(file),
        super::words::clean(revision)
    )
}

/// Other contents that targets have, with their whole digests: a release can go back to them.
fn earlier(rollout: &RolloutProgress) -> Vec<String> {
    let mut counts: BTreeMap<Digest, u64> = BTreeMap::new();
    for target in &rollout.targets {
        if let Some(digest) = target.published.filter(|_| target.published != target.wanted) {
            *counts.entry(digest).or_default() += 1;
        }
    }
    counts.into_iter().map(|(digest, count)| format!("{count} with {digest}")).collect()
}

const fn style(gate: Gate) -> anstyle::Style {
    match gate {
        Gate::Open => WELL,
        Gate::Shut | Gate::Soaking => MOVING,
        Gate::TooManyFailures | Gate::OutOfReach => BAD,
    }
}

/// The wave of each device.
pub fn preview(rollouts: &[RolloutProgress], frame: Frame) -> String {
    let one = |rollout: &RolloutProgress| {
        let mut table = Table::new(&["DEVICE", "WAVE", "KNOWN"]);
        for wave in &rollout.state.waves {
            for at in &wave.members {
                let (words, style) = known(rollout.known[*at]);
                let device = rollout.targets[*at].key.to_string();
                table.row([device.into(), wave.name.as_str().into(), Cell::styled(words, style)]);
            }
        }
        format!("{}\n{}\n", head(rollout), table.within(frame.width))
    };
    rollouts.iter().map(one).collect::<Vec<_>>().join("\n")
}

const fn known(known: Known) -> (&'static str, anstyle::Style) {
    match known {
        Known::NotReleased => ("not released", super::paint::DIM),
        Known::NotInLedger => ("not in LEDGER yet", MOVING),
        Known::NotHeard => ("not heard", UNSURE),
        Known::ReportsMissing => ("with missing reports", UNSURE),
        Known::UnderWay => ("under way", MOVING),
        Known::Confirmed => ("confirmed", WELL),
        Known::Failed => ("failed", BAD),
    }
}

/// The steps that were taken, or why none was.
pub fn steps(steps: &[StepTaken]) -> String {
    let one = |step: &StepTaken| match (&step.rollout.state.step, &step.answer) {
        (Step::Release { wave, .. }, Some(answer)) => {
            let name = step.rollout.state.waves.get(*wave).map_or("rest", |wave| wave.name.as_str());
            format!("wave {name}: {}", released(&step.rollout.deployment, answer))
        }
        _ => format!("{}: {}\n", head(&step.rollout), step.rollout.why()),
    };
    steps.iter().map(one).collect()
}

/// Recorded decisions, each in one line, with the devices that a rollback reached.
pub fn decided(all: &[Decided]) -> String {
    let one = |Decided { deployment, answer, devices, .. }: &Decided| {
        let DecideAnswer { record, changed } = answer;
        let wave = record.decisions.last().filter(|last| last.verb == RolloutVerb::Approve && *changed);
        let what = match wave.and_then(|last| last.wave.as_ref()) {
            Some(wave) => format!("wave {wave} is approved"),
            None => format!("{}{}", record.word().words(), if *changed { "" } else { ", as before" }),
        };
        let file = super::words::clean(&record.rollout);
        let mut text = format!("{deployment} {} by {file}: {what}\n", short(&record.digest));
        if let Some(answer) = devices {
            text += &taken_back(answer);
        }
        text
    };
    all.iter().map(one).collect()
}

/// The devices that a rollback reached.
fn taken_back(answer: &ReleaseAnswer) -> String {
    let keys: Vec<_> = answer.released.iter().collect();
    let mut text = match keys.len() {
        0 => "no device has the content any more\n".to_owned(),
        count => {
            format!("{} got the content before it: {}\n", plural(count as u64, "device"), listed(&keys))
        }
    };
    text += &refused(answer);
    text
}

/// The decisions about the rollouts of a deployment.
pub fn history(history: &History, frame: Frame) -> String {
    if history.rollouts.is_empty() {
        return format!("No decision about a rollout of {} is recorded.\n", history.deployment);
    }
    let one = |record: &RolloutRecord| {
        let mut table = Table::new(&["AT", "DECISION", "WAVE", "BY", "EVIDENCE", "REASON"]);
        for RolloutDecision { verb, wave, reason, evidence, requested_by, at } in &record.decisions {
            let by = requested_by.as_ref().map_or("-", |by| by.label());
            let evidence = evidence.map_or_else(|| "-".to_owned(), |counts| evidence_of(&counts));
            table.row([
                at.to_string().into(),
                verb.as_str().into(),
                wave.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string).into(),
                super::words::clean(by).as_str().into(),
                evidence.into(),
                super::words::clean(reason.as_deref().unwrap_or("-")).as_str().into(),
            ]);
        }
        let (file, word) = (super::words::clean(&record.rollout), record.word().words());
        let head = format!("{} {} by {file}: {word}", history.deployment, short(&record.digest));
        format!("{head}\n{}\n", table.within(frame.width))
    };
    history.rollouts.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn evidence_of(counts: &GateEvidence) -> String {
    let GateEvidence { ledger_seq, targets, confirmed, failed, .. } = counts;
    format!("{confirmed} of {targets} confirmed, {failed} failed, at LEDGER {ledger_seq}")
}

/// The result of a release.
pub fn released(deployment: &DeploymentId, answer: &ReleaseAnswer) -> String {
    let keys: Vec<_> = answer.released.iter().collect();
    let mut text = match keys.len() {
        0 => format!("{deployment} is released to no device\n"),
        count => {
            format!("{deployment} is released to {}: {}\n", plural(count as u64, "device"), listed(&keys))
        }
    };
    text += &refused(answer);
    text
}

/// The devices that were refused, each in a line.
fn refused(answer: &ReleaseAnswer) -> String {
    let line = |RefusedRelease { key, reason }: &RefusedRelease| {
        format!("{}\n", styled(BAD, &format!("{key} {}", reason.words())))
    };
    answer.refused.iter().map(line).collect()
}

fn short(digest: &Digest) -> String {
    cut::end(&digest.to_string(), DIGEST_WIDTH)
}
