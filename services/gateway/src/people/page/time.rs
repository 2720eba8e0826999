//! The time control of a page that takes a moment: ages, a field for date and time, and on a page of the past steps and the way
//! back. All are links and a form that keep the filters of the page, so it needs no script.

use jiff::SignedDuration;
use maud::{Markup, html};
use muster_client::time::{Side, time_at};
use muster_contract::Timestamp;

use super::address::PageAddress;
use super::parts::second;

/// Ages of the past, each as words and as `at` takes it.
const AGES: [(&str, &str); 5] = [("5 min", "5m"), ("1 h", "1h"), ("6 h", "6h"), ("1 d", "1d"), ("7 d", "7d")];
/// Steps from a moment in minutes.
const STEPS: [(&str, i64); 4] =
    [("\u{2212}1 h", -60), ("\u{2212}10 min", -10), ("+10 min", 10), ("+1 h", 60)];

/// The control for a page.
pub(super) fn control(address: &PageAddress) -> Markup {
    let shown = address.moment.unwrap_or(address.requested_at);
    html! {
        section.when.past[address.moment.is_some()] aria-label="Time of this page" {
            @if let Some(moment) = address.moment {
                p { "As known at " strong.num { (second(moment)) } ". " a href=(address.link(None)) { "Back to now" } }
                div.choices role="group" aria-label="Steps" {
                    @for (words, at) in steps(moment, address.requested_at) { (link(address, words, at)) }
                }
            }
            div.choices role="group" aria-label="Ages" {
                span { "Past:" }
                @for (words, age) in AGES { (age_link(address, words, age)) }
                span { "ago" }
            }
            form method="get" {
                @for (name, value) in &address.others { input type="hidden" name=(name) value=(value); }
                label {
                    "UTC "
                    input type="datetime-local" name="at" step="1" required value=(shown.strftime("%Y-%m-%dT%H:%M:%S"));
                }
                button.act type="submit" { "Show" }
            }
        }
    }
}

/// The steps that do not lead beyond now.
fn steps(moment: Timestamp, now: Timestamp) -> impl Iterator<Item = (&'static str, Timestamp)> {
    let step = move |(words, minutes)| {
        let at = moment.checked_add(SignedDuration::from_mins(minutes)).ok()?;
        (at <= now).then_some((words, at))
    };
    STEPS.into_iter().filter_map(step)
}

fn link(address: &PageAddress, words: &str, at: Timestamp) -> Markup {
    html! { a.num href=(address.link(Some(&at.to_string()))) title=(second(at)) { (words) } }
}

/// An age is relative on a live page, which stays open; a page of the past is about fixed moments alone.
fn age_link(address: &PageAddress, words: &str, age: &str) -> Markup {
    let at = time_at(age, address.requested_at, Side::Past).ok().filter(|_| address.moment.is_some());
    match at {
        Some(at) => link(address, words, at),
        None => html! { a.num href=(address.link(Some(age))) { (words) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(query: &str) -> String {
        let now = "2026-11-20T10:00:00.7Z".parse().unwrap();
        control(&PageAddress::read(query, now)).into_string()
    }

    #[test]
    fn a_live_page_offers_ages_and_a_field_that_begins_now() {
        let live = shown("site=plant7&freshness=");
        assert!(live.contains("href=\"?site=plant7&amp;at=7d\""), "{live}");
        assert!(live.contains("value=\"2026-11-20T10:00:00\""), "{live}");
        let filters = "<input type=\"hidden\" name=\"site\" value=\"plant7\">";
        assert!(live.contains(filters) && !live.contains("freshness"), "{live}");
        assert!(!live.contains("Back to now") && !live.contains('\u{2212}'), "{live}");
    }

    #[test]
    fn a_page_of_the_past_leads_to_absolute_moments_and_back() {
        let past = shown("site=plant7&at=2h");
        for part in [
            "As known at <strong class=\"num\">2026-11-20 08:00:00 UTC</strong>",
            "href=\"?site=plant7\">Back to now",
            "at=2026-11-20T07%3A00%3A00Z\" title=\"2026-11-20 07:00:00 UTC\">\u{2212}1 h",
            "at=2026-11-20T08%3A10%3A00Z\" title=\"2026-11-20 08:10:00 UTC\">+10 min",
            "at=2026-11-20T09%3A55%3A00Z\" title=\"2026-11-20 09:55:00 UTC\">5 min",
            "value=\"2026-11-20T08:00:00\"",
        ] {
            assert!(past.contains(part), "{part}: {past}");
        }
        assert!(!past.contains("at=5m") && !past.contains("name=\"at\" value=\"2h"), "{past}");
    }

    #[test]
    fn no_step_leads_beyond_now() {
        for (moment, last) in [
            ("09:00:01", "+10 min"),
            ("09:00:00", "+1 h"),
            ("09:50:01", "\u{2212}10 min"),
            ("09:50:00", "+10 min"),
        ] {
            let moment = format!("2026-11-20T{moment}Z").parse().unwrap();
            let words = steps(moment, "2026-11-20T10:00:00Z".parse().unwrap()).map(|(words, _)| words);
            assert_eq!(words.last(), Some(last), "{moment}");
        }
    }
}
