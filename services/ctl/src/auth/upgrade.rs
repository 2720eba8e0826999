//! `muster auth upgrade`: gives a directory that an older release made the accounts, keys and credentials of this one.
//!
//! No key of a device or of anybody else changes, and no device needs a new token. People move to an account of their own,
//! so their credentials are signed again: those in `creds/` here, the others by `muster auth creds`. Run again, it signs
//! everything again and changes nothing else. It tells no server; `muster auth push` does.

use std::path::PathBuf;

use muster_identity::{Account, Entry, Role};

use super::error::AuthError;
use super::init::{account_key, keep_watcher, new_signer};
use super::vault::{SERVER_CONFIG, SYSTEM_SEED, Vault, WATCHER_CREDS, key};
use super::{Upgraded, key_of_file, service};
use crate::config::VaultArgs;

/// Upgrades the directory.
pub(super) fn run(args: &VaultArgs, now: u64) -> Result<Upgraded, AuthError> {
    let mut vault = Vault::open_of_any_release(&args.dir)?;
    let new_accounts = add_accounts(&mut vault);
    let new_roles = add_signers(&mut vault)?;
    // The keys first: what is signed with them can be made again.
    vault.keep_authority()?;
    if !vault.path(WATCHER_CREDS).exists() {
        keep_watcher(&args.dir, &key(&vault.path(SYSTEM_SEED))?, now)?;
    }
    let mut upgraded = Upgraded {
        dir: args.dir.clone(),
        config: args.dir.join(SERVER_CONFIG),
        new_accounts,
        renewed: Vec::new(),
        to_renew: Vec::new(),
    };
    for role in new_roles.into_iter().filter(|role| role.is_everyday()) {
        let file = creds_file(&vault, role.as_str());
        upgraded.renewed.push(service(&mut vault, role, role.as_str(), &file, (now, None))?.0);
    }
    for entry in enrolled(&vault, now) {
        match renew(&mut vault, &entry, now)? {
            true => upgraded.renewed.push(entry),
            false => upgraded.to_renew.push(entry),
        }
    }
    vault.sign_accounts(now)?;
    Ok(upgraded)
}

/// Names of the accounts that were missing.
fn add_accounts(vault: &mut Vault) -> Vec<String> {
    let authority = &mut vault.authority;
    let missing = [(Account::Readers, &mut authority.readers), (Account::People, &mut authority.people)];
    let mut added = Vec::new();
    for (account, key) in missing.into_iter().filter(|(_, key)| key.is_empty()) {
        *key = account_key();
        added.push(account.as_str().to_owned());
    }
    added
}

/// The roles that had no signing key.
fn add_signers(vault: &mut Vault) -> Result<Vec<Role>, AuthError> {
    let is_new = |role: &Role| !vault.authority.signers.contains_key(role.as_str());
    let missing: Vec<_> = Role::ALL.into_iter().filter(is_new).collect();
    for role in &missing {
        let key = new_signer(&vault.path(""), *role)?;
        vault.authority.signers.insert(role.as_str().to_owned(), key);
    }
    Ok(missing)
}

/// Services and people whose tokens count now.
fn enrolled(vault: &Vault, now: u64) -> Vec<Entry> {
    let is_user = |entry: &&Entry| Role::of(&entry.role).is_some_and(|role| role != Role::Device);
    vault.roster.users.iter().filter(is_user).filter(|entry| entry.is_in(now)).cloned().collect()
}

/// Signs the token of a user anew until the same time, if its credentials file lies here; whether it does.
fn renew(vault: &mut Vault, entry: &Entry, now: u64) -> Result<bool, AuthError> {
    let file = creds_file(vault, &entry.name);
    let Some(role) = Role::of(&entry.role).filter(|_| file.is_file()) else { return Ok(false) };
    if key_of_file(&file)?.0.public_key() != entry.key {
        return Ok(false);
    }
    let valid = entry.expires.map(|expires| expires.saturating_sub(now));
    service(vault, role, &entry.name, &file, (now, valid))?;
    Ok(true)
}

