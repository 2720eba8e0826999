//! `muster restore --from`: checks a backup, and makes from it what the command names: streams, keys, databases of a rollup.
//!
//! Everything is checked before anything is changed: the backup's bytes, that directories are empty, that the server has
//! none of the streams. A stream that equals its copy counts as restored, so an interrupted restore goes on where it ended.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, ReadError, SnapshotError};
use muster_contract::Timestamp;
use muster_contract::subjects::stream;
use serde::Serialize;
use tokio::time::Instant;

use super::archive::{self, refuse_if_there};
use super::error::BackupError;
use super::manifest::{Manifest, SavedStream};
use super::save::StreamSummary;
use super::{BackupContext, SENT_AGAIN, files};
use crate::config::RestoreArgs;
use crate::error::CtlError;
use crate::render::format::bytes_text;
use crate::terminal::Terminal;
use crate::{reach, render};

/// Bytes of a piece that is sent to the server.
const PIECE_BYTES: usize = 128 * 1024;
/// How often a long copy says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// The result of a restore.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreResult {
    /// The backup.
    pub from: PathBuf,
    /// When it was begun.
    pub created_at: Timestamp,
    /// The release that made it.
    pub made_by: String,
    /// Streams that it holds.
    pub streams: Vec<StreamSummary>,
    /// Names of streams that were restored now or by an earlier run.
    pub restored_streams: Vec<String>,
    /// The restored directory of keys.
    pub keys: Option<PathBuf>,
    /// The restored directory of a rollup.
    pub rollup_data: Option<PathBuf>,
    /// Data that the backup does not hold, and who sends it again.
    pub sent_again: &'static str,
}

/// Checks a backup, and restores what the command names.
///
/// # Errors
/// The backup or a target cannot be used; nothing is changed then. Or a server does not take a stream.
pub async fn restore(
    context: &mut BackupContext<'_>,
    from: &Path,
    args: &RestoreArgs,
) -> Result<(), CtlError> {
    let manifest = archive::open(from)?;
    check_directories(&manifest, args)?;
    let bus = if args.streams || args.rollup_data.is_some() {
        Some(reach::connect(&context.connection.check()?).await?)
    } else {
        None
    };
    if let Some(bus) = &bus {
        let restored = restore_on(context.terminal, bus, from, &manifest, args).await;
        restored.map_err(|error| CtlError::from(error).because(bus.refusal()))?;
    } else if let Some(dir) = &args.keys {
        files::restore_keys(from, &manifest.keys, dir)?;
    }
    let streams: Vec<_> = manifest.streams.iter().map(StreamSummary::of).collect();
    let names = streams.iter().filter(|_| args.streams).map(|stream| stream.name.clone());
    let result = RestoreResult {
        from: from.to_owned(),
        created_at: manifest.created_at,
        made_by: manifest.made_by,
        restored_streams: names.collect(),
        streams,
        keys: args.keys.clone(),
        rollup_data: args.rollup_data.clone(),
        sent_again: SENT_AGAIN,
    };
    context.show(&result, render::backup::restored)
}

/// Checks that the backup has what is to be restored, and that nothing is written over.
fn check_directories(manifest: &Manifest, args: &RestoreArgs) -> Result<(), BackupError> {
    let parts = [
        (args.keys.as_deref(), manifest.keys.is_empty(), "keys"),
        (args.rollup_data.as_deref(), manifest.rollup.is_empty(), "databases of a rollup"),
    ];
    for (dir, is_lacking, what) in parts {
        match dir {
            Some(_) if is_lacking => return Err(BackupError::Lacks(what)),
            Some(dir) => refuse_if_there(dir)?,
            None => {}
        }
    }
    Ok(())
}

/// Restores what the command names, with a server at hand.
async fn restore_on(
    terminal: &mut Terminal,
    bus: &Bus,
    from: &Path,
    manifest: &Manifest,
    args: &RestoreArgs,
) -> Result<(), BackupError> {
    let missing = if args.streams { missing_streams(bus, manifest).await? } else { Vec::new() };
    // Nothing was changed so far.
    if let Some(dir) = &args.keys {
        files::restore_keys(from, &manifest.keys, dir)?;
    }
    restore_streams(terminal, bus, from, &missing).await?;
    if let Some(dir) = &args.rollup_data {
        let ledger = bus.stream_state(stream::LEDGER).await.map_err(SnapshotError::Read)?;
        files::restore_rollup(from, &manifest.rollup, dir, ledger.created_at)?;
    }
    Ok(())
}

/// The streams that the server lacks; those that equal their copy are left out.
async fn missing_streams(bus: &Bus, manifest: &Manifest) -> Result<Vec<SavedStream>, BackupError> {
    if manifest.streams.is_empty() {
        return Err(BackupError::Lacks("streams"));
    }
    let (mut missing, mut others) = (Vec::new(), Vec::new());
    for saved in &manifest.streams {
        match bus.stream_state(&saved.name).await {
            Err(ReadError::Missing { .. }) => missing.push(saved.clone()),
            Err(error) => return Err(SnapshotError::Read(error).into()),
            Ok(state) => {
                let copy = StreamSummary::of(saved);
                let is_same = (state.messages, state.last_seq) == (copy.messages, copy.last_seq)
                    && (state.messages == 0 || state.first_seq == copy.first_seq);
                if !is_same {
                    others.push(saved.name.clone());
                }
            }
        }
    }
    // LEDGER copies from DOWNLINK, so nothing else may run while LEDGER is restored: it comes last.
    missing.sort_by_key(|saved| saved.name == stream::LEDGER);
    if others.is_empty() { Ok(missing) } else { Err(BackupError::StreamsExist(others)) }
}

async fn restore_streams(
    terminal: &mut Terminal,
    bus: &Bus,
    from: &Path,
    missing: &[SavedStream],
) -> Result<(), BackupError> {
    let mut done = Vec::new();
    for saved in missing {
        match restore_stream(terminal, bus, from, saved).await {
            Ok(()) => done.push(saved.name.clone()),
            Err(BackupError::Stream(source)) => {
                return Err(BackupError::Interrupted { stream: saved.name.clone(), done, source });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn restore_stream(
    terminal: &mut Terminal,
    bus: &Bus,
    from: &Path,
    saved: &SavedStream,
) -> Result<(), BackupError> {
    let path = from.join(&saved.file.path);
    let mut file = std::fs::File::open(&path).map_err(BackupError::file("read", &path))?;
    let writer = bus.restore_stream(&saved.name, &saved.head).await?;
    let (mut sent, mut told) = (0, Instant::now());
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let part = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece);
        if part.map_err(BackupError::file("read", &path))? == 0 {
            break;
        }
        sent += piece.len() as u64;
        writer.send(Bytes::from(piece)).await?;
        if told.elapsed() >= PROGRESS_EVERY {
            let (sent, all) = (bytes_text(sent), bytes_text(saved.file.bytes));
            terminal.print_note(&format!("{}: {sent} of {all}\n", saved.name));
            told = Instant::now();
        }
    }
    writer.finish().await?;
    Ok(())
}
