//! What stands in the tokens of a site with a server of its own: a leaf node, to which the site's devices connect, and
//! which alone connects to the hub.
//!
//! ```text
//! device ──► leaf node, devices' account ──► hub, the site's account ──► hub's account: streams
//!            $JS.API.DIRECT.GET.DOWNLINK.…    muster.fetch.… of this       $JS.API.DIRECT.GET.DOWNLINK.…
//!            is mapped to muster.fetch.…      site alone
//! ```
//!
//! **The account is the boundary.** At the hub a site has an account of its own that imports what concerns this site and
//! nothing else, has no streams, and lets nobody in but leaf nodes. So a site that is taken over can neither read nor
//! write what is another's, and needs no list of its devices. On the leaf node devices have the account they have at the
//! hub, with the same rights and without anything to import: their tokens are good at both, and each reaches of the hub
//! what the site's account reaches.
//!
//! A request for JetStream's own API does not pass a leaf node, which may have a JetStream domain of its own. Devices ask
//! as ever; the leaf node maps what they may ask for to subjects that do pass.

use muster_contract::SiteId;
use nkeys::KeyPair;
use serde_json::{Map, Value, json};

use crate::claims::{Fleet, account_of, claims, limits};
use crate::exchange::{Account, Crossing};
use crate::jwt::{self, TokenError};
use crate::roles::Role;

/// Kinds of documents that a device reads by direct get.
const FETCHED: [&str; 3] = ["desired", "receipt", "credential"];
/// What reads the last message of a subject of DOWNLINK.
const DIRECT_GET: &str = "$JS.API.DIRECT.GET.DOWNLINK.muster";
/// The same across a leaf node.
const FETCH: &str = "muster.fetch";
/// Connections of leaf nodes that a site may have: of two servers, each with an old one that nobody noticed yet.
const LEAF_CONNECTIONS_MAX: i64 = 4;

/// The token of a site's account at the hub.
///
/// # Errors
/// The key cannot sign.
pub fn site_account(
    operator: &KeyPair,
    fleet: &Fleet<'_>,
    (site, key): (&SiteId, &str),
    issued: u64,
) -> Result<String, TokenError> {
    let mut limits = limits(0, 0, 0);
    limits["conn"] = json!(0);
    limits["leaf"] = json!(LEAF_CONNECTIONS_MAX);
    let mut nats = account_of(fleet, &limits, |_| false);
    nats["imports"] = imports(fleet.account(Account::Hub), site).into();
    jwt::sign(operator, claims(key, &format!("{} site {site}", fleet.name), issued, None, &nats))
}

/// The token of the devices' account as a leaf node has it: the same rights, and nothing to import.
///
/// # Errors
/// The key cannot sign.
pub fn devices_account(operator: &KeyPair, fleet: &Fleet<'_>, issued: u64) -> Result<String, TokenError> {
    let mut nats = account_of(fleet, &limits(0, 0, 0), |role| *role == Role::Device);
    let to = |kind: &str| json!([{ "subject": format!("{FETCH}.{kind}.$1.$2"), "weight": 100 }]);
    // Whether a device may ask, the server looks up by the subject that it is mapped to.
    let own = FETCHED.map(|kind| json!(format!("{FETCH}.{kind}.{{{{tag(site)}}}}.{{{{tag(device)}}}}")));
    let allowed = &mut nats["signing_keys"][0]["template"]["pub"]["allow"];
    if let Some(allowed) = allowed.as_array_mut() {
        allowed.extend(own);
    }
    let mappings = FETCHED.map(|kind| (format!("{DIRECT_GET}.{kind}.*.*"), to(kind)));
    nats["mappings"] = Map::from_iter(mappings).into();
    let name = format!("{} devices at a site", fleet.name);
    jwt::sign(operator, claims(fleet.account(Account::Devices), &name, issued, None, &nats))
}

