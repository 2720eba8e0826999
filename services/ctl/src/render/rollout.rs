//! Renders rollouts: held changes, waves and their gates, releases, and decisions.

mod approvals;
mod bars;
mod operations;
mod verify;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    DecideAnswer, GateEvidence, HeldChange, OpenRollout, RefusedRelease, ReleaseAnswer, RolloutDecision,
    RolloutRecord,
};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{
    ApprovalCount, BudgetClash, DarkDevice, Gate, Known, Outlook, RolloutProgress, Step, WaveState, listed,
};

use super::colour::{BAD, MOVING, UNSURE, WELL, styled};
use super::cut::short;
use super::format::{age, names, plural};
use super::frame::Frame;
use super::table::{Cell, Table};
use crate::rollout::{
    Decided, HeldChanges, History, Previewed, RolloutDeadline, RolloutWhy, RolloutsThen, StepTaken,
};

pub use self::approvals::{approval, approvals};
pub use self::bars::{bars, changed};
pub use self::operations::operations;
pub use self::verify::verification;

/// Devices that are not heard and that a preview names below its table.
const DARK_NAMED_MAX: usize = 20;

/// The held changes, and the rollouts under way that hold none.
pub fn list(changes: &HeldChanges, now: Timestamp) -> String {
    let mut text: String = changes.held.iter().map(|change| held(change, now)).collect();
    if changes.omitted > 0 {
        let _ = writeln!(text, "and {} more", plural(changes.omitted, "change"));
    }
    let is_held = |open: &&OpenRollout| {
        let is_same = |change: &HeldChange| {
            change.deployment == open.deployment
                && change.digest == Some(open.digest)
                && change.rollout == open.rollout
        };
        !changes.held.iter().any(is_same)
    };
    text.extend(changes.open.iter().filter(is_held).map(open));
    if changes.open_omitted > 0 {
        let _ = writeln!(text, "and {} more under way", plural(changes.open_omitted, "rollout"));
    }
    if text.is_empty() {
        "No change waits for a release, and no rollout is under way.\n".to_owned()
    } else {
        text
    }
}

/// A rollout that has released all that it may, and has not ended.
fn open(OpenRollout { deployment, digest, rollout, phase }: &OpenRollout) -> String {
    let head = format!("open         {deployment} {}: {}", short(digest), phase.words());
    let file = super::format::clean(rollout);
    format!("{}, by {file}; `muster rollout show {deployment}`\n", styled(MOVING, &head))
}

/// A held change, in one line with its line break.
pub fn held(change: &HeldChange, now: Timestamp) -> String {
    let HeldChange { deployment, digest, rollout, devices, since, phase } = change;
    let what = digest.map_or_else(|| "removed".to_owned(), |digest| short(&digest));
    let way_on = phase.continued_by();
    let waits = match way_on {
        None => format!("waiting for a release since {since} ({})", age(now, *since)),
        Some(_) => phase.words().to_owned(),
    };
    let head = format!("held         {deployment} {what}: {waits}");
    let way_on = way_on.unwrap_or("next");
    format!(
        "{}, by {}, on {} ({}), which keep what they have; `muster rollout {way_on} {deployment}`\n",
        styled(UNSURE, &head),
        super::format::clean(rollout),
        plural(devices.count, "device"),
        names(devices),
    )
}

/// The waves of rollouts, with the next step of each.
pub fn show(rollouts: &[RolloutProgress], frame: Frame) -> String {
    rollouts.iter().map(|rollout| one(rollout, frame)).collect::<Vec<_>>().join("\n")
}

/// The rollouts as they stood at a time.
pub fn then(found: &RolloutsThen, frame: Frame) -> String {
    let RolloutsThen { deployment, at, ledger_seq, rollouts, unknown } = found;
    let mut text = format!("as of {at}, LEDGER {ledger_seq}\n\n");
    if rollouts.is_empty() && unknown.is_empty() {
        let _ = writeln!(text, "No decision about a rollout of {deployment} was recorded by then.");
    }
    let frame = Frame { then: Some(*at), ..frame };
    text += &rollouts.iter().map(|rollout| one(rollout, frame)).collect::<Vec<_>>().join("\n");
    for other in unknown {
        let (digest, file) = (short(&other.digest), super::format::clean(&other.rollout));
        let reason = super::format::clean(&other.reason);
        let words = format!("{deployment} {digest} by {file} {}: its waves are unknown", other.phase.words());
        let _ = writeln!(text, "{}: {reason}", styled(UNSURE, &words));
    }
    text
}

