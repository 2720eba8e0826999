//! The settings of fetching packages, as flags and checked.

use clap::Args;
use muster_service::Problems;

use crate::package::{CACHE_BYTES_DEFAULT, PACKAGE_BYTES_MAX, PackageSettings};

const _: () = assert!(CACHE_BYTES_DEFAULT >= PACKAGE_BYTES_MAX);

/// Flags about packages.
#[derive(Debug, Clone, Args)]
pub struct PackageArgs {
    /// Disk space for fetched packages, such as 64MiB, which several deployments share; with 0 none is kept
    #[arg(long, env = "MUSTER_PACKAGE_CACHE", value_name = "SIZE", default_value = "64MiB")]
    pub package_cache: String,

    /// Rate per second that fetching packages may use of the link, such as 64kbit or 2mbit; without it there is no limit
    #[arg(long, env = "MUSTER_PACKAGE_LIMIT", value_name = "RATE")]
    pub package_limit: Option<String>,

    /// Certificates of authorities that hosts of packages may have besides those of the system, as a PEM file
    #[arg(long, env = "MUSTER_PACKAGE_CA", value_name = "FILE")]
    pub package_ca: Option<String>,

    /// Credentials of hosts of packages, in the format of Docker's config.json
    #[arg(long, env = "MUSTER_PACKAGE_AUTH", value_name = "FILE")]
    pub package_auth: Option<String>,

    /// Public key (PEM, as cosign makes them) by which fetched packages must be signed; may be repeated, one of them is enough
    #[arg(long, env = "MUSTER_PACKAGE_KEY", value_name = "FILE", value_delimiter = ',')]
    pub package_key: Vec<String>,
}

impl PackageArgs {
    /// Checks the flags.
    pub(super) fn check(&self, problems: &mut Problems) -> Option<PackageSettings> {
        let cache = problems.size("--package-cache", &self.package_cache, 0);
        let rate = problems.optional("--package-limit", self.package_limit.as_deref(), Problems::parse);
        let ca = problems.optional("--package-ca", self.package_ca.as_deref(), Problems::file);
        let credentials = problems.optional("--package-auth", self.package_auth.as_deref(), Problems::file);
        let keys =
            self.package_key.iter().map(|path| problems.file("--package-key", path)).collect::<Option<_>>();
        Some(PackageSettings {
            cache_bytes: cache?,
            rate: rate?,
            ca: ca?,
            credentials: credentials?,
            keys: keys?,
        })
    }
}
