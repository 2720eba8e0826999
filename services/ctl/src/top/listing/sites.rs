//! The rows of all sites, and those of one site's devices. Pure.

use muster_contract::Timestamp;
use muster_contract::query::{DeviceLine, DevicesAnswer};
use muster_contract::view::{SiteView, Tally, Verdict};

use super::{Listing, is_found, or_empty, urgency};
use crate::render;
use crate::render::colour::{self, BAD, UNSURE, styled};
use crate::render::format::{age, as_of, clean, counts, freshness, plural};
use crate::render::table::{Cell, Table};
use crate::top::view::Target;

/// The word of a site without a device that is heard.
const SILENT: &str = "silent";

/// All sites, in the order of the gateway's page: silent ones first, then by the worst verdict.
pub(super) fn list(sites: &[SiteView], filter: &str, width: usize, now: Timestamp) -> Listing {
    let text = |site: &SiteView| format!("{} {}", site.site, state(&site.tally).0);
    let mut found: Vec<_> = sites.iter().filter(|site| is_found(&text(site), filter)).collect();
    let rank = |site: &SiteView| worst(&site.tally).map_or(usize::MAX, urgency);
    found.sort_by_key(|site| (site.tally.devices.fresh > 0, rank(site), &site.site));
    let targets = found.iter().map(|site| Target::Site(site.site.clone())).collect();
    let titles =
        ["SITE", "WORST", ">HEARD", "STANDINGS", "?>OVERDUE", "?>MISSING", "?LAST HEARD", "?BECAUSE"];
    let mut table = Table::new(&titles);
    found.iter().for_each(|site| table.row(row(site, now)));
    or_empty(Listing::table(table, targets, sites.len(), width), "No site has a device.")
}

/// The devices of a site.
pub(super) fn page(
    view: &SiteView,
    answer: &DevicesAnswer,
    filter: &str,
    width: usize,
    now: Timestamp,
) -> Listing {
    let text = |line: &DeviceLine| format!("{} {}", line.key, freshness(line.freshness));
    let found: Vec<_> = answer.devices.iter().filter(|line| is_found(&text(line), filter)).collect();
    let targets = found.iter().map(|line| Target::Device(line.key.clone())).collect();
    let total = answer.devices.len();
    let listing = Listing::table(render::device::rows(found, now), targets, total, width);
    // The view does not count retired devices.
    let present = answer.devices.iter().filter(|line| !line.retired).count() as u64;
    let more = view.tally.devices.total().saturating_sub(present);
    let omitted = if answer.next.is_some() { more } else { 0 };
    let listing = Listing { head: head(&view.tally, now), omitted, ..listing };
    or_empty(listing, "No device of this site is known.")
}

fn worst(tally: &Tally) -> Option<Verdict> {
    tally.deployments.keys().copied().min_by_key(|verdict| urgency(*verdict))
}

/// The word for a site and its style: `silent`, or the worst verdict.
fn state(tally: &Tally) -> (&'static str, anstyle::Style) {
    match worst(tally) {
        _ if tally.devices.fresh == 0 && tally.devices.total() > 0 => (SILENT, UNSURE),
        Some(verdict) => (verdict.as_str(), colour::verdict(verdict)),
        None => ("-", colour::PLAIN),
    }
}

fn row(site: &SiteView, now: Timestamp) -> [Cell; 8] {
    let tally = &site.tally;
    let (word, style) = state(tally);
    [
        site.site.as_str().into(),
        Cell::styled(word, style),
        heard(tally).into(),
        counts(&tally.counts).into(),
        Cell::marked(tally.overdue, BAD),
        Cell::marked(tally.complete.missing_reports, UNSURE),
        tally.last_heard_at.map_or_else(|| "-".into(), |at| age(now, at).into()),
        clean(&tally.message).into(),
    ]
}

fn heard(tally: &Tally) -> String {
    format!("{} of {}", tally.devices.fresh, tally.devices.total())
}

/// The lines about the site as a whole.
fn head(tally: &Tally, now: Timestamp) -> Vec<String> {
    let (word, style) = state(tally);
    let message = if tally.message.is_empty() { "no deployment should run here" } else { &tally.message };
    let mut parts = vec![format!("{} devices heard", heard(tally)), counts(&tally.counts)];
    if tally.overdue > 0 {
        parts.push(styled(BAD, &format!("{} overdue", tally.overdue)));
    }
    if tally.complete.missing_reports > 0 {
        let missing = plural(tally.complete.missing_reports, "report");
        parts.push(styled(UNSURE, &format!("{missing} missing")));
    }
    let mut lines = vec![format!("{}: {}", styled(style, word), clean(message)), parts.join("; ")];
    lines.extend(render::hearing::lines(&tally.hub, now).lines().map(str::to_owned));
    lines.push(as_of(tally.as_of, now));
    lines
}

#[cfg(test)]
mod tests {
    use muster_contract::view::Split;

    use super::*;

    #[test]
    fn silent_sites_come_first_and_then_the_worst_verdict() {
        let example = include_bytes!("../../../../../schemas/examples/good/SiteView.plant7.json");
        let site = |name: &str, fresh: u64, verdict: Option<Verdict>| {
            let mut view: SiteView = serde_json::from_slice(example).unwrap();
            view.site = name.parse().unwrap();
            view.tally.devices = Split { fresh, stale: 1, never: 0 };
            view.tally.deployments = verdict.into_iter().map(|verdict| (verdict, 1)).collect();
            view
        };
        let sites = [
            site("a", 1, None),
            site("b", 1, Some(Verdict::Converged)),
            site("c", 1, Some(Verdict::Failing)),
            site("d", 0, Some(Verdict::ConvergedStale)),
        ];
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let names = |filter: &str| -> Vec<String> {
            let rows = list(&sites, filter, 200, now).rows.into_iter();
            rows.filter_map(|row| row.target.map(|target| target.to_string())).collect()
        };
        assert_eq!(names(""), ["site d", "site c", "site b", "site a"]);
        assert_eq!(names("silent"), ["site d"]);
        let shown = &list(&sites, "silent", 200, now).rows[0].text;
        assert!(shown.contains("silent") && shown.contains("0 of 1"), "{shown}");
    }
}
