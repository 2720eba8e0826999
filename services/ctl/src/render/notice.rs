//! Renders a notice for `muster watch DEPLOYMENT`: a line of counts, the change of the verdict, a line for each device
//! that changed.

use muster_contract::notify::{EndReason, Notice, NoticeEvent, StandingChange, Stood};
use muster_contract::view::{AsOf, DeploymentView, Freshness, Verdict};
use muster_contract::{CommitName, DeploymentId, Timestamp};

use super::colour::{self, DIM, UNSURE, styled};
use super::format::plural;
use super::watch;

/// The first line: how it is, or that it is not there, or that no notice follows.
pub fn line(
    deployment: &DeploymentId,
    notice: &Notice,
    view: Option<&DeploymentView>,
    now: Timestamp,
) -> String {
    match (notice.event, notice.reason, &notice.state) {
        (NoticeEvent::Ended, Some(EndReason::Unsubscribed), _) => {
            format!("{deployment}  the subscription '{}' was ended by somebody\n", notice.name)
        }
        (NoticeEvent::Ended, ..) => {
            format!("{deployment}  no more notices: {}\n", notice.message.as_deref().unwrap_or_default())
        }
        // A view that found no room in the notice.
        (_, _, Some(state)) if view.is_none() => {
            format!("{deployment}  {}\n", state.verdict.map_or(state.status.as_str(), Verdict::as_str))
        }
        _ => watch::line(deployment, view, now),
    }
}

/// The changes since the notice before, a line for each.
pub fn changes(notice: &Notice, before: Option<Verdict>, verdict: Option<Verdict>) -> Vec<String> {
    let mut lines = Vec::new();
    let word = |verdict: Verdict| styled(colour::verdict(verdict), verdict.as_str());
    if let Some(now) = verdict.filter(|now| notice.event == NoticeEvent::Changed && before != Some(*now)) {
        let from = before.map_or_else(String::new, |before| format!("{} → ", word(before)));
        lines.push(format!("  verdict {from}{} at {}\n", word(now), seconds(notice.as_of.at)));
    }
    lines.extend(notice.changes.iter().map(change));
    let omitted = notice.omitted;
    if omitted.changes > 0 {
        lines.push(format!("  and {} more changed\n", plural(omitted.changes, "standing")));
    }
    if omitted.more_changes {
        lines.push(format!("  {}\n", styled(DIM, "changes during the hub's outage are not listed")));
    }
    lines
}

/// The message of a watch whose time is over.
pub fn over(wanted: Option<Verdict>, verdict: Option<Verdict>) -> String {
    let wanted =
        wanted.map(|wanted| format!("the watch waits for {}, ", wanted.as_str())).unwrap_or_default();
    let verdict = verdict.map_or_else(
        || "the deployment has no verdict yet".to_owned(),
        |verdict| format!("the verdict is {}", verdict.as_str()),
    );
    format!("the time is over: {wanted}{verdict}")
}

/// The first line of a watch that waits for a commit.
pub(crate) fn waiting_for(commit: &CommitName) -> String {
    format!("muster: waiting until LEDGER holds all of commit {commit}\n")
}

/// The line of a watch when targets of its deployment wait for a release.
pub fn held(deployment: &DeploymentId) -> String {
    format!(
        "muster: a change of {deployment} waits for its release; `muster rollout show {deployment}` says where\n"
    )
}

/// The line of a watch once LEDGER holds the commit.
pub fn in_ledger(commit: &CommitName, through: u64) -> String {
    format!("muster: LEDGER holds all of commit {commit} as of {through}\n")
}

/// The line of a watch whose time is over before the commit is in LEDGER.
pub(crate) fn commit_is_missing(commit: &CommitName) -> String {
    format!(
        "the time is over: LEDGER does not hold all of commit {commit} yet; `muster publisher status` says how far it is"
    )
}

/// And where the commit is there, and the hub has not read that far.
pub fn unread(verdict: Option<Verdict>, through: u64) -> String {
    let now = verdict.map_or("there", Verdict::as_str);
    format!(
        "the time is over: it is {now} as of what the hub has read, and the commit is in LEDGER as of {through} only"
    )
}

