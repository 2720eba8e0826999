//! The subjects that accounts offer to each other: the one list from which account tokens, the contract's table and the
//! tests of rights are made. It signs nothing.
//!
//! Six kinds of accounts share a hub. **HUB** has the streams and the services. **DEVICES** and one account for each site
//! with a leaf node import the subjects of devices. **READERS** has mirrors of LEDGER and of the bucket `views`, and no user
//! but the keeper, a task of muster-rollup. **PEOPLE** has the viewers, approvers, subscribers and operators, and no streams.
//! **CHECKERS** has the programs that answer checks and hooks, and no streams.
//!
//! Accounts are the boundary because a request names the subject of its answer, and nats-server does not check whether the
//! requester may publish there: within one account, a direct get of a missing key with the reply
//! `$JS.API.STREAM.DELETE.LEDGER` deletes LEDGER. The answer to another account stays in that account. Consumers deliver to
//! a subject of their owner's choice, so people create them on the mirrors: a wrong delivery there reaches neither HUB nor a
//! device, and the keeper restores the mirrors.
//!
//! Checkers have an account of their own, because each may answer to the reply subject of a question. CHECKERS imports nothing,
//! and its users may publish nothing else, so every question there is a request of PEOPLE, with a reply subject of the server.
//! In PEOPLE a planner could name any subject as the reply, and a checker would publish there.
//!
//! READERS imports from HUB only by subjects with wildcards, even if one subject would be enough. The server delivers to a
//! consumer's deliver subject only while there is a subscription to exactly that subject, and an import is such a
//! subscription. So an import of `hub.api.STREAM.INFO.LEDGER` would carry the deliveries of a subscriber's push consumer to
//! the API of HUB, and an import of `hub.api.STREAM.INFO.*` does not. `CONSUMER.*.LEDGER` covers creating, listing and
//! naming consumers of LEDGER only. The keeper is the only user of READERS that may publish there, and only the subjects
//! of its rights.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// An account of a hub. [`leaf`](crate::leaf) has the accounts of sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// Streams and services.
    Hub,
    /// Devices.
    Devices,
    /// Mirrors of LEDGER and of the bucket `views`.
    Readers,
    /// Viewers, approvers, subscribers and operators.
    People,
    /// Programs that answer checks and hooks.
    Checkers,
}

/// How messages cross from one account to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// A request with one answer.
    Request,
    /// A request with one answer, in which the server names the requester (`Nats-Request-Info`).
    NamedRequest,
    /// A request with any number of answers.
    Requests,
    /// Messages, from the offering account to the other.
    Messages,
}

/// A subject of one account that another may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The account that exports it.
    pub from: Account,
    /// The account that imports it.
    pub to: Account,
    /// How messages cross.
    pub crossing: Crossing,
    /// The subject in the exporting account.
    pub subject: &'static str,
    /// The subject in the importing account, where it is another: `$1` stands for the first wildcard.
    pub local: Option<&'static str>,
}

/// Prefix of the JetStream API of HUB in READERS, which a mirror names as `external.api`.
pub const HUB_API: &str = "hub.api";
/// Prefix of the deliveries of HUB to the mirrors, which a mirror names as `external.deliver`.
pub const MIRROR_DELIVERY: &str = "mirror.readers";

impl Account {
    /// All of them, in the order in which they are pushed to a server: an importing account before the exporting one.
    pub const ALL: [Self; 5] = [Self::Devices, Self::People, Self::Checkers, Self::Readers, Self::Hub];

    /// Its name in the contract and in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hub => "HUB",
            Self::Devices => "DEVICES",
            Self::Readers => "READERS",
            Self::People => "PEOPLE",
            Self::Checkers => "CHECKERS",
        }
    }
}

impl Crossing {
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Messages => "stream",
            Self::Request | Self::NamedRequest | Self::Requests => "service",
        }
    }

    const fn response_type(self) -> Option<&'static str> {
        match self {
            Self::Request | Self::NamedRequest => Some("Singleton"),
            Self::Requests => Some("Stream"),
            Self::Messages => None,
        }
    }
}

