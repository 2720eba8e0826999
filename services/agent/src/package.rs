//! Fetches packages of components to the device: gzip-compressed tar archives by https, and artifacts of OCI registries. A
//! package that was placed once is used offline from then on.
//!
//! ```text
//! PackageSource ─► cached by digest? ─► registry, http ─► packages/….part ─► digest ─► packages/sha256-…
//!                                                                                        │
//! HOME/package ◄── rename, the commit point ◄── HOME/package.new ◄── unpack within limits ◄┘
//! ```
//!
//! It does not verify signatures, pull container images or run anything.

mod cache;
mod credentials;
mod error;
mod http;
mod registry;
mod settings;
mod source;
mod unpack;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_contract::canonical::Digest;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use self::cache::Cache;
use self::credentials::Credentials;
pub use self::error::PackageError;
use self::http::{Download, HttpClient};
use self::registry::Registry;
pub use self::settings::{CACHE_BYTES_DEFAULT, PACKAGE_BYTES_MAX, PackageSettings};
pub use self::source::{PackageSource, shown};

const FOLDER: &str = "package";
const FOLDER_NEW: &str = "package.new";
/// A file in the folder with the source that it was made from.
const ORIGIN: &str = ".muster-source";

/// Places packages in the folders of units, one at a time: a thin link serves one fetch best.
#[derive(Debug, Clone)]
pub struct PackageStore {
    inner: Arc<Mutex<Fetcher>>,
}

#[derive(Debug)]
struct Fetcher {
    settings: PackageSettings,
    cache: Cache,
}

/// Cancels a fetch on its own thread when the future that waits for it is dropped.
struct Fetch {
    source: PackageSource,
    home: PathBuf,
    stop: CancellationToken,
}

impl PackageStore {
    /// A store whose cache is below the data directory of the agent. Reads and writes nothing yet.
    pub fn new(data_dir: &Path, settings: PackageSettings) -> Self {
        let cache = Cache::new(data_dir, settings.cache_bytes);
        Self { inner: Arc::new(Mutex::new(Fetcher { settings, cache })) }
    }

    /// The folder with the files of a package below `home`, which exists. Dropping the future ends the fetch; the next one
    /// goes on where it ended.
    ///
    /// # Errors
    /// It cannot be fetched, verified, unpacked or stored.
    pub async fn ensure_unpacked(
        &self,
        source: &PackageSource,
        home: &Path,
    ) -> Result<PathBuf, PackageError> {
        let folder = home.join(FOLDER);
        if is_unpacked(&folder, source) {
            return Ok(folder);
        }
        let fetcher = Arc::clone(&self.inner).lock_owned().await;
        let stop = CancellationToken::new();
        let _stops_on_drop = stop.clone().drop_guard();
        let fetch = Fetch { source: source.clone(), home: home.to_owned(), stop };
        tokio::task::spawn_blocking(move || fetcher.fetch_and_unpack(&fetch)).await??;
        Ok(folder)
    }
}

impl Fetcher {
    fn fetch_and_unpack(&self, fetch: &Fetch) -> Result<(), PackageError> {
        self.cache.create()?;
        let http = HttpClient::new(&self.settings)?;
        let credentials = Credentials::read(self.settings.credentials.as_deref())?;
        let (archive, digest) = self.archive(fetch, http, credentials)?;
        let unpacked = unpack_to(&archive, &fetch.home, &fetch.source);
        self.cache.release(&archive, digest.is_some() && unpacked.is_ok());
        unpacked?;
        tracing::info!(
            package = %fetch.source, package.digest = digest.map(|digest| digest.to_string()), "placed a package"
        );
        Ok(())
    }

    /// A complete archive in the cache, and the digest that it was verified with.
    fn archive(
        &self,
        fetch: &Fetch,
        http: HttpClient,
        credentials: Credentials,
    ) -> Result<(PathBuf, Option<Digest>), PackageError> {
        match &fetch.source {
            PackageSource::Archive { url, digest } => {
                let authorization = credentials.basic(source::host(url));
                let download = |url| Download { url, authorization, bytes: None, digest: *digest };
                Ok((self.download(&http, &download(url.clone()), &fetch.stop)?, *digest))
            }
            PackageSource::Registry(reference) => {
                let mut registry = Registry::new(http, reference.clone(), credentials);
                let layer = registry.layer()?;
                let archive = match self.cache.get(&layer.digest) {
                    Some(archive) => archive,
                    None => self.download(&registry.http, &registry.download(&layer), &fetch.stop)?,
                };
                Ok((archive, Some(layer.digest)))
            }
        }
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
        let found = cache::digest_of(&part)?;
        if found != expected {
            self.cache.release(&part, false);
            return Err(PackageError::Digest { address: shown(&download.url), found, expected });
        }
        self.cache.insert(&part, &expected)
    }
}

/// Whether a folder has the package of this source, whole.
fn is_unpacked(folder: &Path, source: &PackageSource) -> bool {
    fs::read_to_string(folder.join(ORIGIN)).is_ok_and(|origin| origin == source.identity())
}

/// Unpacks an archive into the folder of the package: a kill leaves the old folder, none or the new one, never a part of it.
fn unpack_to(archive: &Path, home: &Path, source: &PackageSource) -> Result<(), PackageError> {
    let (folder, beside) = (home.join(FOLDER), home.join(FOLDER_NEW));
    let failed = |path: &Path, source| PackageError::Write { path: path.to_owned(), source };
    remove(&beside).map_err(|error| failed(&beside, error))?;
    unpack::unpack(archive, &beside, source)?;
    fs::write(beside.join(ORIGIN), source.identity()).map_err(|error| failed(&beside, error))?;
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
