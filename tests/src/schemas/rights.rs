//! The table of rights, `schemas/RIGHTS.md`: which account may use which subject of another, and what each role may publish
//! and subscribe. Made from the lists that accounts are signed with.

use muster_identity::claims::{pusher_rights, watcher_rights};
use muster_identity::exchange::{Crossing, OFFERS, Offer};
use muster_identity::leaf::{SiteImport, site_imports};
use muster_identity::{Rights, Role};

const BEGINNING: &str = "\
# Rights: account × role × subject

Made from the lists that `muster auth` signs accounts with; `tests/tests/security/matrix.rs` tries every subject with every
harmful reply as every role and compares what changed with this table. A subject in none of these lists is refused.

| account | who is in it | JetStream |
|---|---|---|
| HUB | services: publisher, ingest, rollup, renewer; for an hour a maintainer | all streams |
| READERS | the keeper | mirrors of LEDGER and of the bucket `views` |
| PEOPLE | viewers, subscribers, operators | none |
| DEVICES | devices | none |
| one for each site with a leaf node | the site's server | none; imports what DEVICES imports, for that site alone |
| system | `muster auth push`, the connection watcher | none |

**HUB is one domain of trust.** A request names the subject of its answer, and the server asks nobody whether the requester
may write there. So whoever holds a service's credentials can reach by a reply what HUB reaches, beyond the service's own
list; that is why nobody but services is in HUB. From another account an answer comes back to that account.

**Who asks.** Where the table says *named*, the server tells the service the requester's key, name and signing key in
`Nats-Request-Info`, in place of whatever the user sent under that name. Services answer to `_R_.>` (requests from other
accounts); ingest, which the other services ask, also to `_INBOX.<key>.>` of its own account, where the server lets only the
holder of that key listen. They drop and count everything else, at `$SRV.…` too. No role may ask on behalf of another.

**Roles to come** have no rights yet: planner (HUB: its stream of plans, requests to the publisher, LEDGER), gateway (HUB: reports
of HTTP devices, requests of people; alone to say on whose behalf), approver (PEOPLE: as viewer, and approvals). A federation has the role `subscriber` at each hub and `rollup` and `keeper` at the top.

";

const SITES: &str = "
## What crosses to the account of a site with a leaf node

One account for each site. Its leaf node maps what a device asks JetStream's API for to `muster.fetch.…`, because requests of
that API do not pass a leaf node.

| from | to | how | subject | in the site's account |
|---|---|---|---|---|
";

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
        text += &rights(role.as_str(), role.account().as_str(), &role.rights());
    }
    text += &rights("`muster auth push`", "system", &pusher_rights("{key}"));
    text += &rights("connection watcher", "system", &watcher_rights("{key}"));
    text
}

fn rights(who: &str, account: &str, rights: &Rights) -> String {
    let (publish, subscribe) =
        (list("May publish", &rights.publish), list("May subscribe", &rights.subscribe));
    format!("\n## {who}, in {account}\n\n{publish}{subscribe}")
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
    format!("- {title}: {}\n", listed.join(" · "))
}
