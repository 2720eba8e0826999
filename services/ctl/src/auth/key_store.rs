//! The directory of keys: one process at a time writes it, every file is replaced as a whole, and other users cannot read it.
//!
//! `roster.json`, the registry of users, is authoritative; every signing writes `nats-server.conf` from it and after it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use muster_contract::SiteId;
use muster_identity::{Account, KeyPair, Role, UserRegistry, claims, leaf};
use serde::{Deserialize, Serialize};

use super::error::AuthError;

const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
const PRIVATE_FOLDER: u32 = 0o700;
pub(super) const AUTHORITY: &str = "authority.json";
pub(super) const OPERATOR_SEED: &str = "operator.seed";
pub(super) const SYSTEM_SEED: &str = "system.seed";
pub(crate) const SERVER_CONFIG: &str = "nats-server.conf";
pub(super) const PUSH_CREDS: &str = "creds/push.creds";
/// The credentials of the user that counts connections (`muster-ingest --system-creds`).
pub(super) const WATCHER_CREDS: &str = "creds/watcher.creds";
/// The folder with a folder for the server of each site.
pub(crate) const LEAVES: &str = "leaves";
/// The credentials of a site's server at the hub.
pub(super) const LEAF_CREDS: &str = "leaf.creds";
const REGISTRY: &str = "roster.json";
const LOCK: &str = "lock";

/// The accounts and public keys of the directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Authority {
    /// The accounts' name.
    pub(super) name: String,
    /// The public key of HUB.
    pub(super) hub: String,
    /// The public key of DEVICES.
    pub(super) devices: String,
    /// The public key of READERS; empty in a directory of a release that had no such account.
    #[serde(default)]
    pub(super) readers: String,
    /// The public key of PEOPLE; empty as that of READERS.
    #[serde(default)]
    pub(super) people: String,
    /// The public key of CHECKERS; empty as that of READERS.
    #[serde(default)]
    pub(super) checkers: String,
    /// The public key of the system account.
    pub(super) system: String,
    /// The operator's token.
    pub(super) operator_token: String,
    /// The token of the system account.
    pub(super) system_token: String,
    /// The public signing key of each role, by its name.
    pub(super) signers: BTreeMap<String, String>,
    /// The directory in which nats-server stores accounts.
    pub(super) resolver_dir: String,
    /// The public key of the account of each site that has a server of its own.
    #[serde(default)]
    pub(super) sites: BTreeMap<SiteId, String>,
}

/// The open directory, locked by this process.
#[derive(Debug)]
pub(super) struct KeyStore {
    dir: PathBuf,
    pub(super) authority: Authority,
    pub(super) registry: UserRegistry,
    _lock: File,
}

impl Authority {
    /// The public key of an account.
    pub(super) fn account(&self, account: Account) -> &str {
        match account {
            Account::Hub => &self.hub,
            Account::Devices => &self.devices,
            Account::Readers => &self.readers,
            Account::People => &self.people,
            Account::Checkers => &self.checkers,
        }
    }

    /// Whether it has every account and every role's signing key of this release.
    pub(super) fn is_current(&self) -> bool {
        Account::ALL.into_iter().all(|account| !self.account(account).is_empty())
            && Role::ALL.into_iter().all(|role| self.signers.contains_key(role.as_str()))
    }

    /// The public signing key of each role.
    pub(super) fn signers(&self) -> BTreeMap<Role, String> {
        self.signers.iter().filter_map(|(name, key)| Some((Role::of(name)?, key.clone()))).collect()
    }
}

impl KeyStore {
    /// Opens the directory; waits while another process has locked it.
    ///
    /// # Errors
    /// The directory is unusable, or an older release made it and it was not upgraded.
    pub(super) fn open(dir: &Path) -> Result<Self, AuthError> {
        let store = Self::open_of_any_release(dir)?;
        if store.authority.is_current() { Ok(store) } else { Err(AuthError::Outdated(dir.to_owned())) }
    }

    /// Opens a directory of any release.
    pub(super) fn open_of_any_release(dir: &Path) -> Result<Self, AuthError> {
        if !dir.join(AUTHORITY).is_file() {
            return Err(AuthError::Missing(dir.to_owned()));
        }
        let lock = dir.join(LOCK);
        let held = options(SECRET).create(true).truncate(false).open(&lock).and_then(|file| {
            file.lock()?;
            Ok(file)
        });
        let held = held.map_err(failed("lock", &lock))?;
        let authority = parsed(&dir.join(AUTHORITY), "what `muster auth init` wrote")?;
        let registry = parsed(&dir.join(REGISTRY), "a roster")?;
        Ok(Self { dir: dir.to_owned(), authority, registry, _lock: held })
    }

