//! A gzip-packed tar file of texts, of a bounded size, that only its owner reads. Every text is redacted here, so none gets in
//! without.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::redact::redact;

/// Bytes of one part at most.
pub(super) const PART_BYTES_MAX: u64 = 8 << 20;
/// Bytes of all parts at most, before they are packed.
const BUNDLE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a block of a tar file.
const BLOCK: usize = 512;
/// Longest name in the header of a tar file.
const NAME_BYTES_MAX: usize = 100;
/// The part that lists what is not there.
const ERRORS: &str = "errors.txt";
const SECRET: u32 = 0o600;

/// The file while it is written.
pub(super) struct Bundle {
    out: GzEncoder<File>,
    path: PathBuf,
    written_at: u64,
    left: u64,
    parts: Vec<String>,
    errors: Vec<String>,
}

impl Bundle {
    /// Begins a file, which must not exist.
    pub(super) fn create(path: &Path, now: i64) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).mode(SECRET).open(path)?;
        let out = GzEncoder::new(file, Compression::default());
        let (parts, errors, written_at) = (Vec::new(), Vec::new(), now.unsigned_abs());
        Ok(Self { out, path: path.to_owned(), written_at, left: BUNDLE_BYTES_MAX, parts, errors })
    }

    /// Adds what was asked for, or why there is nothing.
    pub(super) fn add_result(&mut self, name: &str, text: Result<String, String>) -> io::Result<()> {
        match text {
            Ok(text) => self.add(name, &text),
            Err(reason) => {
                self.note(&format!("{name}: {reason}"));
                Ok(())
            }
        }
    }

    /// Adds a text without its secrets; one that is too long keeps its end.
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let room = PART_BYTES_MAX.min(self.left);
        let text = redact(text);
        let cut = text.len().saturating_sub(usize::try_from(room).unwrap_or(usize::MAX));
        let cut = (cut..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        if cut > 0 {
            self.note(&format!("{name}: its first {cut} bytes are left out"));
        }
        self.left -= (text.len() - cut) as u64;
        self.write(name, &text.as_bytes()[cut..])
    }

    /// Records a missing item.
    pub(super) fn note(&mut self, reason: &str) {
        self.errors.push(redact(reason));
    }

    /// Ends the file; its bytes, parts and errors.
    pub(super) fn finish(mut self) -> io::Result<(u64, Vec<String>, Vec<String>)> {
        let errors = self.errors.join("\n") + "\n";
        self.write(ERRORS, errors.as_bytes())?;
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.try_finish()?;
        self.out.get_ref().sync_all()?;
        let bytes = fs::metadata(&self.path)?.len();
        Ok((bytes, self.parts, self.errors))
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(name, bytes.len(), self.written_at))?;
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; BLOCK][..(BLOCK - bytes.len() % BLOCK) % BLOCK])?;
        self.parts.push(name.to_owned());
        Ok(())
    }
}

/// The header of a file in the format ustar: fields of fixed width, numbers in octal.
fn header(name: &str, bytes: usize, at: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put =
        |offset: usize, text: &str| header[offset..offset + text.len()].copy_from_slice(text.as_bytes());
    let name = &name[name.len().saturating_sub(NAME_BYTES_MAX)..];
    put(0, name);
    put(100, &format!("{SECRET:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{bytes:011o}"));
    put(136, &format!("{at:011o}"));
    // The checksum counts its own field as spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}
