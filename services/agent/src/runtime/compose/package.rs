//! Where a component's Compose file comes from: the document itself (`composeFile`), or a folder or file that is on the
//! device already (`packageLocation: file:///…`). What is elsewhere is refused by name; nothing is fetched.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use muster_contract::profile::Package;

/// What a Compose file may be called in a package, the first that is there.
const FILE_NAMES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"];
/// What a file of the document is called.
const OWN_FILE: &str = "compose.yaml";
const LOCAL: &str = "file://";
/// It may hold passwords.
const SECRET: u32 = 0o600;

/// Why there is no Compose file.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackageError {
    #[error(
        "its package is at {0}, which this agent does not fetch: put the Compose file into the document (composeFile), or \
         the package on the device (packageLocation: file:///…)"
    )]
    Elsewhere(String),
    #[error(
        "it names no package: put the Compose file into the document (composeFile), or say packageLocation: file:///…"
    )]
    Nowhere,
    #[error(
        "its package is to be checked against a key ({0}), which this agent cannot do; it runs nothing unchecked"
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

/// The component's Compose file, put into `home` if it is the document's.
///
/// # Errors
/// There is none that this agent may run.
pub(super) fn place(package: &Package, home: &Path) -> Result<PathBuf, PackageError> {
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
    keep(&path, text).map_err(|source| PackageError::Write { path: path.clone(), source }).map(|()| path)
}

/// An address without the name and password in it, and without what is asked of it, which may be a key as well: what is
/// refused is told to everybody.
fn shown(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // As in `a:b@c@host`: nobody knows which `@` is part of the password.
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    format!("{scheme}{host}{path}")
}

/// Writes a file for this user's eyes alone.
pub(super) fn keep(path: &Path, text: &str) -> io::Result<()> {
    // One of another mode is not kept.
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
        let own = place(&package(Some("services: {}"), None), dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "services: {}");
        let (home, folder) = (tempfile::tempdir().unwrap(), format!("file://{}", dir.path().display()));
        let found = place(&package(None, Some(&folder)), home.path()).unwrap();
        assert_eq!(found, dir.path().join("compose.yaml"));
        let named = format!("{folder}/compose.yaml");
        assert_eq!(place(&package(None, Some(&named)), home.path()).unwrap(), found);
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let refused = |package: Package| place(&package, home.path()).unwrap_err().to_string();
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
    fn a_file_of_the_document_is_nobody_elses_to_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        // As an earlier agent left it.
        std::fs::write(dir.path().join(OWN_FILE), "old").unwrap();
        let own = place(&package(Some("services: {}"), None), dir.path()).unwrap();
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
            let said = place(&bad, home.path()).unwrap_err().to_string();
            assert!(!said.contains("cr") && !said.contains("robot"), "{said}");
            assert!(said.contains("x.example/p") || said.contains("https://k/y"), "{said}");
        }
    }
}