    /// Closes the directory and returns its registry.
    pub(super) fn into_registry(self) -> UserRegistry {
        self.registry
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The key that signs the tokens of a role.
    pub(super) fn signer(&self, role: Role) -> Result<KeyPair, AuthError> {
        key(&self.path(&signer_seed(role)))
    }

    /// Writes the registry, as a whole: once for all tokens of a command, and before any of them is handed out.
    pub(super) fn write_registry(&self) -> Result<(), AuthError> {
        #[cfg(test)]
        REGISTRY_WRITES.set(REGISTRY_WRITES.get() + 1);
        write_file(&self.path(REGISTRY), &(json(&self.registry) + "\n"), true)
    }

    /// Writes the accounts and public keys.
    pub(super) fn write_authority(&self) -> Result<(), AuthError> {
        write_file(&self.path(AUTHORITY), &(json(&self.authority) + "\n"), true)
    }

    /// Signs the accounts with the revocations of the registry, and writes the registry and the configurations of the servers
    /// of the hub and of sites. Returns the hub's tokens in the order in which a server must get them.
    pub(super) fn sign_accounts(&mut self, now: u64) -> Result<Vec<String>, AuthError> {
        let issued = self.registry.next_signing(now);
        // The registry first: if the rest is interrupted, the next signing repeats it.
        self.write_registry()?;
        let operator = key(&self.path(OPERATOR_SEED))?;
        let (signers, revocations) = (self.authority.signers(), self.registry.revocations());
        let named = |account: Account| (account, self.authority.account(account).to_owned());
        let accounts = Account::ALL.map(named).into_iter().collect();
        let name = &self.authority.name;
        let described =
            claims::Fleet { name, accounts: &accounts, signers: &signers, revocations: &revocations };
        let mut tokens = claims::fleet(&operator, &described, issued)?;
        for (site, key) in &self.authority.sites {
            tokens.push(leaf::site_account(&operator, &described, site, key, issued)?);
        }
        write_file(&self.path(SERVER_CONFIG), &server_config(&self.authority, &tokens), false)?;
        let at_sites = leaf::devices_account(&operator, &described, issued)?;
        for site in self.authority.sites.keys() {
            let config = leaf_config(&self.authority, site, &at_sites);
            write_file(&self.leaf(site).join(SERVER_CONFIG), &config, false)?;
        }
        Ok(tokens)
    }

    /// The folder of a site's server.
    pub(super) fn leaf(&self, site: &SiteId) -> PathBuf {
        self.dir.join(LEAVES).join(site.as_str())
    }
}

#[cfg(test)]
thread_local! {
    /// Writes of registries by this test.
    pub(super) static REGISTRY_WRITES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The lines that a server's configuration includes.
fn server_config(authority: &Authority, tokens: &[String]) -> String {
    let Authority { system, operator_token, system_token, resolver_dir, sites, .. } = authority;
    let own = Account::ALL.into_iter().map(|account| authority.account(account));
    let accounts = own.chain(sites.values().map(String::as_str)).zip(tokens);
    let preload: String = accounts.map(|(account, token)| format!("  {account}: {token}\n")).collect();
    format!(
        "# Who may do what, for nats-server: include this in its configuration, beside a jetstream block and\n\
         #   tls {{ cert_file: \"…\", key_file: \"…\" }}\n\
         # Written by `muster auth`, and again at each signing. A running server keeps the newest in {resolver_dir:?}.\n\
         operator: {operator_token}\n\
         system_account: {system}\n\
         resolver: {{ type: full, dir: {resolver_dir:?}, allow_delete: false, interval: \"2m\" }}\n\
         resolver_preload: {{\n  {system}: {system_token}\n{preload}}}\n"
    )
}

/// The lines that the configuration of a site's server includes.
fn leaf_config(authority: &Authority, site: &SiteId, of_devices: &str) -> String {
    let Authority { devices, system, operator_token, system_token, .. } = authority;
    format!(
        "# Who may do what on the leaf node of site {site}, for its nats-server: include this in its configuration, beside\n\
         #   jetstream {{ domain: {site}, store_dir: \"…\" }}\n\
         #   tls {{ cert_file: \"…\", key_file: \"…\" }}\n\
         #   leafnodes {{ remotes: [{{ urls: [\"tls://HUB:7422\"], account: $DEVICES, credentials: \"…/{LEAF_CREDS}\" }}] }}\n\
         # Written by `muster auth`, and again at each signing. A running server applies it when it reloads its configuration.\n\
         DEVICES: {devices}\n\
         operator: {operator_token}\n\
         system_account: {system}\n\
         resolver: MEMORY\n\
         resolver_preload: {{\n  {system}: {system_token}\n  {devices}: {of_devices}\n}}\n"
    )
}

/// The file of a role's signing key.
pub(super) fn signer_seed(role: Role) -> String {
    format!("signers/{}.seed", role.as_str())
}

/// Reads a key.
pub(super) fn key(path: &Path) -> Result<KeyPair, AuthError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    KeyPair::from_seed(text.trim())
        .map_err(|_| AuthError::Malformed { path: path.to_owned(), wanted: "a key that muster made" })
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path, wanted: &'static str) -> Result<T, AuthError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    serde_json::from_str(&text).map_err(|_| AuthError::Malformed { path: path.to_owned(), wanted })
}

/// JSON of a value of this crate, which cannot fail.
pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Replaces a file as a whole.
pub(super) fn write_file(path: &Path, text: &str, secret: bool) -> Result<(), AuthError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let (beside, mode) = (PathBuf::from(beside), if secret { SECRET } else { PUBLIC });
    let written = write_through(&beside, text, mode).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The incomplete file is of no use.
        let _ = fs::remove_file(&beside);
    }
    written.and_then(|()| sync_folder(path)).map_err(failed("write", path))
}

fn write_through(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    // A file that a killed process of the same number left would keep its mode.
    let _ = fs::remove_file(path);
    let mut file = options(mode).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Creates a folder that other users cannot read.
pub(super) fn private_folder(path: &Path) -> Result<(), AuthError> {
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(path).map_err(failed("make", path))
}

fn options(mode: u32) -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true).mode(mode);
    options
}

/// An error of an operation on a file.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthError {
    let path = path.to_owned();
    move |source| AuthError::File { doing, path, source }
}

/// Writes the first registry and the accounts into a new folder.
pub(super) fn write_new(
    folder: &Path,
    authority: &Authority,
    registry: &UserRegistry,
) -> Result<(), AuthError> {
    write_file(&folder.join(REGISTRY), &(json(registry) + "\n"), true)?;
    write_file(&folder.join(AUTHORITY), &(json(authority) + "\n"), true)
}
