//! Finds the files of a component: a chart's folder, or YAML manifests. They come from a package that the agent fetches, from a
//! folder on the device or, for manifests, from the document.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use muster_contract::profile::Package;
use serde_json::Value;

use super::object::{MANIFEST_BYTES_MAX, ManifestError, objects};
use crate::package::{KeyLocation, PackageError, PackageSource, PackageStore, shown};
use crate::runtime::files::only_folder;

const LOCAL: &str = "file://";
/// The file that makes a folder a chart.
const CHART: &str = "Chart.yaml";
/// kpt's annotation of objects that are not sent to a cluster.
const LOCAL_CONFIG: &str = "config.kubernetes.io/local-config";
/// YAML files that are no manifests: those of kpt and kustomize.
const OTHERS: [&str; 3] = ["Kptfile", "kustomization.yaml", "kustomization.yml"];

/// The error of finding files.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackageFilesError {
    #[error(
        "it names no package: set repository (oci://…) or packageLocation (https://…, nats://… or file:///…), or put the manifests into \
         the document (manifests)"
    )]
    Nowhere,
    #[error(
        "its keyLocation {0} is for a package that is fetched, and its files are in the document or on the device"
    )]
    Signed(String),
    #[error("there is no chart at {}: put {CHART} at its top or into its only folder", .0.display())]
    NoChart(PathBuf),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The folder of a component's chart.
pub(super) async fn chart(
    package: &Package,
    home: &Path,
    store: &PackageStore,
) -> Result<PathBuf, PackageFilesError> {
    let folder = folder(package, home, store).await?;
    find_chart(&folder).ok_or(PackageFilesError::NoChart(folder))
}

/// The objects of a component's manifests.
pub(super) async fn manifests(
    package: &Package,
    home: &Path,
    store: &PackageStore,
) -> Result<Vec<Value>, PackageFilesError> {
    let found = match &package.manifests {
        Some(text) => {
            refuse_signed(package)?;
            objects(text)?
        }
        None => objects(&read_yaml(&folder(package, home, store).await?)?)?,
    };
    let found: Vec<_> = found.into_iter().filter(|object| !is_local(object)).collect();
    if found.is_empty() { Err(ManifestError::Empty.into()) } else { Ok(found) }
}

/// Whether an object is for the functions of kpt alone, which do not send it to a cluster.
fn is_local(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations");
    annotations.is_some_and(|annotations| annotations[LOCAL_CONFIG] == "true")
}

/// Refuses a key for files that are not fetched: nothing would be verified with it.
fn refuse_signed(package: &Package) -> Result<(), PackageFilesError> {
    package.key_location.as_ref().map_or(Ok(()), |key| Err(PackageFilesError::Signed(shown(key))))
}

async fn folder(package: &Package, home: &Path, store: &PackageStore) -> Result<PathBuf, PackageFilesError> {
    let source = match (&package.package_location, &package.repository) {
        (Some(location), _) => match location.strip_prefix(LOCAL) {
            Some(path) => {
                refuse_signed(package)?;
                return Ok(PathBuf::from(path));
            }
            None => PackageSource::archive(location, package.package_digest)?,
        },
        (None, Some(repository)) => PackageSource::registry(repository, package.revision.as_deref())?,
        (None, None) => return Err(PackageFilesError::Nowhere),
    };
    let key = package.key_location.as_deref().map(KeyLocation::parse).transpose()?;
    Ok(store.ensure_unpacked(&source, key.as_ref(), home).await?)
}

/// A chart at the top of a folder or in its only folder, as archives of charts have it.
fn find_chart(folder: &Path) -> Option<PathBuf> {
    let is_chart = |folder: &PathBuf| folder.join(CHART).is_file();
    if let Some(top) = Some(folder.to_owned()).filter(is_chart) {
        return Some(top);
    }
    only_folder(folder).filter(is_chart)
}

/// All YAML files below a folder, or one file, as one text: in the order of their paths.
fn read_yaml(path: &Path) -> Result<String, PackageFilesError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PackageFilesError::Read { path, source }
    };
    let mut files = Vec::new();
    collect(path, &mut files).map_err(failed(path))?;
    files.sort();
    let mut text = String::new();
    for file in files {
        let bytes = fs::metadata(&file).map_err(failed(&file))?.len();
        if text.len() as u64 + bytes > MANIFEST_BYTES_MAX as u64 {
            return Err(ManifestError::Large.into());
        }
        text.push_str("---\n");
        text.push_str(&fs::read_to_string(&file).map_err(failed(&file))?);
        text.push('\n');
    }
    Ok(text)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
        if entry.file_type()?.is_dir() {
            collect(&path, files)?;
        } else if is_yaml && !name.starts_with('.') && !OTHERS.contains(&name.as_str()) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::PackageSettings;

    #[tokio::test]
    async fn files_come_from_a_folder_on_the_device_or_from_the_document() {
        let dir = tempfile::tempdir().unwrap();
        let store = PackageStore::new(dir.path(), PackageSettings::default());
        let local = Package {
            package_location: Some(format!("file://{}/files", dir.path().display())),
            ..Package::default()
        };
        let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
        fs::create_dir_all(dir.path().join("files/app")).unwrap();
        assert!(matches!(chart(&local, dir.path(), &store).await, Err(PackageFilesError::NoChart(_))));
        fs::write(dir.path().join("files/app").join(CHART), "name: app").unwrap();
        assert_eq!(chart(&local, dir.path(), &store).await.unwrap(), dir.path().join("files/app"));
        fs::remove_file(dir.path().join("files/app").join(CHART)).unwrap();
        for (file, text) in
            [("b.yaml", map("b")), ("app/a.yml", map("a")), ("Kptfile", "no".into()), ("c.txt", "[".into())]
        {
            fs::write(dir.path().join("files").join(file), text).unwrap();
        }
        let found = manifests(&local, dir.path(), &store).await.unwrap();
        let names: Vec<_> = found.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        let local = map("local").replace(
            "{name: local}",
            "{name: local, annotations: {config.kubernetes.io/local-config: 'true'}}",
        );
        let with_local =
            Package { manifests: Some(format!("{}---\n{local}", map("own"))), ..Package::default() };
        assert_eq!(
            manifests(&with_local, dir.path(), &store).await.unwrap().len(),
            1,
            "kpt's own is left out"
        );
        let own = Package { manifests: Some(map("own")), ..Package::default() };
        assert_eq!(manifests(&own, dir.path(), &store).await.unwrap().len(), 1);
        let empty = Package { manifests: Some("# nothing".to_owned()), ..Package::default() };
        assert!(manifests(&empty, dir.path(), &store).await.is_err());
        assert!(matches!(
            chart(&Package::default(), dir.path(), &store).await,
            Err(PackageFilesError::Nowhere)
        ));
        let signed = Package { key_location: Some("https://a:s3cret@k/y".to_owned()), ..own };
        let said = manifests(&signed, dir.path(), &store).await.unwrap_err().to_string();
        assert!(said.contains("https://k/y") && !said.contains("s3cret"), "{said}");
    }
}
