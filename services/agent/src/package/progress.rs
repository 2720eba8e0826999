//! The progress of fetches, by the folder of the unit that needs the package. It has no history and knows no speed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The progress of one fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchProgress {
    /// It waits for the fetch of another unit.
    Waiting,
    /// It runs.
    Fetching {
        /// Bytes on the device.
        bytes: u64,
        /// Bytes of the whole package, if its source names them.
        total: Option<u64>,
    },
}

/// The fetches of an agent.
#[derive(Debug, Clone, Default)]
pub(super) struct Fetches(Arc<Mutex<BTreeMap<PathBuf, FetchProgress>>>);

/// A fetch that has begun. Dropping it ends it, and removes its progress.
#[derive(Debug)]
pub(super) struct FetchGuard {
    fetches: Fetches,
    home: PathBuf,
}

/// The part of a fetch that its transfers use: the order to end, and the place of the progress.
#[derive(Debug, Clone)]
pub(super) struct FetchControl {
    /// Ends the transfer.
    pub(super) stop: CancellationToken,
    fetches: Fetches,
    home: PathBuf,
}

impl Fetches {
    /// Begins a fetch for the folder of a unit, which waits at first.
    pub(super) fn begin(&self, home: &Path) -> FetchGuard {
        self.lock().insert(home.to_owned(), FetchProgress::Waiting);
        FetchGuard { fetches: self.clone(), home: home.to_owned() }
    }

    /// The progress of the fetch for a unit's folder, if there is one.
    pub(super) fn of(&self, home: &Path) -> Option<FetchProgress> {
        self.lock().get(home).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, FetchProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FetchGuard {
    /// The control of the transfers of this fetch.
    pub(super) fn control(&self, stop: CancellationToken) -> FetchControl {
        FetchControl { stop, fetches: self.fetches.clone(), home: self.home.clone() }
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        self.fetches.lock().remove(&self.home);
    }
}

impl FetchControl {
    /// Records how many bytes are on the device. A fetch that has ended stays without progress.
    pub(super) fn advance(&self, bytes: u64, total: Option<u64>) {
        if let Some(progress) = self.fetches.lock().get_mut(&self.home) {
            *progress = FetchProgress::Fetching { bytes, total };
        }
    }
}

impl fmt::Display for FetchProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Waiting => f.write_str("waits until another package is fetched"),
            Self::Fetching { bytes, total: None } => write!(f, "fetches its package: {}", megabytes(bytes)),
            Self::Fetching { bytes, total: Some(total) } => {
                write!(f, "fetches its package: {} of {}", megabytes(bytes), megabytes(total))
            }
        }
    }
}

/// A number of bytes as `12.3 MB` (10^6 bytes).
fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_has_progress_from_its_begin_to_its_end() {
        let (fetches, home) = (Fetches::default(), Path::new("/var/unit"));
        let guard = fetches.begin(home);
        assert_eq!(fetches.of(home).unwrap().to_string(), "waits until another package is fetched");
        let control = guard.control(CancellationToken::new());
        control.advance(12_349_999, Some(40_000_000));
        assert_eq!(fetches.of(home).unwrap().to_string(), "fetches its package: 12.3 MB of 40.0 MB");
        control.advance(99_999, None);
        assert_eq!(fetches.of(home).unwrap().to_string(), "fetches its package: 0.0 MB");
        drop(guard);
        control.advance(1, None);
        assert_eq!(fetches.of(home), None);
    }
}
