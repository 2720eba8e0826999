//! Sites that are silent as a whole: one cause, in one line, before the effects that it has. Only silence is folded: a
//! device that also failed, or is past its deadline, keeps the facts that say so.

use muster_contract::Timestamp;
use muster_contract::silence::{SILENT_DEVICES_MIN, SilentSite, SilentSites};
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_contract::why::Because;

use super::colour::{UNSURE, styled};
use super::format::{age, plural};

/// A line for each: `site quarry is silent since 2026-11-21T22:41:03Z (2m ago): one cause for 6 devices, 18 targets`.
pub fn lines(sites: &SilentSites, now: Timestamp) -> String {
    sites.first.iter().map(|site| line(site, now)).chain([more(sites)]).collect()
}

/// Those that are not named.
pub fn more(sites: &SilentSites) -> String {
    match sites.count.saturating_sub(sites.first.len() as u64) {
        0 => String::new(),
        1 => "and 1 more site that is silent\n".to_owned(),
        count => format!("and {count} more sites that are silent\n"),
    }
}

/// One of them.
pub fn line(silent: &SilentSite, now: Timestamp) -> String {
    let (devices, targets) = (plural(silent.devices, "device"), plural(silent.targets, "target"));
    let words =
        format!("site {} is silent {}: one cause for {devices}", silent.site, since(silent.since, now));
    format!("{}, {targets}\n", styled(UNSURE, &words))
}

/// `since 2026-11-21T22:41:03Z (2m ago)`.
fn since(at: Timestamp, now: Timestamp) -> String {
    let second = Timestamp::from_second(at.as_second()).unwrap_or(at);
    format!("since {second} ({})", age(now, at))
}

/// The standings of an answer: effects of silent sites apart from the rest.
pub(crate) struct FoldedSilence<'a> {
    /// Each silent site with its effects, where the answer has several.
    pub folded: Vec<(&'a SilentSite, Vec<&'a Because>)>,
    /// The others.
    pub rest: Vec<&'a Because>,
}

/// Separates the effects of silent sites from the other standings.
pub(crate) fn fold_silence<'a>(sites: &'a SilentSites, standings: &'a [Because]) -> FoldedSilence<'a> {
    let mut split = FoldedSilence { folded: Vec::new(), rest: Vec::new() };
    for because in standings {
        match sites.of(&because.key.site).filter(|_| is_effect(because)) {
            None => split.rest.push(because),
            Some(site) => match split.folded.iter_mut().find(|(known, _)| *known == site) {
                Some((_, effects)) => effects.push(because),
                None => split.folded.push((site, vec![because])),
            },
        }
    }
    // One alone is a device that is asked about, or a page that ends: its facts say more.
    let (folded, few) =
        split.folded.into_iter().partition(|(_, effects)| effects.len() as u64 >= SILENT_DEVICES_MIN);
    split.folded = folded;
    split.rest.extend(few.into_iter().flat_map(|(_, effects): (_, Vec<&Because>)| effects));
    split.rest.sort_by(|one, other| one.key.cmp(&other.key));
    split
}

/// Whether a device's silence is enough for what it stands for: what the hub knows of it is merely old.
fn is_effect(because: &Because) -> bool {
    because.freshness == Freshness::Stale
        && because.standing != Standing::Failed
        && because.speaks_for != Verdict::Overdue
}
