//! The table of rights, `schemas/RIGHTS.md`: which account may use which subject of another, and what each role may publish
//! and subscribe. Made from the lists that accounts are signed with; what is said beside the lists is in
//! [`rights_text`](super::rights_text).

use muster_identity::claims::{pusher_rights, watcher_rights};
use muster_identity::exchange::{Crossing, OFFERS, Offer};
use muster_identity::leaf::{SiteImport, site_imports};
use muster_identity::{Rights, Role};

use super::rights_text::{ANSWERS, BEGINNING, FEDERATION, SITES};

/// The table.
pub(super) fn table() -> String {
    let mut text = BEGINNING.to_owned();
    text += "## What crosses between accounts\n\n| from | to | how | subject | in the importing account |\n|---|---|---|---|---|\n";
    for offer in &OFFERS {
        text += &crossing(offer);
    }
    text += SITES;
    for import in site_imports() {
        text += &site_crossing(&import);
    }
    for role in Role::ALL {
        let answers = if role.answers_questions() { ANSWERS } else { "" };
        text += &rights(role.as_str(), role.account().as_str(), &role.rights(), answers);
    }
    text += &rights("`muster auth push`", "system", &pusher_rights("{key}"), "");
    text += &rights("connection watcher", "system", &watcher_rights("{key}"), "");
    text += FEDERATION;
    text
}

fn rights(who: &str, account: &str, rights: &Rights, answers: &str) -> String {
    let (publish, subscribe) =
        (list("May publish", &rights.publish), list("May subscribe", &rights.subscribe));
    format!("\n## {who}, in {account}\n\n{publish}{subscribe}{answers}")
}

/// A row for each site: the same subjects, with its own name.
fn site_crossing(import: &SiteImport) -> String {
    let local = import.local.as_ref().map_or_else(|| "the same".to_owned(), |local| format!("`{local}`"));
    format!("| HUB | {{site}} | {} | `{}` | {local} |\n", how(import.crossing), import.subject)
}

fn crossing(offer: &Offer) -> String {
    let how = how(offer.crossing);
    let local = offer.local.map_or_else(|| "the same".to_owned(), |local| format!("`{local}`"));
    format!("| {} | {} | {how} | `{}` | {local} |\n", offer.from.as_str(), offer.to.as_str(), offer.subject)
}

const fn how(crossing: Crossing) -> &'static str {
    match crossing {
        Crossing::Request => "request",
        Crossing::NamedRequest => "request, named",
        Crossing::Requests => "request, many answers",
        Crossing::Messages => "messages",
    }
}

fn list(title: &str, subjects: &[String]) -> String {
    let listed: Vec<_> = subjects.iter().map(|subject| format!("`{subject}`")).collect();
    let listed = if listed.is_empty() { "nothing".to_owned() } else { listed.join(" · ") };
    format!("- {title}: {listed}\n")
}
