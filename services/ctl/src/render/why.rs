//! Why: the rule, and under each device the facts that make it hold.

use std::fmt::Write as _;

use muster_contract::Timestamp;
use muster_contract::silence::SilentSite;
use muster_contract::view::{Freshness, Split, Verdict};
use muster_contract::why::{Because, Evidence, EvidenceKind, RefusedTargets, WhyAnswer, WhyHub};

use super::colour::{self, BAD, BOLD, DIM, UNSURE, styled};
use super::device;
use super::format::{age, as_of, clean, freshness, left, plural};
use super::frame::Frame;
use super::legend;
use super::silence;
use super::table::{Cell, Table};

/// The rule, how many make it hold, and the facts behind each that the answer has; `is_first` where no page came before.
pub fn answer(answer: &WhyAnswer, is_first: bool, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let verdict = styled(colour::verdict(answer.verdict), answer.verdict.as_str());
    let unheard = unheard(answer);
    let rule = if unheard.is_empty() { &answer.rule } else { answer.verdict.rule_unheard() };
    let mut text = format!("{}  {verdict}: {rule}\n", styled(BOLD, answer.deployment.as_str()));
    let _ = writeln!(text, "{}\n{unheard}", share(answer));
    text += &refused(&answer.refused, frame.now);
    text += &away(answer, frame.now);
    let told = silence::fold_silence(&answer.silent_sites, &answer.standings);
    for site in &answer.silent_sites.first {
        let effects = told.folded.iter().find(|(folded, _)| *folded == site).map(|(_, effects)| effects);
        text += &silent(site, effects.map_or(&[], Vec::as_slice), frame.now);
    }
    text += &silence::more(&answer.silent_sites);
    for because in &told.rest {
        text += &standing(because, answer.verdict, frame);
    }
    if !told.rest.is_empty() {
        text += &(legend::facts(told.rest.iter().flat_map(|because| &because.facts)) + "\n");
    }
    if let Some(next) = &answer.next {
        // A page may be the last without saying so.
        let away = answer.hubs.iter().filter(|hub| !hub.heard).map(|hub| hub.because).sum();
        let _ = match left(answer.because.saturating_sub(away), answer.standings.len(), is_first) {
            Some(left) => writeln!(text, "and {left} more: --after {next}, or --limit\n"),
            None => writeln!(text, "there may be more: --after {next}\n"),
        };
    }
    let _ = writeln!(text, "{}.", read_to(answer, frame.now));
    text
}

