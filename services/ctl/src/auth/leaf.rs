//! `muster auth leaf`: creates an account of a site at the hub, and the files of the site's server. Another run renews them.

use std::fs;

use muster_contract::SiteId;
use muster_identity::{KeyPair, creds, leaf};

use super::error::AuthError;
use super::key_store::{self, KeyStore, LEAF_CREDS, failed, private_folder, write_file};
use super::results::LeafResult;
use super::signing::{key_of_file, seed};
use crate::config::LeafArgs;

/// The role of a site's server in the registry. It is no role of the bus: the server has the rights of its account.
const ROLE: &str = "leaf";
const ACCOUNT_SEED: &str = "account.seed";

/// Creates or renews the files of a site's server. Existing ones keep their keys.
pub(super) fn run(args: &LeafArgs, now: u64) -> Result<LeafResult, AuthError> {
    let mut store = KeyStore::open(&args.vault.dir)?;
    let folder = store.leaf(&args.site);
    private_folder(&folder)?;
    let (account, new) = account(&mut store, &args.site)?;
    let file = folder.join(LEAF_CREDS);
    let (pair, _) = key_of_file(&file)?;
    let key = pair.public_key();
    let entry = store.registry.enroll(args.site.as_str(), ROLE, &key, now, None, false)?;
    let token = leaf::leaf_node(&account, &args.site, &key, entry.issued)?;
    write_file(&file, &creds::to_text(&token, &seed(&pair)?), true)?;
    store.sign_accounts(now)?;
    let config = folder.join(key_store::SERVER_CONFIG);
    Ok(LeafResult { site: args.site.clone(), config, creds: file, new })
}

/// The key of a site's account, created if it is missing; returns whether it is new. Its seed is written before it is used.
fn account(store: &mut KeyStore, site: &SiteId) -> Result<(KeyPair, bool), AuthError> {
    let file = store.leaf(site).join(ACCOUNT_SEED);
    let pair = if fs::exists(&file).map_err(failed("read", &file))? {
        key_store::key(&file)?
    } else {
        let pair = KeyPair::new_account();
        write_file(&file, &format!("{}\n", seed(&pair)?), true)?;
        pair
    };
    let key = pair.public_key();
    if store.authority.sites.get(site) == Some(&key) {
        return Ok((pair, false));
    }
    store.authority.sites.insert(site.clone(), key);
    store.write_authority()?;
    Ok((pair, true))
}
