//! The settings of fetching packages, and the bounds of a package.

use std::path::PathBuf;

pub use muster_contract::limits::PACKAGE_BYTES_MAX;

use crate::relay::budget::Rate;

/// Bytes of the cache, unless the agent's settings say otherwise.
pub(crate) const CACHE_BYTES_DEFAULT: u64 = PACKAGE_BYTES_MAX;

/// The settings of fetching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSettings {
    /// Bytes of fetched archives that are kept for other deployments and for the next start.
    pub cache_bytes: u64,
    /// The rate that fetching may use of the link, if there is a limit.
    pub rate: Option<Rate>,
    /// A file with certificates of authorities that are trusted besides those of the system.
    pub ca: Option<PathBuf>,
    /// A file with credentials of hosts, in the format of Docker's `config.json`.
    pub credentials: Option<PathBuf>,
    /// Files with public keys; a package needs a signature by one of them if there are any.
    pub keys: Vec<PathBuf>,
}

impl Default for PackageSettings {
    fn default() -> Self {
        Self { cache_bytes: CACHE_BYTES_DEFAULT, rate: None, ca: None, credentials: None, keys: Vec::new() }
    }
}
