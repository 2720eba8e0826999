//! Unpacks a gzip-compressed tar archive into a new folder: regular files and folders below it, within bounds of number and
//! size. Links, devices and paths that lead elsewhere are refused, and nothing is taken of the archive's owners.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use tar::{Archive, Entry, EntryType, PaxExtensions};

use super::error::PackageError;
use super::source::PackageSource;

/// Bytes of all unpacked files.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Files and folders of a package.
const ENTRIES_MAX: usize = 4096;
/// Bytes between the contents of all files: a header, and what fills up the last block of each.
const HEADER_BYTES_MAX: u64 = 1024 * (ENTRIES_MAX as u64 + 1);
/// Bytes of a record with a long name.
const NAME_RECORD_BYTES_MAX: u64 = 16 * 1024;
/// Rights of folders.
const FOLDER_MODE: u32 = 0o755;
/// Rights of files, which an archive can only take away from or make executable.
const FILE_MODE: u32 = 0o755;

/// Unpacks an archive into a folder, which it creates.
pub(super) fn unpack(archive: &Path, folder: &Path, source: &PackageSource) -> Result<(), PackageError> {
    let file =
        File::open(archive).map_err(|source| PackageError::Write { path: archive.to_owned(), source })?;
    unpack_within(file, folder, UNPACKED_BYTES_MAX).map_err(|fault| match fault {
        Fault::Rule(rule) => PackageError::Archive { address: source.to_string(), rule },
        Fault::Write(path, source) => PackageError::Write { path, source },
    })
}

/// The reason why an archive is not unpacked.
enum Fault {
    Rule(String),
    Write(PathBuf, io::Error),
}

fn unpack_within(file: impl Read, folder: &Path, bytes_max: u64) -> Result<(), Fault> {
    create(folder)?;
    let mut archive = Archive::new(GzDecoder::new(file).take(bytes_max + HEADER_BYTES_MAX));
    let mut long_name = None;
    let mut left = bytes_max;
    // Raw: the library itself would read a record with a long name into memory, whatever its size.
    let entries = archive.entries().map_err(unreadable)?.raw(true);
    for (nth, entry) in entries.enumerate() {
        if nth >= ENTRIES_MAX {
            return Err(Fault::Rule(format!("it has more than {ENTRIES_MAX} files and folders")));
        }
        let mut entry = entry.map_err(unreadable)?;
        left = left
            .checked_sub(entry.size())
            .ok_or_else(|| Fault::Rule(format!("its files have more than {bytes_max} bytes")))?;
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => {}
            EntryType::XHeader => long_name = pax_name(&mut entry)?.or(long_name),
            EntryType::GNULongName => long_name = Some(gnu_name(&mut entry)?),
            kind => write_entry(&mut entry, kind, long_name.take(), folder)?,
        }
    }
    Ok(())
}

fn write_entry(
    entry: &mut Entry<'_, impl Read>,
    kind: EntryType,
    long_name: Option<Vec<u8>>,
    folder: &Path,
) -> Result<(), Fault> {
    let name = long_name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let name = String::from_utf8(name).map_err(|_| Fault::Rule("a name in it is no UTF-8".to_owned()))?;
    let Some(path) = inside(Path::new(&name)) else {
        return Err(Fault::Rule(format!("'{}' leads out of it", name.escape_debug())));
    };
    let path = folder.join(path);
    match kind {
        EntryType::Directory => create(&path),
        EntryType::Regular => {
            path.parent().map_or(Ok(()), create)?;
            let mode = entry.header().mode().unwrap_or(0o644) & FILE_MODE | 0o600;
            write_file(entry, &path, mode)
        }
        _ => {
            let name = name.escape_debug();
            Err(Fault::Rule(format!(
                "'{name}' is neither a file nor a folder; links and devices are not unpacked"
            )))
        }
    }
}

fn write_file(entry: &mut Entry<'_, impl Read>, path: &Path, mode: u32) -> Result<(), Fault> {
    let failed = |error| Fault::Write(path.to_owned(), error);
    let opened = File::options().write(true).create_new(true).mode(mode).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Fault::Rule(format!("'{}' is in it twice", path.display())),
        _ => failed(error),
    })?;
    // A package is not given the mode of the agent's own files: containers read it as other users.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = entry.read(&mut chunk).map_err(unreadable)?;
        if read == 0 {
            return Ok(());
        }
        io::Write::write_all(&mut file, &chunk[..read]).map_err(failed)?;
    }
}

fn create(folder: &Path) -> Result<(), Fault> {
    let made = fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)));
    made.map_err(|error| Fault::Write(folder.to_owned(), error))
}

/// A path without `.`; none if it leads out of its folder.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(inside)
}