/// The targets whose devices refuse their desired state: a line for each reason.
fn refused(refused: &[RefusedTargets], now: Timestamp) -> String {
    let mut text = String::new();
    for RefusedTargets { targets, key, refusal } in refused {
        let others = match targets.saturating_sub(1) {
            0 => String::new(),
            others => format!(" ({} likewise)", plural(others, "other target")),
        };
        let words = format!("{key} refuses {}{others}", device::refusal(refusal, now));
        let _ = writeln!(text, "{}", styled(BAD, &words));
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// The hubs that do not answer: what they make of the verdict, whose facts nobody else can name.
fn away(answer: &WhyAnswer, now: Timestamp) -> String {
    let away = answer.hubs.iter().filter(|hub| !hub.heard);
    let lines: String = away.map(|hub| away_line(hub, answer.verdict, now)).collect();
    if lines.is_empty() { lines } else { lines + "\n" }
}

fn away_line(hub: &WhyHub, verdict: Verdict, now: Timestamp) -> String {
    let since = hub.heard_at.map_or_else(String::new, |at| format!(" (last heard {})", age(now, at)));
    let words = format!("hub {} does not answer{since}", hub.name);
    let effect = match hub.because {
        0 => "its last answer does not make this verdict".to_owned(),
        many => format!(
            "{} there make the verdict {} by its last answer; its facts are available after it reconnects",
            plural(many, "standing"),
            verdict.as_str()
        ),
    };
    format!("{}: {effect}\n", styled(UNSURE, &words))
}

/// Up to where the answer has read: of several hubs each in its own LEDGER.
fn read_to(answer: &WhyAnswer, now: Timestamp) -> String {
    let read =
        answer.hubs.iter().filter_map(|hub| Some(format!("at {} {}", hub.name, as_of(hub.as_of?, now))));
    let read: Vec<String> = read.collect();
    if read.is_empty() { as_of(answer.as_of, now) } else { read.join("; ") }
}

fn share(answer: &WhyAnswer) -> String {
    let of = match answer.verdict {
        Verdict::Removing => format!("{} that still have it", plural(answer.of, "device")),
        _ => plural(answer.of, "target"),
    };
    match answer.because {
        0 => "not because of this device".to_owned(),
        1 => format!("because of 1 of {of}"),
        many => format!("because of {many} of {of}"),
    }
}

/// That nothing of what is asked about is heard, in a line; empty where something is, and where nobody says.
fn unheard(answer: &WhyAnswer) -> String {
    let words = match (answer.fresh, answer.of) {
        (Some(0), 1) => Some("the device is stale: no fresh evidence".to_owned()),
        (Some(0), stale) => Split { stale, ..Split::default() }.unheard("target"),
        _ => None,
    };
    words.map_or_else(String::new, |words| styled(UNSURE, &words) + "\n")
}

/// A silent site, and what that does: a line for each of its devices here.
fn silent(site: &SilentSite, effects: &[&Because], now: Timestamp) -> String {
    let mut text = silence::line(site, now);
    for because in effects {
        let (standing, freshness) = (because.standing.as_str(), freshness(because.freshness));
        let _ = writeln!(text, "  {}  {standing}, {freshness}", because.key.device);
    }
    text + "\n"
}

fn standing(because: &Because, verdict: Verdict, frame: Frame) -> String {
    let mut line = format!(
        "{}  {}, {}",
        styled(BOLD, &because.key.to_string()),
        because.standing.as_str(),
        freshness(because.freshness)
    );
    if because.speaks_for != verdict {
        let _ = write!(line, "  (alone it would be {})", because.speaks_for.as_str());
    }
    let is_fresh = because.freshness == Freshness::Fresh;
    if let Some(host) = because.hosted_by.as_ref().filter(|host| !is_fresh && !host.is_well()) {
        let _ = write!(line, "\n  {}", styled(UNSURE, &format!("hosted by {}", host.format())));
    }
    let mut table = Table::new(&["  FACT", ">LEDGER", "?>GENERATION", "?REPORT", "SINCE", "SAYS"]);
    for fact in &because.facts {
        table.row(row(fact, frame.now));
    }
    format!("{line}\n{}\n", table.within(frame.width))
}

fn row(fact: &Evidence, now: Timestamp) -> [Cell; 6] {
    let dash = || Cell::styled("-", DIM);
    let report = match (fact.epoch, fact.seq) {
        (Some(epoch), Some(seq)) => format!("{epoch}/{seq}").into(),
        (Some(epoch), None) => format!("{epoch}/").into(),
        _ => dash(),
    };
    [
        format!("  {}", kind(fact.kind)).into(),
        ledger_position(fact),
        fact.generation.map_or_else(dash, |generation| generation.to_string().into()),
        report,
        fact.at.map_or_else(dash, |at| age(now, at).into()),
        clean(&fact.says).into(),
    ]
}

/// The LEDGER sequence of a fact, with its hub if there are several.
pub(super) fn ledger_position(fact: &Evidence) -> Cell {
    match &fact.hub {
        Some(hub) => format!("{} at {hub}", fact.ledger_seq).into(),
        None => Cell::count(fact.ledger_seq),
    }
}

/// The word for a kind of fact.
pub(super) const fn kind(kind: EvidenceKind) -> &'static str {
    match kind {
        EvidenceKind::Desired => "desired",
        EvidenceKind::Status => "status",
        EvidenceKind::Liveness => "liveness",
        EvidenceKind::Deadline => "deadline",
        EvidenceKind::Head => "head",
        EvidenceKind::Quarantine => "quarantine",
        EvidenceKind::Hearing => "hearing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_may_be_the_last_promises_nothing() {
        let bytes = include_bytes!("../../../../schemas/examples/good/WhyAnswer.failing.json");
        let mut why: WhyAnswer = serde_json::from_slice(bytes).unwrap();
        (why.next, why.because) = (Some("a/b".to_owned()), why.standings.len() as u64 + 2);
        assert!(answer(&why, true, Timestamp::UNIX_EPOCH).contains("and 2 more: --after a/b, or --limit\n"));
        assert!(answer(&why, false, Timestamp::UNIX_EPOCH).contains("there may be more: --after a/b\n"));
    }
}
