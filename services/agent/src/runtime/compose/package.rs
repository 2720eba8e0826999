//! Finds a component's Compose file: in the document (`composeFile`), or in a folder or file on the device
//! (`packageLocation: file:///…`). Remote packages are refused by name; nothing is fetched.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use muster_contract::profile::Package;

/// Names of the Compose file in a folder; the first that exists is used.
const FILE_NAMES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"];
/// The name of a Compose file from the document.
const OWN_FILE: &str = "compose.yaml";
const LOCAL: &str = "file://";
/// The mode of files that may hold passwords.
const SECRET: u32 = 0o600;

/// The error of finding a Compose file.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackageError {
    #[error(
        "its package is at {0}, which this agent does not fetch: put the Compose file into the document (composeFile), or \
         the package on the device (packageLocation: file:///…)"
    )]
    Elsewhere(String),
    #[error(
        "it names no package: put the Compose file into the document (composeFile), or set packageLocation: file:///…"
    )]
    Nowhere,
    #[error(
        "its package must be verified with a key ({0}), which this agent cannot do; it runs no unverified package"
    )]
    Signed(String),
    #[error("there is no Compose file at {} (a folder must have one of {})", .0.display(), FILE_NAMES.join(", "))]
    NoFile(PathBuf),
    #[error("its Compose file cannot be written to {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The component's Compose file; one from the document is written to `home`.
///
/// # Errors
/// There is none that this agent may run.
pub(super) fn resolve(package: &Package, home: &Path) -> Result<PathBuf, PackageError> {
    if let Some(key) = &package.key_location {
        return Err(PackageError::Signed(shown(key)));
    }
    if let Some(text) = &package.compose_file {
        return write(text, home);
    }
    match (&package.package_location, &package.repository) {
        (Some(location), _) => match location.strip_prefix(LOCAL) {
            Some(path) => find(Path::new(path)),
            None => Err(PackageError::Elsewhere(shown(location))),
        },
        (None, Some(repository)) => Err(PackageError::Elsewhere(shown(repository))),
        (None, None) => Err(PackageError::Nowhere),
    }
}

fn write(text: &str, home: &Path) -> Result<PathBuf, PackageError> {
    let path = home.join(OWN_FILE);
    write_private(&path, text)
        .map_err(|source| PackageError::Write { path: path.clone(), source })
        .map(|()| path)
}

/// An address without user, password, query and fragment, which may hold secrets: everyone who reads the status sees the
/// refusal.
fn shown(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // In `a:b@c@host` any `@` but the last may be part of the password.
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    format!("{scheme}{host}{path}")
}

/// Writes a file that only this user can read.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // An existing file would keep its mode.
    let _ = std::fs::remove_file(path);
    File::options().write(true).create_new(true).mode(SECRET).open(path)?.write_all(text.as_bytes())
}

fn find(path: &Path) -> Result<PathBuf, PackageError> {
    let candidates = FILE_NAMES.map(|name| path.join(name));
    let found = candidates.into_iter().chain([path.to_owned()]).find(|file| file.is_file());
    found.ok_or_else(|| PackageError::NoFile(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(composed: Option<&str>, location: Option<&str>) -> Package {
        Package {
            compose_file: composed.map(str::to_owned),
            package_location: location.map(str::to_owned),
            ..Package::default()
        }
    }

    #[test]
    fn a_file_comes_from_the_document_or_from_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let own = resolve(&package(Some("services: {}"), None), dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "services: {}");
        let (home, folder) = (tempfile::tempdir().unwrap(), format!("file://{}", dir.path().display()));
        let found = resolve(&package(None, Some(&folder)), home.path()).unwrap();
        assert_eq!(found, dir.path().join("compose.yaml"));
        let named = format!("{folder}/compose.yaml");
        assert_eq!(resolve(&package(None, Some(&named)), home.path()).unwrap(), found);
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let refused = |package: Package| resolve(&package, home.path()).unwrap_err().to_string();
        assert!(
            refused(package(None, Some("https://x.example/p.tar.gz"))).contains("https://x.example/p.tar.gz")
        );
        let oci = Package { repository: Some("oci://x.example/p".to_owned()), ..Package::default() };
        assert!(refused(oci).contains("oci://x.example/p"));
        assert!(refused(Package::default()).contains("composeFile"));
        assert!(refused(package(None, Some("file:///no/such/place"))).contains("/no/such/place"));
        let signed = Package { key_location: Some("https://k".to_owned()), ..package(Some("x"), None) };
        assert!(refused(signed).contains("https://k"));
    }
    #[test]
    fn only_this_user_reads_a_compose_file_of_the_document() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        // As an earlier agent left it.
        std::fs::write(dir.path().join(OWN_FILE), "old").unwrap();
        let own = resolve(&package(Some("services: {}"), None), dir.path()).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(own).unwrap(), "services: {}");
    }

    #[test]
    fn a_refusal_holds_no_password() {
        let home = tempfile::tempdir().unwrap();
        let oci =
            Package { repository: Some("oci://robot:s3cr@t@x.example/p@1".to_owned()), ..Package::default() };
        let key =
            Package { key_location: Some("https://robot:s3cret@k/y".to_owned()), ..package(Some("x"), None) };
        let signed = package(None, Some("robot:s3cret@x.example/p.tar.gz?key=s3cret"));
        for bad in [oci, key, signed] {
            let said = resolve(&bad, home.path()).unwrap_err().to_string();
            assert!(!said.contains("cr") && !said.contains("robot"), "{said}");
            assert!(said.contains("x.example/p") || said.contains("https://k/y"), "{said}");
        }
    }
}