fn gnu_name(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, Fault> {
    let mut name = record(entry)?;
    while name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

fn pax_name(entry: &mut Entry<'_, impl Read>) -> Result<Option<Vec<u8>>, Fault> {
    let record = record(entry)?;
    let mut name = None;
    for extension in PaxExtensions::new(&record) {
        let extension = extension.map_err(unreadable)?;
        match extension.key_bytes() {
            b"path" => name = Some(extension.value_bytes().to_vec()),
            b"size" => return Err(Fault::Rule("it has a file of more than 8 GB".to_owned())),
            _ => {}
        }
    }
    Ok(name)
}

fn record(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, Fault> {
    if entry.size() > NAME_RECORD_BYTES_MAX {
        return Err(Fault::Rule(format!("a name in it has more than {NAME_RECORD_BYTES_MAX} bytes")));
    }
    let mut record = Vec::new();
    entry.read_to_end(&mut record).map_err(unreadable)?;
    Ok(record)
}

#[allow(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn unreadable(error: io::Error) -> Fault {
    Fault::Rule(format!("it is no gzip-compressed tar archive, or a damaged one: {error}"))
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{Builder, Header};

    use super::*;

    fn entry(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o4777);
        header
    }

    /// A compressed archive of entries, with names as they are given.
    fn archive(entries: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (kind, name, content) in entries {
            let mut header = entry(*kind, content.len() as u64);
            // `append_data` would refuse names that lead elsewhere.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn outcome(archive: &[u8]) -> (tempfile::TempDir, Result<(), String>) {
        let dir = tempfile::tempdir().unwrap();
        let result = unpack_within(archive, &dir.path().join("to"), 1 << 20).map_err(|fault| match fault {
            Fault::Rule(rule) => rule,
            Fault::Write(path, error) => format!("{}: {error}", path.display()),
        });
        (dir, result)
    }

    #[test]
    fn files_and_folders_are_unpacked_without_the_rights_of_others() {
        let long = format!("{}/compose.yaml", "x".repeat(120));
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        builder.append_data(&mut entry(EntryType::Regular, 2), &long, &b"ok"[..]).unwrap();
        let packed = builder.into_inner().unwrap().finish().unwrap();
        let (dir, result) = outcome(&packed);
        result.unwrap();
        let file = dir.path().join("to").join(long);
        assert_eq!(fs::read_to_string(&file).unwrap(), "ok");
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o755);
        let (dir, result) = outcome(&archive(&[
            (EntryType::Directory, "./conf/", b""),
            (EntryType::Regular, "./conf/a", b"1"),
        ]));
        result.unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("to/conf/a")).unwrap(), "1");
    }

    #[test]
    fn what_leads_elsewhere_is_refused_and_nothing_is_written_there() {
        for (kind, name, words) in [
            (EntryType::Regular, "../evil", "leads out"),
            (EntryType::Regular, "a/../../evil", "leads out"),
            (EntryType::Regular, "/tmp/muster-evil", "leads out"),
            (EntryType::Symlink, "link", "neither a file"),
            (EntryType::Link, "link", "neither a file"),
            (EntryType::Char, "device", "neither a file"),
        ] {
            let (dir, result) = outcome(&archive(&[(kind, name, b"")]));
            assert!(result.clone().unwrap_err().contains(words), "{name}: {result:?}");
            assert!(!dir.path().join("evil").exists() && !Path::new("/tmp/muster-evil").exists());
        }
        let twice = archive(&[(EntryType::Regular, "a", b"1"), (EntryType::Regular, "a", b"2")]);
        assert!(outcome(&twice).1.unwrap_err().contains("twice"));
    }

    #[test]
    fn bombs_and_damaged_archives_are_refused_within_their_bounds() {
        let bomb = archive(&[(EntryType::Regular, "zeros", &vec![0; 2 << 20])]);
        assert!(bomb.len() < 16 * 1024);
        assert!(outcome(&bomb).1.unwrap_err().contains("more than 1048576 bytes"));
        let many: Vec<_> = (0..=ENTRIES_MAX).map(|nth| format!("f{nth}")).collect();
        let many: Vec<_> = many.iter().map(|name| (EntryType::Regular, name.as_str(), &b""[..])).collect();
        assert!(outcome(&archive(&many)).1.unwrap_err().contains("more than 4096 files"));
        let name = archive(&[(EntryType::GNULongName, "././@LongLink", &vec![b'x'; 20_000])]);
        assert!(outcome(&name).1.unwrap_err().contains("a name in it"));
        let whole = archive(&[(EntryType::Regular, "a", &[7; 4096])]);
        for damaged in [&whole[..whole.len() / 2], b"no archive", &whole[1..]] {
            assert!(outcome(damaged).1.unwrap_err().contains("no gzip-compressed tar archive"));
        }
    }
}