fn creds_file(vault: &Vault, name: &str) -> PathBuf {
    vault.path(&format!("creds/{name}.creds"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use muster_identity::{creds, jwt};
    use serde_json::Value;

    use super::*;
    use crate::auth::init;
    use crate::config::InitArgs;

    /// A directory as the release before this one made it.
    fn older(dir: &Path) -> VaultArgs {
        let args = VaultArgs { dir: dir.to_owned() };
        let (name, resolver_dir) = ("fleet".to_owned(), "accounts".to_owned());
        init::run(&InitArgs { vault: args.clone(), name, resolver_dir }, 1).unwrap();
        let file = dir.join("authority.json");
        let mut authority: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for account in ["readers", "people"] {
            authority.as_object_mut().unwrap().remove(account);
        }
        authority["signers"].as_object_mut().unwrap().remove("keeper");
        std::fs::write(&file, authority.to_string()).unwrap();
        std::fs::remove_file(dir.join("signers/keeper.seed")).unwrap();
        std::fs::remove_file(dir.join("creds/keeper.creds")).unwrap();
        std::fs::remove_file(dir.join("creds/watcher.creds")).unwrap();
        let file = dir.join("roster.json");
        let mut roster: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        roster["users"].as_array_mut().unwrap().retain(|user| user["role"] != "keeper");
        std::fs::write(&file, roster.to_string()).unwrap();
        args
    }

    fn token(dir: &Path, name: &str) -> jwt::Known {
        let text = std::fs::read_to_string(dir.join(format!("creds/{name}.creds"))).unwrap();
        jwt::read(creds::token(&text).unwrap()).unwrap()
    }

    #[test]
    fn an_upgrade_keeps_every_key_and_moves_people_to_their_account() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("auth");
        let args = older(&dir);
        assert!(matches!(Vault::open(&dir), Err(AuthError::Outdated(_))));
        let (viewer, rollup) = (token(&dir, "viewer"), token(&dir, "rollup"));
        let upgraded = run(&args, 5).unwrap();
        assert_eq!(upgraded.new_accounts, ["READERS", "PEOPLE"]);
        assert!(upgraded.to_renew.is_empty(), "{:?}", upgraded.to_renew);
        let vault = Vault::open(&dir).unwrap();
        let now = (token(&dir, "viewer"), token(&dir, "rollup"), token(&dir, "keeper"));
        assert_eq!((&now.0.sub, &now.1.sub), (&viewer.sub, &rollup.sub));
        assert_eq!(now.0.nats.issuer_account, vault.authority.people);
        assert_eq!(now.1.nats.issuer_account, vault.authority.hub);
        assert_eq!(now.2.nats.issuer_account, vault.authority.readers);
        assert!(now.1.tag("signer-operator").is_some(), "the rollup knows an operator");
        assert_eq!(token(&dir, "watcher").tag("role"), Some("watcher"));
    }

    #[test]
    fn a_second_upgrade_adds_nothing() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("auth");
        let args = older(&dir);
        run(&args, 5).unwrap();
        let (accounts, keeper) = (Vault::open(&dir).unwrap().authority.people, token(&dir, "keeper").sub);
        let again = run(&args, 6).unwrap();
        assert!(again.new_accounts.is_empty());
        assert_eq!(
            (Vault::open(&dir).unwrap().authority.people, token(&dir, "keeper").sub),
            (accounts, keeper)
        );
    }

    #[test]
    fn credentials_that_lie_elsewhere_are_named() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("auth");
        let args = older(&dir);
        std::fs::rename(dir.join("creds/operator.creds"), place.path().join("operator.creds")).unwrap();
        let upgraded = run(&args, 5).unwrap();
        let names: Vec<_> = upgraded.to_renew.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["operator"]);
    }
}
