//! `muster backup` and `muster restore --from`: a copy of a hub in a directory, and a hub made again from it.
//!
//! [`archive`] is the directory: a file for each copied part and a [`manifest`] with their digests, written last. [`files`] copies
//! the directory of keys and the rollup's databases; [`save()`] and [`put_back`] are the two commands. A restore checks every
//! byte before it changes anything, and writes over nothing. No device's outbox is ever copied: devices send again what no
//! receipt covers.

pub mod archive;
pub(crate) mod error;
mod files;
pub mod manifest;
mod put_back;
mod save;

use muster_contract::subjects::stream;
use muster_contract::{Timestamp, packages};
use muster_service::clock::Clock;
use serde::Serialize;

pub(crate) use put_back::RestoreResult;
pub use put_back::restore;
pub use save::save;
pub(crate) use save::{BackupResult, StreamSummary};

use crate::config::{ConnectionArgs, Format};
use crate::error::CtlError;
use crate::terminal::Terminal;

/// The copied streams in the order of a backup: a stream before those that are written later than it. The views are not
/// newer than LEDGER, and LEDGER has copied no desired state that DOWNLINK lacks.
const SAVED: [&str; 8] = [
    muster_bus::topology::VIEWS_STREAM,
    stream::LEDGER,
    stream::DOWNLINK,
    stream::QUARANTINE,
    stream::NOTICES,
    // After LEDGER: a number that it lacks is a gap, and one that the bucket lacks would be given twice.
    stream::HTTP_DEVICES,
    // After DOWNLINK and LEDGER: the planner orders again what they lack, and would not know of an instance that PLANS lacks.
    stream::PLANS,
    // After DOWNLINK: it has the packages that the copied documents name.
    packages::STREAM,
];

/// Data that no backup holds, and who sends it again.
pub(crate) const SENT_AGAIN: &str = "not copied: UPLINK (devices send again every report that no receipt covers, and those of the \
                              last 24 h, 10,000 at most, that the restored hub asks for), PRESENCE (the next heartbeats)";

/// The context of both commands.
pub struct BackupContext<'a> {
    /// The format of answers.
    pub format: Format,
    /// The terminal of answers and progress.
    pub terminal: &'a mut Terminal,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// The connection to a server, for the streams.
    pub connection: &'a ConnectionArgs,
}

impl BackupContext<'_> {
    /// Shows the result of a command.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn show<T: Serialize>(
        &mut self,
        found: &T,
        render: impl FnOnce(&T, Timestamp) -> String,
    ) -> Result<(), CtlError> {
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(found).unwrap_or_default() + "\n";
                self.terminal.print_json(&text)?;
            }
            Format::Table => self.terminal.print(&render(found, self.clock.now()))?,
        }
        Ok(())
    }
}
