//! Writes the status of the agent to a file in its data directory, and prints it for `muster-agent status`. The
//! database is locked while the agent runs; the file can be read at any time. Everything in it is also in the
//! database, and the agent never reads it back.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::receipt::RefusedNumbers;
use muster_contract::token::TokenTerm;
use muster_contract::{DeviceKey, Epoch, Timestamp};
use muster_service::clock::{Clock, SystemClock};
use muster_service::error::chain;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::outbox::Summary;

const FILE: &str = "status.json";
/// Least time between two writes, unless a refusal or the token has changed: a flash disk wears out.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// The status of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// The device.
    pub(crate) device: DeviceKey,
    /// The time of writing, by the device's clock.
    pub(crate) at: Timestamp,
    /// The epoch, once it is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<Epoch>,
    /// Highest report number ever given.
    pub(crate) head: u64,
    /// Reports that UPLINK has not confirmed.
    pub(crate) unsent: u64,
    /// Rows of the outbox.
    pub(crate) rows: u64,
    /// Bytes of the outbox.
    pub(crate) bytes: u64,
    /// Reports that the hub refused, by its last receipt.
    #[serde(default)]
    pub(crate) refused: Vec<RefusedNumbers>,
    /// The desired state that this device refused, while it has accepted none since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused_desired: Option<DesiredRefusal>,
    /// The term of the device's token, if it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<TokenTerm>,
}

/// The figures in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// The contents of the outbox.
    pub(crate) summary: Summary,
    /// The refusal of a desired state that stands.
    pub(crate) refused: Option<DesiredRefusal>,
    /// The term of the device's token.
    pub(crate) token: Option<TokenTerm>,
}

/// The error of reading the status file.
#[derive(Debug, thiserror::Error)]
enum StatusFileError {
    #[error("cannot read {}: has an agent run with this --data-dir?", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a status file: start the agent, which rewrites it", .path.display())]
    Broken { path: PathBuf, source: serde_json::Error },
}

/// Writes the status file of a running agent.
pub(crate) struct StatusFile {
    path: PathBuf,
    device: DeviceKey,
    clock: Arc<dyn Clock>,
    written: Option<Figures>,
    pending: Option<Figures>,
    due_at: Instant,
}

impl StatusFile {
    /// The file in a data directory, not written yet.
    pub(crate) fn new(data_dir: &Path, device: DeviceKey, clock: Arc<dyn Clock>) -> Self {
        let path = data_dir.join(FILE);
        Self { path, device, clock, written: None, pending: None, due_at: Instant::now() }
    }

    /// Takes the newest figures; [`Self::write`] writes them.
    pub(crate) fn update(&mut self, figures: &Figures) {
        self.pending = (self.written.as_ref() != Some(figures)).then(|| figures.clone());
        let urgent =
            |figures: &Figures| (figures.summary.refused.clone(), figures.refused.clone(), figures.token);
        if self.written.as_ref().is_none_or(|written| urgent(written) != urgent(figures)) {
            self.due_at = Instant::now();
        }
    }

    /// True if the file is out of date.
    pub(crate) const fn is_due(&self) -> bool {
        self.pending.is_some()
    }

    /// When it may be written next.
    pub(crate) const fn due_at(&self) -> Instant {
        self.due_at
    }

    /// Writes the file. A disk failure is logged at debug level only: the database reports it.
    pub(crate) async fn write(&mut self) {
        self.due_at = Instant::now() + WRITE_INTERVAL;
        let Some(figures) = self.pending.take() else { return };
        let (path, status) = (self.path.clone(), self.status(&figures));
        match tokio::task::spawn_blocking(move || write(&path, &status)).await {
            Ok(Ok(())) => self.written = Some(figures),
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::debug!(error = chain(&error), "cannot write the status file: trying again");
                }
                self.pending = Some(figures);
            }
        }
    }

    fn status(&self, Figures { summary, refused: refused_desired, token }: &Figures) -> Status {
        let Summary { epoch, head, unsent, rows, bytes, ref refused, .. } = *summary;
        let (refused_desired, token) = (refused_desired.clone(), *token);
        let (device, at, refused) = (self.device.clone(), self.clock.now(), refused.clone());
        Status { device, at, epoch, head, unsent, rows, bytes, refused, refused_desired, token }
    }
}

/// A reader sees the old file or the new one, whole.
fn write(path: &Path, status: &Status) -> io::Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, serde_json::to_vec(status)?)?;
    fs::rename(beside, path)
}

/// Prints the status of the agent in a data directory.
pub(crate) fn print(data_dir: &Path, json: bool) -> ExitCode {
    let (said, code) = match read(data_dir) {
        Ok((text, status)) => {
            let text = if json { text + "\n" } else { format_status(&status, SystemClock.now()) };
            (io::stdout().write_all(text.as_bytes()), ExitCode::SUCCESS)
        }
        Err(error) => (writeln!(io::stderr(), "muster-agent: {}", chain(&error)), ExitCode::FAILURE),
    };
    if said.is_ok() { code } else { ExitCode::FAILURE }
}

fn read(data_dir: &Path) -> Result<(String, Status), StatusFileError> {
    let path = data_dir.join(FILE);
    let text =
        fs::read_to_string(&path).map_err(|source| StatusFileError::Read { path: path.clone(), source })?;
    let status = serde_json::from_str(&text).map_err(|source| StatusFileError::Broken { path, source })?;
    Ok((text, status))
}

