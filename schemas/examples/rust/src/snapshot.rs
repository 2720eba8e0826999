//! What a run leaves to the next one: the folded state, and of which LEDGER it is. It is written as a whole or not at all, and
//! what is damaged or of another LEDGER is set aside, never believed and never deleted.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use muster_contract::canonical::Digest;
use serde::{Deserialize, Serialize};

use crate::failure::{Result, during};
use crate::fleet::Fleet;

/// A LEDGER, as far as a snapshot cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// When the stream was made: one that was made anew is another one.
    pub created: Timestamp,
    /// The first sequence that it still has, or will have.
    pub first: u64,
    /// The last one that was given out.
    pub last: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Snapshot {
    ledger_created: Timestamp,
    fleet: Fleet,
    digest: Digest,
}

impl Snapshot {
    fn digest(&self) -> Digest {
        Digest::of_value(&(self.ledger_created, &self.fleet))
    }

    /// Why nothing can be built on it, if nothing can.
    fn refusal(&self, ledger: &Window) -> Option<&'static str> {
        let after = self.fleet.as_of.ledger_seq + 1;
        if self.digest != self.digest() {
            Some("is not what was written")
        } else if self.ledger_created != ledger.created || after > ledger.last + 1 {
            Some("is of another LEDGER")
        } else if after < ledger.first {
            Some("ends before LEDGER begins")
        } else {
            None
        }
    }
}

/// The state that an earlier run left, or the beginning where there is none to build on. What is set aside is said on
/// standard error.
///
/// # Errors
/// The file cannot be read, or not set aside.
#[allow(clippy::print_stderr, reason = "it is a program for a terminal")]
pub fn load(path: &Path, ledger: &Window) -> Result<Fleet> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Fleet::default()),
        bytes => bytes.map_err(during(format!("cannot read {}", path.display())))?,
    };
    let refusal = match serde_json::from_slice::<Snapshot>(&bytes) {
        Err(error) => format!("is damaged: {error}"),
        Ok(snapshot) => match snapshot.refusal(ledger) {
            None => return Ok(snapshot.fleet),
            Some(refusal) => refusal.to_owned(),
        },
    };
    let aside = beside(path, "aside");
    fs::rename(path, &aside).map_err(during(format!("cannot set {} aside", path.display())))?;
    eprintln!(
        "{} {refusal}; it is now {}, and LEDGER is read from its beginning",
        path.display(),
        aside.display()
    );
    Ok(Fleet::default())
}

/// Leaves the state to the next run.
///
/// # Errors
/// It cannot be written; what was there before still is.
pub fn save(path: &Path, fleet: Fleet, ledger: &Window) -> Result<()> {
    let mut snapshot = Snapshot { ledger_created: ledger.created, fleet, digest: Digest::of_bytes(b"") };
    snapshot.digest = snapshot.digest();
    let new = beside(path, "new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&snapshot)?)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(during(format!("cannot write {}", path.display())))
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{what}"));
    name.into()
}
