//! The heat map of silence: a cell for each site, shaded and filled by the share of its devices that are not heard. Each cell
//! has the same in words, so that none needs its colour.

use std::cmp::Reverse;

use maud::{Markup, html};
use muster_contract::view::{SiteView, Split};

use super::parts::{count, encoded, number};

/// The classes of cells in words.
const STEPS: [(&str, &str); 6] = [
    ("silence-0", "all heard"),
    ("silence-1", "under 25 % silent"),
    ("silence-2", "under 50 %"),
    ("silence-3", "under 100 %"),
    ("silence-4", "all silent"),
    (UNKNOWN, "not known"),
];
/// The class of a cell without a share.
const UNKNOWN: &str = "silence-unknown";

/// A cell for each of the `limit` sites with the highest share of silent devices, the highest first.
pub(super) fn heat_map(sites: &[&SiteView], limit: usize) -> Markup {
    let mut sorted = sites.to_vec();
    sorted.sort_by_key(|site| {
        let devices = site.tally.devices;
        (Reverse(parts_per_million(devices)), Reverse(silent(devices)), &site.site)
    });
    html! {
        ul.heat aria-label="Sites by share of silent devices, the highest first" {
            @for site in sorted.into_iter().take(limit) {
                @let said = words(site);
                li {
                    a.cell.(step(site.tally.devices, site.tally.hub.is_whole())) href={ "/sites/" (encoded(site.site.as_str())) } title=(said) {
                        span.visually-hidden { (said) }
                    }
                }
            }
        }
        div.legend {
            @for (step, words) in STEPS { span { span.cell.(step) aria-hidden="true" {} (words) } }
        }
    }
}

const fn silent(devices: Split) -> u64 {
    devices.stale + devices.never
}

/// The share of silent devices; 0 of a site without devices.
fn parts_per_million(devices: Split) -> u128 {
    (u128::from(silent(devices)) * 1_000_000).checked_div(u128::from(devices.total())).unwrap_or_default()
}

/// The class of a site's cell. One silent device is never step 0, and one heard device never step 4. A site has no share if it
/// has no device, or if the hub does not listen to some of its devices: their silence is then the hub's.
fn step(devices: Split, is_hub_listening: bool) -> &'static str {
    match (silent(devices), devices.total()) {
        (_, 0) => UNKNOWN,
        (0, _) => "silence-0",
        _ if !is_hub_listening => UNKNOWN,
        (silent, total) => match u128::from(silent) * 4 / u128::from(total) {
            0 => "silence-1",
            1 => "silence-2",
            2 | 3 => "silence-3",
            _ => "silence-4",
        },
    }
}

/// A cell in words.
fn words(site: &SiteView) -> String {
    let (name, devices, hub) = (&site.site, site.tally.devices, &site.tally.hub);
    if devices.total() == 0 {
        return format!("{name}: no device");
    }
    let share = format!("{name}: {} of {} silent", number(silent(devices)), count(devices.total(), "device"));
    if hub.is_whole() {
        return share;
    }
    let partitions = count(hub.unheard.len() as u64 + hub.omitted, "partition");
    format!("{share}, but the hub does not listen to {partitions} of them")
}

#[cfg(test)]
mod tests {
    use super::super::samples::site_view;
    use super::*;

    fn split(fresh: u64, stale: u64, never: u64) -> Split {
        Split { fresh, stale, never }
    }

    #[test]
    fn one_silent_and_one_heard_device_are_seen_in_the_step() {
        for (devices, expected) in [
            (split(0, 0, 0), "silence-unknown"),
            (split(20, 0, 0), "silence-0"),
            (split(99_999, 1, 0), "silence-1"),
            (split(76, 12, 12), "silence-1"),
            (split(75, 0, 25), "silence-2"),
            (split(51, 49, 0), "silence-2"),
            (split(50, 50, 0), "silence-3"),
            (split(1, 99_999, 0), "silence-3"),
            (split(0, 1, 0), "silence-4"),
            (split(0, 2, u64::MAX / 2), "silence-4"),
        ] {
            assert_eq!(step(devices, true), expected, "{devices:?}");
        }
    }

    #[test]
    fn silence_is_not_known_where_the_hub_does_not_listen() {
        assert_eq!(step(split(0, 20, 0), false), "silence-unknown");
        assert_eq!(step(split(19, 1, 0), false), "silence-unknown");
        assert_eq!(step(split(20, 0, 0), false), "silence-0", "a device that is heard is heard");
        let shown = words(&site_view("plant7", split(17, 3, 0), 1));
        assert_eq!(
            shown,
            "plant7: 3 of 20 devices silent, but the hub does not listen to 1 partition of them"
        );
    }

    #[test]
    fn the_worst_sites_come_first_each_with_its_words_and_its_page() {
        let sites = [
            site_view("calm", split(4, 0, 0), 0),
            site_view("empty", split(0, 0, 0), 0),
            site_view("plant7", split(17, 2, 1), 0),
            site_view("gone", split(0, 1, 0), 0),
            site_view("gone-too", split(0, 9, 0), 0),
        ];
        let shown = heat_map(&sites.iter().collect::<Vec<_>>(), 4).into_string();
        let order =
            ["gone-too", "gone", "plant7", "calm"].map(|name| shown.find(&format!("href=\"/sites/{name}\"")));
        assert!(order.is_sorted() && order[0].is_some(), "{order:?}: {shown}");
        assert!(!shown.contains("/sites/empty"), "the limit holds: {shown}");
        let cell = "<a class=\"cell silence-1\" href=\"/sites/plant7\" title=\"plant7: 3 of 20 devices silent\">\
                    <span class=\"visually-hidden\">plant7: 3 of 20 devices silent</span></a>";
        assert!(shown.contains(cell), "{shown}");
        assert!(
            shown.contains("title=\"gone: 1 of 1 device silent\"") && !shown.contains("style="),
            "{shown}"
        );
    }

    #[test]
    fn every_step_has_a_rule_in_the_style_sheet() {
        let style = include_str!("../../../assets/muster.css");
        for (step, _) in STEPS {
            assert!(style.contains(&format!(".cell.{step} {{")), "{step}");
        }
    }
}
