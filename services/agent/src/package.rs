//! Fetches packages of components to the device: gzip-compressed tar archives by https and from the hub's object store, and
//! artifacts of OCI registries. A package that was placed once is used offline from then on.
//!
//! ```text
//! PackageSource ─► cached by digest? ─► registry, http, hub ─► packages/….part ─► digest ─► packages/sha256-…
//!                                                                                        │
//! HOME/package ◄── rename, the commit point ◄── HOME/package.new ◄── unpack within limits ◄┘
//! ```
//!
//! A package that needs a [`mod@signature`] is verified before it is unpacked. This module does not pull container images or run
//! anything.

mod cache;
mod credentials;
mod error;
mod http;
mod hub;
mod openpgp;
mod progress;
mod public_key;
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
use muster_contract::packages::{ObjectName, SignatureFormat};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use ureq::http::StatusCode;

use self::cache::Cache;
use self::credentials::Credentials;
pub use self::error::PackageError;
use self::http::{Download, Get, HttpClient, require_success};
use self::hub::HubStore;
pub(crate) use self::progress::FetchProgress;
use self::progress::{FetchControl, Fetches};
pub(crate) use self::public_key::KeyLocation;
use self::public_key::{PublicKey, device_keys};
use self::registry::Registry;
pub(crate) use self::settings::CACHE_BYTES_DEFAULT;
pub use self::settings::{PACKAGE_BYTES_MAX, PackageSettings};
use self::signature::{Signature, SignaturePolicy, is_signed};
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
    fetches: Fetches,
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

/// A package to fetch, on a thread of its own.
struct Fetch {
    source: PackageSource,
    /// The key that the component names.
    key: Option<KeyLocation>,
    home: PathBuf,
    /// Cancels it when the future that waits for it is dropped.
    control: FetchControl,
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
        let fetches = Fetches::default();
        Self { keys, fetches, inner: Arc::new(Mutex::new(Fetcher { settings, cache, hub })) }
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
        let begun = self.fetches.begin(home);
        let fetcher = Arc::clone(&self.inner).lock_owned().await;
        let stop = CancellationToken::new();
        let _stops_on_drop = stop.clone().drop_guard();
        let control = begun.control(stop);
        control.advance(0, None);
        let fetch = Fetch { source: source.clone(), key: key.cloned(), home: home.to_owned(), control };
        tokio::task::spawn_blocking(move || fetcher.fetch_and_unpack(&fetch)).await??;
        Ok(folder)
    }

    /// The progress of the fetch for a unit's folder; none while it fetches nothing.
    pub fn progress(&self, home: &Path) -> Option<FetchProgress> {
        self.fetches.of(home)
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
                let file = self.download(&http, &download, &fetch.control)?;
                let signers =
                    verified(fetch, policy, url, &file, |format| signature(&http, &download, format))
                        .inspect_err(|_| self.cache.release(&file, digest.is_some()))?;
                Ok(Archive { file, digest: *digest, signers })
            }
            PackageSource::Hub { name, digest } => {
                let (file, digest) = self.hub_object(name, *digest, &fetch.control)?;
                let signature = |format| {
                    self.hub.small(&name.signature(format), SIGNATURE_BYTES_MAX, &fetch.control.stop)
                };
                let signers = verified(fetch, policy, &name.address(), &file, signature)
                    .inspect_err(|_| self.cache.release(&file, true))?;
                Ok(Archive { file, digest: Some(digest), signers })
            }
            PackageSource::Registry(reference) => {
                let mut registry = Registry::new(http, reference.clone(), credentials);
                let (layer, manifest) = registry.layer()?;
                let needs_none = policy.formats().is_empty();
                let signatures = if needs_none { Vec::new() } else { registry.signatures(&manifest)? };
                let stop = &fetch.control.stop;
                let signers = policy.check(&reference.to_string(), &signatures, &fetch.home, stop)?;
                let file = match self.cache.get(&layer.digest) {
                    Some(archive) => archive,
                    None => self.download(&registry.http, &registry.download(&layer), &fetch.control)?,
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
        control: &FetchControl,
    ) -> Result<(PathBuf, Digest), PackageError> {
        if let Some((file, digest)) = digest.and_then(|digest| Some((self.cache.get(&digest)?, digest))) {
            return Ok((file, digest));
        }
        let record = self.hub.record(name, &control.stop)?;
        let recorded = hub::digest_of(&record);
        if let Some(expected) = digest.filter(|expected| *expected != recorded) {
            return Err(PackageError::Digest { address: name.address(), found: recorded, expected });
        }
        if let Some(file) = self.cache.get(&recorded) {
            return Ok((file, recorded));
        }
        let part = self.cache.part_of(&recorded);
        self.hub.download(name, &record, &part, control)?;
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

    fn download(
        &self,
        http: &HttpClient,
        download: &Download,
        control: &FetchControl,
    ) -> Result<PathBuf, PackageError> {
        if let Some(archive) = download.digest.and_then(|digest| self.cache.get(&digest)) {
            return Ok(archive);
        }
        let part = self.cache.part(download);
        http.download(download, &part, control)?;
        let Some(expected) = download.digest else { return Ok(part) };
        self.complete(&part, expected, &shown(&download.url))
    }
}

/// Verifies the signatures beside an archive; the lines that say by whom it is signed.
fn verified(
    fetch: &Fetch,
    policy: &SignaturePolicy,
    address: &str,
    file: &Path,
    get: impl Fn(SignatureFormat) -> Result<Option<Vec<u8>>, PackageError>,
) -> Result<Vec<String>, PackageError> {
    let mut signatures = Vec::new();
    for format in policy.formats() {
        if let Some(bytes) = get(format)? {
            signatures.push(Signature::beside(format, file, bytes)?);
        }
    }
    policy.check(address, &signatures, &fetch.home, &fetch.control.stop)
}

/// Gets the signature beside an archive; none if there is no such file.
fn signature(
    http: &HttpClient,
    download: &Download,
    format: SignatureFormat,
) -> Result<Option<Vec<u8>>, PackageError> {
    let url = source::signature_url(&download.url, format);
    let authorization = download.authorization.as_deref();
    let (answer, body) =
        http.get(Get { url: &url, accept: "*/*", authorization, max: SIGNATURE_BYTES_MAX })?;
    if answer.status() == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    require_success(&answer, &url)?;
    Ok(Some(body))
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

/// Runs a future on the thread of a fetch, until the fetch is cancelled.
fn block_on<T>(
    stop: &CancellationToken,
    work: impl Future<Output = Result<T, PackageError>>,
) -> Result<T, PackageError> {
    tokio::runtime::Handle::current()
        .block_on(stop.run_until_cancelled(work))
        .unwrap_or(Err(PackageError::Cancelled))
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
