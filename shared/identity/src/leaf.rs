//! Makes the tokens of a site with its own server: a leaf node, to which the site's devices connect, and which alone
//! connects to the hub.
//!
//! ```text
//! device ──► leaf node, devices' account ──► hub, the site's account ──► hub's account: streams
//!            $JS.API.DIRECT.GET.DOWNLINK.…    muster.fetch.… of this       $JS.API.DIRECT.GET.DOWNLINK.…
//!            is mapped to muster.fetch.…      site alone
//! ```
//!
//! **The account is the boundary.** At the hub a site has its own account, which imports the subjects of this site and no
//! others, has no streams, and admits only leaf nodes. So a compromised site can neither read nor write subjects of another
//! site, and the hub needs no list of its devices. On the leaf node, devices have the same account and rights as at the
//! hub, and the account imports nothing: a device's token is valid at both, and the device reaches the subjects that the
//! site's account reaches.
//!
//! A request to the JetStream API does not cross a leaf node, which may have its own JetStream domain. Devices send the
//! same requests; the leaf node maps the permitted ones to subjects that do cross.

use muster_contract::SiteId;
use nkeys::KeyPair;
use serde_json::{Map, Value, json};

use crate::claims::{Fleet, account_of, claims, limits};
use crate::exchange::{Account, Crossing};
use crate::jwt::{self, TokenError};
use crate::roles::Role;

/// Kinds of documents that a device reads by direct get.
const FETCHED: [&str; 3] = ["desired", "receipt", "credential"];
/// Prefix of the requests for the last message of a subject of DOWNLINK.
const DIRECT_GET: &str = "$JS.API.DIRECT.GET.DOWNLINK.muster";
/// The same prefix across a leaf node.
const FETCH: &str = "muster.fetch";
/// The read of packages by sequence, which needs no site: all devices have it.
const PACKAGES: &str = "$JS.API.DIRECT.GET.OBJ_packages";
/// The same across a leaf node.
const FETCH_PACKAGES: &str = "muster.fetch.package";
/// Leaf node connections of a site: two servers, each with an old connection that has not been detected as lost yet.
const LEAF_CONNECTIONS_MAX: i64 = 4;

/// The token of a site's account at the hub.
///
/// # Errors
/// The key cannot sign.
pub fn site_account(
    operator: &KeyPair,
    fleet: &Fleet<'_>,
    site: &SiteId,
    key: &str,
    issued: u64,
) -> Result<String, TokenError> {
    let mut limits = limits(0, 0, 0);
    limits["conn"] = json!(0);
    limits["leaf"] = json!(LEAF_CONNECTIONS_MAX);
    let mut nats = account_of(fleet, &limits, |_| false);
    nats["imports"] = imports(fleet.account(Account::Hub), site).into();
    jwt::sign(operator, claims(key, &format!("{} site {site}", fleet.name), issued, None, &nats))
}

/// The token of the devices' account for a leaf node: the same rights, and no imports.
///
/// # Errors
/// The key cannot sign.
pub fn devices_account(operator: &KeyPair, fleet: &Fleet<'_>, issued: u64) -> Result<String, TokenError> {
    let mut nats = account_of(fleet, &limits(0, 0, 0), |role| *role == Role::Device);
    let to = |kind: &str| json!([{ "subject": format!("{FETCH}.{kind}.$1.$2"), "weight": 100 }]);
    // The server checks a device's right by the mapped subject.
    let own = FETCHED.map(|kind| json!(format!("{FETCH}.{kind}.{{{{tag(site)}}}}.{{{{tag(device)}}}}")));
    let allowed = &mut nats["signing_keys"][0]["template"]["pub"]["allow"];
    if let Some(allowed) = allowed.as_array_mut() {
        allowed.extend(own);
        allowed.push(json!(FETCH_PACKAGES));
    }
    let packages = (PACKAGES.to_owned(), json!([{ "subject": FETCH_PACKAGES, "weight": 100 }]));
    let mappings = FETCHED.map(|kind| (format!("{DIRECT_GET}.{kind}.*.*"), to(kind)));
    nats["mappings"] = Map::from_iter(mappings.into_iter().chain([packages])).into();
    let name = format!("{} devices at a site", fleet.name);
    jwt::sign(operator, claims(fleet.account(Account::Devices), &name, issued, None, &nats))
}

/// The token with which a site's leaf node connects to the hub; it allows no other kind of connection.
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

/// The subjects that a site's account imports from the hub's: requests of its devices, and documents for them.
pub fn site_imports() -> Vec<SiteImport> {
    let same = |crossing, subject| SiteImport { crossing, subject, local: None };
    let fetch = |kind: &str| SiteImport {
        local: Some(format!("{FETCH}.{kind}.{{site}}.$1")),
        ..same(Crossing::Request, format!("{DIRECT_GET}.{kind}.{{site}}.*"))
    };
    let sent =
        ["report", "presence"].map(|kind| same(Crossing::Request, format!("muster.{kind}.{{site}}.*")));
    let packages =
        SiteImport { local: Some(FETCH_PACKAGES.to_owned()), ..same(Crossing::Request, PACKAGES.to_owned()) };
    let live = same(Crossing::Messages, "muster.live.*.{site}.*".to_owned());
    sent.into_iter().chain(FETCHED.map(fetch)).chain([packages, live]).collect()
}

/// The same, in the form of the token of a site's account.
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
    fn at_a_site_a_device_may_also_fetch_the_documents_it_may_get() {
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account().public_key());
        let signers = BTreeMap::from([(Role::Device, account.clone()), (Role::Ingest, account.clone())]);
        let revocations = BTreeMap::new();
        let accounts = BTreeMap::from([(Account::Devices, account)]);
        let fleet =
            Fleet { name: "fleet", accounts: &accounts, signers: &signers, revocations: &revocations };
        let token = devices_account(&operator, &fleet, 1).unwrap();
        let body = BASE64URL_NOPAD.decode(token.split('.').nth(1).unwrap().as_bytes()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["nats"]["signing_keys"].as_array().unwrap().len(), 1, "only devices are admitted");
        let mut allowed = body["nats"]["signing_keys"][0]["template"]["pub"]["allow"].clone();
        let more = allowed.as_array_mut().unwrap().split_off(Role::Device.rights().publish.len());
        let template = Role::Device.template();
        assert_eq!(allowed, template["pub"]["allow"]);
        let own = |kind| json!(format!("muster.fetch.{kind}.{{{{tag(site)}}}}.{{{{tag(device)}}}}"));
        assert_eq!(more, [&FETCHED.map(own)[..], &[json!("muster.fetch.package")]].concat());
    }

    #[test]
    fn a_site_imports_exactly_what_the_hub_offers_its_devices() {
        let site: SiteId = "harbour".parse().unwrap();
        let taken: Vec<_> = imports("A", &site).into_iter().map(|entry| entry["subject"].clone()).collect();
        // A gateway for devices connects to the hub.
        let is_of_devices =
            |offer: &exchange::Offer| offer.to == Account::Devices && !offer.subject.contains("http_devices");
        let own = |offer: &exchange::Offer| match offer.subject.rsplit_once(".*.*") {
            Some((prefix, _)) => json!(format!("{prefix}.{site}.*")),
            None => json!(offer.subject),
        };
        let offered: Vec<_> = exchange::OFFERS.iter().filter(|offer| is_of_devices(offer)).map(own).collect();
        assert_eq!(taken, offered);
    }
}
