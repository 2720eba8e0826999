//! `muster auth leaf`: a site gets an account at the hub, and its server what it needs to come in. Run again, it renews.

use std::fs;

use muster_contract::SiteId;
use muster_identity::{KeyPair, creds, leaf};

use super::error::AuthError;
use super::vault::{self, LEAF_CREDS, Vault, failed, keep, private_folder};
use super::{Leaf, init, key_of_file};
use crate::config::LeafArgs;

/// The role of a site's server in the roster. It is none of the bus: what it may do is its account's.
const ROLE: &str = "leaf";
const ACCOUNT_SEED: &str = "account.seed";

/// Makes or renews what a site's server needs. What exists keeps its keys.
pub(super) fn run(args: &LeafArgs, now: u64) -> Result<Leaf, AuthError> {
    let mut vault = Vault::open(&args.vault.dir)?;
    let folder = vault.leaf(&args.site);
    private_folder(&folder)?;
    let (account, new) = account(&mut vault, &args.site)?;
    let file = folder.join(LEAF_CREDS);
    let (pair, _) = key_of_file(&file)?;
    let key = pair.public_key();
    let entry = vault.roster.admit(args.site.as_str(), ROLE, &key, (now, None), false)?;
    let token = leaf::leaf_node(&account, &args.site, &key, entry.issued)?;
    keep(&file, &creds::written(&token, &init::seed(&pair)?), true)?;
    vault.sign_accounts(now)?;
    let config = folder.join(vault::SERVER_CONFIG);
    Ok(Leaf { site: args.site.clone(), config, creds: file, new })
}

/// The key of a site's account, made if there is none; whether it is new. Its seed is kept before anybody hears of it.
fn account(vault: &mut Vault, site: &SiteId) -> Result<(KeyPair, bool), AuthError> {
    let file = vault.leaf(site).join(ACCOUNT_SEED);
    let pair = match fs::exists(&file).map_err(failed("read", &file))? {
        true => vault::key(&file)?,
        false => {
            let pair = KeyPair::new_account();
            keep(&file, &format!("{}\n", init::seed(&pair)?), true)?;
            pair
        }
    };
    let key = pair.public_key();
    if vault.authority.sites.get(site) == Some(&key) {
        return Ok((pair, false));
    }
    vault.authority.sites.insert(site.clone(), key);
    vault.keep_authority()?;
    Ok((pair, true))
}
