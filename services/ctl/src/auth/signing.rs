//! Enrols services and people in the registry in memory, and signs their credentials. It sends nothing; the caller writes the registry.

use std::path::{Path, PathBuf};

use muster_contract::SiteId;
use muster_identity::{KeyPair, Role, UserEntry, claims, creds, jwt};

use super::error::AuthError;
use super::key_store::{KeyStore, failed, write_file};

/// Credentials whose user is in the registry in memory. They are written after the registry: nobody has a token that the
/// registry on disk does not know.
pub(super) struct SignedCreds {
    pub(super) entry: UserEntry,
    pub(super) is_new_key: bool,
    pub(super) file: PathBuf,
    text: String,
}

impl SignedCreds {
    pub(super) fn write(&self) -> Result<(), AuthError> {
        write_file(&self.file, &self.text, true)
    }
}

/// As [`sign_user`], for the sites that the credentials file names already, if any.
pub(super) fn sign_service(
    store: &mut KeyStore,
    role: Role,
    name: &str,
    file: PathBuf,
    now: u64,
    valid: Option<u64>,
) -> Result<SignedCreds, AuthError> {
    let sites = sites_of_file(&file);
    sign_user(store, role, &sites, name, file, now, valid)
}

/// The sites that the token of a credentials file names.
fn sites_of_file(file: &Path) -> Vec<SiteId> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let token = creds::token(&text).and_then(|token| jwt::read(token).ok());
    let tags = token.map(|token| token.nats.tags).unwrap_or_default();
    tags.iter().filter_map(|tag| tag.strip_prefix("site:")?.parse().ok()).collect()
}

/// Enrols a service or a person in the registry in memory, and signs the credentials.
pub(super) fn sign_user(
    store: &mut KeyStore,
    role: Role,
    sites: &[SiteId],
    name: &str,
    file: PathBuf,
    now: u64,
    valid: Option<u64>,
) -> Result<SignedCreds, AuthError> {
    if role != Role::Margo && !sites.is_empty() {
        return Err(AuthError::NoSites(role.as_str()));
    }
    let (pair, is_new_key) = key_of_file(&file)?;
    let entry = store.registry.enroll(name, role.as_str(), &pair.public_key(), now, valid, false)?;
    let signers = store.authority.signers();
    let (signer, user) = (store.signer(role)?, user(store, &entry));
    let token = match role {
        Role::Margo => claims::margo(&signer, &user, name, (!sites.is_empty()).then_some(sites))?,
        _ => claims::service(&signer, &user, role, name, &signers)?,
    };
    Ok(SignedCreds { entry, is_new_key, file, text: creds::to_text(&token, &seed(&pair)?) })
}

/// The user of an entry, as its token names it.
pub(super) fn user<'a>(store: &'a KeyStore, entry: &'a UserEntry) -> claims::User<'a> {
    let account = Role::of(&entry.role).map_or("", |role| store.authority.account(role.account()));
    claims::User { account, key: &entry.key, issued: entry.issued, expires: entry.expires }
}

/// The key of a credentials file, or a new one without the file; returns whether it is new.
pub(super) fn key_of_file(path: &Path) -> Result<(KeyPair, bool), AuthError> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let pair = creds::seed(&text).and_then(|seed| KeyPair::from_seed(seed).ok());
            pair.map(|pair| (pair, false)).ok_or_else(|| AuthError::NoCreds(path.to_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((KeyPair::new_user(), true)),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// The seed of a key that has one.
pub(super) fn seed(key: &KeyPair) -> Result<String, AuthError> {
    Ok(key.seed().map_err(|error| muster_identity::TokenError::Key(error.to_string()))?)
}
