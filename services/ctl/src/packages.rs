//! `muster package`: puts archives into the hub's object store, lists and removes them.

use std::fs;
use std::path::{Path, PathBuf};

use muster_client::packages::bucket::{PackageBucket, PackageContent, PackageError};
use muster_client::packages::list;
use muster_contract::limits::PACKAGE_BYTES_MAX;
use muster_contract::packages::ObjectName;
use serde::Serialize;

use crate::config::PackageCommand;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Bytes that a put sends between two notes about its progress.
const NOTE_BYTES: u64 = 8 << 20;

/// Why a package is not put, listed or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackagesError {
    /// The file is no package.
    #[error("{} cannot be put: {rule}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        rule: String,
    },
    /// The bucket cannot be read or changed.
    #[error(transparent)]
    Bucket(#[from] PackageError),
}

pub use muster_client::packages::{PackageLine, PackageList};

impl From<PackagesError> for CtlError {
    fn from(error: PackagesError) -> Self {
        Self::Packages(Box::new(error))
    }
}

impl From<PackageError> for CtlError {
    fn from(error: PackageError) -> Self {
        PackagesError::from(error).into()
    }
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PackagesRemoved {
    /// Packages that were removed.
    pub removed: Vec<String>,
    /// Names of which there was none.
    pub missing: Vec<String>,
}

/// Runs a command; false if the answer is no.
///
/// # Errors
/// The hub refuses or does not answer, or the file is no package.
pub(crate) async fn run(session: &mut Session<'_>, command: PackageCommand) -> Result<bool, CtlError> {
    match command {
        PackageCommand::Put { file, name } => put(session, &file, name).await.map(|()| true),
        PackageCommand::List => {
            let list = list(session.hub.bus()).await.map_err(PackageError::Read)?;
            session.show_own(&list, render::packages::list)?;
            Ok(true)
        }
        PackageCommand::Remove { names } => {
            let bucket = PackageBucket::new(session.hub.bus().clone());
            let mut result = PackagesRemoved { removed: Vec::new(), missing: Vec::new() };
            for name in names {
                let was_there = bucket.remove(&name, None, session.clock.now()).await?;
                if was_there { &mut result.removed } else { &mut result.missing }.push(name.to_string());
            }
            session.show_own(&result, |result, _| render::packages::removed(result))?;
            Ok(result.missing.is_empty())
        }
    }
}

async fn put(session: &mut Session<'_>, file: &Path, name: Option<ObjectName>) -> Result<(), CtlError> {
    let name = match name {
        Some(name) => name,
        None => name_of(file)?,
    };
    let content = read(file, name)?;
    let bucket = PackageBucket::new(session.hub.bus().clone());
    let (now, terminal, of) = (session.clock.now(), &mut *session.terminal, content.size());
    let mut noted = 0;
    let note = |sent: u64| {
        if noted / NOTE_BYTES < sent / NOTE_BYTES {
            terminal.print_note(&render::packages::progress(sent, of));
            noted = sent;
        }
    };
    let result = bucket.put(&content, None, now, note).await?;
    session.show_own(&result, |result, _| render::packages::put(result))
}

fn refused(path: &Path, rule: impl Into<String>) -> CtlError {
    PackagesError::File { path: path.to_owned(), rule: rule.into() }.into()
}

fn name_of(file: &Path) -> Result<ObjectName, CtlError> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse().map_err(|error| refused(file, format!("{error}; give it another with --name")))
}

/// The content of a file that can be a package or the signature of one.
fn read(path: &Path, name: ObjectName) -> Result<PackageContent, CtlError> {
    let failed = |source| CtlError::File { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_file() {
        return Err(refused(path, "it is no regular file"));
    }
    if about.len() > PACKAGE_BYTES_MAX {
        return Err(refused(
            path,
            format!("it has more than {PACKAGE_BYTES_MAX} bytes, the most of a package"),
        ));
    }
    let content = fs::read(path).map_err(failed)?;
    PackageContent::new(name, content).map_err(|rule| refused(path, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_devices_would_refuse_is_refused_by_rule() {
        let dir = tempfile::tempdir().unwrap();
        let said = |file: &str, content: &[u8]| {
            let path = dir.path().join(file);
            fs::write(&path, content).unwrap();
            let result = name_of(&path).and_then(|name| read(&path, name));
            result.map(|_| String::new()).unwrap_or_else(|error| error.words().unwrap())
        };
        assert_eq!(said("web.tar.gz", &[0x1f, 0x8b, 8]), "");
        for (file, words) in [("web.zip", "no gzip-compressed tar archive"), ("a b.tar.gz", "--name")] {
            let said = said(file, b"PK");
            assert!(said.contains(words) && said.contains(file), "{said}");
        }
        let path = dir.path().join("large.tar.gz");
        fs::File::create(&path).unwrap().set_len(PACKAGE_BYTES_MAX + 1).unwrap();
        assert!(read(&path, "large".parse().unwrap()).unwrap_err().words().unwrap().contains("67108864"));
        assert!(read(dir.path(), "folder".parse().unwrap()).is_err());
    }
}
