//! Packs the records of a fold for a checkpoint: compressed text in parts with checksums. It does no IO.

use std::io::{self, Read as _};

use muster_domain::fold::{DeviceRecord, HearingState};

use super::store::error::{KeepError, LoadError};
use crate::store::Store;

/// Records compressed together: enough to repeat themselves, few enough to be read by several threads at once.
pub(crate) const PART_RECORDS: usize = 2_000;
/// Bytes of one part, unpacked, beyond which no further record is put into it.
const PART_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of one unpacked part: a larger one is damaged, and a record of that size is not kept.
const PART_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// How hard parts are compressed. Records repeat themselves so much that more effort hardly pays.
const LEVEL: i32 = 1;

const _: () = assert!(2 * PART_BYTES as u64 <= PART_BYTES_MAX);

/// All records of a fold: a twentieth, or less, of what they take as text.
#[derive(Debug, Default)]
pub struct Packed {
    /// The parts, in no order.
    pub parts: Vec<Vec<u8>>,
    /// Records in them.
    pub devices: u64,
    /// Their bytes together.
    pub bytes: u64,
    /// The hub's hearing state.
    pub hearing: HearingState,
}

/// Packs records into parts.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    lines: String,
    waiting: usize,
    packed: Packed,
}

impl Packed {
    /// The records of a snapshot as it lies on disk.
    ///
    /// # Errors
    /// The snapshot does not hold, or a record cannot be packed.
    pub(crate) fn of_snapshot(snapshot: &Store) -> Result<Self, KeepError> {
        let mut packer = Packer::default();
        snapshot.each_record(|record| packer.pack_text(record))?;
        packer.finish(snapshot.hearing()?)
    }
}

impl Packer {
    /// Packs a record given as text.
    ///
    /// # Errors
    /// The record is too large or cannot be packed.
    pub(crate) fn pack_text(&mut self, record: &str) -> Result<(), KeepError> {
        if record.len() as u64 >= PART_BYTES_MAX {
            let words = format!("one record has {} bytes; {PART_BYTES_MAX} can be read", record.len());
            return Err(KeepError::Pack(io::Error::other(words)));
        }
        if self.lines.len() + record.len() > PART_BYTES {
            self.pack()?;
        }
        self.lines.push_str(record);
        self.lines.push('\n');
        self.waiting += 1;
        self.packed.devices += 1;
        if self.waiting == PART_RECORDS { self.pack() } else { Ok(()) }
    }

    /// Packs a record.
    ///
    /// # Errors
    /// As [`Self::pack_text`].
    pub(crate) fn pack_record(&mut self, record: &DeviceRecord) -> Result<(), KeepError> {
        let text = serde_json::to_string(record).map_err(|error| KeepError::Pack(error.into()))?;
        self.pack_text(&text)
    }

    /// Returns all packed parts, with the hearing state.
    ///
    /// # Errors
    /// The last part cannot be packed.
    pub(crate) fn finish(mut self, hearing: HearingState) -> Result<Packed, KeepError> {
        self.pack()?;
        self.packed.hearing = hearing;
        Ok(self.packed)
    }

    fn pack(&mut self) -> Result<(), KeepError> {
        if self.waiting == 0 {
            return Ok(());
        }
        let part = compressed(self.lines.as_bytes()).map_err(KeepError::Pack)?;
        self.packed.bytes += part.len() as u64;
        self.packed.parts.push(part);
        self.lines.clear();
        self.waiting = 0;
        Ok(())
    }
}

/// Compressed, with a checksum.
fn compressed(lines: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(lines)
}

/// Unpacks the records of a part.
///
/// # Errors
/// The part is damaged.
pub fn unpack(part: &[u8]) -> Result<Vec<DeviceRecord>, LoadError> {
    let mut lines = Vec::new();
    let unpacked = zstd::stream::read::Decoder::with_buffer(part)
        .and_then(|decoder| decoder.take(PART_BYTES_MAX).read_to_end(&mut lines));
    unpacked.map_err(LoadError::Part)?;
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(LoadError::Record)).collect()
}