/// The status as text, read at `now`.
pub(crate) fn format_status(status: &Status, now: Timestamp) -> String {
    let Status { device, at, epoch, head, unsent, rows, bytes, refused, refused_desired, token } = status;
    let epoch = epoch.map_or_else(|| "not fixed yet".to_owned(), |epoch| epoch.to_string());
    let line = |RefusedNumbers { ranges, reason }: &RefusedNumbers| {
        format!("{} reports, {ranges}: {reason}; they stay here until the hub has room\n", ranges.count())
    };
    let mut reports = refused.iter().map(line).collect::<Vec<_>>().join("           ");
    if reports.is_empty() {
        "none\n".clone_into(&mut reports);
    }
    let desired = refused_desired.as_ref().map_or_else(String::new, |refusal| {
        let (what, DesiredRefusal { message, since, .. }) = (refusal.refused(), refusal);
        format!("desired    refused {what} since {since}: {message}; the one accepted last stays in force\n")
    });
    format!(
        "device     {device}\nas of      {at}\nepoch      {epoch}\nhead       {head}, {unsent} unsent\n\
         outbox     {rows} rows, {bytes} bytes\nrefused    {reports}{desired}{}",
        token.map_or_else(String::new, |token| format_token(device, &token, now))
    )
}

/// The line of the token.
fn format_token(device: &DeviceKey, token: &TokenTerm, now: Timestamp) -> String {
    let ends_at = token.ends_at;
    if ends_at <= now {
        format!(
            "token      ended at {ends_at}: run `muster enroll {device} -o FILE`, and `muster-agent accept FILE` here\n"
        )
    } else if token.ends_soon(now) {
        format!(
            "token      ends soon, at {ends_at}: start muster-renewer, or run `muster enroll {device} --send`\n"
        )
    } else {
        format!("token      ends at {ends_at}\n")
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::desired_refusal::DesiredRefusalCode;
    use muster_contract::{Generation, SeqRanges};
    use muster_service::clock::SystemClock;

    use super::*;

    #[tokio::test]
    async fn the_file_names_refused_reports_and_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StatusFile::new(dir.path(), "plant7/press-4".parse().unwrap(), Arc::new(SystemClock));
        assert!(read(dir.path()).is_err());
        let refused = RefusedNumbers { ranges: SeqRanges::span(5, 61), reason: "quarantineFull".to_owned() };
        let summary = Summary { head: 61, rows: 57, refused: vec![refused], ..Summary::default() };
        let figures = |summary: &Summary| Figures { summary: summary.clone(), ..Figures::default() };
        file.update(&figures(&summary));
        file.write().await;
        let (_, status) = read(dir.path()).unwrap();
        assert_eq!((status.head, &status.refused), (61, &summary.refused));
        let text = format_status(&status, Timestamp::UNIX_EPOCH);
        assert!(text.contains("57 reports, 5-61: quarantineFull"), "{text}");
        // Later figures wait; a change of the refused reports does not.
        file.update(&figures(&Summary { head: 62, ..summary.clone() }));
        assert!(file.is_due() && file.due_at() > Instant::now());
        file.update(&figures(&Summary { head: 62, refused: Vec::new(), ..summary }));
        assert!(file.is_due() && file.due_at() <= Instant::now());
    }

    #[tokio::test]
    async fn the_file_names_a_refused_desired_state_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StatusFile::new(dir.path(), "plant7/press-4".parse().unwrap(), Arc::new(SystemClock));
        file.update(&Figures::default());
        file.write().await;
        let refusal = DesiredRefusal {
            generation: Generation::new(4),
            code: DesiredRefusalCode::Older,
            message: "its generation 4 is below 7".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        };
        file.update(&Figures { refused: Some(refusal), ..Figures::default() });
        assert!(file.is_due() && file.due_at() <= Instant::now());
        file.write().await;
        let text = format_status(&read(dir.path()).unwrap().1, Timestamp::UNIX_EPOCH);
        let wanted =
            "desired    refused generation 4 since 1970-01-01T00:00:00Z: its generation 4 is below 7;";
        assert!(text.contains(wanted), "{text}");
    }

    #[tokio::test]
    async fn the_file_says_when_the_token_ends_and_what_to_do_before_that() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StatusFile::new(dir.path(), "plant7/press-4".parse().unwrap(), Arc::new(SystemClock));
        file.update(&Figures::default());
        file.write().await;
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(!format_status(&read(dir.path()).unwrap().1, at(0)).contains("token"));
        let token = Some(TokenTerm { issued_at: at(0), ends_at: at(1_000) });
        file.update(&Figures { token, ..Figures::default() });
        assert!(file.is_due() && file.due_at() <= Instant::now());
        file.write().await;
        let status = read(dir.path()).unwrap().1;
        for (second, words) in [
            (899, "token      ends at 1970-01-01T00:16:40Z\n"),
            (
                900,
                "token      ends soon, at 1970-01-01T00:16:40Z: start muster-renewer, or run `muster enroll plant7/press-4 --send`",
            ),
            (1_000, "token      ended at 1970-01-01T00:16:40Z: run `muster enroll plant7/press-4 -o FILE`"),
        ] {
            let text = format_status(&status, at(second));
            assert!(text.contains(words), "{second}: {text}");
        }
    }

    #[tokio::test]
    async fn a_failed_write_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StatusFile::new(dir.path(), "plant7/press-4".parse().unwrap(), Arc::new(SystemClock));
        let obstacle = dir.path().join(FILE).with_extension("new");
        fs::create_dir(&obstacle).unwrap();
        file.update(&Figures::default());
        file.write().await;
        assert!(file.is_due() && file.due_at() > Instant::now());
        fs::remove_dir(&obstacle).unwrap();
        file.write().await;
        assert!(!file.is_due() && read(dir.path()).is_ok());
    }
}
