//! The directory of keys that `muster auth init` created: the registry of users, and the devices' signing key.
//!
//! Each round takes the lock that `muster enroll` and `muster revoke` take as well. A directory with only the files that
//! this module reads is enough.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use muster_identity::{KeyPair, Role, UserEntry, UserRegistry, claims};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::due::{self, Token};

const AUTHORITY: &str = "authority.json";
const REGISTRY: &str = "roster.json";
const LOCK: &str = "lock";
/// The mode of a file that only its owner may read.
const SECRET: u32 = 0o600;

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// `read`, `write`, `lock`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file has other content.
    #[error("{} is not {wanted}; restore it from a backup", .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The expected content.
        wanted: &'static str,
    },
    /// A rule of the registry refuses it.
    #[error(transparent)]
    Registry(#[from] muster_identity::RegistryError),
    /// Signing failed.
    #[error("cannot sign")]
    Sign(#[from] muster_identity::TokenError),
}

/// The part of the authority that this module reads.
#[derive(Debug, Deserialize)]
struct Authority {
    devices: String,
}

/// The open directory, locked by this process.
#[derive(Debug)]
pub(crate) struct Keys {
    dir: PathBuf,
    account: String,
    signer: KeyPair,
    registry: UserRegistry,
    _lock: File,
}

impl Keys {
    /// Opens the directory; waits while another process has locked it.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn open(dir: &Path) -> Result<Self, KeysError> {
        let lock = dir.join(LOCK);
        let held = File::options().write(true).create(true).truncate(false).mode(SECRET).open(&lock);
        let held = held.and_then(|file| file.lock().map(|()| file)).map_err(failed("lock", &lock))?;
        let Authority { devices } = parsed(&dir.join(AUTHORITY), "what `muster auth init` wrote")?;
        let registry = parsed(&dir.join(REGISTRY), "a roster")?;
        let seed = dir.join(format!("signers/{}.seed", Role::Device.as_str()));
        let text = fs::read_to_string(&seed).map_err(failed("read", &seed))?;
        let signer = KeyPair::from_seed(text.trim())
            .map_err(|_| KeysError::Broken { path: seed, wanted: "a key that muster made" })?;
        Ok(Self { dir: dir.to_owned(), account: devices, signer, registry, _lock: held })
    }

    /// The tokens of enrolled devices that expire at some time.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.registry.users.iter().filter_map(Token::of).collect()
    }

    /// The role of each credential that a person must renew soon.
    pub(crate) fn roles_ending(&self, now: u64) -> Vec<Role> {
        self.registry.users.iter().filter_map(|entry| due::role_ending(entry, now)).collect()
    }

    /// Signs a token again, with the same lifetime; returns its JWT. The registry has the new times; [`Self::save`] writes
    /// them.
    ///
    /// # Errors
    /// The key cannot sign.
    pub(crate) fn renewed(&mut self, token: &Token, now: u64) -> Result<String, KeysError> {
        let (name, role) = (token.device.to_string(), Role::Device.as_str());
        let entry = self.registry.enroll(&name, role, &token.key, now, Some(token.lifetime()), false)?;
        let UserEntry { key, issued, expires, .. } = &entry;
        let user = claims::User { account: &self.account, key, issued: *issued, expires: *expires };
        Ok(claims::device(&self.signer, &user, &token.device)?)
    }

    /// Gives a token that was not handed over its old times again.
    pub(crate) fn discard(&mut self, token: &Token) {
        for entry in self.registry.users.iter_mut().filter(|entry| entry.key == token.key) {
            (entry.issued, entry.expires) = (token.issued, Some(token.expires));
        }
    }

    /// Writes the registry, as a whole: once for all tokens of a round.
    ///
    /// # Errors
    /// The registry cannot be written.
    pub(crate) fn save(&self) -> Result<(), KeysError> {
        let path = self.dir.join(REGISTRY);
        let text = serde_json::to_string_pretty(&self.registry).unwrap_or_default() + "\n";
        replace(&path, &text).map_err(failed("write", &path))
    }
}

fn parsed<T: DeserializeOwned>(path: &Path, wanted: &'static str) -> Result<T, KeysError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    serde_json::from_str(&text).map_err(|_| KeysError::Broken { path: path.to_owned(), wanted })
}

/// Replaces a file as a whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = (|| {
        let mut file = File::options().write(true).create(true).truncate(true).mode(SECRET).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        // The incomplete file is of no use.
        let _ = fs::remove_file(&beside);
    }
    written?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeysError {
    let path = path.to_owned();
    move |source| KeysError::File { doing, path, source }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory with tokens of these devices that live for 1,000 s.
    pub(crate) fn directory_of(names: &[&str], now: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = UserRegistry::default();
        for name in names {
            let user = KeyPair::new_user().public_key();
            registry.enroll(name, "device", &user, now, Some(1_000), false).unwrap();
        }
        let account = KeyPair::new_account().public_key();
        fs::create_dir(dir.path().join("signers")).unwrap();
        let signer = KeyPair::new_account().seed().unwrap();
        fs::write(dir.path().join("signers/device.seed"), signer + "\n").unwrap();
        fs::write(dir.path().join(AUTHORITY), format!("{{\"devices\": \"{account}\", \"hub\": \"A\"}}"))
            .unwrap();
        fs::write(dir.path().join(REGISTRY), serde_json::to_string(&registry).unwrap()).unwrap();
        dir
    }

    #[test]
    fn a_renewed_token_keeps_key_and_lifetime_and_is_recorded_once_saved() {
        let dir = directory_of(&["plant7/press-4"], 5_000);
        let mut keys = Keys::open(dir.path()).unwrap();
        let token = keys.tokens().remove(0);
        let user = token.key.clone();
        let renewed = keys.renewed(&token, 5_600).unwrap();
        let known = muster_identity::jwt::read(&renewed).unwrap();
        assert_eq!((known.sub, known.iat, known.exp), (user, 5_600, Some(6_600)));
        assert_eq!(known.nats.tags, ["site:plant7", "device:press-4", "role:device"]);
        drop(keys);
        assert_eq!(Keys::open(dir.path()).unwrap().tokens()[0].issued, 5_000, "it was not saved");
        let mut keys = Keys::open(dir.path()).unwrap();
        keys.renewed(&token, 5_600).unwrap();
        keys.save().unwrap();
        drop(keys);
        assert_eq!(Keys::open(dir.path()).unwrap().tokens()[0].issued, 5_600);
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let dir = directory_of(&["plant7/press-4"], 1);
        for (file, text, words) in [
            ("signers/device.seed", Some("no seed"), "is not a key that muster made"),
            ("signers/device.seed", None, "cannot read"),
            (REGISTRY, Some("{"), "is not a roster"),
        ] {
            let path = dir.path().join(file);
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let error = Keys::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains(words), "{file}: {error}");
        }
    }
}
