//! `muster auth upgrade`: gives a directory that an older release made the accounts, keys and credentials of this one.
//!
//! It changes no key, and no device needs a new token. People move to an account of their own, so their credentials are
//! signed again: it signs those in `creds/`, and `muster auth creds` the others. Another run only signs everything again.
//! It sends nothing to a server; `muster auth push` does.

use std::path::PathBuf;

use muster_identity::{Account, Role, UserEntry};

use super::error::AuthError;
use super::init::{account_key, keep_watcher, new_signer};
use super::key_store::{KeyStore, SERVER_CONFIG, SYSTEM_SEED, WATCHER_CREDS, key};
use super::results::UpgradeResult;
use super::signing::{SignedCreds, key_of_file, sign_service};
use crate::config::VaultArgs;

/// Upgrades the directory.
pub(super) fn run(args: &VaultArgs, now: u64) -> Result<UpgradeResult, AuthError> {
    let mut store = KeyStore::open_of_any_release(&args.dir)?;
    let new_accounts = add_accounts(&mut store);
    let new_roles = add_signers(&mut store)?;
    // The keys first, because everything signed with them can be signed again.
    store.write_authority()?;
    if !store.path(WATCHER_CREDS).exists() {
        keep_watcher(&args.dir, &key(&store.path(SYSTEM_SEED))?, now)?;
    }
    let mut upgraded = UpgradeResult {
        dir: args.dir.clone(),
        config: args.dir.join(SERVER_CONFIG),
        new_accounts,
        renewed: Vec::new(),
        to_renew: Vec::new(),
    };
    let (known, mut signed) = (enrolled(&store, now), Vec::new());
    for role in new_roles.into_iter().filter(|role| role.is_everyday()) {
        let file = creds_file(&store, role.as_str());
        signed.push(sign_service(&mut store, role, role.as_str(), file, now, None)?);
    }
    for entry in known {
        match renew(&mut store, &entry, now)? {
            Some(again) => signed.push(again),
            None => upgraded.to_renew.push(entry),
        }
    }
    // This writes the registry.
    store.sign_accounts(now)?;
    signed.iter().try_for_each(SignedCreds::write)?;
    upgraded.renewed = signed.into_iter().map(|signed| signed.entry).collect();
    Ok(upgraded)
}

/// Adds the missing accounts; returns their names.
fn add_accounts(store: &mut KeyStore) -> Vec<String> {
    let authority = &mut store.authority;
    let missing = [
        (Account::Readers, &mut authority.readers),
        (Account::People, &mut authority.people),
        (Account::Checkers, &mut authority.checkers),
    ];
    let mut added = Vec::new();
    for (account, key) in missing.into_iter().filter(|(_, key)| key.is_empty()) {
        *key = account_key();
        added.push(account.as_str().to_owned());
    }
    added
}

/// Adds the missing signing keys; returns their roles.
fn add_signers(store: &mut KeyStore) -> Result<Vec<Role>, AuthError> {
    let is_new = |role: &Role| !store.authority.signers.contains_key(role.as_str());
    let missing: Vec<_> = Role::ALL.into_iter().filter(is_new).collect();
    for role in &missing {
        let key = new_signer(&store.path(""), *role)?;
        store.authority.signers.insert(role.as_str().to_owned(), key);
    }
    Ok(missing)
}

/// Services and people with valid tokens.
pub(super) fn enrolled(store: &KeyStore, now: u64) -> Vec<UserEntry> {
    let is_user = |entry: &&UserEntry| Role::of(&entry.role).is_some_and(|role| role != Role::Device);
    store.registry.users.iter().filter(is_user).filter(|entry| entry.is_valid(now)).cloned().collect()
}

/// Signs the token of a user again until the same time, if the directory has its credentials file.
pub(super) fn renew(
    store: &mut KeyStore,
    entry: &UserEntry,
    now: u64,
) -> Result<Option<SignedCreds>, AuthError> {
    let file = creds_file(store, &entry.name);
    let Some(role) = Role::of(&entry.role).filter(|_| file.is_file()) else { return Ok(None) };
    if key_of_file(&file)?.0.public_key() != entry.key {
        return Ok(None);
    }
    let valid = entry.expires.map(|expires| expires.saturating_sub(now));
    sign_service(store, role, &entry.name, file, now, valid).map(Some)
}