/// The line of a watch whose condition holds, with the commit that it waited for.
pub(crate) fn with_commit(
    deployment: &DeploymentId,
    verdict: Option<Verdict>,
    as_of: AsOf,
    commit: &CommitName,
    through: Option<u64>,
) -> String {
    let (verdict, seq) = (verdict.map_or("there", Verdict::as_str), as_of.ledger_seq);
    let through = through.unwrap_or(seq);
    format!(
        "muster: {deployment} is {verdict} as of ledger {seq}; all of commit {commit} is in it as of {through}\n"
    )
}

/// The line of a watch whose condition holds already.
pub fn already(deployment: &DeploymentId, verdict: Option<Verdict>, as_of: AsOf) -> String {
    let (verdict, seq) = (verdict.map_or("there", Verdict::as_str), as_of.ledger_seq);
    format!(
        "muster: {deployment} was {verdict} already as of ledger {seq}; what the hub had yet to read is not in it\n"
    )
}

fn change(change: &StandingChange) -> String {
    let StandingChange { key, from, to, at, .. } = change;
    let words = match (from, to) {
        (None, Some(to)) => format!("new: {}", stood(to)),
        (Some(from), None) => format!("{} → gone", stood(from)),
        (Some(from), Some(to)) => format!("{} → {}", stood(from), stood(to)),
        (None, None) => "gone".to_owned(),
    };
    format!("  {key}  {words} at {}\n", seconds(*at))
}

fn stood(stood: &Stood) -> String {
    let word = styled(colour::standing(stood.standing), stood.standing.as_str());
    match doubts(stood) {
        Some(doubts) => format!("{word} ({})", styled(UNSURE, &doubts)),
        None => word,
    }
}

/// Qualifications of a standing, such as `stale, overdue`; none if it has none.
pub(super) fn doubts(stood: &Stood) -> Option<String> {
    let Stood { freshness, known, leaving, overdue, .. } = *stood;
    let mut doubts = Vec::new();
    if leaving {
        doubts.push("leaving");
    }
    match freshness {
        Freshness::Fresh => {}
        Freshness::Stale => doubts.push("silent"),
        Freshness::Never => doubts.push("never heard"),
    }
    if !known {
        doubts.push("not known");
    }
    if overdue {
        doubts.push("overdue");
    }
    (!doubts.is_empty()).then(|| doubts.join(", "))
}

/// Cuts a time to full seconds.
pub(super) fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use muster_contract::view::Standing;

    use super::*;

    #[test]
    fn what_held_before_says_as_of_when() {
        let as_of = AsOf { ledger_seq: 12, at: Timestamp::UNIX_EPOCH };
        let said = already(&"web".parse().unwrap(), Some(Verdict::Converged), as_of);
        assert!(said.starts_with("muster: web was converged already as of ledger 12;"), "{said}");
    }

    #[test]
    fn a_change_says_what_was_what_is_and_what_is_in_doubt() {
        let fresh = Stood {
            standing: Standing::Installing,
            freshness: Freshness::Fresh,
            known: true,
            leaving: false,
            overdue: false,
        };
        let silent =
            Stood { standing: Standing::Installed, freshness: Freshness::Stale, known: false, ..fresh };
        let at: Timestamp = "2026-11-20T08:00:00.25Z".parse().unwrap();
        let say = |from, to| {
            let key = "plant7/press-4".parse().unwrap();
            let one = StandingChange { key, deployment: "web".parse().unwrap(), from, to, ledger_seq: 7, at };
            strip_str(&change(&one)).to_string()
        };
        assert_eq!(
            say(Some(fresh), Some(silent)),
            "  plant7/press-4  installing → installed (silent, not known) at 2026-11-20T08:00:00Z\n"
        );
        assert_eq!(say(None, Some(fresh)), "  plant7/press-4  new: installing at 2026-11-20T08:00:00Z\n");
        assert_eq!(say(Some(fresh), None), "  plant7/press-4  installing → gone at 2026-11-20T08:00:00Z\n");
    }
}