/// The exports of an account, in the form of its token.
pub(crate) fn exports(account: Account) -> Vec<Value> {
    let own = OFFERS.iter().filter(|offer| offer.from == account);
    // A subject that two accounts import is exported once.
    let mut exported = BTreeSet::new();
    own.filter(|offer| exported.insert(offer.subject))
        .map(|offer| {
            let kind = offer.crossing.kind();
            let mut export = json!({ "name": offer.subject, "subject": offer.subject, "type": kind });
            if let Some(response_type) = offer.crossing.response_type() {
                export["response_type"] = json!(response_type);
            }
            export
        })
        .collect()
}

/// The imports of an account, in the form of its token; `key` returns the public key of an account.
pub(crate) fn imports<'a>(account: Account, key: impl Fn(Account) -> &'a str) -> Vec<Value> {
    let wanted = OFFERS.iter().filter(|offer| offer.to == account);
    wanted
        .map(|offer| {
            let Offer { crossing, subject, from, .. } = offer;
            let mut import =
                json!({ "name": subject, "subject": subject, "account": key(*from), "type": crossing.kind() });
            if let Some(local) = offer.local {
                import["local_subject"] = json!(local);
            }
            if *crossing == Crossing::NamedRequest {
                import["share"] = json!(true);
            }
            import
        })
        .collect()
}

const fn offer(from: Account, to: Account, crossing: Crossing, subject: &'static str) -> Offer {
    Offer { from, to, crossing, subject, local: None }
}

const fn to_device(crossing: Crossing, subject: &'static str) -> Offer {
    offer(Account::Hub, Account::Devices, crossing, subject)
}

const fn to_person(crossing: Crossing, subject: &'static str) -> Offer {
    offer(Account::Hub, Account::People, crossing, subject)
}

const fn to_mirror(subject: &'static str, local: &'static str) -> Offer {
    Offer { local: Some(local), ..offer(Account::Hub, Account::Readers, Crossing::Request, subject) }
}

const fn to_reader(crossing: Crossing, subject: &'static str) -> Offer {
    offer(Account::Readers, Account::People, crossing, subject)
}

/// The read of the bucket `packages` by sequence, which devices and packagers use.
const PACKAGES_BY_SEQUENCE: &str = "$JS.API.DIRECT.GET.OBJ_packages";

