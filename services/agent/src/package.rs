//! Fetches packages of components to the device: gzip-compressed tar archives by https and from the hub's object store, and
//! artifacts of OCI registries. A package that was placed once is used offline from then on.
//!
//! ```text
//! PackageSource ─► cached by digest? ─► registry, http, hub ─► packages/….part ─► digest ─► packages/sha256-…
//!                                                                                        │
//! HOME/package ◄── rename, the commit point ◄── HOME/package.new ◄── unpack within limits ◄┘
//! ```
//!
//! A package that needs a [`signature`] is verified before it is unpacked. This module does not pull container images or run
//! anything.

mod cache;
mod credentials;
mod error;
mod http;
mod hub;
mod registry;
mod settings;
mod signature;
mod source;
mod unpack;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_bus::Bus;
use muster_contract::canonical::Digest;
use muster_contract::limits::SIGNATURE_BYTES_MAX;
use muster_contract::packages::ObjectName;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use ureq::http::StatusCode;

use self::cache::Cache;
use self::credentials::Credentials;
pub use self::error::PackageError;
use self::http::{Download, Get, HttpClient, require_success};
use self::hub::HubStore;
use self::registry::Registry;
pub use self::settings::{CACHE_BYTES_DEFAULT, PACKAGE_BYTES_MAX, PackageSettings};
pub use self::signature::KeyLocation;
use self::signature::{PublicKey, SignaturePolicy, SignedMessage, decoded, device_keys, is_signed};
pub use self::source::{PackageSource, shown};

const FOLDER: &str = "package";
const FOLDER_NEW: &str = "package.new";
/// A file in the folder: a line with the source that it was made from, and a line for each signature that it was verified with.
const ORIGIN: &str = ".muster-source";

/// Places packages in the folders of units, one at a time: a thin link serves one fetch best.
#[derive(Debug, Clone)]
pub struct PackageStore {
    inner: Arc<Mutex<Fetcher>>,
    keys: Arc<[PathBuf]>,
}

#[derive(Debug)]
struct Fetcher {
    settings: PackageSettings,
    cache: Cache,
    hub: HubStore,
}

/// An archive that was fetched.
struct Archive {
    file: PathBuf,
    /// The digest that it was verified with.
    digest: Option<Digest>,
    /// A line for each signature that it was verified with.
    signers: Vec<String>,
}

/// Cancels a fetch on its own thread when the future that waits for it is dropped.
struct Fetch {
    source: PackageSource,
    /// The key that the component names.
    key: Option<KeyLocation>,
    home: PathBuf,
    stop: CancellationToken,
}

impl PackageStore {
    /// A store whose cache is below the data directory of the agent, and which has no hub. Reads and writes nothing yet.
    pub fn new(data_dir: &Path, settings: PackageSettings) -> Self {
        Self::with_hub(data_dir, settings, watch::channel(None).1)
    }

    /// The same with the connection of the agent, over which packages of the hub's object store are fetched.
    pub fn with_hub(
        data_dir: &Path,
        settings: PackageSettings,
        connected: watch::Receiver<Option<Bus>>,
    ) -> Self {
        let cache = Cache::new(data_dir, settings.cache_bytes);
        let (keys, hub) = (settings.keys.clone().into(), HubStore::new(connected, settings.rate));
        Self { keys, inner: Arc::new(Mutex::new(Fetcher { settings, cache, hub })) }
    }

    /// The folder with the files of a package below `home`, which exists; `key` is the one that its component names. Dropping the
    /// future ends the fetch; the next one goes on where it ended.
    ///
    /// # Errors
    /// It cannot be fetched, verified, unpacked or stored.
    pub async fn ensure_unpacked(
        &self,
        source: &PackageSource,
        key: Option<&KeyLocation>,
        home: &Path,
    ) -> Result<PathBuf, PackageError> {
        let folder = home.join(FOLDER);
        if is_unpacked(&folder, source, &device_keys(&self.keys)?, key) {
            return Ok(folder);
        }
        let fetcher = Arc::clone(&self.inner).lock_owned().await;
        let stop = CancellationToken::new();
        let _stops_on_drop = stop.clone().drop_guard();
        let fetch = Fetch { source: source.clone(), key: key.cloned(), home: home.to_owned(), stop };
        tokio::task::spawn_blocking(move || fetcher.fetch_and_unpack(&fetch)).await??;
        Ok(folder)
    }
}

