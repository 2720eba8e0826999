//! Packs deployments into one archive, a tar in gzip. A manifest names the digest of its archive and may not change within a
//! generation, so the same deployments give the same bytes in every release and on every machine. The gzip is therefore
//! uncompressed: another version of a library may compress differently.

use std::io;

use flate2::Crc;
use muster_contract::DeploymentId;
use tar::{Builder, EntryType, Header};

/// A gzip header: deflate, no flags, no time, unknown system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// Bytes of a stored block of deflate, at most.
const BLOCK_BYTES_MAX: usize = 0xffff;
/// Readable by everybody.
const MODE: u32 = 0o644;

/// The archive with one file for each deployment, `<id>.yaml`, in the given order.
///
/// # Errors
/// None: it is written to memory.
pub(crate) fn archive<'a>(
    files: impl IntoIterator<Item = (&'a DeploymentId, &'a [u8])>,
) -> io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (id, content) in files {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(MODE);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, format!("{id}.yaml"), content)?;
    }
    Ok(stored(&tar.into_inner()?))
}

/// A gzip of uncompressed blocks.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GZIP_HEADER.to_vec();
    let count = bytes.len().div_ceil(BLOCK_BYTES_MAX);
    for (at, block) in bytes.chunks(BLOCK_BYTES_MAX).enumerate() {
        // A chunk has at most as many bytes as the field holds.
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        gzip.push(u8::from(at + 1 == count));
        gzip.extend(length.to_le_bytes());
        gzip.extend((!length).to_le_bytes());
        gzip.extend(block);
    }
    let mut crc = Crc::new();
    crc.update(bytes);
    gzip.extend(crc.sum().to_le_bytes());
    gzip.extend((bytes.len() as u32).to_le_bytes());
    gzip
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use muster_contract::canonical::Digest;

    use super::*;

    #[test]
    fn an_archive_has_exactly_its_files_and_the_same_bytes_for_ever() {
        let ids: [DeploymentId; 2] = ["web", "db"].map(|id| id.parse().unwrap());
        let large = vec![b'a'; 200_000];
        let bytes = archive([(&ids[0], &b"id: web\n"[..]), (&ids[1], &large)]).unwrap();
        let mut archive_read = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let mut found = Vec::new();
        for entry in archive_read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.push((entry.path().unwrap().display().to_string(), content));
        }
        assert_eq!(found, [("web.yaml".to_owned(), b"id: web\n".to_vec()), ("db.yaml".to_owned(), large)]);
        let small = archive([(&ids[0], &b"id: web\n"[..])]).unwrap();
        assert_eq!(Digest::of_bytes(&small).to_string(), SMALL, "devices hold manifests with this digest");
    }

    const SMALL: &str = "sha256:30b6e539285ee13fa859b10d2d1b57d6282103153b01ba23689c3c66567ac6c6";
}
