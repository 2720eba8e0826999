//! Finds a component's Compose file: in the document (`composeFile`), in a folder or file on the device
//! (`packageLocation: file:///…`), or in a package that is fetched (`https://…`, `oci://…`), the only one whose signature is verified.

use std::io;
use std::path::{Path, PathBuf};

use muster_contract::profile::Package;

use crate::package::{KeyLocation, PackageError, PackageSource, PackageStore, shown};
use crate::runtime::files::{only_folder, write_private};

/// Names of the Compose file in a folder; the first that exists is used.
const FILE_NAMES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"];
/// The name of a Compose file from the document.
const OWN_FILE: &str = "compose.yaml";
const LOCAL: &str = "file://";

/// The error of finding a Compose file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ComposeFileError {
    #[error(
        "it names no package: set packageLocation (https://…, nats://… or file:///…), repository (oci://…), or put the Compose file \
         into the document (composeFile)"
    )]
    Nowhere,
    #[error(
        "its keyLocation {0} is for a package that is fetched, and its Compose file is in the document or on the device"
    )]
    Signed(String),
    #[error("there is no Compose file at {} (a folder must have one of {})", .0.display(), FILE_NAMES.join(", "))]
    NoFile(PathBuf),
    #[error("its package has no Compose file (one of {})", FILE_NAMES.join(", "))]
    NoneInPackage,
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("its Compose file cannot be written to {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The component's Compose file. One from the document is written to `home`, a package is placed there.
///
/// # Errors
/// There is none that this agent may run.
pub(super) async fn resolve(
    package: &Package,
    home: &Path,
    packages: &PackageStore,
) -> Result<PathBuf, ComposeFileError> {
    let is_local = |location: &String| location.starts_with(LOCAL);
    let is_fetched =
        package.compose_file.is_none() && !package.package_location.as_ref().is_some_and(is_local);
    if let Some(key) = package.key_location.as_ref().filter(|_| !is_fetched) {
        return Err(ComposeFileError::Signed(shown(key)));
    }
    if let Some(text) = &package.compose_file {
        return write(text, home);
    }
    let source = match (&package.package_location, &package.repository) {
        (Some(location), _) => match location.strip_prefix(LOCAL) {
            Some(path) => return find(Path::new(path)),
            None => PackageSource::archive(location, package.package_digest)?,
        },
        (None, Some(repository)) => PackageSource::registry(repository, package.revision.as_deref())?,
        (None, None) => return Err(ComposeFileError::Nowhere),
    };
    let key = package.key_location.as_deref().map(KeyLocation::parse).transpose()?;
    find_in_package(&packages.ensure_unpacked(&source, key.as_ref(), home).await?)
}

fn write(text: &str, home: &Path) -> Result<PathBuf, ComposeFileError> {
    let path = home.join(OWN_FILE);
    write_private(&path, text)
        .map_err(|source| ComposeFileError::Write { path: path.clone(), source })
        .map(|()| path)
}

fn find(path: &Path) -> Result<PathBuf, ComposeFileError> {
    let found = in_folder(path).or_else(|| path.is_file().then(|| path.to_owned()));
    found.ok_or_else(|| ComposeFileError::NoFile(path.to_owned()))
}

/// The Compose file of a package: at its top, or in its only folder, as archives of releases have it.
fn find_in_package(folder: &Path) -> Result<PathBuf, ComposeFileError> {
    let in_only_folder = || in_folder(&only_folder(folder)?);
    in_folder(folder).or_else(in_only_folder).ok_or(ComposeFileError::NoneInPackage)
}

fn in_folder(path: &Path) -> Option<PathBuf> {
    FILE_NAMES.map(|name| path.join(name)).into_iter().find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_service::error::chain;

    use super::*;
    use crate::package::PackageSettings;

    fn package(composed: Option<&str>, location: Option<&str>) -> Package {
        Package {
            compose_file: composed.map(str::to_owned),
            package_location: location.map(str::to_owned),
            ..Package::default()
        }
    }

    async fn resolved(package: &Package, home: &Path) -> Result<PathBuf, ComposeFileError> {
        let packages = PackageStore::new(home, PackageSettings::default());
        resolve(package, home, &packages).await
    }

    #[tokio::test]
    async fn a_file_comes_from_the_document_or_from_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let own = resolved(&package(Some("services: {}"), None), dir.path()).await.unwrap();
        assert_eq!(fs::read_to_string(&own).unwrap(), "services: {}");
        let (home, folder) = (tempfile::tempdir().unwrap(), format!("file://{}", dir.path().display()));
        let found = resolved(&package(None, Some(&folder)), home.path()).await.unwrap();
        assert_eq!(found, dir.path().join("compose.yaml"));
        let named = format!("{folder}/compose.yaml");
        assert_eq!(resolved(&package(None, Some(&named)), home.path()).await.unwrap(), found);
    }

    #[tokio::test]
    async fn what_cannot_be_had_is_refused_by_name_and_without_passwords() {
        let home = tempfile::tempdir().unwrap();
        let oci =
            |repository: &str| Package { repository: Some(repository.to_owned()), ..Package::default() };
        let signed = |key: &str| Package { key_location: Some(key.to_owned()), ..package(Some("x"), None) };
        for (refused, words) in [
            (Package::default(), "composeFile"),
            (package(None, Some("file:///no/such/place")), "/no/such/place"),
            (package(None, Some("http://x.example/p.tar.gz")), "x.example/p.tar.gz"),
            (package(None, Some("robot:s3cret@x.example/p.tar.gz?key=s3cret")), "x.example/p.tar.gz"),
            (oci("oci://x.example/p"), "names no version"),
            (oci("oci://robot:s3cr@t@x.example/p@1"), "x.example/p"),
            (signed("https://robot:s3cret@k/y"), "https://k/y"),
        ] {
            let said = chain(&resolved(&refused, home.path()).await.unwrap_err());
            assert!(said.contains(words) && !said.contains("s3cr") && !said.contains("robot"), "{said}");
        }
    }

    #[tokio::test]
    async fn only_this_user_reads_a_compose_file_of_the_document() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        // As an earlier agent left it.
        fs::write(dir.path().join(OWN_FILE), "old").unwrap();
        let own = resolved(&package(Some("services: {}"), None), dir.path()).await.unwrap();
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(own).unwrap(), "services: {}");
    }

    #[test]
    fn a_package_has_its_compose_file_at_its_top_or_in_its_only_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("app-2.4.0/docker-compose.yml");
        assert!(matches!(find_in_package(dir.path()), Err(ComposeFileError::NoneInPackage)));
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(find_in_package(dir.path()).unwrap(), file);
        fs::create_dir(dir.path().join("other")).unwrap();
        assert!(find_in_package(dir.path()).is_err(), "two folders");
        fs::write(dir.path().join("compose.yaml"), "").unwrap();
        assert_eq!(find_in_package(dir.path()).unwrap(), dir.path().join("compose.yaml"));
    }
}
