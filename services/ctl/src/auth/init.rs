//! `muster auth init`: creates a directory of keys beside its place and renames it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use muster_identity::{KeyPair, Role, UserRegistry, claims, creds};

use super::error::AuthError;
use super::key_store::{
    self, Authority, KeyStore, OPERATOR_SEED, PUSH_CREDS, SYSTEM_SEED, WATCHER_CREDS, failed, private_folder,
    signer_seed, write_file,
};
use super::results::InitResult;
use super::signing::{SignedCreds, seed, sign_service};
use crate::config::InitArgs;

/// Creates operator, accounts, signing keys and the credentials of every role.
///
/// The accounts' own keys sign nothing, so only their public keys are kept.
pub(super) fn run(args: &InitArgs, now: u64) -> Result<InitResult, AuthError> {
    let dir = &args.vault.dir;
    refuse_if_there(dir)?;
    let beside = beside(dir);
    // An init that was killed leaves it; its keys are not in use.
    if beside.exists() {
        fs::remove_dir_all(&beside).map_err(failed("remove", &beside))?;
    }
    fill(&beside, args, now)?;
    refuse_if_there(dir)?;
    fs::rename(&beside, dir).map_err(failed("write", dir))?;
    Ok(InitResult { dir: dir.clone(), config: dir.join(key_store::SERVER_CONFIG) })
}

fn refuse_if_there(dir: &Path) -> Result<(), AuthError> {
    let there = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => dir.exists(),
    };
    if there { Err(AuthError::Exists(dir.to_owned())) } else { Ok(()) }
}

fn beside(dir: &Path) -> PathBuf {
    // The components drop a slash at the end.
    let mut name = dir.components().collect::<PathBuf>().into_os_string();
    name.push(".being-made");
    name.into()
}

fn fill(folder: &Path, args: &InitArgs, now: u64) -> Result<(), AuthError> {
    for folder in [folder.to_owned(), folder.join("signers"), folder.join("creds")] {
        private_folder(&folder)?;
    }
    let (operator, system) = (KeyPair::new_operator(), KeyPair::new_account());
    keep_seed(&folder.join(OPERATOR_SEED), &operator)?;
    keep_seed(&folder.join(SYSTEM_SEED), &system)?;
    let authority = Authority {
        name: args.name.clone(),
        hub: account_key(),
        devices: account_key(),
        readers: account_key(),
        people: account_key(),
        checkers: account_key(),
        system: system.public_key(),
        operator_token: claims::operator(&operator, "muster", &system.public_key(), now)?,
        system_token: claims::system(&operator, &system.public_key(), now)?,
        signers: signers(folder)?,
        resolver_dir: args.resolver_dir.clone(),
        sites: BTreeMap::new(),
    };
    key_store::write_new(folder, &authority, &UserRegistry::default())?;
    let pusher = KeyPair::new_user();
    let token = claims::pusher(&system, &pusher.public_key(), now)?;
    write_file(&folder.join(PUSH_CREDS), &creds::to_text(&token, &seed(&pusher)?), true)?;
    keep_watcher(folder, &system, now)?;
    let mut store = KeyStore::open(folder)?;
    let mut signed = Vec::new();
    for role in Role::ALL.into_iter().filter(|role| role.is_everyday()) {
        let file = store.path(&format!("creds/{}.creds", role.as_str()));
        signed.push(sign_service(&mut store, role, role.as_str(), file, now, None)?);
    }
    // This writes the registry.
    store.sign_accounts(now)?;
    signed.iter().try_for_each(SignedCreds::write)
}

/// The public key of a new account.
pub(super) fn account_key() -> String {
    KeyPair::new_account().public_key()
}

/// Creates the credentials of the user that counts connections.
pub(super) fn keep_watcher(folder: &Path, system: &KeyPair, now: u64) -> Result<(), AuthError> {
    let watcher = KeyPair::new_user();
    let token = claims::watcher(system, &watcher.public_key(), now)?;
    write_file(&folder.join(WATCHER_CREDS), &creds::to_text(&token, &seed(&watcher)?), true)
}

fn signers(folder: &Path) -> Result<BTreeMap<String, String>, AuthError> {
    let mut signers = BTreeMap::new();
    for role in Role::ALL {
        signers.insert(role.as_str().to_owned(), new_signer(folder, role)?);
    }
    Ok(signers)
}

/// Creates the signing key of a role; returns its public key.
pub(super) fn new_signer(folder: &Path, role: Role) -> Result<String, AuthError> {
    let key = KeyPair::new_account();
    keep_seed(&folder.join(signer_seed(role)), &key)?;
    Ok(key.public_key())
}

fn keep_seed(path: &Path, key: &KeyPair) -> Result<(), AuthError> {
    write_file(path, &format!("{}\n", seed(key)?), true)
}