impl Fetcher {
    fn fetch_and_unpack(&self, fetch: &Fetch) -> Result<(), PackageError> {
        self.cache.create()?;
        let http = HttpClient::new(&self.settings)?;
        let credentials = Credentials::read(self.settings.credentials.as_deref())?;
        let policy = SignaturePolicy::new(device_keys(&self.settings.keys)?, fetch.key.as_ref(), &http)?;
        let Archive { file: archive, digest, signers } = self.archive(fetch, http, credentials, &policy)?;
        let unpacked = unpack_to(&archive, &fetch.home, &fetch.source, &signers);
        self.cache.release(&archive, digest.is_some() && unpacked.is_ok());
        unpacked?;
        tracing::info!(
            package = %fetch.source, package.digest = digest.map(|digest| digest.to_string()), "placed a package"
        );
        Ok(())
    }

    /// A complete and verified archive in the cache.
    fn archive(
        &self,
        fetch: &Fetch,
        http: HttpClient,
        credentials: Credentials,
        policy: &SignaturePolicy,
    ) -> Result<Archive, PackageError> {
        match &fetch.source {
            PackageSource::Archive { url, digest } => {
                let authorization = credentials.basic(source::host(url));
                let download = Download { url: url.clone(), authorization, bytes: None, digest: *digest };
                let file = self.download(&http, &download, &fetch.stop)?;
                let signers = if policy.is_empty() {
                    Vec::new()
                } else {
                    verified(&http, &download, &file, policy)
                        .inspect_err(|_| self.cache.release(&file, digest.is_some()))?
                };
                Ok(Archive { file, digest: *digest, signers })
            }
            PackageSource::Hub { name, digest } => {
                let (file, digest) = self.hub_object(name, *digest, &fetch.stop)?;
                let signers = if policy.is_empty() {
                    Vec::new()
                } else {
                    self.verified_hub_object(name, &file, policy, &fetch.stop)
                        .inspect_err(|_| self.cache.release(&file, true))?
                };
                Ok(Archive { file, digest: Some(digest), signers })
            }
            PackageSource::Registry(reference) => {
                let mut registry = Registry::new(http, reference.clone(), credentials);
                let (layer, manifest) = registry.layer()?;
                let signers = if policy.is_empty() {
                    Vec::new()
                } else {
                    policy.check(&reference.to_string(), &registry.signatures(&manifest)?)?
                };
                let file = match self.cache.get(&layer.digest) {
                    Some(archive) => archive,
                    None => self.download(&registry.http, &registry.download(&layer), &fetch.stop)?,
                };
                Ok(Archive { file, digest: Some(layer.digest), signers })
            }
        }
    }

    /// An object of the hub's object store, with its digest. Its record says before the transfer whether it is the right one.
    fn hub_object(
        &self,
        name: &ObjectName,
        digest: Option<Digest>,
        stop: &CancellationToken,
    ) -> Result<(PathBuf, Digest), PackageError> {
        if let Some((file, digest)) = digest.and_then(|digest| Some((self.cache.get(&digest)?, digest))) {
            return Ok((file, digest));
        }
        let record = self.hub.record(name, stop)?;
        let recorded = hub::digest_of(&record);
        if let Some(expected) = digest.filter(|expected| *expected != recorded) {
            return Err(PackageError::Digest { address: name.address(), found: recorded, expected });
        }
        if let Some(file) = self.cache.get(&recorded) {
            return Ok((file, recorded));
        }
        let part = self.cache.part_of(&recorded);
        self.hub.download(name, &record, &part, stop)?;
        Ok((self.complete(&part, recorded, &name.address())?, recorded))
    }

