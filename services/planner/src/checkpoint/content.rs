//! The content of a checkpoint: lines of JSON, compressed. In order: the counts, hearing state and the planner's own projection; the
//! record of each device, packed; the devices of rollouts; the targets of each deployment.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use muster_contract::DeviceKey;
use muster_contract::labels::Labels;
use muster_contract::view::AsOf;
use muster_domain::fold::{BadRecord, DeviceRecord, Fleet, PackedRecord, RecordPacker};
use muster_domain::rollout::TargetDevice;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zstd::stream::{read, write};

use super::LedgerMark;
use crate::evidence::{Head, PlannerProjection};
use crate::rollouts::stored::StoredDeployment;

/// How hard the content is compressed: records repeat themselves, so that the lowest level suffices.
const LEVEL: i32 = 1;
/// Records that one thread passes to the next at once.
const BATCH: usize = 256;
/// Bytes that are compressed in one call: serde_json writes a line in many small pieces, and each call has a fixed cost.
const COMPRESSED_AT_ONCE: usize = 64 * 1024;
/// Batches that wait for a thread.
const BATCHES_WAITING_MAX: usize = 8;

/// A part of the content.
#[derive(Debug)]
pub(super) enum Part {
    Head(Box<Head>),
    Records(Vec<DeviceRecord>),
    Devices(Vec<Arc<TargetDevice>>),
    Deployment(StoredDeployment),
    /// Nothing follows. A content without it is not written.
    End,
}

/// A restored content.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) fleet: Fleet,
    pub(crate) projection: PlannerProjection,
    pub(crate) devices: Vec<TargetDevice>,
    pub(crate) deployments: Vec<StoredDeployment>,
}

/// Why a content cannot be restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("its content cannot be decompressed")]
    Io(#[from] io::Error),
    #[error("a line of its content cannot be read")]
    Line(#[from] serde_json::Error),
    #[error(transparent)]
    Record(#[from] BadRecord),
    #[error("its records do not match their digest")]
    Counts,
}

/// Compresses parts as they arrive; `None` if they end without [`Part::End`].
///
/// # Errors
/// The compression fails.
pub(super) fn compress(parts: &Receiver<Part>) -> io::Result<Option<Vec<u8>>> {
    let mut out = BufWriter::with_capacity(COMPRESSED_AT_ONCE, write::Encoder::new(Vec::new(), LEVEL)?);
    let mut packer = RecordPacker::default();
    for part in parts {
        match part {
            Part::Head(head) => write_line(&mut out, &head)?,
            Part::Records(records) => {
                let mut packed = records.into_iter().map(|record| packer.pack(record));
                packed.try_for_each(|record| write_line(&mut out, &record))?;
            }
            Part::Devices(devices) => {
                write_line(&mut out, &devices.len())?;
                let lines = devices.iter().map(|device| (&device.key, &device.labels));
                lines.into_iter().try_for_each(|line| write_line(&mut out, &line))?;
            }
            Part::Deployment(deployment) => write_line(&mut out, &deployment)?,
            Part::End => return out.into_inner()?.finish().map(Some),
        }
    }
    Ok(None)
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Restores a content up to a message of LEDGER. One thread reads lines, another one unpacks and applies records.
///
/// # Errors
/// The content does not fit.
pub(super) fn read(compressed: &[u8], mark: LedgerMark) -> Result<Restored, ContentError> {
    let mut lines = Lines { from: BufReader::new(read::Decoder::with_buffer(compressed)?), line: Vec::new() };
    let Head { records, fleet: digest, hearing, projection } = lines.value()?.ok_or(ContentError::Counts)?;
    let as_of = AsOf { ledger_seq: mark.position, at: mark.stored_at };
    let (fleet, devices, deployments) = thread::scope(|scope| {
        let (out, batches) = sync_channel::<Vec<PackedRecord>>(BATCHES_WAITING_MAX);
        let fleet = scope.spawn(move || Fleet::restore_packed(as_of, hearing, batches.into_iter().flatten()));
        let sent = lines.records(records, &out);
        drop(out);
        let rollouts = sent.and_then(|()| lines.rollouts());
        // The reader sends nothing more once a record is damaged: the other thread has the reason.
        let fleet = fleet.join().map_err(|_| ContentError::Counts)??;
        let (devices, deployments) = rollouts?;
        Ok::<_, ContentError>((fleet, devices, deployments))
    })?;
    let is_whole = u64::try_from(fleet.devices_known()) == Ok(records);
    if !is_whole || fleet.fleet_view().tally.digest != digest {
        return Err(ContentError::Counts);
    }
    Ok(Restored { fleet, projection, devices, deployments })
}

/// The lines of a content.
struct Lines<R> {
    from: R,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// The next line; `None` at the end.
    fn value<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ContentError> {
        self.line.clear();
        if self.from.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&self.line)?))
    }

    fn records(&mut self, count: u64, out: &SyncSender<Vec<PackedRecord>>) -> Result<(), ContentError> {
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..count {
            batch.push(self.value()?.ok_or(ContentError::Counts)?);
            if batch.len() == BATCH && out.send(std::mem::take(&mut batch)).is_err() {
                return Err(ContentError::Counts);
            }
        }
        out.send(batch).map_err(|_| ContentError::Counts)
    }

    fn rollouts(&mut self) -> Result<(Vec<TargetDevice>, Vec<StoredDeployment>), ContentError> {
        let count: usize = self.value()?.ok_or(ContentError::Counts)?;
        let (mut devices, mut deployments) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (key, labels): (DeviceKey, Labels) = self.value()?.ok_or(ContentError::Counts)?;
            devices.push(TargetDevice { key, labels });
        }
        while let Some(deployment) = self.value()? {
            deployments.push(deployment);
        }
        Ok((devices, deployments))
    }
}