/// Every subject that crosses from one account to another.
pub const OFFERS: [Offer; 64] = {
    use Crossing::{Messages, NamedRequest, Request, Requests};
    [
        to_device(Request, "muster.report.*.*"),
        to_device(Request, "muster.presence.*.*"),
        to_device(Request, "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.*.*"),
        to_device(Request, "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.*.*"),
        to_device(Request, "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.*.*"),
        // Chunks of packages, by sequence.
        to_device(Request, PACKAGES_BY_SEQUENCE),
        to_device(Messages, "muster.live.*.*.*"),
        // Gateways for devices, which hold the numbers of devices that keep no outbox.
        to_device(Request, "$KV.http_devices.*.*"),
        to_device(Request, "$JS.API.DIRECT.GET.KV_http_devices.$KV.http_devices.>"),
        // Services, which identify the requester.
        to_person(NamedRequest, "muster.query.*"),
        to_person(NamedRequest, "muster.notify.*"),
        to_person(NamedRequest, "muster.view.*"),
        to_person(NamedRequest, "muster.publisher.*"),
        to_person(NamedRequest, "muster.planner.*"),
        to_person(NamedRequest, "muster.ingest.quarantine.*"),
        to_person(Requests, "$SRV.PING"),
        to_person(Requests, "$SRV.PING.>"),
        to_person(Requests, "$SRV.INFO"),
        to_person(Requests, "$SRV.INFO.>"),
        to_person(Requests, "$SRV.STATS"),
        to_person(Requests, "$SRV.STATS.>"),
        // The stream stores the message, which must not name the requester.
        to_person(Request, "muster.credential.*.*"),
        to_person(Request, "$KV.http_devices.*"),
        to_person(Request, "$JS.API.DIRECT.GET.KV_http_devices"),
        // Packagers.
        to_person(Request, "$O.packages.C.*"),
        to_person(Request, "$O.packages.M.*"),
        to_person(Request, PACKAGES_BY_SEQUENCE),
        to_person(Request, "$JS.API.DIRECT.GET.NOTICES.muster.notice.*"),
        to_person(Messages, "muster.live.notice.*"),
        // Questions of the planner to checkers. They do not say who asks: only a planner may.
        offer(Account::Checkers, Account::People, Request, "muster.check.>"),
        // The API that mirrors need: wildcards, so that no push consumer delivers there.
        to_mirror("$JS.API.STREAM.INFO.*", "hub.api.STREAM.INFO.*"),
        to_mirror("$JS.API.CONSUMER.*.LEDGER", "hub.api.CONSUMER.*.LEDGER"),
        to_mirror("$JS.API.CONSUMER.*.KV_views", "hub.api.CONSUMER.*.KV_views"),
        to_mirror("$JS.API.CONSUMER.CREATE.LEDGER.>", "hub.api.CONSUMER.CREATE.LEDGER.>"),
        to_mirror("$JS.API.CONSUMER.CREATE.KV_views.>", "hub.api.CONSUMER.CREATE.KV_views.>"),
        offer(Account::Hub, Account::Readers, Request, "$JS.FC.>"),
        offer(Account::Hub, Account::Readers, Messages, "mirror.readers.>"),
        // The API that clients call, on the mirrors.
        to_reader(Request, "$JS.API.INFO"),
        to_reader(Request, "$JS.API.STREAM.NAMES"),
        to_reader(Request, "$JS.API.STREAM.LIST"),
        to_reader(Request, "$JS.API.STREAM.INFO.LEDGER"),
        to_reader(Request, "$JS.API.STREAM.INFO.KV_views"),
        to_reader(Request, "$JS.API.STREAM.MSG.GET.LEDGER"),
        to_reader(Request, "$JS.API.STREAM.MSG.GET.KV_views"),
        to_reader(Requests, "$JS.API.DIRECT.GET.LEDGER"),
        to_reader(Requests, "$JS.API.DIRECT.GET.LEDGER.>"),
        to_reader(Requests, "$JS.API.DIRECT.GET.KV_views"),
        to_reader(Requests, "$JS.API.DIRECT.GET.KV_views.>"),
        to_reader(Request, "$JS.API.CONSUMER.CREATE.LEDGER"),
        to_reader(Request, "$JS.API.CONSUMER.CREATE.LEDGER.>"),
        to_reader(Request, "$JS.API.CONSUMER.CREATE.KV_views"),
        to_reader(Request, "$JS.API.CONSUMER.CREATE.KV_views.>"),
        to_reader(Request, "$JS.API.CONSUMER.DURABLE.CREATE.LEDGER.*"),
        to_reader(Request, "$JS.API.CONSUMER.INFO.LEDGER.*"),
        to_reader(Request, "$JS.API.CONSUMER.INFO.KV_views.*"),
        to_reader(Request, "$JS.API.CONSUMER.DELETE.LEDGER.*"),
        to_reader(Request, "$JS.API.CONSUMER.DELETE.KV_views.*"),
        to_reader(Requests, "$JS.API.CONSUMER.MSG.NEXT.LEDGER.*"),
        to_reader(Requests, "$JS.API.CONSUMER.MSG.NEXT.KV_views.*"),
        to_reader(Request, "$JS.ACK.LEDGER.>"),
        // The same acknowledgements as newer servers write them: domain and account before the stream.
        to_reader(Request, "$JS.ACK.*.*.LEDGER.>"),
        to_reader(Request, "$JS.FC.LEDGER.>"),
        to_reader(Request, "$JS.FC.KV_views.>"),
        to_reader(Messages, "_INBOX.>"),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_account_is_offered_what_changes_or_removes_a_stream() {
        for offer in &OFFERS {
            for verb in
                ["STREAM.DELETE", "STREAM.PURGE", "STREAM.UPDATE", "STREAM.CREATE", "MSG.DELETE", "RESTORE"]
            {
                assert!(!offer.subject.contains(verb), "{offer:?}");
            }
        }
    }

    #[test]
    fn people_reach_hub_by_services_and_direct_get_alone() {
        let from_hub =
            OFFERS.iter().filter(|offer| (offer.from, offer.to) == (Account::Hub, Account::People));
        for offer in from_hub.filter(|offer| offer.subject.starts_with("$JS.")) {
            let direct = [
                "$JS.API.DIRECT.GET.NOTICES.",
                "$JS.API.DIRECT.GET.KV_http_devices",
                "$JS.API.DIRECT.GET.OBJ_packages",
            ];
            assert!(direct.iter().any(|read| offer.subject.starts_with(read)), "{offer:?}");
        }
    }

    /// A service trusts `Nats-Request-Info` beside a reply subject of the server. On a request that is not shared the header
    /// comes from the user.
    #[test]
    fn every_service_of_hub_that_people_reach_identifies_the_requester() {
        let to_people = OFFERS.iter().filter(|offer| {
            (offer.from, offer.to) == (Account::Hub, Account::People) && offer.crossing != Crossing::Messages
        });
        let (named, others): (Vec<&Offer>, _) =
            to_people.partition(|offer| offer.crossing == Crossing::NamedRequest);
        assert!(!named.is_empty() && named.iter().all(|offer| offer.subject.starts_with("muster.")));
        // Subjects without a service: streams, the API, and discovery.
        let is_no_services = |offer: &Offer| {
            ["muster.credential.*.*", "$KV.http_devices.*", "$O.packages.C.*", "$O.packages.M.*"]
                .contains(&offer.subject)
                || offer.subject.starts_with("$JS.API.")
                || offer.subject.starts_with("$SRV.")
        };
        let unnamed: Vec<_> = others.into_iter().filter(|offer| !is_no_services(offer)).collect();
        assert!(unnamed.is_empty(), "offered without the requester: {unnamed:?}");
    }

    #[test]
    fn a_subject_is_exported_once_by_an_account() {
        for account in Account::ALL {
            let exports = exports(account);
            let mut subjects: Vec<_> = exports.iter().map(|export| export["subject"].to_string()).collect();
            let count = subjects.len();
            subjects.sort_unstable();
            subjects.dedup();
            assert_eq!(subjects.len(), count, "{account:?}");
        }
    }

    #[test]
    fn a_subject_that_two_accounts_import_crosses_to_both_in_the_same_way() {
        for (at, one) in OFFERS.iter().enumerate() {
            let twin = OFFERS[at + 1..].iter().find(|it| (it.from, it.subject) == (one.from, one.subject));
            assert!(twin.is_none_or(|twin| twin.crossing == one.crossing), "{one:?}");
        }
    }

    #[test]
    fn readers_import_from_hub_only_by_wildcards() {
        let imported =
            OFFERS.iter().filter(|offer| (offer.from, offer.to) == (Account::Hub, Account::Readers));
        for offer in imported {
            let local = offer.local.unwrap_or(offer.subject);
            assert!(local.split('.').any(|token| matches!(token, "*" | ">")), "{local}");
        }
    }

    #[test]
    fn local_subjects_are_those_that_mirrors_name() {
        for offer in OFFERS.iter().filter(|offer| offer.local.is_some()) {
            let api = offer.subject.strip_prefix("$JS.API.").unwrap();
            assert_eq!(offer.local, Some(&*format!("{HUB_API}.{api}")));
        }
        let delivery = format!("{MIRROR_DELIVERY}.>");
        assert!(OFFERS.iter().any(|offer| offer.subject == delivery && offer.crossing == Crossing::Messages));
    }
}