    /// Verifies a fetched file, and moves it to its place in the cache.
    fn complete(&self, part: &Path, expected: Digest, address: &str) -> Result<PathBuf, PackageError> {
        let found = cache::digest_of(part)?;
        if found != expected {
            self.cache.release(part, false);
            return Err(PackageError::Digest { address: address.to_owned(), found, expected });
        }
        self.cache.insert(part, &expected)
    }

    /// Verifies the signature beside an object, as that beside an archive.
    fn verified_hub_object(
        &self,
        name: &ObjectName,
        file: &Path,
        policy: &SignaturePolicy,
        stop: &CancellationToken,
    ) -> Result<Vec<String>, PackageError> {
        let Some(text) = self.hub.small(&name.signature(), SIGNATURE_BYTES_MAX, stop)? else {
            return policy.check(&name.address(), &[]);
        };
        check_signature(&name.address(), file, text, policy)
    }

    fn download(
        &self,
        http: &HttpClient,
        download: &Download,
        stop: &CancellationToken,
    ) -> Result<PathBuf, PackageError> {
        if let Some(archive) = download.digest.and_then(|digest| self.cache.get(&digest)) {
            return Ok(archive);
        }
        let part = self.cache.part(download);
        http.download(download, &part, stop)?;
        let Some(expected) = download.digest else { return Ok(part) };
        self.complete(&part, expected, &shown(&download.url))
    }
}

/// Verifies the signature beside an archive. It is over the whole file, which is read into memory.
fn verified(
    http: &HttpClient,
    download: &Download,
    file: &Path,
    policy: &SignaturePolicy,
) -> Result<Vec<String>, PackageError> {
    let url = source::signature_url(&download.url);
    let get = Get {
        url: &url,
        accept: "*/*",
        authorization: download.authorization.as_deref(),
        max: SIGNATURE_BYTES_MAX,
    };
    let (answer, body) = http.get(get)?;
    if answer.status() == StatusCode::NOT_FOUND {
        return policy.check(&download.url, &[]);
    }
    require_success(&answer, &url)?;
    check_signature(&download.url, file, body, policy)
}

/// Checks the text of a signature over a whole file; returns who signed it.
fn check_signature(
    address: &str,
    file: &Path,
    text: Vec<u8>,
    policy: &SignaturePolicy,
) -> Result<Vec<String>, PackageError> {
    let signature = String::from_utf8(text).ok().and_then(|text| decoded(&text)).unwrap_or_default();
    let message = fs::read(file).map_err(|source| PackageError::Write { path: file.to_owned(), source })?;
    policy.check(address, &[SignedMessage { message, signature }])
}

/// Whether a folder has the package of this source, whole and with the signatures that it needs.
fn is_unpacked(
    folder: &Path,
    source: &PackageSource,
    device: &[PublicKey],
    key: Option<&KeyLocation>,
) -> bool {
    let Ok(origin) = fs::read_to_string(folder.join(ORIGIN)) else { return false };
    let lines: Vec<&str> = origin.lines().collect();
    lines.first() == Some(&source.identity().as_str()) && is_signed(&lines[1..], device, key)
}

/// Unpacks an archive into the folder of the package: a kill leaves the old folder, none or the new one, never a part of it.
fn unpack_to(
    archive: &Path,
    home: &Path,
    source: &PackageSource,
    signers: &[String],
) -> Result<(), PackageError> {
    let (folder, beside) = (home.join(FOLDER), home.join(FOLDER_NEW));
    let failed = |path: &Path, source| PackageError::Write { path: path.to_owned(), source };
    remove(&beside).map_err(|error| failed(&beside, error))?;
    unpack::unpack(archive, &beside, source)?;
    let origin = signers.iter().fold(source.identity(), |text, line| text + "\n" + line);
    fs::write(beside.join(ORIGIN), origin).map_err(|error| failed(&beside, error))?;
    // Otherwise a power cut could leave the new folder with empty files.
    let synced = File::open(&beside).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
    synced.map_err(|error| failed(&beside, error))?;
    remove(&folder).map_err(|error| failed(&folder, error))?;
    fs::rename(&beside, &folder).map_err(|error| failed(&folder, error))
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