/// Why each rollout stands where it does, one a line.
pub fn why(all: &[RolloutWhy]) -> String {
    let one = |why: &RolloutWhy| {
        let RolloutWhy {
            deployment, digest, rollout, revision, ledger_seq, why, deadline, unbounded, ..
        } = why;
        let until =
            deadline.map(|RolloutDeadline { at, then }| format!("; deadline {at}, then {}", then.as_str()));
        let bound =
            until.unwrap_or_else(|| if *unbounded { "; unbounded".to_owned() } else { String::new() });
        let (file, commit) = (super::format::clean(rollout), super::format::clean(revision));
        format!(
            "{deployment} {} by {file} in commit {commit}, as of ledger {ledger_seq}: {why}{bound}\n",
            short(digest)
        )
    };
    all.iter().map(one).collect()
}

fn one(rollout: &RolloutProgress, frame: Frame) -> String {
    let needs_approval = rollout.state.waves.iter().any(|wave| wave.approvals.is_some());
    let mut columns = vec!["WAVE", "GATE", ">TARGETS", ">RELEASED", ">CONFIRMED", ">FAILED", ">IN FLIGHT"];
    columns.extend(needs_approval.then_some(">APPROVALS"));
    let mut table = Table::new(&columns);
    for WaveState { name, tally, gate, forced, approvals, .. } in &rollout.state.waves {
        let mut row = vec![
            name.as_str().into(),
            Cell::styled(format!("{gate}{}", if *forced { ", forced" } else { "" }), style(*gate)),
            Cell::count(tally.targets),
            Cell::count(tally.released),
            Cell::count(tally.confirmed),
            Cell::marked(tally.failed, BAD),
            Cell::marked(tally.in_flight(), MOVING),
        ];
        let given = approvals.map(|count| format!("{} of {}", count.given, count.needed));
        row.extend(needs_approval.then(|| Cell::from(given.unwrap_or_default())));
        table.row(row);
    }
    let mut text = format!("{}\n{}\n{}\n", head(rollout), table.within(frame.width), rollout.why());
    if let Some(bound) = rollout.bound() {
        let _ = writeln!(text, "{bound}");
    }
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
        super::format::clean(file),
        super::format::clean(revision)
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
        Gate::Shut | Gate::Soaking | Gate::Checking => MOVING,
        Gate::Approving | Gate::Empty => UNSURE,
        Gate::TooManyFailures | Gate::OutOfReach | Gate::CheckFailed => BAD,
    }
}