/// The token of a site's leaf node, by which it comes in at the hub and may be nothing but a leaf node.
///
/// # Errors
/// The key cannot sign.
pub fn leaf_node(account: &KeyPair, site: &SiteId, key: &str, issued: u64) -> Result<String, TokenError> {
    let unlimited = -1;
    let nats = json!({
        "type": "user", "version": 2, "subs": unlimited, "data": unlimited, "payload": unlimited,
        "allowed_connection_types": ["LEAFNODE", "LEAFNODE_WS"], "tags": ["role:leaf", format!("site:{site}")],
    });
    jwt::sign(account, claims(key, &format!("leaf node of {site}"), issued, None, &nats))
}

/// A subject of HUB that a site's account imports; `{site}` stands for the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteImport {
    /// How messages cross.
    pub crossing: Crossing,
    /// The subject in HUB.
    pub subject: String,
    /// The subject in the site's account, where it is another: `$1` stands for the wildcard.
    pub local: Option<String>,
}

/// What a site's account takes from the hub's: requests of its devices, and what is told to them.
pub fn site_imports() -> Vec<SiteImport> {
    let same = |crossing, subject| SiteImport { crossing, subject, local: None };
    let fetch = |kind: &str| SiteImport {
        local: Some(format!("{FETCH}.{kind}.{{site}}.$1")),
        ..same(Crossing::Request, format!("{DIRECT_GET}.{kind}.{{site}}.*"))
    };
    let sent =
        ["report", "presence"].map(|kind| same(Crossing::Request, format!("muster.{kind}.{{site}}.*")));
    let live = same(Crossing::Messages, "muster.live.*.{site}.*".to_owned());
    sent.into_iter().chain(FETCHED.map(fetch)).chain([live]).collect()
}

/// The same as the token of a site's account has it.
fn imports(hub: &str, site: &SiteId) -> Vec<Value> {
    let of_site = |subject: &str| subject.replace("{site}", site.as_str());
    let entry = |import: SiteImport| {
        let subject = of_site(&import.subject);
        let mut entry =
            json!({ "name": subject, "subject": subject, "account": hub, "type": import.crossing.kind() });
        if let Some(local) = import.local {
            entry["local_subject"] = json!(of_site(&local));
        }
        entry
    };
    site_imports().into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use data_encoding::BASE64URL_NOPAD;

    use crate::exchange;

    use super::*;

    #[test]
    fn at_a_site_a_device_may_besides_fetch_what_it_may_get_and_nothing_else() {
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account().public_key());
        let signers = BTreeMap::from([(Role::Device, account.clone()), (Role::Ingest, account.clone())]);
        let revocations = BTreeMap::new();
        let accounts = BTreeMap::from([(Account::Devices, account)]);
        let fleet =
            Fleet { name: "fleet", accounts: &accounts, signers: &signers, revocations: &revocations };
        let token = devices_account(&operator, &fleet, 1).unwrap();
        let body = BASE64URL_NOPAD.decode(token.split('.').nth(1).unwrap().as_bytes()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["nats"]["signing_keys"].as_array().unwrap().len(), 1, "devices alone come in");
        let mut allowed = body["nats"]["signing_keys"][0]["template"]["pub"]["allow"].clone();
        let more = allowed.as_array_mut().unwrap().split_off(Role::Device.rights().publish.len());
        let template = Role::Device.template();
        assert_eq!(allowed, template["pub"]["allow"]);
        let own = |kind| json!(format!("muster.fetch.{kind}.{{{{tag(site)}}}}.{{{{tag(device)}}}}"));
        assert_eq!(more, FETCHED.map(own));
    }

    #[test]
    fn a_site_takes_all_that_the_hub_offers_devices_of_its_own_and_no_more() {
        let site: SiteId = "harbour".parse().unwrap();
        let taken: Vec<_> = imports("A", &site).into_iter().map(|entry| entry["subject"].clone()).collect();
        let own = |offer: &exchange::Offer| {
            let (prefix, _) = offer.subject.rsplit_once(".*.*").unwrap();
            json!(format!("{prefix}.{site}.*"))
        };
        let offered: Vec<_> =
            exchange::OFFERS.iter().filter(|offer| offer.to == Account::Devices).map(own).collect();
        assert_eq!(taken, offered);
    }
}
