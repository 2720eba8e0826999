//! The results of the commands for identities, as they are printed. It changes nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use muster_contract::{DeviceKey, SiteId};
use muster_identity::{Role, UserEntry};
use serde::Serialize;

use super::key_store::KeyStore;

/// The result of `muster auth init`.
#[derive(Debug, Serialize)]
pub(crate) struct InitResult {
    /// The directory.
    pub dir: PathBuf,
    /// The file that a server's configuration includes.
    pub config: PathBuf,
}

/// The result of `muster auth upgrade`: the directory has the accounts and keys of this release.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UpgradeResult {
    /// The directory.
    pub dir: PathBuf,
    /// The file that a server's configuration includes.
    pub config: PathBuf,
    /// Names of the added accounts.
    pub new_accounts: Vec<String>,
    /// Services and people whose credentials in the directory were signed again.
    pub renewed: Vec<UserEntry>,
    /// Those whose credentials are elsewhere; the operator must renew them.
    pub to_renew: Vec<UserEntry>,
}

/// The result of `muster auth rotate`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RotateResult {
    /// The directory.
    pub dir: PathBuf,
    /// The role with a new signing key.
    pub role: String,
    /// Services and people whose credentials in the directory were signed again.
    pub renewed: Vec<UserEntry>,
    /// Those of the role whose credentials are elsewhere; the operator must renew them.
    pub to_renew: Vec<UserEntry>,
    /// Devices that need a new token.
    pub devices: Vec<String>,
}

/// The result of `muster auth leaf`.
#[derive(Debug, Serialize)]
pub(crate) struct LeafResult {
    /// The site.
    pub site: SiteId,
    /// The file that the configuration of its server includes.
    pub config: PathBuf,
    /// The credentials of its server at the hub.
    pub creds: PathBuf,
    /// Whether the site's account is new: the hub's servers do not have it yet.
    pub new: bool,
}

/// The result of an enrolment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EnrollResult {
    /// The entry of the registry.
    #[serde(flatten)]
    pub entry: UserEntry,
    /// The token, if it was not written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<String>,
    /// The file with the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Whether this command created the key.
    pub key_made_here: bool,
    /// Whether the hub has the token for the device.
    pub sent: bool,
}

/// The result of a revocation.
#[derive(Debug, Serialize)]
pub(crate) struct RevokeResult {
    /// The revoked entries.
    pub revoked: Vec<UserEntry>,
    /// Their sites with a server of their own, which accepts them until an operator copies a file there.
    pub sites: BTreeSet<SiteId>,
}

impl RevokeResult {
    pub(super) fn of(store: &KeyStore, revoked: Vec<UserEntry>) -> Self {
        let devices = revoked.iter().filter(|entry| entry.role == Role::Device.as_str());
        let sites = devices.filter_map(|entry| Some(entry.name.parse::<DeviceKey>().ok()?.site));
        let sites = sites.filter(|site| store.authority.sites.contains_key(site)).collect();
        Self { revoked, sites }
    }
}

#[cfg(test)]
mod tests {
    use muster_identity::KeyPair;

    use super::super::{init, leaf};
    use super::*;
    use crate::config::{InitArgs, LeafArgs, VaultArgs};

    #[test]
    fn only_sites_with_a_server_of_their_own_need_a_copied_revocation() {
        let place = tempfile::tempdir().unwrap();
        let args = VaultArgs { dir: place.path().join("auth") };
        let (name, resolver_dir) = ("fleet".to_owned(), "accounts".to_owned());
        init::run(&InitArgs { vault: args.clone(), name, resolver_dir }, 1).unwrap();
        let site = "harbour".parse().unwrap();
        leaf::run(&LeafArgs { site, vault: args.clone() }, 1).unwrap();
        let mut store = KeyStore::open(&args.dir).unwrap();
        let mut out = |name: &str, role: Role| {
            let key = KeyPair::new_user().public_key();
            store.registry.enroll(name, role.as_str(), &key, 1, None, false).unwrap();
            let revoked = store.registry.revoke_key(&key, 2).unwrap();
            RevokeResult::of(&store, revoked)
        };
        let shown = serde_json::to_value(out("harbour/crane", Role::Device)).unwrap();
        assert_eq!(shown["sites"], serde_json::json!(["harbour"]));
        assert!(out("plant7/press-4", Role::Device).sites.is_empty(), "its server is the hub's");
        assert!(out("harbour", Role::Ingest).sites.is_empty(), "no device");
    }
}
