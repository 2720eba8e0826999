//! `muster backup`: copies the streams of a hub, the directory of keys and the databases of a rollup into a new directory.

use std::path::PathBuf;
use std::time::Duration;

use muster_bus::{Bus, ReadError, SnapshotError};
use muster_contract::Timestamp;
use muster_service::VERSION;
use serde::Serialize;
use tokio::time::Instant;

use super::archive::Draft;
use super::error::BackupError;
use super::manifest::{FORMAT, Manifest, SavedStream};
use super::{BackupContext, SAVED, SENT_AGAIN, files};
use crate::auth::lock_keys;
use crate::config::BackupArgs;
use crate::error::CtlError;
use crate::render::format::bytes_text;
use crate::terminal::Terminal;
use crate::{reach, render};

/// How often a long copy says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// The access mode of a stream's file, which has no original.
const SECRET: u32 = 0o600;

/// The result of a backup.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupResult {
    /// The directory.
    pub dir: PathBuf,
    /// When it was begun.
    pub created_at: Timestamp,
    /// The streams.
    pub streams: Vec<StreamSummary>,
    /// Streams that the hub does not have.
    pub missing_streams: Vec<String>,
    /// Files of the directory of keys.
    pub key_files: usize,
    /// Databases of a rollup.
    pub rollup_files: usize,
    /// Data that it does not hold, and who sends it again.
    pub sent_again: &'static str,
}

/// A stream of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamSummary {
    /// Its name.
    pub name: String,
    /// Its messages.
    pub messages: u64,
    /// The first sequence.
    pub first_seq: u64,
    /// The last sequence.
    pub last_seq: u64,
    /// The bytes of its file.
    pub file_bytes: u64,
}

impl StreamSummary {
    /// The summary of a copied stream.
    pub fn of(saved: &SavedStream) -> Self {
        let number = |field| saved.head.number(field);
        Self {
            name: saved.name.clone(),
            messages: number("messages"),
            first_seq: number("first_seq"),
            last_seq: number("last_seq"),
            file_bytes: saved.file.bytes,
        }
    }
}

/// Makes a backup.
///
/// # Errors
/// Something cannot be read or written; no backup is left then.
pub async fn save(context: &mut BackupContext<'_>, args: &BackupArgs) -> Result<(), CtlError> {
    let created_at = context.clock.now();
    let draft = Draft::create(&args.output)?;
    let mut manifest = Manifest {
        format: FORMAT,
        made_by: VERSION.to_owned(),
        created_at,
        streams: Vec::new(),
        keys: Vec::new(),
        rollup: Vec::new(),
    };
    if let Some(dir) = &args.keys {
        let _lock = lock_keys(dir)?;
        manifest.keys = files::save_keys(&draft, dir)?;
    }
    // Before LEDGER: a rollup's snapshot must not be of a later fact.
    if let Some(dir) = &args.rollup_data {
        manifest.rollup = files::save_rollup(&draft, dir)?;
    }
    let mut missing_streams = Vec::new();
    if !args.without_streams {
        let bus = reach::connect(&context.connection.check()?).await?;
        for name in SAVED {
            match save_stream(context.terminal, &draft, &bus, name).await {
                Ok(saved) => manifest.streams.push(saved),
                Err(BackupError::Stream(SnapshotError::Read(ReadError::Missing { .. }))) => {
                    missing_streams.push(name.to_owned());
                }
                Err(error) => return Err(CtlError::from(error).because(bus.refusal())),
            }
        }
        if manifest.streams.is_empty() {
            return Err(BackupError::NoStreams.into());
        }
    }
    draft.finish(&manifest)?;
    let result = BackupResult {
        dir: args.output.clone(),
        created_at,
        streams: manifest.streams.iter().map(StreamSummary::of).collect(),
        missing_streams,
        key_files: manifest.keys.len(),
        rollup_files: manifest.rollup.len(),
        sent_again: SENT_AGAIN,
    };
    context.show(&result, |result, _| render::backup::saved(result))
}

async fn save_stream(
    terminal: &mut Terminal,
    draft: &Draft,
    bus: &Bus,
    name: &str,
) -> Result<SavedStream, BackupError> {
    let mut reader = bus.snapshot(name).await?;
    let mut file = draft.file(&format!("streams/{name}.snapshot"), SECRET)?;
    let mut told = Instant::now();
    while let Some(piece) = reader.next().await? {
        file.write(&piece)?;
        if told.elapsed() >= PROGRESS_EVERY {
            let (copied, held) = (bytes_text(file.bytes()), bytes_text(reader.head().number("bytes")));
            terminal.print_note(&format!("{name}: {copied} packed; the stream holds {held}\n"));
            told = Instant::now();
        }
    }
    Ok(SavedStream { name: name.to_owned(), head: reader.head().clone(), file: file.finish()? })
}