fn creds_file(store: &KeyStore, name: &str) -> PathBuf {
    store.path(&format!("creds/{name}.creds"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use muster_identity::{creds, jwt};
    use serde_json::Value;

    use super::*;
    use crate::auth::init;
    use crate::auth::key_store::REGISTRY_WRITES;
    use crate::config::InitArgs;

    /// A directory of the release before this one.
    fn older(dir: &Path) -> VaultArgs {
        let args = VaultArgs { dir: dir.to_owned() };
        let (name, resolver_dir) = ("fleet".to_owned(), "accounts".to_owned());
        init::run(&InitArgs { vault: args.clone(), name, resolver_dir }, 1).unwrap();
        let file = dir.join("authority.json");
        let mut authority: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for account in ["readers", "people", "checkers"] {
            authority.as_object_mut().unwrap().remove(account);
        }
        for role in ["keeper", "checker"] {
            authority["signers"].as_object_mut().unwrap().remove(role);
            std::fs::remove_file(dir.join(format!("signers/{role}.seed"))).unwrap();
            std::fs::remove_file(dir.join(format!("creds/{role}.creds"))).unwrap();
        }
        std::fs::write(&file, authority.to_string()).unwrap();
        std::fs::remove_file(dir.join("creds/watcher.creds")).unwrap();
        let file = dir.join("roster.json");
        let mut registry: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let is_older = |user: &Value| user["role"] != "keeper" && user["role"] != "checker";
        registry["users"].as_array_mut().unwrap().retain(is_older);
        std::fs::write(&file, registry.to_string()).unwrap();
        args
    }

    fn token(dir: &Path, name: &str) -> jwt::TokenClaims {
        let text = std::fs::read_to_string(dir.join(format!("creds/{name}.creds"))).unwrap();
        jwt::read(creds::token(&text).unwrap()).unwrap()
    }

    #[test]
    fn an_upgrade_keeps_every_key_and_moves_people_to_their_account() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("auth");
        let args = older(&dir);
        assert!(matches!(KeyStore::open(&dir), Err(AuthError::Outdated(_))));
        let (viewer, rollup) = (token(&dir, "viewer"), token(&dir, "rollup"));
        let upgraded = run(&args, 5).unwrap();
        assert_eq!(upgraded.new_accounts, ["READERS", "PEOPLE", "CHECKERS"]);
        assert!(upgraded.to_renew.is_empty(), "{:?}", upgraded.to_renew);
        let store = KeyStore::open(&dir).unwrap();
        let now = (token(&dir, "viewer"), token(&dir, "rollup"), token(&dir, "keeper"));
        assert_eq!((&now.0.sub, &now.1.sub), (&viewer.sub, &rollup.sub));
        assert_eq!(now.0.nats.issuer_account, store.authority.people);
        assert_eq!(now.1.nats.issuer_account, store.authority.hub);
        assert_eq!(now.2.nats.issuer_account, store.authority.readers);
        assert_eq!(token(&dir, "checker").nats.issuer_account, store.authority.checkers);
        assert!(now.1.tag("signer-operator").is_some(), "the rollup knows an operator");
        assert_eq!(token(&dir, "watcher").tag("role"), Some("watcher"));
    }

    #[test]
    fn a_second_upgrade_adds_nothing() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("auth");
        let args = older(&dir);
        run(&args, 5).unwrap();
        let (accounts, keeper) = (KeyStore::open(&dir).unwrap().authority.people, token(&dir, "keeper").sub);
        let again = run(&args, 6).unwrap();
        assert!(again.new_accounts.is_empty());
        assert_eq!(
            (KeyStore::open(&dir).unwrap().authority.people, token(&dir, "keeper").sub),
            (accounts, keeper)
        );
    }

    #[test]
    fn one_write_registers_every_token_of_a_command() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("auth");
        let args = older(&dir);
        assert_eq!(REGISTRY_WRITES.take(), 1, "of init");
        let upgraded = run(&args, 5).unwrap();
        assert_eq!(REGISTRY_WRITES.take(), 1, "of upgrade");
        assert!(upgraded.renewed.len() > 1, "{:?}", upgraded.renewed);
        let users = KeyStore::open(&dir).unwrap().into_registry().users;
        assert!(upgraded.renewed.iter().all(|entry| entry.issued == 5 && users.contains(entry)));
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
