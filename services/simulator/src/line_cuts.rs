//! `muster-simulator cut` and `mend`: cut the line of one client of a running link by hand, and mend it. A cut is a file in a
//! folder that both processes know; its name is the address of the client. The link reads the folder; this module opens no
//! connection.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::error::Error;

/// Cuts the line of a client, or mends it, and returns its address.
///
/// # Errors
/// The client has no address here, or the folder cannot be written.
pub(crate) async fn apply(client: &str, is_cut: bool, dir: &Path) -> Result<IpAddr, Error> {
    let client = resolve(client).await?;
    let path = dir.join(client.to_string());
    let done = if is_cut { create(dir, &path) } else { remove(&path) };
    done.map_err(|source| Error::Cut { path, source })?;
    Ok(client)
}

/// The clients that are cut off: none if the folder cannot be read. Files without an address as their name are ignored.
pub(crate) fn read(dir: &Path) -> BTreeSet<IpAddr> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

async fn resolve(client: &str) -> Result<IpAddr, Error> {
    let unknown = |source| Error::NoAddress { client: client.to_owned(), source };
    // The port does not matter.
    let mut found = tokio::net::lookup_host((client, 0)).await.map_err(unknown)?;
    let first = found.next().ok_or_else(|| unknown(io::ErrorKind::NotFound.into()))?;
    Ok(first.ip().to_canonical())
}

fn create(dir: &Path, path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(path, "")
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_is_cut_and_mended_and_twice_is_as_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cuts");
        assert_eq!(read(&folder), BTreeSet::new());
        let expected: IpAddr = "127.0.0.9".parse().unwrap();
        for _ in 0..2 {
            assert_eq!(apply("127.0.0.9", true, &folder).await.unwrap(), expected);
            std::fs::write(folder.join("notes"), "").unwrap();
            assert_eq!(read(&folder), BTreeSet::from([expected]));
        }
        for _ in 0..2 {
            apply("127.0.0.9", false, &folder).await.unwrap();
            assert_eq!(read(&folder), BTreeSet::new());
        }
    }

    #[tokio::test]
    async fn a_client_without_an_address_is_named() {
        let error = apply("nobody.invalid", true, Path::new("/nowhere")).await.unwrap_err().to_string();
        assert!(error.contains("an address of nobody.invalid: name its IP address"), "{error}");
    }

    #[tokio::test]
    async fn a_cut_that_cannot_be_written_is_named_with_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = apply("127.0.0.9", true, &file).await.unwrap_err().to_string();
        assert!(error.contains("file/127.0.0.9: name the link's folder of cuts"), "{error}");
    }
}
