//! The changes that each role may make, computed from the table of rights itself ([`muster_identity::rights`] and
//! [`OFFERS`](muster_identity::exchange::OFFERS), from which `schemas/RIGHTS.md` is made). It is the expectation that
//! the tests compare with what changed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use muster_identity::claims::{pusher_rights, watcher_rights};
use muster_identity::exchange::{Account, Crossing, OFFERS};
use muster_identity::{Rights, Role};
use muster_tests::guarded::Guarded;
use muster_tests::monitor::{Aspect, Change};
use muster_tests::server::device;

use super::subjects::{STREAMS, covers, overlap};

/// A device that is enrolled on the stage.
pub(crate) const DEVICE: &str = "press-4";

/// Somebody who connects to the hub.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// Its role; none of the two users of the system account.
    pub(crate) role: Option<Role>,
    /// Its rights to publish and subscribe, by the table.
    pub(crate) rights: Rights,
    /// Its credentials file.
    pub(crate) creds: PathBuf,
}

impl Actor {
    /// Somebody with a role.
    pub(crate) fn of(hub: &Guarded, role: Role) -> Self {
        let creds = match role {
            Role::Device => hub.dir().join(format!("plant7_{DEVICE}.creds")),
            Role::Maintainer => maintainer(hub),
            Role::Margo => margo(hub),
            role => hub.creds(role),
        };
        Self { name: role.as_str(), role: Some(role), rights: role.rights(), creds }
    }

    /// `muster auth push` and the connection watcher, of the system account.
    pub(crate) fn of_system(hub: &Guarded) -> [Self; 2] {
        [("push", pusher_rights("{key}")), ("watcher", watcher_rights("{key}"))].map(|(name, rights)| {
            let creds = hub.auth().join(format!("creds/{name}.creds"));
            Self { name, role: None, rights, creds }
        })
    }

    /// Whether it shares HUB with the streams: there a reply reaches what HUB reaches.
    pub(crate) fn is_in_hub(&self) -> bool {
        self.role.is_some_and(|role| role.account() == Account::Hub)
    }

    /// A right of it, as the server fills it.
    pub(crate) fn filled(&self, right: &str) -> String {
        let key = if self.role == Some(Role::Device) { String::new() } else { self.key() };
        right.replace("{site}", "plant7").replace("{device}", DEVICE).replace("{key}", &key)
    }

    /// Its public key.
    pub(crate) fn key(&self) -> String {
        let text = std::fs::read_to_string(&self.creds).unwrap();
        muster_identity::jwt::read(muster_identity::creds::token(&text).unwrap()).unwrap().sub
    }

    /// Where it may subscribe and nobody else.
    pub(crate) fn inbox(&self) -> String {
        match self.role {
            Some(Role::Device) => {
                let key = device(DEVICE);
                format!("_INBOX_{}_{}", key.site, key.device)
            }
            _ => format!("_INBOX.{}", self.key()),
        }
    }

    /// The changes that it may make.
    pub(crate) fn may_change(&self) -> BTreeSet<Change> {
        let Some(role) = self.role else { return BTreeSet::new() };
        self.rights.publish.iter().flat_map(|right| changes_by(role.account(), right)).collect()
    }
}

/// Credentials of a maintainer, which are made for an hour.
fn maintainer(hub: &Guarded) -> PathBuf {
    let file = hub.dir().join("maintainer.creds");
    if !file.exists() {
        let name = file.display().to_string();
        hub.decide(&["auth", "creds", "maintainer", "--valid", "1h", "-o", &name]);
    }
    file
}

/// Credentials of a gateway for the devices of one site.
fn margo(hub: &Guarded) -> PathBuf {
    let file = hub.dir().join("margo.creds");
    if !file.exists() {
        let name = file.display().to_string();
        hub.decide(&["auth", "creds", "margo", "--site", "plant7", "-o", &name]);
    }
    file
}

/// The account in which what somebody of an account publishes there arrives.
fn arrives_in(account: Account, right: &str) -> Option<Account> {
    if matches!(account, Account::Hub | Account::Readers) {
        return Some(account);
    }
    let of_device = right.replace("{site}", "*").replace("{device}", "*");
    let imported = OFFERS.iter().filter(|offer| offer.to == account && offer.crossing != Crossing::Messages);
    imported.into_iter().find(|offer| covers(offer.subject, &of_device)).map(|offer| offer.from)
}

/// The changes that a right to publish permits.
fn changes_by(account: Account, right: &str) -> Vec<Change> {
    let Some(account) = arrives_in(account, right) else { return Vec::new() };
    if let Some(request) = right.strip_prefix("$JS.API.") {
        return changed_by_request(request)
            .map(|(stream, aspect)| (account, stream.to_owned(), aspect))
            .into_iter()
            .collect();
    }
    if account != Account::Hub {
        return Vec::new();
    }
    let right = right.replace("{site}", "*").replace("{device}", "*");
    let takes = |patterns: &[String]| patterns.iter().any(|pattern| overlap(pattern, &right));
    let takes_from_source = |sources: &[(String, String)]| {
        sources.iter().any(|(source, filter)| {
            let is_stored = STREAMS.iter().any(|stream| stream.name == *source && takes(&stream.subjects));
            is_stored && overlap(filter, &right)
        })
    };
    let stored =
        STREAMS.iter().filter(|stream| takes(&stream.subjects) || takes_from_source(&stream.sources));
    stored.map(|stream| (account, stream.name.clone(), Aspect::Messages)).collect()
}

/// The change that a request of the API makes to an existing stream. Creating it again with other settings is refused, and
/// so is restoring it.
fn changed_by_request(request: &str) -> Option<(&str, Aspect)> {
    let verbs = [
        ("CONSUMER.CREATE.", Aspect::Consumers),
        ("CONSUMER.DURABLE.CREATE.", Aspect::Consumers),
        ("CONSUMER.DELETE.", Aspect::Consumers),
        ("STREAM.PURGE.", Aspect::Messages),
        ("STREAM.MSG.DELETE.", Aspect::Messages),
        ("STREAM.UPDATE.", Aspect::Settings),
        ("STREAM.DELETE.", Aspect::Existence),
    ];
    let (verb, aspect) = verbs.into_iter().find(|(verb, _)| request.starts_with(verb))?;
    Some((request[verb.len()..].split('.').next()?, aspect))
}

#[test]
fn the_expectation_is_read_from_the_rights() {
    let hub = |stream: &str, aspect| (Account::Hub, stream.to_owned(), aspect);
    let of = |role: Role| -> BTreeSet<Change> {
        role.rights().publish.iter().flat_map(|right| changes_by(role.account(), right)).collect()
    };
    assert_eq!(of(Role::Viewer), BTreeSet::new());
    assert_eq!(of(Role::Renewer), [hub("DOWNLINK", Aspect::Messages)].into());
    assert_eq!(of(Role::Device), [hub("UPLINK", Aspect::Messages), hub("PRESENCE", Aspect::Messages)].into());
    assert!(
        of(Role::Publisher)
            .is_superset(&[hub("DOWNLINK", Aspect::Messages), hub("LEDGER", Aspect::Messages)].into())
    );
    assert_eq!(of(Role::Maintainer).len(), STREAMS.len());
}
