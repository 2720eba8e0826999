//! `muster auth rotate`: replaces the signing key of one role, because it is lost, may be known to somebody, or is old.
//!
//! Once the servers have the accounts (`muster auth push`), they refuse every token that the former key signed. Credentials in
//! the directory are signed again, those of services too, which know the keys of people's roles. It changes no user's key.

use muster_identity::Role;

use super::error::AuthError;
use super::init::new_signer;
use super::key_store::KeyStore;
use super::results::RotateResult;
use super::signing::SignedCreds;
use super::upgrade::{enrolled, renew};
use crate::config::RotateArgs;

/// Replaces the key.
pub(super) fn run(args: &RotateArgs, now: u64) -> Result<RotateResult, AuthError> {
    let (mut store, role) = (KeyStore::open(&args.vault.dir)?, args.role);
    let key = new_signer(&store.path(""), role)?;
    store.authority.signers.insert(role.as_str().to_owned(), key);
    // The keys first, because everything signed with them can be signed again (`muster auth upgrade`).
    store.write_authority()?;
    let mut rotated = RotateResult {
        dir: args.vault.dir.clone(),
        role: role.as_str().to_owned(),
        renewed: Vec::new(),
        to_renew: Vec::new(),
        devices: Vec::new(),
    };
    let mut signed = Vec::new();
    for entry in enrolled(&store, now) {
        match renew(&mut store, &entry, now)? {
            Some(again) => signed.push(again),
            None if entry.role == rotated.role => rotated.to_renew.push(entry),
            None => {}
        }
    }
    if role == Role::Device {
        let is_device =
            |entry: &&muster_identity::UserEntry| entry.role == rotated.role && entry.is_valid(now);
        let devices = store.registry.users.iter().filter(is_device).map(|entry| entry.name.clone());
        rotated.devices = devices.collect();
    }
    // This writes the registry.
    store.sign_accounts(now)?;
    signed.iter().try_for_each(SignedCreds::write)?;
    rotated.renewed = signed.into_iter().map(|signed| signed.entry).collect();
    Ok(rotated)
}