/// The wave of each device, and the outlook.
pub fn preview(rollouts: &[Previewed], frame: Frame, now: Timestamp) -> String {
    let one = |Previewed { rollout, outlook }: &Previewed| {
        let mut table = Table::new(&["DEVICE", "WAVE", "KNOWN"]);
        for wave in &rollout.state.waves {
            for at in &wave.members {
                let (words, style) = known(rollout.known[*at]);
                let device = rollout.targets[*at].key.to_string();
                table.row([device.into(), wave.name.as_str().into(), Cell::styled(words, style)]);
            }
        }
        format!("{}\n{}\n{}", head(rollout), table.within(frame.width), prospects(outlook, now))
    };
    rollouts.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The devices that are not heard, groups without room in the budget, and the earliest end.
fn prospects(outlook: &Outlook, now: Timestamp) -> String {
    let Outlook { dark, clashes, end } = outlook;
    let mut text = String::new();
    if !dark.is_empty() {
        let age = |device: &DarkDevice| match device.since {
            Some(since) => format!("{} (since {}, wave {})", device.key, age(now, since), device.wave),
            None => format!("{} (never, wave {})", device.key, device.wave),
        };
        let named: Vec<_> = dark.iter().take(DARK_NAMED_MAX).map(age).collect();
        let more = dark.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let head = format!("not heard    {}", plural(dark.len() as u64, "device"));
        let _ = writeln!(text, "{}: {}{more}", styled(UNSURE, &head), named.join(", "));
    }
    for BudgetClash { label, group, devices, unavailable, most, first, waiting } in clashes {
        let group = if group.is_empty() { format!("no {label}") } else { format!("{label}={group}") };
        let first: Vec<_> = first.iter().collect();
        let _ = writeln!(
            text,
            "{}: {unavailable} of {devices} unavailable, {most} allowed ({}); {} for room",
            styled(UNSURE, &format!("budget       {group}")),
            listed(&first),
            if *waiting == 1 { "1 device waits".to_owned() } else { format!("{waiting} devices wait") },
        );
    }
    let after = |what: &str, names: Vec<String>| match &names[..] {
        [] => String::new(),
        names => format!(", and after {what} of {}", names.join(", ")),
    };
    let rollouts = end.after.iter().map(|other| other.deployment.to_string()).collect();
    let besides = after("the rollout", rollouts) + &after("approvals", end.approvals.clone());
    let _ = match end.earliest {
        Some(earliest) => {
            writeln!(text, "ends         {earliest} at the earliest, plus the time of devices{besides}")
        }
        None => writeln!(text, "ends         not before a person or a window lets it continue{besides}"),
    };
    text
}

const fn known(known: Known) -> (&'static str, anstyle::Style) {
    match known {
        Known::NotReleased => ("not released", super::colour::DIM),
        Known::NotInLedger => ("not in LEDGER yet", MOVING),
        Known::NotHeard => ("not heard", UNSURE),
        Known::ReportsMissing => ("with missing reports", UNSURE),
        Known::UnderWay => ("under way", MOVING),
        Known::TriesAgain => ("trying again", MOVING),
        Known::Overdue => ("past the deadline", BAD),
        Known::Confirmed => ("confirmed", WELL),
        Known::Failed => ("failed", BAD),
    }
}

/// The steps that were taken, or why none was.
pub fn steps(steps: &[StepTaken]) -> String {
    let one = |step: &StepTaken| match (&step.rollout.state.step, &step.answer) {
        (Step::RollBack { .. }, Some(answer)) => rolled_back(answer),
        (Step::Release { wave, .. }, Some(answer)) => {
            let name = step.rollout.state.waves.get(*wave).map_or("rest", |wave| wave.name.as_str());
            format!("wave {name}: {}", released(&step.rollout.deployment, answer))
        }
        _ => format!("{}: {}\n", head(&step.rollout), step.rollout.why()),
    };
    let forced = |step: &StepTaken| {
        let line =
            |wave: &String| format!("{}: the gate behind wave {wave} is forced open\n", head(&step.rollout));
        step.forced.as_ref().map_or_else(String::new, line)
    };
    steps.iter().map(|step| forced(step) + &one(step)).collect()
}

/// Decisions, each in one line, with the devices that a rollback reached.
pub fn decided(all: &[Decided]) -> String {
    all.iter().map(one_decided).collect()
}

fn one_decided(decided: &Decided) -> String {
    let Decided { deployment, digest, rollout, approvals, answer, refused, devices, .. } = decided;
    let head = format!("{deployment} {} by {}", short(digest), super::format::clean(rollout));
    let Some(DecideAnswer { record, changed }) = answer else {
        let refused = super::format::clean(refused.as_deref().unwrap_or_default());
        return format!("{}\n", styled(BAD, &format!("{head}: {refused}")));
    };
    let again = if *changed { "" } else { ", as before" };
    let what = match approvals {
        Some(ApprovalCount { given, needed, .. }) => format!("{given} of {needed} approvals{again}"),
        None => format!("{}{again}", record.words()),
    };
    let devices = devices.as_ref().map_or_else(String::new, rolled_back);
    format!("{head}: {what}\n{devices}")
}

/// The devices that a rollback reached.
fn rolled_back(answer: &ReleaseAnswer) -> String {
    let keys: Vec<_> = answer.released.iter().collect();
    let mut text = match keys.len() {
        0 if answer.refused.is_empty() => "no device had the content\n".to_owned(),
        0 => String::new(),
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
        for RolloutDecision { verb, wave, reason, evidence, result, requested_by, at, .. } in
            &record.decisions
        {
            let by = requested_by.as_ref().map_or("-", |by| by.label());
            let evidence = evidence.as_ref().map_or_else(|| "-".to_owned(), evidence_of);
            table.row([
                at.to_string().into(),
                result
                    .map_or_else(
                        || verb.as_str().to_owned(),
                        |result| format!("{} {}", verb.as_str(), result.as_str()),
                    )
                    .into(),
                wave.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string).into(),
                super::format::clean(by).as_str().into(),
                evidence.into(),
                super::format::clean(reason.as_deref().unwrap_or("-")).as_str().into(),
            ]);
        }
        let (file, phase) = (super::format::clean(&record.rollout), record.words());
        let head = format!("{} {} by {file}: {phase}", history.deployment, short(&record.digest));
        format!("{head}\n{}\n", table.within(frame.width))
    };
    history.rollouts.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn evidence_of(counts: &GateEvidence) -> String {
    let GateEvidence { ledger_seq, targets, confirmed, failed, dark, .. } = counts;
    let dark = dark.filter(|dark| *dark > 0).map_or_else(String::new, |dark| format!(", {dark} not heard"));
    format!("{confirmed} of {targets} confirmed, {failed} failed{dark}, at LEDGER {ledger_seq}")
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
